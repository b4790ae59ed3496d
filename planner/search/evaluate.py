"""One candidate to its numbers, or to the reason why it is out.

In: request, candidate, speed constants. Out: `Evaluation` or `Rejection`.
"""

from __future__ import annotations

from planner.memory.estimate import estimate_memory
from planner.records.candidate import Candidate
from planner.records.estimate import Device, MemoryEstimate, Phase, TimeEstimate
from planner.records.plan import Evaluation, Limit, Rejection, Verdict
from planner.records.request import Request
from planner.search.capacity import DEVICES, available_bytes, inside_margins, limits, needed_bytes, overflow
from planner.search.rules import RULES, RUNNABLE, Breach, first_breach
from planner.speed.constants import SpeedConstants
from planner.speed.estimate import time_estimate
from planner.units import gib_text

RULE_OF = {Device.GPU: "gpu-memory", Device.HOST: "host-memory", Device.DISK: "disk-space"}
PHASE_WORDS = {
    Phase.LOAD: "loading",
    Phase.INIT: "initialisation",
    Phase.FORWARD: "the forward pass",
    Phase.BACKWARD: "the backward pass",
    Phase.STEP: "the optimizer step",
    Phase.SAVE: "saving",
}


def evaluate(
    request: Request, candidate: Candidate, constants: SpeedConstants, *, proposed: bool = True
) -> Evaluation | Rejection:
    """Rules first, then memory, then speed; no speed for what does not fit.

    `proposed` False asks only whether DeepSpeed runs it: a configuration that somebody already has may be one that
    dsplan would not propose.
    """
    breach = first_breach(request, candidate, RULES if proposed else RUNNABLE)
    if breach is not None:
        return breached(candidate, breach)
    memory = estimate_memory(request.model, request.cluster, request.workload, candidate)
    if overflow(limits(request, candidate), memory.needs) is not None:
        return too_large(request, candidate, memory)
    time = time_estimate(request.model, request.cluster, request.workload, candidate, constants=constants)
    return kept(request, candidate, memory, time)


def kept(request: Request, candidate: Candidate, memory: MemoryEstimate, time: TimeEstimate) -> Evaluation:
    """A candidate that fits."""
    verdict = Verdict.FITS if inside_margins(limits(request, candidate), memory.needs) else Verdict.BORDERLINE
    return Evaluation(candidate=candidate, verdict=verdict, limit=tightest(request, memory), memory=memory, time=time)


def breached(candidate: Candidate, breach: Breach) -> Rejection:
    """A candidate that a rule forbids."""
    return Rejection(candidate=candidate, rule=breach.rule, detail=breach.detail, needed=breach.needed,
                     available=breach.available, memory=None)  # fmt: skip


def too_large(request: Request, candidate: Candidate, memory: MemoryEstimate) -> Rejection:
    """A candidate that does not fit the first device it overflows."""
    device = overflow(limits(request, candidate), memory.needs)
    available = None if device is None else available_bytes(request, device)
    if device is None or available is None:
        raise ValueError(f"{candidate.label} fits")
    return Rejection(
        candidate=candidate,
        rule=RULE_OF[device],
        detail=_overflow_text(request, memory, device, available),
        needed=needed_bytes(memory, device),
        available=available,
        memory=memory,
    )


def tightest(request: Request, memory: MemoryEstimate) -> Limit:
    """The resource that exceeds most, or the one with the least share left."""
    found: tuple[float, Device, int] | None = None
    for device, needed in zip(DEVICES, memory.needs, strict=True):
        available = available_bytes(request, device)
        if available is None or not needed:
            continue
        if found is None or needed / max(1, available) > found[0]:
            found = (needed / max(1, available), device, needed - available)
    if found is None:
        raise ValueError("a GPU always has a capacity")
    _, device, excess = found
    return Limit(resource=device.value, phase=limiting_phase(memory, device).value, excess_bytes=excess)


def limiting_phase(memory: MemoryEstimate, device: Device) -> Phase:
    """The first phase that reaches the need; on NVMe, saving adds nothing to it."""
    return Phase.STEP if device is Device.DISK else memory.limiting_phase(device)


def _overflow_text(request: Request, memory: MemoryEstimate, device: Device, available: int) -> str:
    """Every phase that overflows, with its need, in the order of the run."""
    if device is Device.DISK:
        return f"does not fit the {gib_text(available)} of a node's NVMe: {gib_text(needed_bytes(memory, device))}"
    extra = memory.gpu_overhead_bytes if device is Device.GPU else 0
    needed = {phase: memory.phase_bytes(device, phase) + extra for phase in Phase}
    needs = ", ".join(f"{PHASE_WORDS[phase]} {gib_text(need)}" for phase, need in needed.items() if need > available)
    place = request.cluster.gpu.name if device is Device.GPU else "a node's RAM that the system leaves"
    return f"does not fit the {gib_text(available)} of {place}: {needs}"
