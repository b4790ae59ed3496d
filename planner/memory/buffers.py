"""Reduction buckets and their copies.

In: bucket sizes in elements and the rank's element counts. Out: bytes during backward.
"""

from __future__ import annotations


def reduce_bucket_bytes(bucket_elements: int, element_bytes: int, *, overlap_comm: bool) -> int:
    """The contiguous buckets of stages 1 and 2, allocated at their full size at the first gradient.

    Formula: e * bucket, twice with overlap_comm.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `setup_buckets` (0.19.8).
    Leaves out: nothing; the size does not shrink for small models.
    """
    return element_bytes * bucket_elements * (2 if overlap_comm else 1)


def reduce_copy_bytes(bucket_elements: int, rank_elements: int, element_bytes: int) -> int:
    """The flattened copy that the reduction of one bucket makes.

    Formula: e * min(bucket, P).
    Source: deepspeed/runtime/zero/stage_1_and_2.py `allreduce_bucket`; stage3.py `__avg_scatter_contiguous_grads`
    (0.19.8).
    Leaves out: fp32 casts when `communication_data_type` is fp32.
    """
    return element_bytes * min(bucket_elements, rank_elements)


def oversize_gradient_bytes(largest_elements: int, bucket_elements: int, element_bytes: int) -> int:
    """A gradient too large for the bucket is reduced by itself and lives whole meanwhile.

    Formula: e * largest tensor where it exceeds the bucket, else 0.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `extra_large_param_to_reduce` (0.19.8).
    Leaves out: two oversize gradients in flight.
    """
    return element_bytes * largest_elements if largest_elements > bucket_elements else 0


def kept_oversize_bytes(
    tensors: tuple[tuple[int, int], ...], bucket_elements: int, foreign_elements: int, element_bytes: int
) -> int:
    """Stage 1 with overlap_comm: oversize gradients that the rank does not own stay whole until backward ends.

    Formula: e * min(sum of tensors larger than the bucket, P - P / N).
    Source: deepspeed/runtime/zero/stage_1_and_2.py `reduce_ipg_grads`, which frees them at stage 2 only (0.19.8).
    Leaves out: which of them fall into the rank's own partition.
    """
    oversize = sum(numel * count for numel, count in tensors if numel > bucket_elements)
    return element_bytes * min(oversize, foreign_elements)


ALLREDUCE_ELEMENTS = 500_000_000


def allreduce_copy_bytes(rank_elements: int, element_bytes: int) -> int:
    """Stage 0 flattens gradients before its all-reduce.

    Formula: e * min(P, 5e8).
    Source: deepspeed/runtime/engine.py `MEMORY_OPT_ALLREDUCE_SIZE` (0.19.8).
    Leaves out: nothing.
    """
    return element_bytes * min(rank_elements, ALLREDUCE_ELEMENTS)
