"""Plans made by hand: any speed, any memory, any strategy, and no formula of dsplan behind them."""

from __future__ import annotations

from planner.records.candidate import Candidate, Checkpointing, Degrees, Offload, ZeroSettings, ZeroStage
from planner.records.estimate import Device, MemoryEstimate, Moment, TimeEstimate
from planner.records.plan import Evaluation, Limit, Verdict

WORLD = 8
USUAL = ZeroSettings(
    overlap_comm=True,
    reduce_bucket_elements=200_000_000,
    allgather_bucket_elements=200_000_000,
    prefetch_bucket_elements=0,
    param_persistence_threshold=0,
    max_live_parameters=0,
    max_reuse_distance=0,
    sub_group_elements=100_000_000,
    pin_memory=True,
    fp32_gradient_accumulation=False,
)


def made(
    speed: float | None,
    gpu_bytes: int = 50,
    *,
    zero: int = 2,
    tp: int = 1,
    checkpointing: bool = False,
    offload: Offload = Offload.NONE,
    micro_batch: int = 1,
    accumulation: int = 1,
    chosen: ZeroSettings = USUAL,
    verdict: Verdict = Verdict.FITS,
) -> Evaluation:
    """A plan with that many tokens per second and that much GPU memory."""
    candidate = Candidate(
        zero=ZeroStage(zero),
        degrees=Degrees(tp=tp, dp=WORLD // tp),
        checkpointing=Checkpointing.FULL if checkpointing else Checkpointing.NONE,
        offload=offload,
        micro_batch=micro_batch,
        accumulation=accumulation,
        settings=chosen,
    )
    sizes = {Device.GPU: gpu_bytes, Device.HOST: 0, Device.DISK: 0}
    memory = MemoryEstimate(
        terms=(),
        gpu_overhead_bytes=0,
        moment_bytes={device: (size,) * len(Moment) for device, size in sizes.items()},
        peaks=sizes,
    )
    predicted = speed and TimeEstimate(
        terms=(),
        step_seconds=1 / speed,
        tokens_per_step=1,
        model_flop_per_step=1.0,
        world_size=WORLD,
        peak_flop_per_s=1.0,
        relative_error=0.1,
        error_class="test",
    )
    return Evaluation(
        candidate=candidate,
        verdict=verdict,
        limit=Limit(resource="gpu", phase="step", excess_bytes=0),
        memory=memory,
        time=predicted or None,
    )
