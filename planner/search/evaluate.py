"""One candidate to its numbers, or to the reason why it is out.

In: request, candidate, speed constants. Out: `Evaluation` or `Rejection`.
"""

from __future__ import annotations

from planner.memory.estimate import estimate_memory
from planner.records.candidate import Candidate
from planner.records.estimate import Device, MemoryEstimate, Phase
from planner.records.plan import Evaluation, Limit, Rejection, Verdict
from planner.records.request import Request
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


TP_MARGIN = 0.15
"""Tensor parallelism on GPUs is the least proven part of the memory model: one report is 17 GiB above it
(https://github.com/deepspeedai/DeepSpeed/issues/7242), while the engine on CPU agrees to the byte."""


def usable_gpu_bytes(request: Request, candidate: Candidate) -> int:
    """GPU memory a plan may use and still be called fitting: what the driver reports, less the stated error."""
    margin = request.margin if candidate.degrees.tp == 1 else max(request.margin, TP_MARGIN)
    return int(request.cluster.gpu.memory_bytes * (1 - margin))


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
        available = capacity_bytes(request, device)
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
    verdict = Verdict.FITS if memory.gpu_total_bytes <= usable_gpu_bytes(request, candidate) else Verdict.BORDERLINE
    time = time_estimate(request.model, request.cluster, request.workload, candidate, constants=constants)
    return Evaluation(candidate=candidate, verdict=verdict, limit=tightest(request, memory), memory=memory, time=time)


def capacity_bytes(request: Request, device: Device) -> int | None:
    """What there is; None where it is unknown."""
    if device is Device.GPU:
        return request.cluster.gpu.memory_bytes
    return request.cluster.host_memory_bytes if device is Device.HOST else request.cluster.nvme_bytes


def needed_bytes(memory: MemoryEstimate, device: Device) -> int:
    """What the fullest phase needs, overhead included on the GPU."""
    return memory.gpu_total_bytes if device is Device.GPU else memory.peak_bytes(device)


def tightest(request: Request, memory: MemoryEstimate) -> Limit:
    """The resource that exceeds most, or the one with the least share left."""
    found: tuple[float, Limit] | None = None
    for device in Device:
        available, needed = capacity_bytes(request, device), needed_bytes(memory, device)
        if not available or not needed:
            continue
        limit = Limit(resource=device.value, phase=memory.limiting_phase(device).value, excess_bytes=needed - available)
        if found is None or needed / available > found[0]:
            found = (needed / available, limit)
    if found is None:
        raise ValueError("a GPU always has a capacity")
    return found[1]


def _overflow_text(request: Request, memory: MemoryEstimate, device: Device, available: int) -> str:
    """Every phase that overflows, with its need, in the order of the run."""
    extra = memory.gpu_overhead_bytes if device is Device.GPU else 0
    over = {
        phase: memory.phase_bytes(device, phase) + extra
        for phase in Phase
        if memory.phase_bytes(device, phase) + extra > available
    }
    needs = ", ".join(f"{PHASE_WORDS[phase]} {gib_text(need)}" for phase, need in over.items())
    place = {Device.GPU: request.cluster.gpu.name, Device.HOST: "a node's RAM", Device.DISK: "a node's NVMe"}[device]
    return f"does not fit the {gib_text(available)} of {place}: {needs}"
