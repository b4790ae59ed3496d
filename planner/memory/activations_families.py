"""What each architecture's code in transformers keeps for backward beyond the plain pre-norm block.

In: a model shape. Out: `Family`, a row of the table below. Question: which of the formulas of a layer apply?
Every row was read off a trace of the real model (tests/oracles/trace_activations.py; transformers 5.24, torch 2.13).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from planner.errors import PlannerError
from planner.records.model import ModelShape, Position
from planner.records.request import Attention


class NormCode(Enum):
    """How the norm is written, which decides the copies it keeps."""

    RMS = "weight after the cast back"
    """Llama: fp32 input, normed values in the storage type."""
    RMS_FP32 = "weight in fp32"
    """Gemma, OLMo 2: fp32 input and fp32 normed values; the cast comes last."""
    LAYER = "one torch kernel"
    """torch LayerNorm: its input and two statistics."""
    LAYER_CAST = "one torch kernel in fp32"
    """OLMo: LayerNorm without weights on an fp32 copy."""
    LAYER_FP32 = "layer norm in fp32 steps"
    """Cohere: three fp32 copies."""


class NormPlace(Enum):
    """Where the hidden-wide norms of a layer stand."""

    BEFORE = "before"
    """Before attention and before the MLP, or one for both in a parallel block."""
    AROUND = "around"
    """Before and after both (Gemma 2, Gemma 3, GLM-4)."""
    AFTER = "after"
    """After both only (OLMo 2): the projections read the residual stream itself."""


class Projections(Enum):
    """What stays alive of the query, key and value projections under a fused attention kernel."""

    SEPARATE = "separate"
    """Query, key and value as attention reads them."""
    EXPANDED = "expanded"
    """The same, key and value repeated for every query head."""
    VIEWS = "views"
    """The fused projection alone: query, key and value are views of it."""
    ROTATED = "rotated"
    """The fused projection, for the sake of the value, and the rotated query and key."""
    MATH = "math"
    """No fused kernel takes one key/value head under a mask: torch computes in fp32 and keeps the scores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The traits of one architecture's code that decide what its layers keep."""

    norm: NormCode = NormCode.RMS
    place: NormPlace = NormPlace.BEFORE
    projections: Projections = Projections.SEPARATE
    output_copied: bool = False  # query and key are concatenated, so attention's output is copied before its projection
    kernels: tuple[Attention, ...] = (Attention.SDPA, Attention.FLASH)  # that the class accepts beside eager
    copies_for_batches: bool = False  # query, key and value are reshaped, which copies them for more than one sample
    masked: bool = False  # SDPA gets an explicit mask in every layer
    masks: int = 1  # s x s masks that eager attention makes in forward, used or not
    fp32_softmax: bool = True  # eager attention's softmax is computed in fp32 and cast back
    fp32_scores: bool = False  # scores are cast to fp32 before a softmax in the storage type
    fp32_operands: bool = False  # eager attention multiplies query and key in fp32
    fp32_names: bool = False  # and local names hold these copies during the softmax
    softmax_bytes: tuple[int, int] = (0, 0)  # alive at a recomputed eager softmax, where it sets the peak: fixed, per w
    forward_softmax_bytes: tuple[int, int, int] | None = None  # in a checkpointed first forward, where unusual: fixed,
    # per w, and of these per w what is gone by then without checkpointing
    forward_streams: int = 0  # hidden-wide tensors beside that softmax, other than the operands of attention
    residual_dropouts: int = 2  # hidden-wide dropouts in a layer
    rotary_bytes: tuple[int, int] = (0, 0)  # bytes of rotary tables kept by every layer: per head_dim fixed, and per w
    fp32_routing: bool = False  # expert outputs are weighted in fp32


