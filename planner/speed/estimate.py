"""One candidate to the predicted time of one optimizer step: named terms, what overlap hides of each, and the band.

Order of a step: `accumulation` micro-batches of forward, recompute and backward over all layers, the head, the gradient
reduction of the stage, the optimizer, the exchange of updated weights. The un-hidden seconds of the terms add up to the
step. Two overlapping activities take max + k * min; the (1 - k) * min that this saves counts as hidden communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from planner.geometry.flops import LayerWork, model_flop
from planner.records.candidate import NO_SETTINGS, Candidate, Checkpointing, Degrees, Offload, ZeroStage
from planner.records.estimate import TimeEstimate
from planner.records.machine import Cluster
from planner.records.model import ModelShape
from planner.records.request import Optimizer, Workload
from planner.speed.compute import head_s, peak_flop_per_s
from planner.speed.constants import SpeedConstants
from planner.speed.layer import LayerSeconds, Setup, layer_seconds, setup, with_settings
from planner.speed.terms import TermSums
from planner.speed.traffic import Moves, add_ends_traffic, add_layer_traffic, moves
from planner.speed.update import (
    conversion_s,
    cpu_share,
    cpu_step_s,
    gpu_step_s,
    host_copy_s,
    host_link_bytes_per_s,
    muon_flop,
    nvme_rates_bytes_per_s,
    nvme_states_s,
    nvme_weights_s,
    sub_group_count,
)


def time_estimate(
    model: ModelShape,
    cluster: Cluster,
    workload: Workload,
    candidate: Candidate,
    *,
    constants: SpeedConstants,
    context: int = 1,
) -> TimeEstimate:
    """Predicted time of one optimizer step; raises ValueError if several nodes have no network rate.

    `model_flop_per_step` follows the convention of `planner.geometry.flops`: three times forward, causal attention
    counted half, no recomputation, the head once. `relative_error` is the half-width of the band and `error_class`
    says which band it is and why. `context` ranks share each sample's tokens (sequence or context parallelism, which
    no plan of ours has but runs of others do): they count as data-parallel ranks and attend to the whole sample.

    Formula: sum over terms of (seconds - hidden seconds).
    Source: each term names its own, in `planner.speed.terms`.
    Leaves out: data loading, evaluation, checkpoint writing, stragglers, power limits.
    """
    kernels = _kernels(model, cluster, workload, candidate, constants, context)
    job, sums = kernels.job, kernels.sums
    _add_traffic_and_update(sums, kernels, model, cluster, workload, candidate, constants)
    terms = sums.records()
    tokens_per_step = job.tokens * job.accumulation * job.dp
    relative_error, error_class = error_band(
        cluster, candidate, constants, experts=model.experts, adapters=workload.adapter is not None
    )
    return TimeEstimate(
        terms=terms,
        step_seconds=sums.step_s(),
        tokens_per_step=tokens_per_step,
        model_flop_per_step=float(model_flop(model, workload.seq_len, tokens_per_step, workload.adapter)),
        world_size=candidate.degrees.world_size,
        peak_flop_per_s=peak_flop_per_s(cluster.gpu, workload.precision),
        relative_error=relative_error,
        error_class=error_class,
    )


def step_seconds(
    model: ModelShape,
    cluster: Cluster,
    workload: Workload,
    candidates: Sequence[Candidate],
    *,
    constants: SpeedConstants,
) -> list[float]:
    """`step_seconds` of `time_estimate` for candidates that differ in nothing but their settings, without the records.

    Formula: see that; no setting but `fp32_gradient_accumulation`, which they share, changes a kernel.
    Source: see that.
    Leaves out: see that.
    """
    first = _kernels(model, cluster, workload, candidates[0], constants, 1)
    jobs: dict[tuple[int, bool], Setup] = {}
    found = []
    for candidate in candidates:
        settings = candidate.settings
        key = settings.hpz_partition_size, settings.overlap_comm
        if key not in jobs:
            jobs[key] = with_settings(first.job, cluster, candidate, constants)
        kernels = Kernels(jobs[key], first.layers, first.head_s, first.sums.copy())
        _add_traffic_and_update(kernels.sums, kernels, model, cluster, workload, candidate, constants)
        found.append(kernels.sums.step_s())
    return found


class Kernels(NamedTuple):
    """What does not depend on settings, and the job of one candidate."""

    job: Setup
    layers: tuple[LayerSeconds, ...]  # of every kind
    head_s: float  # of one micro-batch
    sums: TermSums


def _kernels(
    model: ModelShape,
    cluster: Cluster,
    workload: Workload,
    candidate: Candidate,
    constants: SpeedConstants,
    context: int,
) -> Kernels:
    """What the GPUs compute, with the traffic of tensor parallelism; the sums are the caller's own."""
    kept = _kept_kernels(
        model,
        cluster,
        workload,
        candidate.zero,
        candidate.degrees,
        candidate.checkpointing,
        candidate.micro_batch,
        candidate.accumulation,
        candidate.settings.fp32_gradient_accumulation,
        constants,
        context,
    )
    job = with_settings(kept.job, cluster, candidate, constants)
    return Kernels(job, kept.layers, kept.head_s, kept.sums.copy())


