"""GPU memory that no tensor accounts for: CUDA context, communicators, and what the caching allocator keeps.

In: the candidate's degrees, the tensor bytes at the peak and those that stay. Out: bytes between
`max_memory_allocated` and nvidia-smi. The constants are read off measured runs: `dsplan accuracy --overhead` derives
them again from the points that ship with dsplan, by the rules of `planner/accuracy/overhead.py`, and a test compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import sub

from planner.records.candidate import Degrees
from planner.records.estimate import Term
from planner.units import MIB

CONTEXT_BYTES = 1400 * MIB
COMMUNICATOR_BYTES = 600 * MIB
SLACK_PER_MILLE = 140
FRAGMENTED_BYTES = 400 * MIB
FRAGMENTED_PER_MILLE = 180
SIDE_STREAM = "gathered/"


def context_bytes() -> int:
    """The CUDA context with its kernels and libraries.

    Formula: 1.4 GiB.
    Source: `dsplan accuracy --overhead`: what nvidia-smi shows beyond the allocator's blocks on an A100, short
    sequences of LoRA.
    Leaves out: the card's generation, for which the points are too few (1.1 to 1.3 GiB are told of V100); that kernels
    loaded lazily take less at first (https://github.com/pytorch/pytorch/issues/107667); other processes on the card.
    """
    return CONTEXT_BYTES


def communicator_bytes(degrees: Degrees) -> int:
    """NCCL buffers.

    Formula: 600 MiB for each communicator in use: the world, and two more (data and tensor parallel) where both
    degrees exceed 1.
    Source: https://github.com/NVIDIA/nccl/issues/964 (544-688 MB each).
    Leaves out: NVLS and tree buffers of large jobs.
    """
    if degrees.world_size == 1:
        return 0
    return COMMUNICATOR_BYTES * (3 if degrees.tp > 1 and degrees.dp > 1 else 1)


def side_stream_bytes(terms: Iterable[Term], moment_bytes: Sequence[int]) -> int:
    """`stranded_bytes` of the terms that stage 3 gathers.

    Formula: see that.
    Source: see that.
    Leaves out: see that.
    """
    side = [0] * len(moment_bytes)
    for term in terms:
        if term.name.startswith(SIDE_STREAM):
            for moment in term.moments:
                side[moment] += term.size_bytes
    return stranded_bytes(side, moment_bytes)


def stranded_bytes(gathered_bytes: Sequence[int], moment_bytes: Sequence[int]) -> int:
    """Blocks that gathered parameters left behind, which nothing else may use: the allocator has a pool per stream.

    Formula: fullest moment of gathered parameters + fullest moment of all else - fullest moment of both together.
    Source: torch 2.13 c10/cuda/CUDACachingAllocator.cpp (blocks go back to the stream they came from);
    deepspeed/runtime/zero/parameter_offload.py `__allgather_stream`, a stream of its own with overlap_comm (0.19.8).
    Leaves out: the stream of reductions, whose copies are small beside what they are made from.
    """
    rest: int = max(map(sub, moment_bytes, gathered_bytes))
    return max(gathered_bytes) + rest - max(moment_bytes)


def allocator_slack_bytes(tensor_peak_bytes: int, lasting_bytes: int) -> int:
    """Reserved but unallocated blocks of a plan, with expandable segments as dsplan's launch files set them.

    Formula: 14 % of what comes and goes in a step: the peak less what stays from one step to the next. What stays is
    packed once and leaves no holes.
    Source: `dsplan accuracy --overhead`: DeepSpeed ZeRO-3 at 64k to 256k tokens under torch 2.13.
    Leaves out: growth over a run with samples of varying length.
    """
    return max(0, tensor_peak_bytes - lasting_bytes) * SLACK_PER_MILLE // 1000


def fragmented_slack_bytes(tensor_peak_bytes: int, lasting_bytes: int) -> int:
    """The same under torch's default allocator settings, as most measured runs had them.

    Formula: 0.4 GiB + 18 % of what comes and goes.
    Source: `dsplan accuracy --overhead`: runs whose source prints both counters, by stage and sequence length.
    Leaves out: growth with samples of varying length; that a nearly full card makes the allocator give blocks back.
    """
    dynamic = max(0, tensor_peak_bytes - lasting_bytes)
    return FRAGMENTED_BYTES + dynamic * FRAGMENTED_PER_MILLE // 1000
