"""Who shares what: from a ZeRO stage and a training state to the ranks that divide it, and the share of one rank.

Answers "into how many parts is this state cut, and how many elements does the fullest rank hold?". The only place
that knows which stage shards which state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from itertools import accumulate

from planner.records.candidate import Degrees, ZeroStage
from planner.units import ceil_div

START_ALIGNMENT_ELEMENTS = 2
"""Every partition of a flat buffer starts on a multiple of this many elements (`nccl_start_alignment_factor`)."""


class State(Enum):
    """A training state that ZeRO can shard; the value is the first stage that does."""

    OPTIMIZER = ZeroStage.OPTIMIZER
    """fp32 master weights and optimizer states."""
    GRADIENTS = ZeroStage.GRADIENTS
    """Reduced gradients."""
    PARAMETERS = ZeroStage.PARAMETERS
    """16-bit weights."""


def shards(stage: ZeroStage, state: State, degrees: Degrees) -> int:
    """How many ranks divide that state: the data-parallel group from the state's stage on, else one.

    Formula: dp if stage >= 1 (optimizer), 2 (gradients), 3 (parameters), else 1.
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, sections 5.1 to 5.3.
    Leaves out: hierarchical partitions (hpZ, MiCS).
    """
    return degrees.dp if stage >= state.value else 1


def padded_share(numel: int, dp: int) -> int:
    """Elements of one partition of a flat buffer that `dp` ranks divide.

    Formula: 2 * ceil(numel / (2 * dp)).
    Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/stage_1_and_2.py, `nccl_start_alignment_factor` (2) times dp.
    Leaves out: the split into weight-decay groups, each of which is padded by itself.
    """
    return START_ALIGNMENT_ELEMENTS * ceil_div(numel, START_ALIGNMENT_ELEMENTS * dp)


@lru_cache(maxsize=512)
def touched_elements(tensors: Sequence[int], share: int, part: int) -> int:
    """Elements of all tensors that lie in a partition, those that reach over its ends counted whole.

    Formula: end of the last tensor in the partition - start of the first one.
    Source: DeepSpeed 0.19.8, deepspeed/runtime/zero/stage_1_and_2.py `get_partition_info`, `copy_grads_in_partition`.
    Leaves out: nothing.
    """
    return _touched(tuple(accumulate(tensors)), share, part)


@lru_cache(maxsize=512)
def fullest_part(tensors: Sequence[int], share: int, parts: int) -> int:
    """The partition whose tensors have most elements, the first of those that have as many."""
    ends = tuple(accumulate(tensors))
    return max(range(parts), key=lambda part: _touched(ends, share, part))


def _touched(ends: Sequence[int], share: int, part: int) -> int:
    first, last = bisect_right(ends, part * share), bisect_right(ends, min((part + 1) * share, ends[-1]) - 1)
    if first >= len(ends):
        return 0
    return ends[last] - (ends[first - 1] if first else 0)
