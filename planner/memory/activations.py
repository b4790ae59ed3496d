"""Activation memory of one GPU: what the layers keep from forward to backward, and what backward adds.

In: model shape, micro-batch, sequence length, tensor-parallel degree, checkpointing, precision, attention. Out: terms.
Question: how many bytes of activations are alive at the end of forward, at the head's and at a layer's backward?
Traced on the real models: tests/oracles/trace_activations.py says how, tests/golden/activations.toml holds the values.
Left out: an eager layer's forward may rise above the end of forward; where there is no term for it, backward is higher.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from planner.memory.activations_adapters import (
    adapted_layer,
    embedding_copy_bytes_per_token,
    unsaved_first_layer_bytes_per_token,
    unsaved_head_bytes_per_token,
)
from planner.memory.activations_families import (
    NormCode,
    Projections,
    attention_in_force,
    family_of,
    single_sample_differs,
    supports_activations,
)
from planner.memory.activations_layer import LayerBytes, layer_bytes, norm_copy_bytes
from planner.memory.logits import logits_forward_bytes_per_token
from planner.records.candidate import Checkpointing
from planner.records.estimate import Device, Moment, Term
from planner.records.model import Adapter, ModelShape, Position, Precision
from planner.records.request import Attention
from planner.units import ceil_div

__all__ = ["activation_terms", "attention_in_force", "layer_kept_bytes_per_token", "supports_activations"]

SOURCE = "transformers 5.24 modeling code, traced: tests/golden/activations.toml"
ALIVE = (Moment.FORWARD_END, Moment.BACKWARD_HEAD, Moment.BACKWARD_LAYER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A term before the batch is known."""

    name: str
    moments: tuple[Moment, ...]
    per_token: int
    fixed: int  # bytes whatever the batch
    formula: str


def activation_terms(
    shape: ModelShape,
    *,
    micro_batch: int,
    seq_len: int,
    tp: int,
    checkpointing: Checkpointing,
    precision: Precision,
    attention: Attention,
    adapter: Adapter | None = None,
) -> tuple[Term, ...]:
    """Everything between the embedding and the head but the logits, for which see `planner.memory.logits`."""
    return _terms(shape, micro_batch, seq_len, tp, checkpointing, precision, attention, adapter)


@lru_cache(maxsize=4096)
def _terms(
    shape: ModelShape,
    micro_batch: int,
    seq_len: int,
    tp: int,
    checkpointing: Checkpointing,
    precision: Precision,
    attention: Attention,
    adapter: Adapter | None,
) -> tuple[Term, ...]:
    """Kept because the stages and offloads of a search ask for the same terms again."""
    if shape.traced is not None:
        from planner.memory.activations_traced import traced_activation_terms

        return traced_activation_terms(
            shape,
            shape.traced,
            micro_batch=micro_batch,
            seq_len=seq_len,
            checkpointing=checkpointing,
            precision=precision,
            attention=attention,
        )
    tokens, single = micro_batch * seq_len, micro_batch == 1 and single_sample_differs(shape)
    return tuple(
        Term(
            name=amount.name,
            device=Device.GPU,
            moments=amount.moments,
            size_bytes=tokens * amount.per_token + amount.fixed,
            formula=f"{tokens} tokens x {amount.formula}",
            source=SOURCE,
        )
        for amount in _amounts(shape, seq_len, tp, checkpointing, precision, attention, adapter, single)
    )


