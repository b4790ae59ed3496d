"""The ZeRO sizes dsplan chooses for a candidate, explicit numbers for every file it writes.

In: stage, model width, GPU memory. Out: `ZeroSettings`. Buckets are large enough that a collective runs at the
link's rate
and small enough not to cost memory: about 0.4 GB at stages 1-2; the width-dependent values of the Hugging Face
integration at stage 3; sub-groups of 1e8 elements, whose fp32 cast costs 0.6 GB and whose pinned buffers fill 512 MiB.
"""

from __future__ import annotations

from functools import lru_cache

from planner.records.candidate import ZeroSettings, ZeroStage
from planner.units import GIB


@lru_cache(maxsize=256)
def default_settings(stage: ZeroStage, hidden: int, gpu_memory_bytes: int) -> ZeroSettings:
    """Sizes for a stage on a card of that memory.

    Source: transformers/integrations/deepspeed.py `trainer_config_finalize` (h * h, 0.9 * h * h, 10 * h);
    the Hugging Face DeepSpeed guide's 2e8 buckets for ZeRO-2; DeepSpeed's own 1e9 live parameters;
    smaller ones on cards below 36 GiB.
    """
    large = gpu_memory_bytes >= 36 * GIB
    bucket = 200_000_000 if large else 50_000_000
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
