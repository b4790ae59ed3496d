"""ZeRO's sizes for the shrunken model of a dry run.

In: the plan's `ZeroSettings`, the whole and the shrunken shape. Out: smaller ones, and the keys that put them in force.
A bucket of 2e8 elements is a few matrices of a 13B model and hundreds of times the shrunken one: left as it is, it
would hide every state behind it. So each size keeps its relation to the matrices it is compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.geometry.params import parameter_count
from planner.records.candidate import ZeroSettings, ZeroStage
from planner.records.model import ModelShape
from planner.units import ceil_div

ALIGNMENT = 2
LARGEST_BUCKET = 8  # a bucket is at most this part of the shrunken model, so that the states can be seen beside it


def shrink_settings(settings: ZeroSettings, *, whole: ModelShape, small: ModelShape) -> ZeroSettings:
    """The same settings for the small model.

    A matrix shrinks with the square of the width, and with it buckets, sub-groups and distances; the persistence
    threshold lies between a vector and a matrix and shrinks with the width. Nothing grows.
    """
    wide, narrow = max(whole.hidden, small.hidden), small.hidden
    most = _even(ceil_div(parameter_count(small), LARGEST_BUCKET))

    def by_matrix(elements: int) -> int:
        return _even(ceil_div(elements * narrow**2, wide**2))

    return replace(
        settings,
        reduce_bucket_elements=min(most, by_matrix(settings.reduce_bucket_elements)),
        allgather_bucket_elements=min(most, by_matrix(settings.allgather_bucket_elements)),
        prefetch_bucket_elements=min(most, by_matrix(settings.prefetch_bucket_elements)),
        param_persistence_threshold=ceil_div(settings.param_persistence_threshold * narrow, wide),
        max_live_parameters=by_matrix(settings.max_live_parameters),
        max_reuse_distance=by_matrix(settings.max_reuse_distance),
        sub_group_elements=by_matrix(settings.sub_group_elements),
    )


def _even(elements: int) -> int:
    """Rounded down to what DeepSpeed aligns partitions to (stage_1_and_2.py `nccl_start_alignment_factor`)."""
    return max(elements - elements % ALIGNMENT, min(elements, ALIGNMENT))


def zero_sizes(settings: ZeroSettings, stage: ZeroStage) -> Mapping[str, int]:
    """The keys of `zero_optimization` that hold these sizes."""
    sizes = {
        "reduce_bucket_size": settings.reduce_bucket_elements,
        "allgather_bucket_size": settings.allgather_bucket_elements,
    }
    if stage is ZeroStage.PARAMETERS:
        sizes |= {
            "sub_group_size": settings.sub_group_elements,
            "stage3_prefetch_bucket_size": settings.prefetch_bucket_elements,
            "stage3_param_persistence_threshold": settings.param_persistence_threshold,
            "stage3_max_live_parameters": settings.max_live_parameters,
            "stage3_max_reuse_distance": settings.max_reuse_distance,
        }
    return sizes
