"""The memory of one candidate: all terms, the bytes of every phase, and the moment that binds each.

In: model, cluster, workload, candidate. Out: `MemoryEstimate`. Question: how much does the fullest GPU, and how much
does a node's host, hold in each phase?
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from planner.geometry.params import parameter_count
from planner.memory.activations import activation_terms
from planner.memory.backward import late_layers, through_backward
from planner.memory.gpu_terms import gpu_terms
from planner.memory.host_terms import host_terms
from planner.memory.inputs import TRAINING, Inputs
from planner.memory.logits import logits_terms
from planner.memory.overhead import allocator_slack_bytes, communicator_bytes, context_bytes, side_stream_bytes
from planner.memory.quantized import packed_sizes, quantized_base
from planner.memory.sizes import adapter_sizes, rank_sizes, with_adapter
from planner.records.candidate import Candidate, ZeroStage
from planner.records.estimate import Device, MemoryEstimate, Moment, Term
from planner.records.machine import Cluster
from planner.records.model import Adapter, Method, ModelShape, Precision
from planner.records.request import Optimizer, Workload


def estimate_memory(model: ModelShape, cluster: Cluster, workload: Workload, candidate: Candidate) -> MemoryEstimate:
    """Every term of the candidate, added up by moment."""
    strategy_terms, layers_left = _strategy(model, cluster, workload, candidate)
    activations = activation_terms(
        model,
        micro_batch=candidate.micro_batch,
        seq_len=workload.seq_len,
        tp=candidate.degrees.tp,
        checkpointing=candidate.checkpointing,
        precision=workload.precision,
        attention=workload.attention,
        adapter=workload.adapter,
    )
    terms = (
        *strategy_terms,
        *through_backward(activations, layers=model.layers, left=layers_left),
        *logits_terms(
            model,
            micro_batch=candidate.micro_batch,
            seq_len=workload.seq_len,
            tp=candidate.degrees.tp,
            precision=workload.precision,
            loss=workload.loss,
            frozen=workload.adapter is not None,
        ),
    )
    return add_up(terms, candidate)


def host_peak_bytes(model: ModelShape, cluster: Cluster, workload: Workload, candidate: Candidate) -> int:
    """Host memory of one node at its fullest, without the rest of an estimate.

    Formula: the fullest moment of the sum of host terms.
    Source: memory/host_terms.py.
    Leaves out: nothing; activations and logits are on the GPU.
    """
    terms, _ = _strategy(model, cluster, workload, candidate)
    on_host = [term for term in terms if term.device is Device.HOST]
    return max(sum(term.size_bytes for term in on_host if moment in term.moments) for moment in Moment)


def _strategy(
    model: ModelShape, cluster: Cluster, workload: Workload, candidate: Candidate
) -> tuple[tuple[Term, ...], int]:
    """The terms that many candidates share."""
    return _terms_of_strategy(
        model,
        replace(candidate, micro_batch=1, accumulation=min(2, candidate.accumulation)),
        workload.precision,
        workload.optimizer,
        workload.adapter,
        cluster.gpu.memory_bytes,
        cluster.gpus_per_node,
    )


@lru_cache(maxsize=1024)
def _terms_of_strategy(
    model: ModelShape,
    strategy: Candidate,
    precision: Precision,
    optimizer: Optimizer,
    adapter: Adapter | None,
    capacity_bytes: int,
    ranks_per_node: int,
) -> tuple[tuple[Term, ...], int]:
    """The terms that do not depend on the micro-batch, nor on how many accumulation steps above one there are, and the
    layers that keep their activations when gradients weigh most."""
    base, quantized = rank_sizes(model, strategy.degrees.tp), None
    if adapter is not None and adapter.method is Method.QLORA:
        base, quantized = packed_sizes(model, base, precision.bytes), quantized_base(model, precision.bytes)
    trained = base if adapter is None else adapter_sizes(model, adapter)
    given = Inputs(
        candidate=strategy,
        sizes=trained,
        whole=base if adapter is None else with_adapter(base, trained),
        undivided=base if strategy.degrees.tp == 1 else rank_sizes(model, 1),
        frozen_weight_bytes=0 if adapter is None else precision.bytes * base.total,
        quantized=quantized,
        model_elements=parameter_count(model),
        precision=precision,
        optimizer=optimizer,
        capacity_bytes=capacity_bytes,
        ranks_per_node=ranks_per_node,
    )
    terms = tuple(term for term in (*gpu_terms(given), *host_terms(given)) if term.size_bytes)
    return terms, late_layers(given)


def add_up(terms: tuple[Term, ...], candidate: Candidate) -> MemoryEstimate:
    """Bytes of every moment, and the fullest of each device."""
    alive = {device: [0] * len(Moment) for device in Device}
    lasting = 0
    for term in terms:
        by_moment, size_bytes = alive[term.device], term.size_bytes
        if term.device is Device.GPU and term.moments[-len(TRAINING) :] == TRAINING:
            lasting += size_bytes
        for moment in term.moments:
            by_moment[moment] += size_bytes
    peaks = {device: max(by_moment) for device, by_moment in alive.items()}
    slack = allocator_slack_bytes(peaks[Device.GPU], lasting)
    if candidate.zero is ZeroStage.PARAMETERS and candidate.settings.overlap_comm:
        slack += side_stream_bytes(terms, alive[Device.GPU])
    return MemoryEstimate(
        terms=terms,
        gpu_overhead_bytes=context_bytes() + communicator_bytes(candidate.degrees) + slack,
        moment_bytes={device: tuple(by_moment) for device, by_moment in alive.items()},
        peaks=peaks,
    )
