"""Activation memory of one GPU: what the layers keep from forward to backward, and what backward adds.

In: model shape, micro-batch, sequence length, tensor-parallel degree, checkpointing, precision, attention. Out: terms.
Question: how many bytes of activations are alive at the end of forward, at the head's and at a layer's backward?
Traced on the real models; see tests/oracles/trace_activations.py for how, tests/golden/activations.toml for the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from planner.memory.activations_families import FAMILIES, NormCode, family_of, supports_activations
from planner.memory.activations_layer import LayerBytes, layer_bytes, rotary_table_bytes
from planner.records.candidate import Checkpointing
from planner.records.estimate import Device, Moment, Term
from planner.records.model import ModelShape, Precision
from planner.records.request import Attention

__all__ = ["activation_terms", "attention_in_force", "layer_kept_bytes_per_token", "supports_activations"]

SOURCE = "transformers 5.24 modeling code, traced (tests/golden/activations.toml)"
ALIVE = (Moment.FORWARD_END, Moment.BACKWARD_HEAD, Moment.BACKWARD_LAYER)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCounts:
    """The kinds of layers of a model and how often each occurs."""

    kinds: tuple[tuple[int, LayerBytes], ...]
    final_norm: int  # bytes per token
    checkpoint: int  # bytes per token and layer
    mask_bytes_per_position: int  # of a mask that all layers share and a checkpoint holds


def attention_in_force(model_type: str, attention: Attention) -> Attention:
    """The attention that runs: bloom and gemma2 refuse SDPA and fall back to eager (bloom refuses FLASH too)."""
    if attention is Attention.SDPA and family_of(model_type).eager_only:
        return Attention.EAGER
    if attention is Attention.FLASH and model_type == "bloom":
        return Attention.EAGER
    return attention


def activation_terms(
    shape: ModelShape,
    *,
    micro_batch: int,
    seq_len: int,
    tp: int,
    checkpointing: Checkpointing,
    precision: Precision,
    attention: Attention,
) -> tuple[Term, ...]:
    """Everything between the embedding and the head, except logits: see `planner.memory.logits`."""
    tokens = micro_batch * seq_len
    counts = layer_counts(shape, tp, precision.bytes, attention, sliding=_slides(shape, seq_len))
    recomputed = checkpointing is Checkpointing.FULL
    layers = [(number, kind.kept_bytes(seq_len), kind) for number, kind in counts.kinds]
    shared = rotary_table_bytes(shape, seq_len, precision.bytes)
    terms = []
    if recomputed:
        each = counts.checkpoint
        mask = counts.mask_bytes_per_position * seq_len
        formula = f"{tokens} tokens x ({shape.layers} layers x {each}" + (f" + mask {mask})" if mask else ")")
        size = tokens * (shape.layers * each + mask) + shared
        terms.append(_term("activations/checkpoints", ALIVE, size, formula))
        fullest, extra, kind = max(
            (
                (kept - kind.shared_input, kind.backward_bytes(seq_len, recomputed=True), kind)
                for _, kept, kind in layers
            ),
            key=lambda each: each[0] + each[1],
        )
        terms.append(_term("activations/layer", ALIVE[2:], tokens * fullest, f"{tokens} tokens x 1 layer x {fullest}"))
    else:
        formula = f"{tokens} tokens x ({' + '.join(f'{number} layers x {kept}' for number, kept, _ in layers)})"
        kept = sum(number * kept for number, kept, _ in layers)
        terms.append(_term("activations/kept", ALIVE, tokens * kept + shared, formula))
        extra = max(kind.backward_bytes(seq_len, recomputed=False) for _, _, kind in layers)
    terms.append(
        _term("activations/final_norm", ALIVE[:2], tokens * counts.final_norm, f"{tokens} tokens x {counts.final_norm}")
    )
    terms.append(_term("activations/backward_temporaries", ALIVE[2:], tokens * extra, f"{tokens} tokens x {extra}"))
    return tuple(terms)


def _term(name: str, moments: tuple[Moment, ...], size_bytes: int, formula: str) -> Term:
    return Term(name=name, device=Device.GPU, moments=moments, size_bytes=size_bytes, formula=formula, source=SOURCE)


def layer_kept_bytes_per_token(
    shape: ModelShape, *, seq_len: int, tp: int, precision: Precision, attention: Attention
) -> int:
    """Bytes per token that the fullest layer keeps from forward to backward.

    Formula: see `LayerBytes.kept_bytes`.
    Source: traced, tests/golden/activations.toml.
    Leaves out: what `LayerBytes.kept_bytes` leaves out.
    """
    counts = layer_counts(shape, tp, precision.bytes, attention, sliding=_slides(shape, seq_len))
    return max(kind.kept_bytes(seq_len) for _, kind in counts.kinds)


def _slides(shape: ModelShape, seq_len: int) -> bool:
    """Whether a sliding window is narrower than the sequence, so that SDPA needs an explicit mask."""
    if all(name != "sliding_window" for name, _ in shape.traits):
        return False
    return bool(shape.trait("sliding_window") < seq_len)


@lru_cache(maxsize=512)
def layer_counts(shape: ModelShape, tp: int, width: int, attention: Attention, *, sliding: bool) -> LayerCounts:
    """The kinds of layers: with and without a sliding window's mask, dense or with experts."""
    family = family_of(shape.model_type)
    attention = attention_in_force(shape.model_type, attention)
    masked_layers = shape.layers if family.always_masked else sliding_layers(shape) if sliding else 0
    dense = shape.dense_layers if shape.experts else shape.layers
    kinds = []
    for experts, number in ((False, dense), (True, shape.layers - dense)):
        masked_here = masked_layers * number // shape.layers
        for masked, count in ((True, masked_here), (False, number - masked_here)):
            if count:
                kind = layer_bytes(shape, tp=tp, width=width, attention=attention, masked=masked, experts=experts)
                kinds.append((count, kind))
    return LayerCounts(
        kinds=tuple(kinds),
        final_norm=final_norm_bytes_per_token(shape, width),
        checkpoint=width * shape.hidden,
        mask_bytes_per_position=width if attention is Attention.EAGER else 0,
    )


def sliding_layers(shape: ModelShape) -> int:
    """How many layers attend within a window only: every second in Gemma 2, all but every n-th in Gemma 3, else all."""
    if shape.model_type == "gemma2":
        return (shape.layers + 1) // 2
    if shape.model_type == "gemma3_text":
        return shape.layers - shape.layers // int(shape.trait("sliding_window_pattern", 6))
    return shape.layers


def final_norm_bytes_per_token(shape: ModelShape, width: int) -> int:
    """The norm before the head and, where there is one, behind the embedding.

    Formula: RMS 4h + 2wh + 4; RMS in fp32 8h + wh + 4; LayerNorm 2wh + 8; LayerNorm in fp32 steps 12h + wh + 4;
        wh + 8 more for a norm of the embedding, h for its dropout.
    Source: transformers 5.24 modeling files; traced.
    Leaves out: token ids and labels (16 bytes per token).
    """
    hidden, stream = shape.hidden, width * shape.hidden
    by_code = {
        NormCode.RMS: 4 * hidden + 2 * stream + 4,
        NormCode.RMS_FP32: 8 * hidden + stream + 4,
        NormCode.LAYER: 2 * stream + 8,
        NormCode.LAYER_FP32: 12 * hidden + stream + 4,
    }
    norm = by_code[FAMILIES[shape.model_type].norm] if shape.final_norm else stream
    embedding = stream + 8 if shape.trait("embedding_norm", False) else 0
    return norm + embedding + (hidden if shape.trait("embedding_dropout") else 0)
