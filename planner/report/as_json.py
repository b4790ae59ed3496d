"""A plan as the document of CONTRACT section 3: plain dicts, integers for bytes, the same bytes for the same request.

In: `Plan`. Out: the `--json` document, which is also `plan.json`.
"""

from __future__ import annotations

from typing import Any

from planner.geometry.flops import mfu_convention
from planner.geometry.params import active_parameter_count, parameter_count
from planner.records.candidate import Candidate
from planner.records.estimate import Device, MemoryEstimate, Phase, TimeEstimate
from planner.records.machine import Cluster
from planner.records.model import ModelShape
from planner.records.plan import Evaluation, Plan, Rejection
from planner.records.request import Request, extra_packages
from planner.search.capacity import capacity_bytes, pinned_host_bytes
from planner.search.pareto import pareto_front
from planner.search.rank import best_of_each_strategy
from planner.search.summary import nearest_misses, rejection_evaluation, rules_counted
from planner.speed.bill import tokens_j, tokens_usd, training_s
from planner.version import EXTRA_VERSIONS, TARGET_VERSIONS, VERSION


def document(plan: Plan) -> dict[str, Any]:
    """The whole answer."""
    request = plan.request
    shown = best_of_each_strategy(plan.ranked)[: request.top]
    front = {evaluation.candidate for evaluation in pareto_front(plan.ranked)}
    return {
        "dsplan_version": VERSION,
        "versions": {
            "dsplan": VERSION,
            **TARGET_VERSIONS,
            **{name: EXTRA_VERSIONS[name] for name in extra_packages(request.workload)},
        },
        "request": dict(request.asked),
        "model": model_document(request.model),
        "cluster": cluster_document(request.cluster),
        "assumptions": list(request.assumptions),
        "plans": [plan_document(request, e, rank=i, pareto=e.candidate in front) for i, e in enumerate(shown, 1)],
        "rejected": {
            "count": len(plan.rejected),
            "by_rule": rules_counted(plan.rejected),
            "nearest": [rejection_document(request, r) for r in nearest_misses(plan)],
        },
        "remedies": [
            {"change": r.change, "request": dict(r.fields), "plan": plan_document(r.request, r.evaluation, rank=1)}
            for r in plan.remedies
        ],
    }


def model_document(model: ModelShape) -> dict[str, Any]:
    """The model as the answer describes it; `config` rebuilds the architecture with transformers."""
    return {
        "name": model.name,
        "model_type": model.model_type,
        "hub_id": model.hub_id,
        "parameters": parameter_count(model),
        "active_parameters": active_parameter_count(model),
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "ffn_hidden": model.ffn_hidden,
        "vocab": model.vocab,
        "max_positions": model.max_positions,
        "tied_embeddings": model.tied_embeddings,
        "experts": model.experts,
        "experts_per_token": model.experts_per_token,
        "config": dict(model.hf_config),
        "source": model.source,
    }


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    """The cluster as the answer describes it."""
    return {
        "gpu": cluster.gpu.name,
        "gpu_full_name": cluster.gpu.full_name,
        "gpu_memory_bytes": cluster.gpu.memory_bytes,
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "world_size": cluster.world_size,
        "host_ram_bytes": cluster.host_memory_bytes,
        "cpu_cores": cluster.cpu_cores,
        "nvme_bytes": cluster.nvme_bytes,
        "intra_node": cluster.intra_node.name,
        "network": cluster.network_name,
        "network_bytes_per_second": cluster.network_bytes_per_s,
        "instance": cluster.instance,
        "usd_per_hour": cluster.usd_per_hour,
        "source": cluster.source,
    }


def plan_document(request: Request, evaluation: Evaluation, *, rank: int, pareto: bool = False) -> dict[str, Any]:
    """One plan; `pareto` where it was compared with others and is on their front."""
    c = evaluation.candidate
    return {
        "rank": rank,
        "pareto": pareto,
        "verdict": evaluation.verdict.value,
        "limiting": {
            "resource": evaluation.limit.resource,
            "phase": evaluation.limit.phase,
            "excess_bytes": evaluation.limit.excess_bytes,
        },
        **candidate_document(request, c),
        "memory": memory_document(request, evaluation.memory),
        "time": time_document(request, evaluation.time) if evaluation.time else None,
        "cost": cost_document(request, evaluation.time) if evaluation.time else None,
        "energy": energy_document(request, evaluation.time) if evaluation.time else None,
        "reasons": list(evaluation.reasons),
    }


def rejection_document(request: Request, rejection: Rejection) -> dict[str, Any]:
    """A near miss as a PLAN that does not fit."""
    return plan_document(request, rejection_evaluation(request, rejection), rank=0)


