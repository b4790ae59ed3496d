"""The memory of one candidate: all terms, the bytes of every phase, and the moment that binds each.

In: model, cluster, workload, candidate. Out: `MemoryEstimate`. Question: how much does the fullest GPU, and how much
does a node's host, hold in each phase?

Terms come in two parts, each kept: those of a strategy, whatever its micro-batch, and those of a micro-batch, whatever
its strategy. A search asks for the same parts again and again; an estimate adds their sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from operator import add
from typing import NamedTuple

from planner.geometry.params import parameter_count
from planner.memory.activations import activation_terms
from planner.memory.backward import SHRINKING, Late, through_backward, waiting_bytes
from planner.memory.gpu_terms import gpu_terms, late_instants
from planner.memory.host_terms import host_terms
from planner.memory.inputs import LATE, TRAINING, Inputs
from planner.memory.logits import logits_terms
from planner.memory.overhead import (
    SIDE_STREAM,
    allocator_slack_bytes,
    communicator_bytes,
    context_bytes,
    stranded_bytes,
)
from planner.memory.quantized import packed_sizes, quantized_base
from planner.memory.sizes import adapter_sizes, rank_sizes, with_adapter
from planner.records.candidate import (
    NO_SETTINGS,
    Candidate,
    Checkpointing,
    Degrees,
    Offload,
    ZeroSettings,
    ZeroStage,
)
from planner.records.estimate import PHASES, Device, MemoryEstimate, Moment, Needs, Term
from planner.records.machine import Cluster
from planner.records.model import Adapter, Method, ModelShape, Precision
from planner.records.request import Optimizer, Workload


class Sums(NamedTuple):
    """Terms and their bytes by `Moment`."""

    terms: tuple[Term, ...]
    gpu: tuple[int, ...]
    host: tuple[int, ...]
    disk: tuple[int, ...]
    gathered: tuple[int, ...]  # the share of `gpu` that stage 3 gathers on a stream of its own
    lasting: int  # bytes of `gpu` that stay from one step to the next


class Job(NamedTuple):
    """What the terms of a strategy depend on; a tuple, because it is the key of what is kept."""

    model: ModelShape
    zero: ZeroStage
    degrees: Degrees
    checkpointing: Checkpointing
    offload: Offload
    accumulation: int  # 2 stands for all above 1
    settings: ZeroSettings
    precision: Precision
    optimizer: Optimizer
    adapter: Adapter | None
    capacity_bytes: int
    ranks_per_node: int


class Strategy(NamedTuple):
    """What a strategy holds whatever its micro-batch."""

    sums: Sums  # without the gradients of `late`
    late: tuple[tuple[Late, ...], tuple[Late, ...]]  # of which the fullest counts, by moment of LATE
    host_peak: int
    disk_peak: int  # before files are saved


class Batch(NamedTuple):
    """What a micro-batch holds whatever the stage: sums without the layers that wait when gradients weigh most."""

    activations: tuple[Term, ...]
    logits: tuple[Term, ...]
    sums: Sums
    by_layer: tuple[tuple[str, int], ...]  # names and bytes of the terms that shrink layer by layer


def estimate_memory(model: ModelShape, cluster: Cluster, workload: Workload, candidate: Candidate) -> MemoryEstimate:
    """Every term of the candidate, added up by moment."""
    strategy, batch = strategy_part(model, cluster, workload, candidate), batch_part(model, workload, candidate)
    late = tuple(_fullest(model, instants, batch) for instants in strategy.late)
    activations = _spread(batch.activations, model.layers, (late[0].left, late[1].left))
    held = strategy.sums
    gradients = (term for instant in late for term in instant.terms if term.size_bytes)
    sums = Sums(
        terms=(*held.terms, *gradients, *activations, *batch.logits),
        gpu=_on_gpu(model, strategy, batch),
        host=held.host,
        disk=held.disk,
        gathered=held.gathered,
        lasting=held.lasting + batch.sums.lasting,
    )
    return _estimate(sums, candidate)


def needs(model: ModelShape, strategy: Strategy, batch: Batch, candidate: Candidate) -> Needs:
    """`needs` of `estimate_memory` from a candidate's two parts, without the record: what a search asks most often."""
    gpu = _on_gpu(model, strategy, batch)
    lasting = strategy.sums.lasting + batch.sums.lasting
    overhead = _overhead_bytes(gpu, strategy.sums.gathered, lasting, candidate)
    return Needs(max(gpu) + overhead, strategy.host_peak, strategy.disk_peak)


