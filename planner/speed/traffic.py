"""What ZeRO moves beside the kernels: gathers, reductions, shards from the host, gradients to it.

In: the candidate as plain numbers (`Setup`), seconds of a layer's passes. Out: seconds added to the named terms. Every
transfer is a number of elements times `Moves`, the seconds that one element takes on its way.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.geometry.flops import LayerWork
from planner.memory.states import FP32_BYTES
from planner.records.candidate import Candidate, Offload, ZeroStage
from planner.records.machine import Cluster
from planner.records.model import ModelShape
from planner.records.request import Optimizer, Workload
from planner.speed.communication import hidden_s
from planner.speed.constants import SpeedConstants
from planner.speed.layer import LayerSeconds, Setup
from planner.speed.terms import TermSums
from planner.speed.update import gathered_parameters_s, gradient_copies_bytes, host_link_bytes_per_s
from planner.speed.zero_traffic import ZeroTraffic, whole_layers, zero_traffic


class Moves(NamedTuple):
    """Seconds per element, and per collective before its first byte; the shape of the traffic."""

    traffic: ZeroTraffic
    gather: float  # of a weight, from all ranks
    near: float  # from the ranks of a node that share a second copy
    gather_start: float
    near_start: float
    fetch: float  # of a weight, from the host or NVMe to the GPU that shares it out
    reduce: float  # of a gradient
    reduce_start: float
    first_copy: float  # of a gradient to the host, in the first of several micro-batches
    copy: float  # in those between
    last_copy: float  # in the last one


def moves(
    model: ModelShape,
    cluster: Cluster,
    workload: Workload,
    candidate: Candidate,
    job: Setup,
    constants: SpeedConstants,
    *,
    cpu_share: float,
) -> Moves:
    """The seconds of one candidate's transfers; `cpu_share` of the sub-groups is stepped by the CPU.

    Formula: bytes of an element times the rates of `communication.py` and `update.py`.
    Source: see those. Under Muon stage 3 all-reduces, for DeepSpeed refuses `reduce_scatter` there.
    Leaves out: see those.
    """
    stage, engine, rate = candidate.zero, constants.engine, job.rate
    if engine.bucketed and stage is not ZeroStage.DISABLED:
        settings, checkpointing = candidate.settings, candidate.checkpointing
        traffic = zero_traffic(model, workload.adapter, job.tp, stage, settings, checkpointing)
    else:
        traffic = whole_layers(engine.zero3_backward_gathers)
    if stage is ZeroStage.PARAMETERS:
        all_reduced = workload.optimizer is Optimizer.MUON
    else:
        all_reduced = engine.zero12_reduce_passes > 1
    fetch = first = between = last = 0.0
    stored_bytes = job.weight_bytes if job.frozen is None else job.frozen.stored_bytes
    if candidate.offload is not Offload.NONE:
        fetch = gathered_parameters_s(1 / job.dp, stored_bytes, cluster, candidate.offload, constants)
        copies = gradient_copies_bytes(
            stage,
            job.accumulation,
            job.dp,
            gradient_bytes=job.weight_bytes,
            accumulated_bytes=FP32_BYTES if candidate.settings.fp32_gradient_accumulation else job.weight_bytes,
            master_bytes=workload.precision.state_bytes,
            cpu_share=cpu_share,
            engine=engine,
        )
        link = host_link_bytes_per_s(cluster, constants, together=stage is ZeroStage.PARAMETERS)
        first, between, last = (size_bytes / link for size_bytes in copies)
    return Moves(
        traffic=traffic,
        gather=stored_bytes * rate.data_s_per_byte,
        near=stored_bytes * rate.near_s_per_byte,
        gather_start=rate.data_start_s,
        near_start=rate.near_start_s,
        fetch=fetch,
        reduce=job.gradient_bytes * (rate.data_reduce_s_per_byte if all_reduced else rate.data_s_per_byte),
        reduce_start=rate.data_reduce_start_s if all_reduced else rate.data_start_s,
        first_copy=first,
        copy=between,
        last_copy=last,
    )


def add_layer_traffic(sums: TermSums, kind: LayerWork, seconds: LayerSeconds, job: Setup, by: Moves) -> None:
    """Transfers beside the passes of all layers of one kind.

    With hpZ only the first forward of a step gathers from all ranks: the second copy that it leaves is dropped after
    the step (stage3.py `invalidate_secondary_tensor`, DeepSpeed 0.19.8).
    """
    traffic, layers = by.traffic, kind.layers
    weights = kind.held_elements / job.tp
    trained = weights if job.frozen is None else job.frozen.work.elements
    if job.stage is ZeroStage.PARAMETERS:
        part, again = weights * traffic.forward_share, weights * traffic.backward_share
        from_all = job.accumulation if by.near == by.gather else 1  # forwards of a step that gather from all ranks
        first = part * by.gather + traffic.gathers * by.gather_start
        _add_gathers(sums, layers * from_all, seconds.forward, first, part * by.fetch, job, traffic)
        if from_all < job.accumulation:
            later, others = part * by.near + traffic.gathers * by.near_start, job.accumulation - from_all
            _add_gathers(sums, layers * others, seconds.forward, later, part * by.fetch, job, traffic)
        starts = traffic.gathers * min(1.0, traffic.backward_share / traffic.forward_share) if part else 0.0
        gather, fetch = again * by.near + starts * by.near_start, again * by.fetch
    else:
        gather = fetch = 0.0
    if job.stage is ZeroStage.DISABLED:
        return
    reduce = trained * by.reduce + traffic.reduces * by.reduce_start
    for times, copy in micro_batches(job, by):
        backward = seconds.recompute_and_backward
        _add_backward(sums, layers * times, backward, gather, reduce, fetch, trained * copy, job, traffic)


def add_ends_traffic(sums: TermSums, head_s: float, job: Setup, by: Moves) -> None:
    """Transfers of embedding and output head in every micro-batch, beside the kernels of the head.

    Formula: as a layer's.
    Source: partitioned_param_coordinator.py, stage_1_and_2.py, stage3.py (0.19.8): they are modules like any other.
    Leaves out: that the gather of the embedding finds no kernel to hide behind.
    """
    traffic = by.traffic
    if job.stage is ZeroStage.DISABLED or not (traffic.ends_gathered or traffic.ends_reduced):
        return
    gather = traffic.ends_gathered * by.gather + traffic.ends_collectives * by.gather_start
    fetch = traffic.ends_gathered * by.fetch
    reduce = traffic.ends_reduced * by.reduce + (by.reduce_start if traffic.ends_reduced else 0.0)
    inside = 0
    for times, copy in micro_batches(job, by):
        inside += times
        _add_backward(sums, times, head_s, gather, reduce, fetch, traffic.ends_reduced * copy, job, traffic)
    if inside < job.accumulation and gather:
        _add_gathers(sums, job.accumulation - inside, head_s, gather, fetch, job, traffic)


def micro_batches(job: Setup, by: Moves) -> tuple[tuple[int, float], ...]:
    """How many backward passes reduce gradients, with the seconds per element that each then copies to the host.

    Stage 1 reduces in the last one only.
    """
    times = job.accumulation if job.stage >= ZeroStage.GRADIENTS else 1
    if by.last_copy == by.copy or times == 1:
        return ((times, by.last_copy),)
    if by.first_copy == by.copy:
        return ((times - 1, by.copy), (1, by.last_copy))
    return ((1, by.first_copy), (times - 2, by.copy), (1, by.last_copy))


def _add_gathers(
    sums: TermSums, times: int, compute: float, gather: float, fetch: float, job: Setup, traffic: ZeroTraffic
) -> None:
    """Gathers, and the shards fetched before them, beside one forward pass; waited for without prefetching."""
    transfer = gather + fetch
    if not transfer or not times:
        return
    share = hidden_s(compute, transfer, job.exposed_share) / transfer if traffic.prefetched else 0.0
    sums.add("communication/gather", times * gather, times * gather * share)
    if fetch:
        sums.add("offload/parameters", times * fetch, times * fetch * share)


def _add_backward(
    sums: TermSums,
    times: int,
    compute: float,
    gather: float,
    reduce: float,
    fetch: float,
    copy: float,
    job: Setup,
    traffic: ZeroTraffic,
) -> None:
    """Transfers beside one backward pass, on two streams: one fetches and gathers, one reduces and copies to the host.

    Gathers and reductions share the links of the GPUs, fetches and copies go opposite ways: together they take the
    reduction and the longer of (fetch + gather) and copy. What they save so, and what the pass hides, is shared among
    them in proportion to their seconds.
    """
    if not traffic.prefetched:
        _add_gathers(sums, times, compute, gather, fetch, job, traffic)
        gather = fetch = 0.0
    both = gather + fetch + reduce + copy
    if not both or not times:
        return
    if job.exposed_share < 1.0:
        transfer = reduce + max(gather + fetch, copy)
        share = (both - transfer + hidden_s(compute, transfer, job.exposed_share)) / both
    else:
        share = 0.0
    sums.add("communication/gather", times * gather, times * gather * share)
    sums.add("communication/reduce", times * reduce, times * reduce * share)
    if copy:
        sums.add("offload/gradients", times * copy, times * copy * share)
    if fetch:
        sums.add("offload/parameters", times * fetch, times * fetch * share)
