"""Muon sees whole matrices where ZeRO has divided them: what that holds beside its states.

In: elements of the matrices one after the other, data-parallel ranks N, bytes of a gradient e. Out: elements, bytes.
"""

from __future__ import annotations

from functools import lru_cache

from planner.geometry.sharding import padded_share, touched_elements
from planner.units import ceil_div

KEPT_BUFFER_BYTES = 256 * 2**20
"""`_muon_allgather_max_cached_bytes`."""


@lru_cache(maxsize=256)
def fullest_partition_elements(matrices: tuple[int, ...], dp: int) -> int:
    """Elements of the matrices that lie in one partition of stages 1 and 2, whole where they reach over its ends.

    Formula: the most of the first, the middle and the last partition.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `get_partition_info`, `_muon_momentum_buffer` (0.19.8).
    Leaves out: the other partitions, whose ends may cut larger matrices.
    """
    share = padded_share(sum(matrices), dp)
    return max((touched_elements(matrices, share, part) for part in {0, dp // 2, dp - 1}), default=0) if matrices else 0


@lru_cache(maxsize=256)
def chunk_elements(matrices: tuple[int, ...], bucket_elements: int, sub_group_limit: int, dp: int) -> tuple[int, ...]:
    """The different sizes of the chunks that stage 3 gathers at once, the largest first.

    Formula: matrices in their order while they fit the reduce bucket, at least one; none reaches over a sub-group.
    Source: deepspeed/runtime/zero/stage3.py `_apply_muon_to_accumulated_grads`, `_create_fp16_sub_groups` (0.19.8).
    Leaves out: nothing.
    """
    found, chunk, group = set(), 0, 0
    for numel in matrices:
        if chunk and chunk + numel > bucket_elements:
            found.add(chunk)
            chunk = 0
        chunk += numel
        group += ceil_div(numel, dp)
        if group >= sub_group_limit:
            found.add(chunk)
            chunk = group = 0
    return tuple(sorted(found | ({chunk} if chunk else set()), reverse=True))


def kept_gather_bytes(chunks: tuple[int, ...], dp: int, element_bytes: int) -> int:
    """The buffers of stage 3's gathers that stay for the next step.

    Formula: sum of e * (C + C / N) over the sizes C of chunks, at most 256 MiB; none for a chunk that needs more.
    Source: deepspeed/runtime/zero/stage3.py `_partitioned_buffers_all_gather` (0.19.8).
    Leaves out: which buffers are given up first.
    """
    return min(
        KEPT_BUFFER_BYTES, sum(size for size in _buffers(chunks, dp, element_bytes) if size <= KEPT_BUFFER_BYTES)
    )


def chunk_bytes(chunks: tuple[int, ...], largest: int, workspace_bytes: int, dp: int, element_bytes: int) -> int:
    """The largest chunk while stage 3 orthogonalises it, without the buffers that are kept.

    N matrices at a time go round: each rank orthogonalises one, then all gather all of them, gradients and momentums.
    Formula: e * (3 * C + C / N): gradients and momentums whole, the gradients of the chunk before, this rank's
    momentums; e * (C + C / N) for a gather that is not kept; and the workspace, or e * m * (3 + 4 * N), m the largest
    matrix: both lists of a round, both flat buffers that the collective fills first, the own parts and the update.
    Source: deepspeed/runtime/zero/stage3.py `_muon_update_sub_group` (0.19.8); torch 2.13 ProcessGroupNCCL::allgather;
    measured on the engine.
    Leaves out: rounds of N equal matrices, which need no lists of their own.
    """
    if not chunks:
        return 0
    chunk, buffer = chunks[0], _buffers(chunks, dp, element_bytes)[0]
    round_bytes = element_bytes * largest * (3 + 4 * dp)
    held = element_bytes * (3 * chunk + ceil_div(chunk, dp)) + (buffer if buffer > KEPT_BUFFER_BYTES else 0)
    return held + max(workspace_bytes, round_bytes if dp > 1 else 0)


def _buffers(chunks: tuple[int, ...], dp: int, element_bytes: int) -> list[int]:
    """What the gather of each chunk is collected in."""
    return [element_bytes * (chunk + ceil_div(chunk, dp)) for chunk in chunks]