@lru_cache(maxsize=1024)
def _amounts(
    shape: ModelShape,
    seq_len: int,
    tp: int,
    checkpointing: Checkpointing,
    precision: Precision,
    attention: Attention,
    adapter: Adapter | None,
    single: bool,  # noqa: FBT001 (part of the cache's key)
) -> tuple[Amount, ...]:
    """The terms of one token; the same for every micro-batch but a `single` sample, so computed once."""
    attention, width = attention_in_force(shape, attention), precision.bytes
    kinds = layer_kinds(shape, seq_len=seq_len, tp=tp, width=width, attention=attention, adapter=adapter, single=single)
    tables = rotary_table_bytes(shape, seq_len, width)
    head, embedding = final_norm_bytes_per_token(shape, width), embedding_kept_bytes_per_token(shape, width)
    if adapter is not None:
        head, embedding = head + embedding - unsaved_head_bytes_per_token(shape, width), 0
    mask = shared_mask_bytes_per_token(shape, seq_len, tp, width, attention, checkpointing)
    once = sliding_mask_bytes(shape, seq_len, attention, checkpointing)
    amounts = []
    if checkpointing is Checkpointing.FULL:
        stream = width * shape.hidden
        formula = f"{shape.layers} layers x {stream}"
        checkpoints = stream * shape.layers
        if adapter is not None:
            checkpoints += embedding_copy_bytes_per_token(shape, width)
        amounts.append(_amount("activations/checkpoints", ALIVE, checkpoints, formula, fixed=tables))
        held, extra, by_position = max(
            (kind.kept_bytes(seq_len) - kind.shared, kind.backward_bytes(seq_len, recomputed=True), kind.by_position)
            for _, kind in kinds
        )
        amounts.append(_amount("activations/layer", ALIVE[2:], held, f"1 layer x {held}", fixed=by_position * seq_len))
    else:
        kept = sum(count * kind.kept_bytes(seq_len) for count, kind in kinds)
        if adapter is not None:
            kept -= unsaved_first_layer_bytes_per_token(shape, adapter, width)
        extra = max(kind.backward_bytes(seq_len, recomputed=False) for _, kind in kinds)
        tables += sum(count * kind.by_position for count, kind in kinds) * seq_len
        formula = " + ".join(f"{count} layers x {kind.kept_bytes(seq_len)}" for count, kind in kinds)
        formula = f"({formula})" if len(kinds) > 1 else formula
        amounts.append(_amount("activations/kept", ALIVE, kept, formula, fixed=tables))
    if embedding:
        amounts.append(_amount("activations/embedding", ALIVE, embedding, str(embedding)))
    if mask or once:
        formula = f"{seq_len} positions x {mask // seq_len}"
        amounts.append(_amount("activations/mask", ALIVE, mask, formula, fixed=once))
    rise = forward_rise_bytes_per_token(shape, kinds, seq_len, width, head, attention, checkpointing)
    if rise:
        amounts.append(_amount("activations/forward_scores", ALIVE[:1], rise, str(rise)))
    amounts.append(_amount("activations/final_norm", ALIVE[:2], head, str(head)))
    amounts.append(_amount("activations/backward_temporaries", ALIVE[2:], extra, str(extra)))
    return tuple(amounts)


def _amount(name: str, moments: tuple[Moment, ...], per_token: int, formula: str, *, fixed: int = 0) -> Amount:
    return Amount(name=name, moments=moments, per_token=per_token, fixed=fixed, formula=formula)


def layer_kept_bytes_per_token(
    shape: ModelShape, *, seq_len: int, tp: int, precision: Precision, attention: Attention
) -> int:
    """Bytes per token that the fullest layer keeps from forward to backward.

    Formula: see `LayerBytes.kept_bytes`; 16h + 4Ad + 4Kd + 8I + 4A + 8 for Llama in bf16 under SDPA.
    Source: traced, tests/golden/activations.toml.
    Leaves out: what `LayerBytes.kept_bytes` leaves out.
    """
    attention = attention_in_force(shape, attention)
    kinds = layer_kinds(shape, seq_len=seq_len, tp=tp, width=precision.bytes, attention=attention)
    return max(kind.kept_bytes(seq_len) for _, kind in kinds)


def layer_kinds(
    shape: ModelShape,
    *,
    seq_len: int,
    tp: int,
    width: int,
    attention: Attention,
    adapter: Adapter | None = None,
    single: bool = False,
) -> tuple[tuple[int, LayerBytes], ...]:
    """The kinds of layers and how often each occurs: with and without a mask of its own, dense or with experts."""
    masked_layers = shape.layers if family_of(shape).masked else sliding_layers(shape, seq_len)
    dense = shape.dense_layers if shape.experts else shape.layers
    kinds = []
    for experts, number in ((False, dense), (True, shape.layers - dense)):
        masked_here = ceil_div(masked_layers * number, shape.layers)
        for masked, count in ((True, masked_here), (False, number - masked_here)):
            if count:
                kind = layer_bytes(
                    shape,
                    tp=tp,
                    width=width,
                    attention=attention,
                    masked=masked,
                    experts=experts,
                    single=single,
                )
                if adapter is not None:
                    kind = adapted_layer(shape, kind, adapter, width=width, attention=attention, experts=experts)
                kinds.append((count, kind))
    return tuple(kinds)


def sliding_layers(shape: ModelShape, seq_len: int) -> int:
    """How many layers need a mask of their own because their window does not exceed the sequence.

    Source: transformers 5.24 masking_utils.py `_ignore_causal_mask_sdpa` (`kv_length < local_attention_size`).
    """
    window = shape.trait("sliding_window")
    return windowed_layers(shape) if window is not None and window <= seq_len else 0


def windowed_layers(shape: ModelShape) -> int:
    """How many layers of a model that slides have a window.

    Every second layer of Gemma 2, all but every sixth (`sliding_window_pattern`) of Gemma 3, all layers of the others.
    """
    if shape.model_type == "gemma2":
        return (shape.layers + 1) // 2
    if shape.model_type == "gemma3_text":
        return shape.layers - shape.layers // int(shape.trait("sliding_window_pattern", 6))
    return shape.layers