def host_peak_bytes(model: ModelShape, cluster: Cluster, workload: Workload, candidate: Candidate) -> int:
    """Host memory of one node at its fullest, without the rest of an estimate.

    Formula: the fullest moment of the sum of host terms.
    Source: memory/host_terms.py.
    Leaves out: nothing; activations and logits are on the GPU.
    """
    return strategy_part(model, cluster, workload, candidate).host_peak


def add_up(terms: tuple[Term, ...], candidate: Candidate) -> MemoryEstimate:
    """Bytes of every moment, and the fullest of each device."""
    return _estimate(_summed(terms), candidate)


def _on_gpu(model: ModelShape, strategy: Strategy, batch: Batch) -> tuple[int, ...]:
    """GPU bytes of every moment: both parts, and at the late ones what the layers that wait still keep."""
    gpu = list(map(add, strategy.sums.gpu, batch.sums.gpu))
    for moment, instants in zip(LATE, strategy.late, strict=True):
        gpu[moment] += _late_bytes(model, _fullest(model, instants, batch), batch)
    return tuple(gpu)


def _fullest(model: ModelShape, instants: tuple[Late, ...], batch: Batch) -> Late:
    """The instant at which gradients and waiting activations are most."""
    if len(instants) == 1:
        return instants[0]
    return max(instants, key=lambda instant: _late_bytes(model, instant, batch))


def _late_bytes(model: ModelShape, instant: Late, batch: Batch) -> int:
    """Gradients, and what the layers that wait still keep."""
    waiting = sum(waiting_bytes(name, kept, layers=model.layers, left=instant.left) for name, kept in batch.by_layer)
    return instant.size_bytes + waiting


def strategy_part(model: ModelShape, cluster: Cluster, workload: Workload, candidate: Candidate) -> Strategy:
    """The terms that do not depend on the micro-batch, nor on how many accumulation steps above one there are.

    Below stage 3 no term depends on checkpointing; at stage 3 none on `overlap_comm`.
    """
    job = job_of(model, cluster, workload, candidate)
    if candidate.zero is not ZeroStage.PARAMETERS:
        job = job._replace(checkpointing=Checkpointing.NONE)
    elif not candidate.settings.overlap_comm:
        job = job._replace(settings=replace(candidate.settings, overlap_comm=True))
    return _sums_of_strategy(job)


def job_of(model: ModelShape, cluster: Cluster, workload: Workload, candidate: Candidate) -> Job:
    """The candidate without its micro-batch."""
    return Job(
        model=model,
        zero=candidate.zero,
        degrees=candidate.degrees,
        checkpointing=candidate.checkpointing,
        offload=candidate.offload,
        accumulation=min(2, candidate.accumulation),
        settings=candidate.settings,
        precision=workload.precision,
        optimizer=workload.optimizer,
        adapter=workload.adapter,
        capacity_bytes=cluster.gpu.memory_bytes,
        ranks_per_node=cluster.gpus_per_node,
    )


@lru_cache(maxsize=4096)
def _sums_of_strategy(job: Job) -> Strategy:
    """Kept because all micro-batches of a strategy share them."""
    given, settings = job_inputs(job), job.settings
    # Neither checkpointing nor the other settings reach the host: without them more strategies share its terms.
    sizes = replace(
        NO_SETTINGS,
        sub_group_elements=settings.sub_group_elements,
        pin_memory=settings.pin_memory,
        optimizer_offload_ratio=settings.optimizer_offload_ratio,
    )
    on_host = _on_host(job._replace(checkpointing=Checkpointing.NONE, settings=sizes))
    sums = _summed((*(term for term in gpu_terms(given) if term.size_bytes), *on_host))
    return Strategy(sums, late_instants(given), max(sums.host), max(sums.disk[: Moment.SAVE]))


@lru_cache(maxsize=4096)
def _on_host(job: Job) -> tuple[Term, ...]:
    """Kept because most settings and checkpointing do not reach the host."""
    return tuple(term for term in host_terms(job_inputs(job)) if term.size_bytes)


