"""The strategy: one point of the search space, and the DeepSpeed settings that go with it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum


class ZeroStage(IntEnum):
    """Which training states the data-parallel ranks share out."""

    DISABLED = 0
    OPTIMIZER = 1
    GRADIENTS = 2
    PARAMETERS = 3


class Checkpointing(str, Enum):
    """Activation checkpointing (Hugging Face: gradient checkpointing)."""

    NONE = "none"
    """Every layer keeps what its backward needs."""
    FULL = "full"
    """Each layer keeps only its input and is recomputed in backward."""


class Offload(str, Enum):
    """Where optimizer states and parameters live."""

    NONE = "none"
    """On the GPU."""
    OPTIMIZER = "optimizer"
    """Optimizer states and fp32 master weights in host memory; the step runs on the CPU."""
    OPTIMIZER_AND_PARAMS = "optimizer+param"
    """Parameter shards in host memory too (stage 3)."""
    NVME = "nvme"
    """Optimizer states and parameter shards on local NVMe (stage 3)."""

    @property
    def optimizer_device(self) -> str:
        """DeepSpeed's `offload_optimizer.device`."""
        if self is Offload.NONE:
            return "none"
        return "nvme" if self is Offload.NVME else "cpu"

    @property
    def param_device(self) -> str:
        """DeepSpeed's `offload_param.device`."""
        if self is Offload.NVME:
            return "nvme"
        return "cpu" if self is Offload.OPTIMIZER_AND_PARAMS else "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """How the world is divided: tp x dp ranks. A tensor-parallel group is tp neighbouring ranks."""

    tp: int
    dp: int

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.tp * self.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSettings:
    """The `zero_optimization` sizes that change memory or speed; all in elements, as DeepSpeed counts them."""

    overlap_comm: bool
    reduce_bucket_elements: int
    allgather_bucket_elements: int
    prefetch_bucket_elements: int  # stage 3, as the next four
    param_persistence_threshold: int
    max_live_parameters: int
    max_reuse_distance: int
    sub_group_elements: int
    pin_memory: bool
    fp32_gradient_accumulation: bool
    hpz_partition_size: int = 1  # ranks that share a second copy of the weights at stage 3; 1: there is none
    optimizer_offload_ratio: float = 1.0  # share of sub-groups that the CPU steps; 1: all, or no offload


NO_SETTINGS = ZeroSettings(
    overlap_comm=True,
    reduce_bucket_elements=0,
    allgather_bucket_elements=0,
    prefetch_bucket_elements=0,
    param_persistence_threshold=0,
    max_live_parameters=0,
    max_reuse_distance=0,
    sub_group_elements=0,
    pin_memory=True,
    fp32_gradient_accumulation=False,
)
"""Where no size is read: the parts of an estimate that are kept for all settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One complete strategy."""

    zero: ZeroStage
    degrees: Degrees
    checkpointing: Checkpointing
    offload: Offload
    micro_batch: int
    accumulation: int
    settings: ZeroSettings

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step."""
        return self.micro_batch * self.accumulation * self.degrees.dp

    @property
    def label(self) -> str:
        """Short name for tables and messages: `ZeRO-3 tp2 checkpointing offload:optimizer mb4`."""
        parts = [f"ZeRO-{int(self.zero)}"]
        if self.degrees.tp > 1:
            parts.append(f"tp{self.degrees.tp}")
        if self.checkpointing is Checkpointing.FULL:
            parts.append("checkpointing")
        if self.offload is not Offload.NONE:
            parts.append(f"offload:{self.offload.value}")
        parts.append(f"mb{self.micro_batch}")
        return " ".join(parts)
