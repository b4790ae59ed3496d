"""Numbers with their reasons: memory terms by moment and phase, time terms, and what they add up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple


class Phase(str, Enum):
    """The phases of a run, in order."""

    LOAD = "load"
    INIT = "init"
    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"
    SAVE = "save"


class Moment(IntEnum):
    """An instant inside a phase at which memory can peak; a phase's bytes are those of its fullest moment."""

    LOAD = 0
    """The model has just been built."""
    INIT_WEIGHTS = 1
    """Weights are being flattened or partitioned."""
    INIT_STATES = 2
    """Master weights and their transients exist."""
    FORWARD_LAYER = 3
    """The last layer has run: everything that layers keep is alive, the logits are not yet."""
    FORWARD_END = 4
    """Every kept activation and the logits are alive."""
    BACKWARD_HEAD = 5
    """The loss gradient passes the head: all activations, peak of the logits."""
    BACKWARD_HEAD_WEIGHT = 6
    """The head's weight gradient is made beside the gradient of the logits."""
    BACKWARD_HEAD_REDUCED = 7
    """The head's weight gradient is reduced; no layer has been differentiated."""
    BACKWARD_LAYER = 8
    """The last layer is recomputed and differentiated: what its backward makes and drops is alive."""
    BACKWARD_LAYER_REDUCED = 9
    """The largest gradients of the last layer are reduced."""
    BACKWARD_LATE = 10
    """An earlier layer is differentiated: gradients pile up, and the layers before it still keep their activations."""
    BACKWARD_LATE_REDUCED = 11
    """The largest gradients of that layer are reduced."""
    BACKWARD_END = 12
    """Activations are gone, gradients are complete."""
    STEP_NORM = 13
    """The gradient norm is taken, slice by slice."""
    STEP_CAST = 14
    """Gradients are flattened and cast to fp32 for the update."""
    STEP_UPDATE = 15
    """The optimizer updates the master weights."""
    SAVE = 16
    """A checkpoint is written."""

    @property
    def phase(self) -> Phase:
        """The phase this moment belongs to."""
        return Phase(self.name.split("_")[0].lower())


PHASES = tuple(moment.phase for moment in Moment)
"""The phase of every moment."""

MOMENTS_OF: Mapping[Phase, tuple[Moment, ...]] = {
    phase: tuple(m for m in Moment if m.phase is phase) for phase in Phase
}


class Device(str, Enum):
    """Where bytes lie."""

    GPU = "gpu"
    """Per GPU, on the fullest rank."""
    HOST = "host"
    """Per node."""
    DISK = "disk"
    """Per node, local NVMe; checkpoint files, which count for the whole job and go where the output folder lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One named amount of memory, the moments it is alive in, and where the formula comes from."""

    name: str  # path-like: `states/optimizer`
    device: Device
    moments: tuple[Moment, ...]
    size_bytes: int
    formula: str
    source: str
    pinned: bool = False  # page-locked host memory


class Needs(NamedTuple):
    """The fullest moment of each device, in the order of `Device`: overhead included on the GPU; on NVMe the states,
    for checkpoints go elsewhere."""

    gpu_bytes: int
    host_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Terms and what they add up to. `gpu_overhead_bytes` is what no tensor accounts for (context, communicators,
    allocator)."""

    terms: tuple[Term, ...]
    gpu_overhead_bytes: int
    moment_bytes: Mapping[Device, tuple[int, ...]]  # by Moment
    peaks: Mapping[Device, int]

    def peak_bytes(self, device: Device) -> int:
        """Tensor bytes at the fullest moment."""
        return self.peaks[device]

    def binding_moment(self, device: Device, phase: Phase) -> Moment:
        """The fullest moment of a phase, the first of equals."""
        return max(MOMENTS_OF[phase], key=self.moment_bytes[device].__getitem__)

    def phase_bytes(self, device: Device, phase: Phase) -> int:
        """Tensor bytes of a phase."""
        return self.moment_bytes[device][self.binding_moment(device, phase)]

    def limiting_phase(self, device: Device) -> Phase:
        """The first phase that reaches the peak."""
        by_moment = self.moment_bytes[device]
        return PHASES[by_moment.index(max(by_moment))]

    @property
    def gpu_total_bytes(self) -> int:
        """Tensors and overhead: the counterpart of nvidia-smi."""
        return self.peaks[Device.GPU] + self.gpu_overhead_bytes

    @property
    def needs(self) -> Needs:
        """What has to be there for it."""
        on_disk = self.moment_bytes[Device.DISK][: Moment.SAVE]
        return Needs(self.gpu_total_bytes, self.peaks[Device.HOST], max(on_disk))

    def terms_with_phases(self) -> tuple[tuple[Term, tuple[Phase, ...]], ...]:
        """Every term that is alive in the fullest moment of a phase, and those phases."""
        binding = {device: [(phase, self.binding_moment(device, phase)) for phase in Phase] for device in Device}
        found = ((t, tuple(phase for phase, m in binding[t.device] if m in t.moments)) for t in self.terms)
        return tuple((term, phases) for term, phases in found if phases)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTerm:
    """One named share of the step time; `hidden_seconds` is what overlaps with other work and does not add to the
    step."""

    name: str
    seconds: float
    hidden_seconds: float
    formula: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEstimate:
    """Predicted time of one optimizer step and what follows from it."""

    terms: tuple[TimeTerm, ...]
    step_seconds: float
    tokens_per_step: int
    model_flop_per_step: float  # forward and backward of the whole job, causal attention, no recomputation
    world_size: int
    peak_flop_per_s: float  # of one GPU in the precision of the run
    relative_error: float  # half-width of the band, as a share
    error_class: str  # which band applies, and why

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the whole cluster per second."""
        return self.tokens_per_step / self.step_seconds

    @property
    def tokens_per_second_per_gpu(self) -> float:
        """The same per GPU."""
        return self.tokens_per_second / self.world_size

    @property
    def model_flop_per_s_per_gpu(self) -> float:
        """Model FLOP/s of one GPU."""
        return self.model_flop_per_step / self.step_seconds / self.world_size

    @property
    def mfu(self) -> float:
        """Model FLOP/s over the dense peak."""
        return self.model_flop_per_s_per_gpu / self.peak_flop_per_s
