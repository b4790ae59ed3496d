"""The ZeRO sizes dsplan chooses for a candidate, explicit numbers for every file it writes.

In: stage, model width, GPU memory, offload. Out: `ZeroSettings`. Buckets are large enough that a collective runs at
the link's rate and small enough not to cost memory: about 0.4 GB at stages 1-2; the width-dependent values of the
Hugging Face integration at stage 3; sub-groups of 1e8 elements, whose fp32 cast costs 0.6 GB. In host memory no cast is
made, and the sub-group is the one whose page-locked blocks waste least.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from planner.memory import host
from planner.memory.sizes import rank_sizes
from planner.records.candidate import Degrees, Offload, ZeroSettings, ZeroStage
from planner.records.model import ModelShape
from planner.units import GIB


@lru_cache(maxsize=256)
def default_settings(stage: ZeroStage, hidden: int, gpu_memory_bytes: int, trained: int | None = None) -> ZeroSettings:
    """Sizes for a stage on a card of that memory; no bucket is larger than the gradients of `trained` parameters.

    Source: transformers/integrations/deepspeed.py `trainer_config_finalize` (h * h, 0.9 * h * h, 10 * h);
    the Hugging Face DeepSpeed guide's 2e8 buckets for ZeRO-2; DeepSpeed's own 1e9 live parameters;
    smaller ones on cards below 36 GiB.
    """
    large = gpu_memory_bytes >= 36 * GIB
    bucket = 200_000_000 if large else 50_000_000
    if trained is not None:
        bucket = min(bucket, trained)
    live = 1_000_000_000 if large else 300_000_000
    at_stage_three = stage is ZeroStage.PARAMETERS
    return ZeroSettings(
        overlap_comm=stage is not ZeroStage.DISABLED,
        reduce_bucket_elements=hidden * hidden if at_stage_three else bucket,
        allgather_bucket_elements=bucket,
        prefetch_bucket_elements=hidden * hidden * 9 // 10,
        param_persistence_threshold=10 * hidden,
        max_live_parameters=live,
        max_reuse_distance=live,
        sub_group_elements=100_000_000,
        pin_memory=True,
        fp32_gradient_accumulation=False,
    )


OFFLOADED_SUB_GROUPS = (100_000_000, 120_000_000, 200_000_000, 250_000_000, 500_000_000, 1_000_000_000)
"""Sub-group sizes to choose from when gradients wait in host memory, DeepSpeed's default last."""

NEARLY_EQUAL = 1.01


def frugal_on_host(settings: ZeroSettings, model: ModelShape, degrees: Degrees, offload: Offload) -> ZeroSettings:
    """The settings of a stage-3 strategy with a sub-group size that wastes little page-locked memory."""
    if offload not in (Offload.OPTIMIZER, Offload.OPTIMIZER_AND_PARAMS) or degrees.tp > 1:
        return settings
    elements = frugal_sub_group_elements(rank_sizes(model, degrees.tp).tensors, degrees.dp)
    return replace(settings, sub_group_elements=elements)


@lru_cache(maxsize=256)
def frugal_sub_group_elements(tensors: tuple[tuple[int, int], ...], dp: int) -> int:
    """The sub-group size whose page-locked gradients take least memory; the smaller one of nearly equals.

    Formula: least sum over sub-groups of p2(4 * S).
    Source: memory/host.py: every sub-group's gradients are one block, rounded up to a power of two.
    Leaves out: the pageable buffers of the largest sub-group at initialisation, when optimizer states do not exist yet.
    """
    taken = {
        limit: host.pinned_groups_bytes(host.sub_group_elements(tensors, dp, limit), 4, pin=True)
        for limit in OFFLOADED_SUB_GROUPS
    }
    least = min(taken.values())
    return next(limit for limit in OFFLOADED_SUB_GROUPS if taken[limit] <= NEARLY_EQUAL * least)
