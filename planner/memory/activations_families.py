"""What each architecture's code in transformers keeps for backward beyond the plain pre-norm block.

In: a model_type. Out: `Family`, one row of the table below. Question: which formula of `activations_layer` applies?
Every row was read off a trace of the real model (tests/oracles/trace_activations.py; transformers 5.24, torch 2.13).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from planner.errors import PlannerError


class NormCode(Enum):
    """How the norm is written, which decides the copies it keeps."""

    RMS = "weight after the cast back"
    """Llama: fp32 input, normed values in the storage type."""
    RMS_FP32 = "weight in fp32"
    """Gemma, OLMo 2: fp32 input and fp32 normed values; the cast comes last."""
    LAYER = "one torch kernel"
    """torch LayerNorm: its input and two statistics."""
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
    """What stays alive of the query, key and value projections."""

    SEPARATE = "separate"
    """Query, key and value as attention reads them."""
    VIEWS = "views"
    """The fused projection alone: query, key and value are views of it."""
    ROTATED = "rotated"
    """The fused projection, for the sake of the value, and the rotated query and key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The traits of one architecture's code that decide what its layers keep."""

    norm: NormCode = NormCode.RMS
    place: NormPlace = NormPlace.BEFORE
    projections: Projections = Projections.SEPARATE
    output_copied: bool = False  # query and key are concatenated, so attention's output is copied before its projection
    eager_only: bool = False  # `attn_implementation="sdpa"` raises
    fp32_softmax: bool = True  # eager attention's softmax is computed in fp32 and cast back
    eager_score_copies: int = (
        0  # score matrices alive at the softmax of a recomputed eager layer, where they set the peak
    )
    eager_fp32_operands: bool = False  # eager attention multiplies query and key in fp32
    always_masked: bool = False  # SDPA always gets an explicit mask
    residual_dropouts: int = 2  # hidden-wide dropouts in a layer
    fp32_routing: bool = False  # expert outputs are weighted in fp32


_LAYER_NORM = Family(norm=NormCode.LAYER)
FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(),
    "qwen2": Family(),
    "qwen3": Family(),
    "granite": Family(),
    "smollm3": Family(),
    "phi3": Family(projections=Projections.ROTATED, output_copied=True),
    "gemma": Family(norm=NormCode.RMS_FP32),
    "gemma2": Family(norm=NormCode.RMS_FP32, place=NormPlace.AROUND, eager_only=True),
    "gemma3_text": Family(norm=NormCode.RMS_FP32, place=NormPlace.AROUND),
    "olmo2": Family(norm=NormCode.RMS_FP32, place=NormPlace.AFTER),
    "phi": Family(norm=NormCode.LAYER, output_copied=True),
    "stablelm": Family(norm=NormCode.LAYER, output_copied=True, residual_dropouts=1),
    "gpt2": Family(norm=NormCode.LAYER, projections=Projections.VIEWS, fp32_softmax=False),
    "gpt_neox": Family(norm=NormCode.LAYER, projections=Projections.ROTATED, output_copied=True),
    "gptj": Family(norm=NormCode.LAYER, eager_fp32_operands=True),
    "opt": _LAYER_NORM,
    "starcoder2": _LAYER_NORM,
    "falcon": Family(norm=NormCode.LAYER, always_masked=True, fp32_softmax=False, eager_score_copies=3),
    "bloom": Family(norm=NormCode.LAYER, eager_only=True, eager_score_copies=6),
    "cohere": Family(norm=NormCode.LAYER_FP32),
    "mixtral": Family(fp32_routing=True),
    "qwen2_moe": Family(),
    "qwen3_moe": Family(),
}


def supports_activations(model_type: str) -> bool:
    """Whether there is a traced formula for this architecture."""
    return model_type in FAMILIES


def family_of(model_type: str) -> Family:
    """The row of an architecture; an error rather than a guess where there is none."""
    family = FAMILIES.get(model_type)
    if family is None:
        raise PlannerError(
            f"activation memory of model type `{model_type}` is not known",
            hint=f"known model types: {', '.join(sorted(FAMILIES))}",
        )
    return family