def job_inputs(job: Job) -> Inputs:
    """What the terms of a strategy depend on."""
    model, adapter, precision, tp = job.model, job.adapter, job.precision, job.degrees.tp
    base, quantized = rank_sizes(model, tp), None
    if adapter is not None and adapter.method is Method.QLORA:
        base, quantized = packed_sizes(model, base, precision.bytes), quantized_base(model, precision.bytes)
    trained = base if adapter is None else adapter_sizes(model, adapter)
    return Inputs(
        candidate=Candidate(
            zero=job.zero,
            degrees=job.degrees,
            checkpointing=job.checkpointing,
            offload=job.offload,
            micro_batch=1,
            accumulation=job.accumulation,
            settings=job.settings,
        ),
        sizes=trained,
        whole=base if adapter is None else with_adapter(base, trained),
        undivided=base if tp == 1 else rank_sizes(model, 1),
        frozen_weight_bytes=0 if adapter is None else precision.bytes * base.total,
        quantized=quantized,
        model_elements=parameter_count(model),
        precision=precision,
        optimizer=job.optimizer,
        capacity_bytes=job.capacity_bytes,
        ranks_per_node=job.ranks_per_node,
    )


def batch_part(model: ModelShape, workload: Workload, candidate: Candidate) -> Batch:
    """The terms that grow with the micro-batch."""
    return _batch(model, workload, candidate.micro_batch, candidate.degrees.tp, candidate.checkpointing)


@lru_cache(maxsize=4096)
def _batch(model: ModelShape, workload: Workload, micro_batch: int, tp: int, checkpointing: Checkpointing) -> Batch:
    """Kept because the stages and offloads of a search share them."""
    activations = activation_terms(
        model,
        micro_batch=micro_batch,
        seq_len=workload.seq_len,
        tp=tp,
        checkpointing=checkpointing,
        precision=workload.precision,
        attention=workload.attention,
        adapter=workload.adapter,
    )
    logits = logits_terms(
        model,
        micro_batch=micro_batch,
        seq_len=workload.seq_len,
        tp=tp,
        precision=workload.precision,
        loss=workload.loss,
        frozen=workload.adapter is not None,
    )
    spread = through_backward(activations, layers=model.layers, left=(0, 0))
    by_layer = tuple((term.name, term.size_bytes) for term in activations if term.name in SHRINKING)
    return Batch(activations, logits, _summed((*spread, *logits)), by_layer)


@lru_cache(maxsize=4096)
def _spread(activations: tuple[Term, ...], layers: int, left: tuple[int, int]) -> tuple[Term, ...]:
    """Kept because the stages and offloads of a search share them."""
    return through_backward(activations, layers=layers, left=left)


def _summed(terms: Iterable[Term]) -> Sums:
    """Bytes of every moment."""
    kept = tuple(terms)
    gpu, host, disk, gathered = ([0] * len(PHASES) for _ in range(4))
    alive = {Device.GPU: gpu, Device.HOST: host, Device.DISK: disk}
    lasting = 0
    for term in kept:
        on_gpu, size_bytes = term.device is Device.GPU, term.size_bytes
        if on_gpu and term.moments[-len(TRAINING) :] == TRAINING:
            lasting += size_bytes
        by_moment = alive[term.device]
        for moment in term.moments:
            by_moment[moment] += size_bytes
        if on_gpu and term.name.startswith(SIDE_STREAM):
            for moment in term.moments:
                gathered[moment] += size_bytes
    return Sums(kept, tuple(gpu), tuple(host), tuple(disk), tuple(gathered), lasting)


def _estimate(sums: Sums, candidate: Candidate) -> MemoryEstimate:
    """The sums with what no tensor accounts for."""
    return MemoryEstimate(
        terms=sums.terms,
        gpu_overhead_bytes=_overhead_bytes(sums.gpu, sums.gathered, sums.lasting, candidate),
        moment_bytes={Device.GPU: sums.gpu, Device.HOST: sums.host, Device.DISK: sums.disk},
        peaks={Device.GPU: max(sums.gpu), Device.HOST: max(sums.host), Device.DISK: max(sums.disk)},
    )


def _overhead_bytes(gpu: tuple[int, ...], gathered: tuple[int, ...], lasting: int, candidate: Candidate) -> int:
    """Context, communicators, and what the allocator keeps.

    Formula: the sum of the functions of memory/overhead.py; blocks of the gathering stream where there is one.
    Source: see those.
    Leaves out: see those.
    """
    slack = allocator_slack_bytes(max(gpu), lasting)
    if candidate.zero is ZeroStage.PARAMETERS and candidate.settings.overlap_comm:
        slack += stranded_bytes(gathered, gpu)
    return context_bytes() + communicator_bytes(candidate.degrees) + slack
