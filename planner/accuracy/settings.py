"""The ZeRO sizes of runs that other people started: what their framework's guide gives, or DeepSpeed's own defaults.

In: framework as its source names it, stage, hidden size. Out: `ZeroSettings`, which are not those that dsplan writes.
"""

from __future__ import annotations

from planner.records.candidate import ZeroSettings, ZeroStage

GUIDE_BUCKET = 200_000_000
DEEPSPEED_BUCKET = 500_000_000
GUIDED = ("hf", "trainer", "accelerate", "axolotl", "swift", "factory", "trl")
"""Tools whose DeepSpeed files follow the Hugging Face guide."""


def run_settings(framework: str, stage: ZeroStage, hidden: int) -> ZeroSettings:
    """Sizes of a run: a source that prints none ran with what its tool puts there.

    Source: https://huggingface.co/docs/transformers/deepspeed: `auto` fills h * h, 0.9 * h * h and 10 * h at stage 3,
    its ZeRO-2 example has buckets of 2e8 with overlap_comm, its ZeRO-3 example 1e9 live, reused and stepped at once.
    deepspeed/runtime/zero/config.py (0.19.8) for the others: buckets of 5e8, 5e7 prefetched, a threshold of 1e5.
    """
    guided = any(word in framework.casefold() for word in GUIDED)
    at_stage_three = stage is ZeroStage.PARAMETERS
    bucket = GUIDE_BUCKET if guided else DEEPSPEED_BUCKET
    return ZeroSettings(
        overlap_comm=guided or at_stage_three,
        reduce_bucket_elements=hidden * hidden if guided and at_stage_three else bucket,
        allgather_bucket_elements=bucket,
        prefetch_bucket_elements=hidden * hidden * 9 // 10 if guided else 50_000_000,
        param_persistence_threshold=10 * hidden if guided else 100_000,
        max_live_parameters=1_000_000_000,
        max_reuse_distance=1_000_000_000,
        sub_group_elements=1_000_000_000,
        pin_memory=True,
        fp32_gradient_accumulation=False,
    )