_EAGER_ONLY: tuple[Attention, ...] = ()
_FLASH_ONLY = (Attention.FLASH,)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(),
    "qwen3": Family(),
    "granite": Family(),
    "smollm3": Family(),
    "seed_oss": Family(),
    "internlm3": Family(),
    "ernie4_5": Family(rotary_bytes=(8, 0)),
    "phi3": Family(projections=Projections.ROTATED, output_copied=True),
    "glm": Family(output_copied=True, rotary_bytes=(0, 1)),
    "glm4": Family(place=NormPlace.AROUND, output_copied=True, rotary_bytes=(0, 1)),
    "gemma": Family(norm=NormCode.RMS_FP32),
    "gemma2": Family(norm=NormCode.RMS_FP32, place=NormPlace.AROUND, kernels=_FLASH_ONLY, masks=2),
    "gemma3_text": Family(norm=NormCode.RMS_FP32, place=NormPlace.AROUND, masks=2),
    "olmo": Family(norm=NormCode.LAYER_CAST),
    "olmo2": Family(norm=NormCode.RMS_FP32, place=NormPlace.AFTER),
    "phi": Family(norm=NormCode.LAYER, output_copied=True, forward_streams=3),
    "stablelm": Family(norm=NormCode.LAYER, output_copied=True, residual_dropouts=1, forward_streams=2),
    "gpt2": Family(norm=NormCode.LAYER, projections=Projections.VIEWS, fp32_softmax=False, forward_streams=1),
    "gpt_bigcode": Family(norm=NormCode.LAYER, projections=Projections.VIEWS, forward_streams=1),
    "gpt_neo": Family(
        norm=NormCode.LAYER, kernels=_FLASH_ONLY, fp32_operands=True, fp32_names=True, forward_softmax_bytes=(8, 1, 0)
    ),
    "gpt_neox": Family(norm=NormCode.LAYER, projections=Projections.ROTATED, output_copied=True),
    "gptj": Family(norm=NormCode.LAYER, fp32_operands=True, forward_streams=3),
    "opt": Family(norm=NormCode.LAYER, forward_streams=2),
    "starcoder2": Family(norm=NormCode.LAYER),
    "falcon": Family(
        norm=NormCode.LAYER,
        fp32_softmax=False,
        softmax_bytes=(0, 3),
        forward_softmax_bytes=(0, 4, 1),
        residual_dropouts=1,
    ),  # see `_falcon`
    "bloom": Family(
        norm=NormCode.LAYER,
        kernels=_EAGER_ONLY,
        softmax_bytes=(12, 0),
        forward_softmax_bytes=(12, 1, 1),
        forward_streams=5,
        copies_for_batches=True,
    ),
    "mpt": Family(
        norm=NormCode.LAYER,
        kernels=_EAGER_ONLY,
        residual_dropouts=0,
        forward_softmax_bytes=(12, 0, 1),
        forward_streams=1,
    ),
    "cohere": Family(norm=NormCode.LAYER_FP32),
    "mixtral": Family(fp32_routing=True),
    "qwen2_moe": Family(masks=2),
    "qwen3_moe": Family(),
    "olmoe": Family(),
}


def supports_activations(model_type: str) -> bool:
    """Whether there is a traced formula for this architecture."""
    return model_type in FAMILIES


def family_of(shape: ModelShape) -> Family:
    """The row of an architecture; an error rather than a guess where there is none."""
    family = FAMILIES.get(shape.model_type)
    if family is None:
        raise PlannerError(
            f"the activation memory of model type `{shape.model_type}` is not known",
            hint=f"known model types: {', '.join(sorted(FAMILIES))}",
        )
    return _falcon(shape, family) if shape.model_type == "falcon" else family


def _falcon(shape: ModelShape, family: Family) -> Family:
    """Falcon's attention differs by generation: 40B and 180B, 7B, one without grouping, and one with ALiBi."""
    new = shape.trait("new_decoder_architecture")
    if shape.position is Position.ALIBI:
        projections = Projections.EXPANDED if new else Projections.VIEWS
        return replace(
            family,
            projections=projections,
            fp32_scores=True,
            softmax_bytes=(14, 2),
            forward_softmax_bytes=(20, 0, 0),
            masks=0,
        )
    if new:
        projections, masked = Projections.EXPANDED, True
    elif shape.kv_heads == 1:
        projections, masked = Projections.MATH, False
    else:
        projections, masked = Projections.ROTATED, True
    return replace(family, projections=projections, masked=masked)


def attention_in_force(shape: ModelShape, attention: Attention) -> Attention:
    """The attention that runs: eager where the class refuses the kernel (bloom, mpt; SDPA also gemma2 and gpt_neo)."""
    kernels = shape.traced.kernels if shape.traced is not None else family_of(shape).kernels
    return attention if attention in kernels else Attention.EAGER


def single_sample_differs(shape: ModelShape) -> bool:
    """Whether a micro-batch of one keeps other bytes per token than a larger one."""
    family = family_of(shape)
    return family.copies_for_batches or family.projections is Projections.MATH