def shared_mask_bytes_per_token(
    shape: ModelShape, seq_len: int, tp: int, width: int, attention: Attention, checkpointing: Checkpointing
) -> int:
    """A mask of s x s values for each sample, made once and held for all layers.

    Formula: ws where checkpointed eager layers need it again, 2ws where some of them slide; s for MPT's boolean mask;
        wAs for Falcon with ALiBi.
    Source: transformers 5.24 masking_utils.py `eager_mask`, models/{mpt,falcon}; traced.
    Leaves out: the boolean mask of a sliding window, see `sliding_mask_bytes`.
    """
    recomputed = checkpointing is Checkpointing.FULL
    if shape.model_type == "falcon" and shape.position is Position.ALIBI:
        held = recomputed if attention is Attention.EAGER else attention is Attention.SDPA
        return width * ceil_div(shape.heads, tp) * seq_len if held else 0
    if attention is not Attention.EAGER:
        return 0
    if shape.model_type == "mpt":
        return seq_len
    return held_masks(shape) * width * seq_len if recomputed else 0


def held_masks(shape: ModelShape) -> int:
    """How many different masks the eager layers of a model use."""
    return 2 if shape.trait("sliding_window") and windowed_layers(shape) < shape.layers else 1


def forward_rise_bytes_per_token(
    shape: ModelShape,
    kinds: tuple[tuple[int, LayerBytes], ...],
    seq_len: int,
    width: int,
    head: int,
    attention: Attention,
    checkpointing: Checkpointing,
) -> int:
    """By how much an eager layer's softmax in forward rises above the loss, where it does.

    Formula: the layer's bytes at its softmax beyond what it keeps, less the final norm and the logits; + ws of each
        mask that no recomputation holds until the loss.
    Source: traced with every model type.
    Leaves out: a fused loss.
    """
    logits = logits_forward_bytes_per_token(shape.vocab, width, capped=bool(shape.trait("final_logit_softcapping")))
    checkpointed = checkpointing is Checkpointing.FULL
    rise = max(kind.forward_bytes(seq_len, checkpointed=checkpointed) for _, kind in kinds)
    held = held_masks(shape) if checkpointed and attention is Attention.EAGER else 0
    masks = max(0, family_of(shape).masks - held)
    return max(0, rise + masks * width * seq_len - head - logits)


def sliding_mask_bytes(shape: ModelShape, seq_len: int, attention: Attention, checkpointing: Checkpointing) -> int:
    """The boolean mask that checkpointed SDPA layers share; without checkpointing each keeps a copy of its own.

    Formula: s * s, once for the batch.
    Source: transformers 5.24 masking_utils.py `sdpa_mask`; traced.
    Leaves out: nothing.
    """
    family = family_of(shape)
    masked = family.masked or family.projections is Projections.MATH or sliding_layers(shape, seq_len) > 0
    return seq_len * seq_len if masked and attention is Attention.SDPA and checkpointing is Checkpointing.FULL else 0


def rotary_table_bytes(shape: ModelShape, seq_len: int, width: int) -> int:
    """Cosines and sines shared by all layers and samples.

    Formula: 2 * w * d * s.
    Source: transformers 5.24, the rotary embedding class of the modeling files; traced.
    Leaves out: partial rotation, whose tables are narrower.
    """
    return 2 * width * shape.head_dim * seq_len if shape.position is Position.ROTARY else 0


def final_norm_bytes_per_token(shape: ModelShape, width: int) -> int:
    """The norm before the head with the head's input.

    Formula: what one norm keeps + wh; w for each of the embedding's own width, to which a projection leads (OPT-350M).
    Source: transformers 5.24 modeling files; traced.
    Leaves out: token ids and labels (16 bytes per token).
    """
    norm = norm_copy_bytes(family_of(shape).norm, shape.hidden, width) if shape.final_norm else 0
    return norm + width * (shape.hidden + int(shape.trait("embedding_width", 0)))


def embedding_kept_bytes_per_token(shape: ModelShape, width: int) -> int:
    """What the embedding keeps until the end of backward.

    Formula: wh + 8 for a norm, h for a dropout, w for each of the embedding's own width before its projection.
    Source: transformers 5.24 modeling files; traced.
    Leaves out: nothing.
    """
    norm = norm_copy_bytes(NormCode.LAYER, shape.hidden, width) if shape.trait("embedding_norm") else 0
    dropout = shape.hidden if shape.trait("embedding_dropout") else 0
    return norm + dropout + width * int(shape.trait("embedding_width", 0))
