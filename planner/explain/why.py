"""Reasons in words: what binds a plan, what simpler strategies lack, what each plan costs against the best.

In: the ranked evaluations and the rejections of a search. Out: sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.explain.host import borderline_sentence, host_sentences
from planner.explain.settings import settings_words
from planner.explain.trade import trade_sentences, trade_text
from planner.records.candidate import Candidate, Checkpointing, Offload
from planner.records.estimate import Device, Phase
from planner.records.model import Method
from planner.records.plan import Evaluation, Plan, Rejection, Verdict
from planner.records.request import Optimizer, Request, Workload
from planner.search.evaluate import PHASE_WORDS
from planner.search.rank import best_of_each_strategy
from planner.search.space import usual_settings
from planner.speed.constants import SpeedConstants
from planner.units import gib_text

OFFLOAD_WORDS = {
    Offload.NONE: "nothing offloaded",
    Offload.OPTIMIZER: "optimizer states in host memory",
    Offload.OPTIMIZER_AND_PARAMS: "optimizer states and parameters in host memory",
    Offload.NVME: "optimizer states and parameters on NVMe",
}
OPTIMIZER_WORDS = {
    Optimizer.ADAMW: "",
    Optimizer.ADAMW_8BIT: " with 8-bit AdamW",
    Optimizer.ADAFACTOR: " with Adafactor",
    Optimizer.LION: " with Lion",
    Optimizer.MUON: " with Muon",
    Optimizer.SGD: " with SGD",
}
STAGE_WORDS = {
    0: "no sharding",
    1: "optimizer states sharded",
    2: "optimizer states and gradients sharded",
    3: "all states sharded",
}


def method_text(workload: Workload) -> str:
    """What is trained, in a few words; the optimizer where it is not AdamW."""
    adapter, optimizer = workload.adapter, OPTIMIZER_WORDS[workload.optimizer]
    if adapter is None:
        return f"full fine-tuning{optimizer}"
    return f"{'QLoRA' if adapter.method is Method.QLORA else 'LoRA'} of rank {adapter.rank}{optimizer}"


def strategy_sentence(candidate: Candidate) -> str:
    """The strategy in words a newcomer can follow."""
    degrees = candidate.degrees
    ranks = f"{degrees.dp} data-parallel rank{'s' if degrees.dp > 1 else ''}"
    parts = [f"ZeRO-{int(candidate.zero)} ({STAGE_WORDS[int(candidate.zero)]}) over {ranks}"]
    if degrees.tp > 1:
        parts.append(f"each layer split over {degrees.tp} GPUs (tensor parallel)")
    parts.append(
        "activations recomputed in backward"
        if candidate.checkpointing is Checkpointing.FULL
        else "all activations kept"
    )
    parts.append(OFFLOAD_WORDS[candidate.offload])
    factors = [f"micro-batch {candidate.micro_batch}"]
    if candidate.accumulation > 1:
        factors.append(f"{candidate.accumulation} accumulation steps")
    if degrees.dp > 1:
        factors.append(f"{degrees.dp} ranks")
    batch = " x ".join(factors)
    return ", ".join([*parts, f"{batch} = {candidate.global_batch} samples a step"])


def binding_sentence(request: Request, evaluation: Evaluation) -> str:
    """Which phase and which amounts decide the GPU."""
    memory = evaluation.memory
    phase = memory.limiting_phase(Device.GPU)
    left = request.cluster.gpu.memory_bytes - memory.gpu_total_bytes
    tail = f"{gib_text(left)} left" if left >= 0 else f"{gib_text(-left)} too much"
    return (
        f"{PHASE_WORDS[phase]} binds: {gib_text(memory.peak_bytes(Device.GPU))} of tensors and "
        f"{gib_text(memory.gpu_overhead_bytes)} of overhead in {gib_text(request.cluster.gpu.memory_bytes)}, {tail}"
    )


def components(evaluation: Evaluation, phase: Phase) -> tuple[tuple[str, int], ...]:
    """GPU bytes of one phase by component, largest first."""
    sums: dict[str, int] = {}
    for term, phases in evaluation.memory.terms_with_phases():
        if term.device is Device.GPU and phase in phases:
            group = term.name if term.name.startswith("states/") else term.name.split("/")[0]
            sums[group] = sums.get(group, 0) + term.size_bytes
    return tuple(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def simpler_that_failed(plan: Plan, chosen: Candidate) -> tuple[str, ...]:
    """Why each lower stage without offload, at the same tensor-parallel degree, is out: its most frugal candidate."""
    comparable = [r for r in plan.rejected if r.memory and _comparable(r.candidate, chosen)]
    fitted = {e.candidate.zero for e in plan.ranked if _comparable(e.candidate, chosen)}
    sentences = []
    for stage in sorted({r.candidate.zero for r in comparable} - fitted):
        least = min((r for r in comparable if r.candidate.zero is stage), key=lambda r: (r.needed, r.candidate.label))
        sentences.append(f"{least.candidate.label} {least.detail}")
    return tuple(sentences)


def _comparable(candidate: Candidate, chosen: Candidate) -> bool:
    return candidate.zero < chosen.zero and candidate.offload is Offload.NONE and candidate.degrees == chosen.degrees


def with_reasons(plan: Plan, constants: SpeedConstants) -> Plan:
    """The plan with reasons on the plans that are shown; `constants` say what changed settings are worth."""
    shown: Sequence[Evaluation] = best_of_each_strategy(plan.ranked)[: plan.request.top]
    if not shown:
        return plan
    best = shown[0]
    explained: dict[Candidate, Evaluation] = {}
    for evaluation in shown:
        candidate = evaluation.candidate
        usual = usual_settings(plan.request, candidate.zero, candidate.degrees, candidate.offload)
        reasons = [strategy_sentence(candidate), binding_sentence(plan.request, evaluation)]
        reasons += settings_words(plan.request, candidate, usual, constants)
        if evaluation is best:
            reasons += simpler_that_failed(plan, best.candidate)
            reasons += trade_sentences(plan, shown)
        else:
            reasons.append(f"against plan 1: {trade_text(best, evaluation)}")
        if evaluation.verdict is Verdict.BORDERLINE:
            reasons.append(borderline_sentence(plan.request, evaluation))
        reasons += host_sentences(plan.request, evaluation)
        explained[evaluation.candidate] = replace(evaluation, reasons=tuple(reasons))
    return replace(plan, ranked=tuple(explained.get(e.candidate, e) for e in plan.ranked))


def rejection_sentences(rejections: Sequence[Rejection]) -> tuple[str, ...]:
    """One line a near miss."""
    return tuple(f"{r.candidate.label}: {r.detail}" for r in rejections)
