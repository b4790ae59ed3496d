"""The memory of one candidate: all terms, the bytes of every phase, and the moment that binds each.

In: model, cluster, workload, candidate. Out: `MemoryEstimate`. Question: how much does the fullest GPU, and how much
does a node's host, hold in each phase?

Terms come in two parts, each kept: those of a strategy, whatever its micro-batch, and those of a micro-batch, whatever
its strategy. A search asks for the same parts again and again; an estimate adds their sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from operator import add
from typing import NamedTuple

from planner.geometry.params import parameter_count
from planner.memory.activations import activation_terms
from planner.memory.backward import late_layers, through_backward
from planner.memory.gpu_terms import gpu_terms
from planner.memory.host_terms import host_terms
from planner.memory.inputs import TRAINING, Inputs
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
from planner.records.candidate import Candidate, Checkpointing, Degrees, Offload, ZeroSettings, ZeroStage
from planner.records.estimate import Device, MemoryEstimate, Moment, Needs, Term
from planner.records.machine import Cluster
from planner.records.model import Adapter, Method, ModelShape, Precision
from planner.records.request import Attention, Loss, Optimizer, Workload


class Sums(NamedTuple):
    """Terms and their bytes by `Moment`."""

    terms: tuple[Term, ...]
    gpu: tuple[int, ...]
    host: tuple[int, ...]
    disk: tuple[int, ...]
    gathered: tuple[int, ...]  # the share of `gpu` that stage 3 gathers on a stream of its own
    lasting: int  # bytes of `gpu` that stay from one step to the next

    @property
    def host_peak(self) -> int:
        """The fullest moment of a node's host memory."""
        return max(self.host)

    @property
    def disk_peak(self) -> int:
        """The fullest moment of a node's NVMe, before files are saved."""
        return max(self.disk[: Moment.SAVE])


def estimate_memory(model: ModelShape, cluster: Cluster, workload: Workload, candidate: Candidate) -> MemoryEstimate:
    """Every term of the candidate, added up by moment."""
    strategy, batch = _parts(model, cluster, workload, candidate)
    both = Sums(
        strategy.terms + batch.terms,
        tuple(map(add, strategy.gpu, batch.gpu)),
        strategy.host,
        strategy.disk,
        strategy.gathered,
        strategy.lasting + batch.lasting,
    )
    return _estimate(both, candidate)


def needs(model: ModelShape, cluster: Cluster, workload: Workload, candidate: Candidate) -> Needs:
    """`needs` of `estimate_memory`, without the record: what a search asks most often."""
    strategy, batch = _parts(model, cluster, workload, candidate)
    gpu = tuple(map(add, strategy.gpu, batch.gpu))
    overhead = _overhead_bytes(gpu, strategy.gathered, strategy.lasting + batch.lasting, candidate)
    return Needs(max(gpu) + overhead, strategy.host_peak, strategy.disk_peak)


def host_peak_bytes(model: ModelShape, cluster: Cluster, workload: Workload, candidate: Candidate) -> int:
    """Host memory of one node at its fullest, without the rest of an estimate.

    Formula: the fullest moment of the sum of host terms.
    Source: memory/host_terms.py.
    Leaves out: nothing; activations and logits are on the GPU.
    """
    return _strategy(model, cluster, workload, candidate)[0].host_peak


def add_up(terms: tuple[Term, ...], candidate: Candidate) -> MemoryEstimate:
    """Bytes of every moment, and the fullest of each device."""
    return _estimate(_summed(terms), candidate)


def _parts(model: ModelShape, cluster: Cluster, workload: Workload, candidate: Candidate) -> tuple[Sums, Sums]:
    """The terms of the strategy and those of the micro-batch."""
    strategy, layers_left = _strategy(model, cluster, workload, candidate)
    batch = _batch(
        model,
        candidate.micro_batch,
        candidate.degrees.tp,
        candidate.checkpointing,
        layers_left,
        workload.seq_len,
        workload.precision,
        workload.attention,
        workload.loss,
        workload.adapter,
    )
    return strategy, batch