def candidate_document(request: Request, candidate: Candidate) -> dict[str, Any]:
    """The strategy's own fields."""
    return {
        "zero_stage": int(candidate.zero),
        "tp": candidate.degrees.tp,
        "dp": candidate.degrees.dp,
        "checkpointing": candidate.checkpointing.value,
        "offload": candidate.offload.value,
        "micro_batch": candidate.micro_batch,
        "accumulation": candidate.accumulation,
        "global_batch": candidate.global_batch,
        "precision": request.workload.precision.value,
    }


def memory_document(request: Request, memory: MemoryEstimate) -> dict[str, Any]:
    """Bytes by phase and by term; the GPU terms that carry a phase sum to that phase exactly."""
    gpu_phases = {phase.value: memory.phase_bytes(Device.GPU, phase) for phase in Phase}
    host_phases = {phase.value: memory.phase_bytes(Device.HOST, phase) for phase in Phase}
    return {
        "gpu": {
            "capacity_bytes": request.cluster.gpu.memory_bytes,
            "peak_bytes": memory.gpu_total_bytes,
            "tensor_peak_bytes": memory.peak_bytes(Device.GPU),
            "overhead_bytes": memory.gpu_overhead_bytes,
            "limiting_phase": memory.limiting_phase(Device.GPU).value,
            "phases": gpu_phases,
        },
        "host": {
            "capacity_bytes": capacity_bytes(request, Device.HOST),
            "peak_bytes": memory.peak_bytes(Device.HOST),
            "pinned_bytes": pinned_host_bytes(memory),
            "phases": host_phases,
        },
        "terms": [
            {
                "name": term.name,
                "device": term.device.value,
                "phases": [phase.value for phase in phases],
                "bytes": term.size_bytes,
                "formula": term.formula,
                "source": term.source,
            }
            for term, phases in memory.terms_with_phases()
        ],
    }


def time_document(request: Request, time: TimeEstimate) -> dict[str, Any]:
    """Step time and what follows, with its band."""
    document: dict[str, Any] = {
        "step_seconds": time.step_seconds,
        "tokens_per_second": time.tokens_per_second,
        "tokens_per_second_per_gpu": time.tokens_per_second_per_gpu,
        "tokens_per_second_low": time.tokens_per_second * (1 - time.relative_error),
        "tokens_per_second_high": time.tokens_per_second * (1 + time.relative_error),
        "model_tflops_per_gpu": time.model_flop_per_s_per_gpu / 1e12,
        "mfu": time.mfu,
        "mfu_convention": mfu_convention(request.workload.adapter),
        "error_class": time.error_class,
        "terms": [
            {
                "name": t.name,
                "seconds": t.seconds,
                "hidden_seconds": t.hidden_seconds,
                "formula": t.formula,
                "source": t.source,
            }
            for t in time.terms
        ],
    }
    tokens = request.workload.tokens
    if tokens is not None:
        document["tokens"] = tokens
        document["total_seconds"] = training_s(tokens, time.tokens_per_second)
    return document


BILLION = 10**9
JOULES_PER_KWH = 3.6e6


def cost_document(request: Request, time: TimeEstimate) -> dict[str, Any] | None:
    """Dollars, where the cluster has a price."""
    price, tokens = request.cluster.usd_per_hour, request.workload.tokens
    if price is None:
        return None
    document = {
        "usd_per_hour": price,
        "usd_per_billion_tokens": tokens_usd(BILLION, time.tokens_per_second, price),
    }
    if tokens is not None:
        document["usd_total"] = tokens_usd(tokens, time.tokens_per_second, price)
    return document


def energy_document(request: Request, time: TimeEstimate) -> dict[str, Any] | None:
    """An upper bound of the energy of the GPUs, where their power limit is known."""
    limit_w, tokens = request.cluster.gpu.tdp_w, request.workload.tokens
    if limit_w is None:
        return None
    joules_per_billion = tokens_j(BILLION, time.tokens_per_second, limit_w, time.world_size)
    document = {
        "gpu_power_limit_watts": limit_w,
        "joules_per_token": joules_per_billion / BILLION,
        "kwh_per_billion_tokens": joules_per_billion / JOULES_PER_KWH,
        "bound": "upper: every GPU at its power limit all the time; hosts, network and cooling are not counted",
    }
    if tokens is not None:
        joules = tokens_j(tokens, time.tokens_per_second, limit_w, time.world_size)
        document["kwh_total"] = joules / JOULES_PER_KWH
    return document
