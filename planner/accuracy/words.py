"""The words of a measured run in our terms: which engine, which layers, what is stored, what is offloaded.

In: texts as a source wrote them. Out: enumerations. Question: what kind of run was this? A text that says nothing falls
back to what its framework does by default, never to a value of a single row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from planner.accuracy.points import Point
from planner.records.candidate import Offload
from planner.records.request import Optimizer


class Engine(str, Enum):
    """Who holds weights, gradients and optimizer states."""

    DEEPSPEED = "deepspeed"
    """DeepSpeed's ZeRO stages: the terms of a plan, unchanged."""
    MEGATRON = "megatron"
    """Megatron-LM's 16-bit optimizer, distributed or not."""
    FSDP = "fsdp"
    """PyTorch's fully sharded data parallelism, or a work-alike."""
    TORCH = "torch"
    """A plain PyTorch optimizer over whole parameters, alone or under DDP."""


class Layers(str, Enum):
    """Whose model code runs, which decides what a layer keeps for backward."""

    TRANSFORMERS = "transformers"
    MEGATRON = "megatron"
    LITGPT = "litgpt"
    TORCHTUNE = "torchtune"
    FOUNDRY = "llm-foundry"
    SCALING = "scaling"
    """Aleph Alpha's Megatron-like layers."""


class Storage(str, Enum):
    """What a trained parameter is stored as."""

    MIXED = "mixed"
    """16-bit weights and gradients, fp32 master weights and optimizer states."""
    MIXED_FP32_GRADIENTS = "mixed, fp32 gradients"
    """The same with gradients accumulated in fp32."""
    AUTOCAST = "fp32 under autocast"
    """fp32 weights, gradients and states; operations run in 16 bits on casts of the weights."""
    PURE = "pure 16-bit"
    """16-bit weights, gradients and states."""
    FP32 = "fp32"
    """Everything in fp32, operations too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework: the word that names it, its engine and its layers, and what it stores unless told otherwise."""

    word: str
    engine: Engine
    layers: Layers
    storage: Storage
    source: str
    liger: bool = False  # its layers are patched with Liger's kernels unless told otherwise
    keeps_output: bool = False  # its loop holds the model's output, and with it the logits, during backward


FRAMEWORKS = (
    Framework(word="megatron-deepspeed", engine=Engine.DEEPSPEED, layers=Layers.MEGATRON, storage=Storage.MIXED,
              source="https://github.com/deepspeedai/Megatron-DeepSpeed"),
    Framework(word="deepspeed (megatron", engine=Engine.DEEPSPEED, layers=Layers.MEGATRON, storage=Storage.MIXED,
              source="https://github.com/deepspeedai/Megatron-DeepSpeed"),
    Framework(word="pai-megatron", engine=Engine.MEGATRON, layers=Layers.MEGATRON, storage=Storage.MIXED,
              source="https://github.com/alibaba/Pai-Megatron-Patch"),
    Framework(word="deepspeed", engine=Engine.DEEPSPEED, layers=Layers.TRANSFORMERS, storage=Storage.MIXED,
              source="transformers 5.24 integrations/deepspeed.py"),
    Framework(word="aleph-alpha", engine=Engine.MEGATRON, layers=Layers.SCALING, storage=Storage.MIXED,
              source="https://github.com/Aleph-Alpha/scaling"),
    Framework(word="megatron", engine=Engine.MEGATRON, layers=Layers.MEGATRON, storage=Storage.MIXED_FP32_GRADIENTS,
              source="https://github.com/NVIDIA/Megatron-LM: megatron/core/distributed"),
    Framework(word="internevo", engine=Engine.MEGATRON, layers=Layers.MEGATRON, storage=Storage.MIXED,
              source="https://github.com/InternLM/InternEvo"),
    Framework(word="nanotron", engine=Engine.MEGATRON, layers=Layers.MEGATRON, storage=Storage.MIXED_FP32_GRADIENTS,
              source="https://github.com/huggingface/nanotron"),
    Framework(word="litgpt", engine=Engine.TORCH, layers=Layers.LITGPT, storage=Storage.PURE,
              source="https://github.com/Lightning-AI/litgpt: precision bf16-true is its default"),
    Framework(word="torchtune", engine=Engine.TORCH, layers=Layers.TORCHTUNE, storage=Storage.PURE,
              source="https://github.com/pytorch/torchtune: recipes load and train in `dtype: bf16`"),
    Framework(word="composer", engine=Engine.FSDP, layers=Layers.FOUNDRY, storage=Storage.AUTOCAST,
              source="https://github.com/mosaicml/llm-foundry: FSDP over fp32 parameters"),
    Framework(word="automodel", engine=Engine.FSDP, layers=Layers.TRANSFORMERS, storage=Storage.AUTOCAST,
              source="https://github.com/NVIDIA-NeMo/Automodel: Liger kernels by default, the output kept in backward",
              liger=True, keeps_output=True),
    Framework(word="fairscale", engine=Engine.FSDP, layers=Layers.MEGATRON, storage=Storage.AUTOCAST,
              source="https://github.com/facebookresearch/fairseq: examples/fully_sharded_data_parallel"),
    Framework(word="colossalai", engine=Engine.FSDP, layers=Layers.TRANSFORMERS, storage=Storage.MIXED,
              source="https://github.com/hpcaitech/ColossalAI: Gemini"),
    Framework(word="fsdp", engine=Engine.FSDP, layers=Layers.TRANSFORMERS, storage=Storage.AUTOCAST,
              source="accelerate 1.15 accelerator.py: fp32 parameters under mixed precision"),
    Framework(word="pytorch", engine=Engine.TORCH, layers=Layers.TRANSFORMERS, storage=Storage.AUTOCAST,
              source="transformers 5.24 trainer.py: autocast over the parameters as loaded"),
)  # fmt: skip
"""First match wins."""


