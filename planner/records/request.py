"""The question: model, machine, workload and the axes of the search, every default resolved."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from planner.records.candidate import Checkpointing, Offload, ZeroSettings, ZeroStage
from planner.records.machine import Cluster
from planner.records.model import Adapter, Method, ModelShape, Precision


class Attention(str, Enum):
    """The attention kernel."""

    SDPA = "sdpa"
    """torch's scaled_dot_product_attention, flash where the card has it."""
    FLASH = "flash"
    """FlashAttention 2, named explicitly."""
    EAGER = "eager"
    """Scores materialised."""


class Loss(str, Enum):
    """How logits and loss are computed."""

    STANDARD = "standard"
    """Whole logits, upcast to fp32."""
    FUSED = "fused"
    """Head and cross-entropy fused in chunks (Liger): logits never whole."""


class Stack(str, Enum):
    """How the kernels of a layer are issued; it decides speed, not memory."""

    EAGER = "eager"
    """Plain PyTorch modules; what a Hugging Face model runs."""
    FUSED = "fused"
    """Fused norms, rotations and activations: Megatron's layers, Liger's kernels."""
    COMPILED = "compiled"
    """torch.compile."""


class Optimizer(str, Enum):
    """The update rule."""

    ADAMW = "adamw"
    """Momentum and variance."""
    ADAMW_8BIT = "adamw-8bit"
    """The same in 8-bit blocks (bitsandbytes)."""
    ADAFACTOR = "adafactor"
    """A factored variance, no momentum."""
    LION = "lion"
    """Momentum alone; the update is its sign."""
    MUON = "muon"
    """Momentum orthogonalised for matrices, Adam for the rest."""
    SGD = "sgd"
    """Momentum alone."""


class Objective(str, Enum):
    """What the ranking puts first."""

    THROUGHPUT = "throughput"
    MEMORY = "memory"
    COST = "cost"


class Launcher(str, Enum):
    """Who starts the processes."""

    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    TORCHRUN = "torchrun"


class Integration(str, Enum):
    """Which program hands `ds_config.json` to the engine."""

    TRAINER = "trainer"
    """The Hugging Face Trainer; optimizer values come from TrainingArguments."""
    ACCELERATE = "accelerate"
    """A training loop of one's own around `Accelerator`."""
    DEEPSPEED = "deepspeed"
    """A training loop of one's own around `deepspeed.initialize`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one optimizer step works on."""

    seq_len: int
    global_batch: int | None  # samples per step; None: accumulation decides
    accumulation: int | None  # None: from global_batch, else 1
    precision: Precision
    attention: Attention
    loss: Loss
    tokens: int | None  # tokens to train on, for time and cost
    optimizer: Optimizer = Optimizer.ADAMW
    adapter: Adapter | None = None  # None: every parameter is trained
    stack: Stack = Stack.EAGER

    @property
    def method(self) -> Method:
        """What is trained."""
        return self.adapter.method if self.adapter else Method.FULL


def extra_packages(workload: Workload) -> tuple[str, ...]:
    """What a run needs beside torch, DeepSpeed, Accelerate and Transformers."""
    adapters = ("peft",) if workload.adapter else ()
    small_bits = workload.method is Method.QLORA or workload.optimizer is Optimizer.ADAMW_8BIT
    return (*adapters, "bitsandbytes") if small_bits else adapters


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """The declared search space. `micro_batch` None: from 1 to the largest that fits."""

    zero: tuple[ZeroStage, ...]
    tp: tuple[int, ...]
    checkpointing: tuple[Checkpointing, ...]
    offload: tuple[Offload, ...]
    micro_batch: tuple[int, ...] | None
    settings: ZeroSettings | None = None  # taken from --config; None: chosen per candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Everything a plan depends on; the same request always gives the same plan."""

    model: ModelShape
    cluster: Cluster
    workload: Workload
    axes: Axes
    objective: Objective
    margin: float  # share of GPU memory kept free
    launcher: Launcher
    top: int
    script: str | None  # the user's training script; None: the plan's own train.py
    script_arguments: tuple[str, ...]
    asked: tuple[tuple[str, object], ...]  # the fields of the document's `request`, as resolved
    assumptions: tuple[str, ...]
    integration: Integration = Integration.TRAINER
