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


ALLREDUCE_ELEMENTS = 500_000_000


def allreduce_copy_bytes(rank_elements: int, element_bytes: int) -> int:
    """Stage 0 flattens gradients before its all-reduce.

    Formula: e * min(P, 5e8).
    Source: deepspeed/runtime/engine.py `MEMORY_OPT_ALLREDUCE_SIZE` (0.19.8).
    Leaves out: nothing.
    """
    return element_bytes * min(rank_elements, ALLREDUCE_ELEMENTS)