@lru_cache(maxsize=4096)
def _kept_kernels(
    model: ModelShape,
    cluster: Cluster,
    workload: Workload,
    zero: ZeroStage,
    degrees: Degrees,
    checkpointing: Checkpointing,
    micro_batch: int,
    accumulation: int,
    fp32_gradient_accumulation: bool,  # noqa: FBT001 (part of the cache's key)
    constants: SpeedConstants,
    context: int,
) -> Kernels:
    """Kept because neither offload nor any other setting changes a kernel."""
    candidate = Candidate(
        zero=zero,
        degrees=degrees,
        checkpointing=checkpointing,
        offload=Offload.NONE,
        micro_batch=micro_batch,
        accumulation=accumulation,
        settings=replace(NO_SETTINGS, fp32_gradient_accumulation=fp32_gradient_accumulation),
    )
    job = setup(model, cluster, workload, candidate, constants, context)
    sums = TermSums()
    layers = []
    for number, kind in enumerate(job.work.kinds):
        layers.append(layer_seconds(number, job, constants))
        _add_compute(sums, kind, layers[-1], job)
    return Kernels(job, tuple(layers), _add_head(sums, job, constants), sums)


def _add_traffic_and_update(
    sums: TermSums,
    kernels: Kernels,
    model: ModelShape,
    cluster: Cluster,
    workload: Workload,
    candidate: Candidate,
    constants: SpeedConstants,
) -> None:
    """What the stage moves beside the kernels, and the optimizer."""
    job = kernels.job
    stepped = _cpu_share(model, candidate)
    by = moves(model, cluster, workload, candidate, job, constants, cpu_share=stepped)
    for kind, seconds in zip(job.work.kinds, kernels.layers, strict=True):
        add_layer_traffic(sums, kind, seconds, job, by)
    add_ends_traffic(sums, kernels.head_s, job, by)
    _add_update(sums, job, model, cluster, workload, candidate, constants, by, stepped)


def error_band(
    cluster: Cluster, candidate: Candidate, constants: SpeedConstants, *, experts: int, adapters: bool = False
) -> tuple[float, str]:
    """Half-width of the band that the measured runs support, and the reason, the widest band first.

    Formula: one share for each class of plan: offload, experts, adapters, ZeRO-3, several nodes, one node.
    Source: what two rows in three stay inside, in the middle source of the class: `dsplan accuracy --speed`.
    Leaves out: cards whose efficiencies are inferred, and AutoTP, whose speed nobody has published.
    """
    if candidate.offload is not Offload.NONE:
        return constants.band_offload, "offload: hosts differ more than GPUs"
    if experts:
        return constants.band_offload, "mixture of experts: no measured run behind it"
    if adapters:
        return constants.band_adapters, "adapters: few measured runs"
    if candidate.zero is ZeroStage.PARAMETERS:
        return constants.band_zero3, "ZeRO-3: measured on FSDP, the cost of DeepSpeed's hooks is unverified"
    if cluster.nodes > 1:
        return constants.band_several_nodes, "several nodes: the network between them is assumed"
    return constants.band_one_node, "one node, stage 2 or lower, no offload: software stacks differ"


def _add_compute(sums: TermSums, kind: LayerWork, seconds: LayerSeconds, job: Setup) -> None:
    """Kernels, recomputation, waiting for the host and tensor-parallel traffic of all layers of one kind."""
    times = job.accumulation * kind.layers
    passes = 2 if job.checkpointed else 1
    sums.add("compute/gemm", times * (3 if job.frozen is None else 2) * seconds.gemm)
    sums.add("compute/attention", times * (seconds.attention + seconds.attention_backward))
    sums.add("compute/elementwise", times * (seconds.elementwise + seconds.elementwise_backward))
    sums.add("compute/gradients", times * seconds.gradients)
    sums.add("compute/adapters", times * (passes + 2) * seconds.adapters)
    sums.add("compute/unpacking", times * (passes + 1) * seconds.unpacking)
    if job.checkpointed:
        sums.add("compute/recompute", times * (seconds.gemm + seconds.attention + seconds.elementwise))
    sums.add("compute/host_floor", times * seconds.idle)
    sums.add("communication/tensor_parallel", times * seconds.tensor_parallel)


