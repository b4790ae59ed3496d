"""The search space: strategies, the micro-batches of each, and what is chosen among its settings.

In: a request. Out: strategies (candidates with micro-batch 1) and, for one strategy, the micro-batches to try.

A strategy is a point of ZeRO stage x tensor-parallel degree x checkpointing x offload: at most 4 x 4 x 2 x 4 of them,
so the product is walked whole, without pruning. Micro-batches that were pinned are all tried; with a global batch, all
its divisors, so that accumulation is weighed against them; otherwise powers of two up to the largest that fits, and
that one.

Every strategy at every micro-batch has a short ladder of settings (search/variants.py), the usual ones first. It enters
the ranking once, with the best of them that fits (search/choose.py): plans that fit before borderline ones, then by the
objective. It is rejected when none fits, and the one that misses by least is recorded. The largest micro-batch is the
largest at which any fits. Settings of `--config` are the only ones of the ladder.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from planner.geometry.adapters import adapter_parameter_count
from planner.records.candidate import Candidate, Degrees, Offload, ZeroSettings, ZeroStage
from planner.records.request import Request
from planner.search.settings import default_settings, frugal_on_host
from planner.units import divisors

LARGEST_MICRO_BATCH = 1024


def strategies(request: Request) -> Iterator[Candidate]:
    """Every strategy of the declared axes, legal or not, with the smallest micro-batch of the axis."""
    axes, cluster = request.axes, request.cluster
    smallest = axes.micro_batch[0] if axes.micro_batch else 1
    for zero, tp, checkpointing, offload in itertools.product(axes.zero, axes.tp, axes.checkpointing, axes.offload):
        degrees = Degrees(tp=tp, dp=max(1, cluster.world_size // tp))
        yield Candidate(
            zero=zero,
            degrees=degrees,
            checkpointing=checkpointing,
            offload=offload,
            micro_batch=smallest,
            accumulation=request.workload.accumulation or 1,
            settings=usual_settings(request, zero, degrees, offload),
        )


def usual_settings(request: Request, zero: ZeroStage, degrees: Degrees, offload: Offload) -> ZeroSettings:
    """The sizes of a strategy before any is searched: those of `--config`, else dsplan's own defaults."""
    if request.axes.settings is not None:
        return request.axes.settings
    adapter, cluster = request.workload.adapter, request.cluster
    trained = adapter_parameter_count(request.model, adapter) if adapter else None
    settings = default_settings(zero, request.model.hidden, cluster.gpu.memory_bytes, trained)
    if zero is ZeroStage.PARAMETERS and adapter is None:
        return frugal_on_host(settings, request.model, degrees, offload)
    return settings


def micro_batches(request: Request, dp: int) -> tuple[int, ...] | None:
    """The micro-batches to try for a strategy, or None when the largest that fits is to be found."""
    wanted = request.workload.global_batch
    if wanted is None:
        return request.axes.micro_batch
    allowed = request.axes.micro_batch
    if request.workload.accumulation is not None:
        per_sample = dp * request.workload.accumulation
        found: tuple[int, ...] = (wanted // per_sample,) if wanted % per_sample == 0 else ()
    elif wanted % dp:
        found = ()
    else:
        found = divisors(wanted // dp)
    return tuple(m for m in found if m <= LARGEST_MICRO_BATCH and (allowed is None or m in allowed))


def accumulation_for(request: Request, dp: int, micro_batch: int) -> int:
    """Gradient accumulation steps: as pinned, from the global batch, or 1."""
    if request.workload.accumulation is not None:
        return request.workload.accumulation
    if request.workload.global_batch is not None:
        return max(1, request.workload.global_batch // (dp * micro_batch))
    return 1