def _strategy(model: ModelShape, cluster: Cluster, workload: Workload, candidate: Candidate) -> tuple[Sums, int]:
    """The terms that many candidates share."""
    return _sums_of_strategy(
        model,
        candidate.zero,
        candidate.degrees,
        candidate.checkpointing,
        candidate.offload,
        min(2, candidate.accumulation),
        candidate.settings,
        workload.precision,
        workload.optimizer,
        workload.adapter,
        cluster.gpu.memory_bytes,
        cluster.gpus_per_node,
    )


@lru_cache(maxsize=4096)
def _sums_of_strategy(
    model: ModelShape,
    zero: ZeroStage,
    degrees: Degrees,
    checkpointing: Checkpointing,
    offload: Offload,
    accumulation: int,
    settings: ZeroSettings,
    precision: Precision,
    optimizer: Optimizer,
    adapter: Adapter | None,
    capacity_bytes: int,
    ranks_per_node: int,
) -> tuple[Sums, int]:
    """The terms that do not depend on the micro-batch, nor on how many accumulation steps above one there are, and the
    layers that keep their activations when gradients weigh most."""
    base, quantized = rank_sizes(model, degrees.tp), None
    if adapter is not None and adapter.method is Method.QLORA:
        base, quantized = packed_sizes(model, base, precision.bytes), quantized_base(model, precision.bytes)
    trained = base if adapter is None else adapter_sizes(model, adapter)
    given = Inputs(
        candidate=Candidate(
            zero=zero,
            degrees=degrees,
            checkpointing=checkpointing,
            offload=offload,
            micro_batch=1,
            accumulation=accumulation,
            settings=settings,
        ),
        sizes=trained,
        whole=base if adapter is None else with_adapter(base, trained),
        undivided=base if degrees.tp == 1 else rank_sizes(model, 1),
        frozen_weight_bytes=0 if adapter is None else precision.bytes * base.total,
        quantized=quantized,
        model_elements=parameter_count(model),
        precision=precision,
        optimizer=optimizer,
        capacity_bytes=capacity_bytes,
        ranks_per_node=ranks_per_node,
    )
    terms = tuple(term for term in (*gpu_terms(given), *host_terms(given)) if term.size_bytes)
    return _summed(terms), late_layers(given)


@lru_cache(maxsize=4096)
def _batch(
    model: ModelShape,
    micro_batch: int,
    tp: int,
    checkpointing: Checkpointing,
    layers_left: int,
    seq_len: int,
    precision: Precision,
    attention: Attention,
    loss: Loss,
    adapter: Adapter | None,
) -> Sums:
    """The terms that grow with the micro-batch; `layers_left` keep their activations when gradients weigh most."""
    activations = activation_terms(
        model,
        micro_batch=micro_batch,
        seq_len=seq_len,
        tp=tp,
        checkpointing=checkpointing,
        precision=precision,
        attention=attention,
        adapter=adapter,
    )
    logits = logits_terms(
        model,
        micro_batch=micro_batch,
        seq_len=seq_len,
        tp=tp,
        precision=precision,
        loss=loss,
        frozen=adapter is not None,
    )
    return _summed((*through_backward(activations, layers=model.layers, left=layers_left), *logits))


def _summed(terms: Iterable[Term]) -> Sums:
    """Bytes of every moment."""
    kept = tuple(terms)
    alive = {device: [0] * len(Moment) for device in Device}
    gathered = [0] * len(Moment)
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
    gpu, host, disk = (tuple(alive[device]) for device in Device)
    return Sums(kept, gpu, host, disk, tuple(gathered), lasting)


def _estimate(sums: Sums, candidate: Candidate) -> MemoryEstimate:
    """The sums with what no tensor accounts for."""
    return MemoryEstimate(
        terms=sums.terms,
        gpu_overhead_bytes=_overhead_bytes(sums.gpu, sums.gathered, sums.lasting, candidate),
        moment_bytes={Device.GPU: sums.gpu, Device.HOST: sums.host, Device.DISK: sums.disk},
        peaks={Device.GPU: max(sums.gpu), Device.HOST: sums.host_peak, Device.DISK: max(sums.disk)},
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
