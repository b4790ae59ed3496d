"""Host memory in words: what an offload plan needs of it, what is safe, and what has to be allowed on the machine.

In: request, evaluation. Out: sentences.
"""

from __future__ import annotations

from dataclasses import replace

from planner.memory.estimate import host_peak_bytes
from planner.records.candidate import Offload
from planner.records.estimate import Device
from planner.records.plan import Evaluation, Verdict
from planner.records.request import Request
from planner.search.capacity import (
    HOST_MARGIN,
    SAFE_BASE_BYTES,
    SAFE_BYTES_PER_PARAMETER,
    available_bytes,
    pinned_host_bytes,
    safe_host_bytes,
    usable_gpu_bytes,
)
from planner.search.evaluate import PHASE_WORDS
from planner.units import GB, gib_text


def host_sentences(request: Request, evaluation: Evaluation) -> tuple[str, ...]:
    """What an offload plan asks of a node's RAM; nothing for the others."""
    if evaluation.candidate.offload is Offload.NONE:
        return ()
    memory = evaluation.memory
    need = gib_text(memory.peak_bytes(Device.HOST), digits=0)
    fullest = f"fullest in {PHASE_WORDS[memory.limiting_phase(Device.HOST)]}"
    available = available_bytes(request, Device.HOST)
    if available is None:
        sentence = (
            f"host RAM is unknown: it needs at least {need} per node (tensors, rounding of page-locked blocks and "
            f"processes, {fullest}) and is safe with {_safe_text(request, evaluation)}"
        )
    else:
        sentence = (
            f"host RAM: {need} of the {gib_text(available, digits=0)} per node that the system leaves, {fullest}; "
            f"stated error {HOST_MARGIN:.0%}"
        )
    return (sentence, *_locked(request, evaluation))


def _safe_text(request: Request, evaluation: Evaluation) -> str:
    safe = safe_host_bytes(request, evaluation.memory)
    if safe * (1 - HOST_MARGIN) <= evaluation.memory.peak_bytes(Device.HOST):
        return f"the {HOST_MARGIN:.0%} error of the host model on top = {gib_text(safe, digits=0)}"
    rule = f"{SAFE_BYTES_PER_PARAMETER} bytes per parameter + {SAFE_BASE_BYTES // GB} GB"
    return f"{rule} = {gib_text(safe, digits=0)}"


def _locked(request: Request, evaluation: Evaluation) -> tuple[str, ...]:
    """Memory that cannot be swapped out, what may forbid it, and what it costs."""
    pinned, candidate = pinned_host_bytes(evaluation.memory), evaluation.candidate
    if not pinned:
        return ()
    sentence = (
        f"{gib_text(pinned, digits=0)} of it per node are page-locked: check `ulimit -l` (unlimited), a container's "
        "memory limit and /dev/shm"
    )
    if candidate.settings.pin_memory:
        pageable = replace(candidate, settings=replace(candidate.settings, pin_memory=False))
        need = host_peak_bytes(request.model, request.cluster, request.workload, pageable)
        sentence += f"; `pin_memory: false`, which is slower, needs {gib_text(need, digits=0)}"
    return (sentence,)


def borderline_sentence(request: Request, evaluation: Evaluation) -> str:
    """Which margin a borderline plan eats into."""
    parts = []
    if evaluation.memory.gpu_total_bytes > usable_gpu_bytes(request, evaluation.candidate):
        share = 1 - usable_gpu_bytes(request, evaluation.candidate) / request.cluster.gpu.memory_bytes
        parts.append(f"the {share:.0%} margin of the memory model")
    available = available_bytes(request, Device.HOST)
    if available is not None and evaluation.memory.peak_bytes(Device.HOST) > available * (1 - HOST_MARGIN):
        parts.append(f"the {HOST_MARGIN:.0%} error of the host memory model")
    return f"{Verdict.BORDERLINE.value}: it fits only inside {' and '.join(parts)}"