def _cpu_share(model: ModelShape, candidate: Candidate) -> float:
    """Share of the parameters whose step the CPU takes, where any is offloaded."""
    settings, degrees = candidate.settings, candidate.degrees
    if settings.optimizer_offload_ratio == 1 or candidate.offload.optimizer_device != "cpu":
        return 1.0
    return cpu_share(model, degrees.tp, degrees.dp, settings.sub_group_elements, settings.optimizer_offload_ratio)


def _add_head(sums: TermSums, job: Setup, constants: SpeedConstants) -> float:
    """Output head and loss of every micro-batch, and the gather of its logits under tensor parallelism; returns the
    seconds of its kernels in one micro-batch."""
    work = job.work
    seconds = head_s(
        work.hidden,
        work.vocab,
        job.tokens,
        head_tp=job.tp if work.head_divided else 1,
        logits_tp=job.tp if work.logits_divided else 1,
        weight_bytes=job.weight_bytes,
        logit_bytes=job.logit_bytes,
        flop_per_s=job.gemm_flop_per_s,
        hbm_bytes_per_s=job.hbm_bytes_per_s,
        constants=constants,
        frozen=job.frozen is not None,
    )
    sums.add("compute/head", job.accumulation * seconds)
    if job.tp > 1 and work.head_divided and not work.logits_divided:
        gathered_bytes = job.weight_bytes * job.tokens * (work.vocab / 2 + work.hidden)
        gather = 2 * job.rate.tensor_latency_s + gathered_bytes * job.rate.tensor_s_per_byte
        sums.add("communication/tensor_parallel", job.accumulation * gather)
    return seconds


def _add_update(
    sums: TermSums,
    job: Setup,
    model: ModelShape,
    cluster: Cluster,
    workload: Workload,
    candidate: Candidate,
    constants: SpeedConstants,
    by: Moves,
    stepped_share: float,
) -> None:
    """What happens once per step: the traffic that overlaps nothing, the optimizer, and the copies of offload.

    Under a partial offload the GPU steps its sub-groups while the CPU steps the others: launches do not wait, and the
    GPU's come first (stage3.py `step`, DeepSpeed 0.19.8).
    """
    stage, rate, hbm = candidate.zero, job.rate, job.hbm_bytes_per_s
    parameters = job.parameters if job.frozen is None else job.frozen.trained
    local = parameters if stage is ZeroStage.DISABLED else parameters / job.dp
    if stage is ZeroStage.DISABLED:
        reduce = job.gradient_bytes * parameters * rate.data_reduce_s_per_byte + rate.data_reduce_start_s
        sums.add("communication/reduce", reduce)
    elif stage is not ZeroStage.PARAMETERS:
        sums.add("communication/gather", job.weight_bytes * parameters * rate.data_s_per_byte + rate.data_start_s)
    elif by.traffic.persistent_elements:
        starts = by.traffic.persistent_tensors * rate.data_start_s
        sums.add("communication/gather", by.traffic.persistent_elements * by.gather + starts)
    if candidate.offload is Offload.NONE:
        optimizer, precision = workload.optimizer, workload.precision
        groups = 0
        if stage is ZeroStage.PARAMETERS:
            groups = sub_group_count(local, candidate.settings.sub_group_elements)
        sums.add("optimizer/step", gpu_step_s(local, hbm, constants, optimizer=optimizer, precision=precision))
        sums.add("optimizer/conversion", conversion_s(local, hbm, constants, precision=precision, sub_groups=groups))
        if optimizer is Optimizer.MUON and job.frozen is None:
            ranks = job.tp * (1 if stage is ZeroStage.DISABLED else job.dp)
            sums.add("optimizer/orthogonalisation", muon_flop(model) / ranks / job.gemm_flop_per_s)
        return
    on_node = local * cluster.gpus_per_node
    step = cpu_step_s(stepped_share * on_node, cluster, constants, optimizer=workload.optimizer)
    on_gpu = gpu_step_s((1 - stepped_share) * local, hbm, constants, precision=workload.precision)
    link = host_link_bytes_per_s(cluster, constants, together=True)
    copy = host_copy_s(stepped_share * local, job.weight_bytes, link)
    sums.add("optimizer/step", step + on_gpu, min(step, on_gpu))
    sums.add("offload/weights", copy)
    if candidate.offload is Offload.NVME:
        read, write = nvme_rates_bytes_per_s(cluster, constants)
        states = nvme_states_s(on_node, read, write, constants)
        beside = min(states, step + copy) if constants.engine.nvme_pipelined else 0.0
        sums.add("offload/nvme_states", states, beside)
        sums.add("offload/nvme_weights", nvme_weights_s(on_node, job.weight_bytes, write))