def framework_of(text: str | None) -> Framework:
    """The row of a framework; an unnamed one is taken as DeepSpeed with transformers models, which dsplan plans."""
    name = (text or "deepspeed").casefold()
    named = (row for row in FRAMEWORKS if row.word in name)
    return next(named, next(row for row in FRAMEWORKS if row.word == "deepspeed"))


def engine_of(point: Point, framework: Framework) -> Engine:
    """Who holds the states: a torch framework that shares parameters out does it with FSDP; Pai's own runs use
    DeepSpeed where they name a ZeRO stage."""
    if framework.engine is Engine.TORCH and point.zero_stage == 3:
        return Engine.FSDP
    if framework.word == "pai-megatron" and point.zero_stage:
        return Engine.DEEPSPEED
    return framework.engine


def storage_of(point: Point, framework: Framework) -> Storage:
    """What a parameter is stored as, from `param_dtype`; `dtype` fp32 alone means no 16-bit copy at all."""
    text = (point.param_dtype or "").casefold()
    if (point.dtype or "").casefold() == "fp32":
        return Storage.FP32
    if "fp32 grads" in text:
        return Storage.MIXED_FP32_GRADIENTS
    if "shards" in text or "amp" in text:
        return Storage.AUTOCAST
    if "master" in text:
        return Storage.MIXED
    if text.startswith(("bf16", "fp16", "16bit", "pure")):
        return Storage.PURE
    if text == "fp32":
        return Storage.AUTOCAST
    return framework.storage


def default_optimizer(engine: Engine, layers: Layers, *, full: bool) -> str:
    """What a framework's own recipe updates with, where a source does not say.

    Source: torchtune recipes/configs/llama3_1/8B_full_single_device.yaml: paged 8-bit Adam, stepping in backward.
    """
    if layers is Layers.TORCHTUNE and engine is Engine.TORCH and full:
        return "PagedAdamW8bit in backward"
    return "AdamW"


def optimizer_of(text: str) -> Optimizer:
    """The update rule; Adam where nothing else is said."""
    name = text.casefold()
    if "8bit" in name or "8-bit" in name:
        return Optimizer.ADAMW_8BIT
    for word, optimizer in (
        ("adafactor", Optimizer.ADAFACTOR),
        ("lion", Optimizer.LION),
        ("muon", Optimizer.MUON),
        ("sgd", Optimizer.SGD),
    ):
        if word in name:
            return optimizer
    return Optimizer.ADAMW


def offload_of(text: str | None) -> Offload:
    """What DeepSpeed keeps off the GPU; offloaded activations are read by `activations_offloaded`."""
    words = (text or "none").casefold()
    if "nvme" in words:
        return Offload.NVME
    if "param" in words:
        return Offload.OPTIMIZER_AND_PARAMS
    return Offload.OPTIMIZER if "optimizer" in words else Offload.NONE


def activations_offloaded(text: str | None) -> bool:
    """Whether checkpointed activations wait in host memory."""
    return "activation" in (text or "").casefold()


def fused_loss(text: str | None) -> bool:
    """Whether logits and loss are computed in pieces."""
    return text not in (None, "none")
