"""One candidate to its numbers, or to the reason why it is out.

In: request, candidate, speed constants. Out: `Evaluation` or `Rejection`.
"""

from __future__ import annotations

from planner.memory.estimate import estimate_memory
from planner.records.candidate import Candidate
from planner.records.estimate import Device, MemoryEstimate, Phase
from planner.records.plan import Evaluation, Limit, Rejection, Verdict
from planner.records.request import Request
from planner.search.capacity import available_bytes, inside_margins, needed_bytes
from planner.search.rules import RULES, RUNNABLE, first_breach
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
        return Rejection(candidate=candidate, rule=breach.rule, detail=breach.detail, needed=breach.needed,
                         available=breach.available, memory=None)  # fmt: skip
    memory = estimate_memory(request.model, request.cluster, request.workload, candidate)
    for device in Device:
        available = available_bytes(request, device)
        needed = needed_bytes(memory, device)
        if available is not None and needed > available:
            detail = _overflow_text(request, memory, device, available)
            return Rejection(
                candidate=candidate,
                rule=RULE_OF[device],
                detail=detail,
                needed=needed,
                available=available,
                memory=memory,
            )
    verdict = Verdict.FITS if inside_margins(request, candidate, memory) else Verdict.BORDERLINE
    time = time_estimate(request.model, request.cluster, request.workload, candidate, constants=constants)
    return Evaluation(candidate=candidate, verdict=verdict, limit=tightest(request, memory), memory=memory, time=time)


def tightest(request: Request, memory: MemoryEstimate) -> Limit:
    """The resource that exceeds most, or the one with the least share left."""
    found: tuple[float, Limit] | None = None
    for device in Device:
        available, needed = available_bytes(request, device), needed_bytes(memory, device)
        if available is None or not needed:
            continue
        limit = Limit(
            resource=device.value, phase=limiting_phase(memory, device).value, excess_bytes=needed - available
        )
        if found is None or needed / max(1, available) > found[0]:
            found = (needed / max(1, available), limit)
    if found is None:
        raise ValueError("a GPU always has a capacity")
    return found[1]


def limiting_phase(memory: MemoryEstimate, device: Device) -> Phase:
    """The first phase that reaches the need; on NVMe, saving adds nothing to it."""
    return Phase.STEP if device is Device.DISK else memory.limiting_phase(device)


def _overflow_text(request: Request, memory: MemoryEstimate, device: Device, available: int) -> str:
    """Every phase that overflows, with its need, in the order of the run."""
    if device is Device.DISK:
        return f"does not fit the {gib_text(available)} of a node's NVMe: {gib_text(needed_bytes(memory, device))}"
    extra = memory.gpu_overhead_bytes if device is Device.GPU else 0
    over = {
        phase: memory.phase_bytes(device, phase) + extra
        for phase in Phase
        if memory.phase_bytes(device, phase) + extra > available
    }
    needs = ", ".join(f"{PHASE_WORDS[phase]} {gib_text(need)}" for phase, need in over.items())
    place = request.cluster.gpu.name if device is Device.GPU else "a node's RAM that the system leaves"
    return f"does not fit the {gib_text(available)} of {place}: {needs}"
