"""The memory model against the dry run: predicted and measured tensor bytes of the fullest rank, phase by phase.

In: the shrunken model, its candidate and workload; what the ranks counted. Out: a `MemoryComparison`. On a CPU device
and host are one memory, so both shares of a rank are added up; what no tensor of the engine accounts for is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.memory.estimate import estimate_memory
from planner.memory.host_terms import BESIDE_THE_ENGINE
from planner.records.candidate import Candidate, Offload, ZeroStage
from planner.records.estimate import MOMENTS_OF, Device, MemoryEstimate, Moment, Phase
from planner.records.model import ModelShape
from planner.records.request import Workload
from planner.spec.cluster import parse_cluster
from planner.units import ceil_div

PHASES = (Phase.LOAD, Phase.INIT, Phase.FORWARD, Phase.BACKWARD, Phase.STEP)
LIMIT_PERCENT = 3.0
OFFLOADED_LIMIT_PERCENT = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBytes:
    """One phase: its fullest moment as predicted, and as the fullest rank counted it."""

    phase: str
    predicted_bytes: int
    measured_bytes: int
    difference_percent: float  # of predicted from measured
    within_limit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryComparison:
    """All phases, or why they were not compared."""

    skipped: str | None
    limit_percent: float
    phases: tuple[PhaseBytes, ...] = ()


def predicted_bytes(model: ModelShape, workload: Workload, candidate: Candidate) -> Mapping[Phase, int]:
    """Bytes of the fullest rank in each phase, on a CPU: pinning rounds nothing there, and a partial offload leaves
    nothing elsewhere, for the accelerator is the CPU too (stage3.py `subgroup_to_device`, DeepSpeed 0.19.8)."""
    ranks = candidate.degrees.world_size
    settings = replace(candidate.settings, pin_memory=False, optimizer_offload_ratio=1.0)
    memory = estimate_memory(model, parse_cluster(f"{ranks}xA100-80G"), workload, replace(candidate, settings=settings))
    bytes_of = {phase: phase_bytes(memory, phase, ranks=ranks) for phase in PHASES}
    sharded = candidate.zero is ZeroStage.PARAMETERS
    if not sharded:  # every rank builds the whole model before there is an engine
        bytes_of[Phase.LOAD] = next(term.size_bytes // ranks for term in memory.terms if term.name == "load/copy")
    bytes_of[Phase.LOAD] += ceil_div(untied_head_bytes(model, workload.precision.bytes), ranks if sharded else 1)
    return bytes_of


def untied_head_bytes(model: ModelShape, element_bytes: int) -> int:
    """The head of a model that ties it to the embedding: transformers makes it first and ties it last.

    Formula: e * V * h, or the embedding's own width instead of h; 0 where nothing is tied.
    Source: transformers 5.24 modeling_utils.py `post_init`, which ends with `tie_weights`.
    Leaves out: loading from a file below stage 3, where the model is first made without memory.
    """
    width = model.trait("embedding_width") or model.hidden
    return element_bytes * model.vocab * width if model.tied_embeddings else 0


def phase_bytes(memory: MemoryEstimate, phase: Phase, *, ranks: int) -> int:
    """Tensor bytes of one rank at the fullest moment of a phase, device and host together."""

    def alive(moment: Moment) -> int:
        host = sum(
            term.size_bytes // ranks
            for term in memory.terms
            if term.device is Device.HOST and moment in term.moments and term.name not in BESIDE_THE_ENGINE
        )
        return memory.moment_bytes[Device.GPU][moment] + host

    return max(alive(moment) for moment in MOMENTS_OF[phase])


def limit_percent(offload: Offload) -> float:
    """How far predicted bytes may be from measured ones; further where host and device are told apart by nothing."""
    return LIMIT_PERCENT if offload is Offload.NONE else OFFLOADED_LIMIT_PERCENT


def compare(predicted: Mapping[Phase, int], measured: Mapping[str, int], *, limit_percent: float) -> MemoryComparison:
    """Every phase side by side."""
    phases = []
    for phase in PHASES:
        difference = 100 * (predicted[phase] / measured[phase.value] - 1)
        phases.append(
            PhaseBytes(
                phase=phase.value,
                predicted_bytes=predicted[phase],
                measured_bytes=measured[phase.value],
                difference_percent=round(difference, 2) + 0.0,  # no negative zero
                within_limit=abs(difference) <= limit_percent,
            )
        )
    return MemoryComparison(skipped=None, limit_percent=limit_percent, phases=tuple(phases))
