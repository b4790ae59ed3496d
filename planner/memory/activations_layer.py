"""Bytes that one decoder layer keeps for backward and needs while it is differentiated, per token.

In: model shape, tensor-parallel degree, storage bytes w, attention. Out: `LayerBytes`. Question: what does a layer cost?
Symbols: h hidden, A and K query and key/value heads on this rank, d head size, I ffn width on this rank, s sequence
length, w bytes of a stored value (2 in bf16 and fp16, 4 in fp32), k experts per token, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from planner.errors import PlannerError
from planner.memory.activations_families import Family, NormCode, NormPlace, Projections, family_of
from planner.records.model import ModelShape, Position
from planner.records.request import Attention
from planner.units import ceil_div

KEPT_BY_ACTIVATION = {"silu": 1, "gelu": 1, "gelu_pytorch_tanh": 1, "relu": 0, "gelu_new": 4, "gelu_fast": 4}
"""I-wide tensors an activation function keeps beside its output: its input, none, or every step of a formula in Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """One kind of layer: bytes per token, and bytes per token and position of the context (`_scores`)."""

    norms: int
    attention: int
    mlp: int
    after_attention: int  # of `norms`: freed before attention is differentiated
    shared_input: int  # of `norms`: the layer's own input, which a checkpoint holds anyway
    kept_scores: int
    mlp_peak: int  # more than what is kept, when the MLP is differentiated
    norm_peak: int  # the same for a norm behind the block
    gradient: int  # of the residual stream
    freed_before_scores: int  # kept bytes gone when the scores are differentiated
    backward_scores: int  # more scores than kept ones, when the softmax is differentiated
    recomputed_scores: int  # more scores than kept ones, when the softmax is recomputed

    def kept_bytes(self, seq_len: int) -> int:
        """Bytes per token that the layer keeps from forward to backward.

        Formula: norms + attention + MLP + scores * s.
        Source: the parts, each below.
        Leaves out: norm weights cast to fp32 (4h a layer), rotary tables.
        """
        return self.norms + self.attention + self.mlp + self.kept_scores * seq_len

    def backward_bytes(self, seq_len: int, *, recomputed: bool) -> int:
        """Bytes per token beyond the kept ones at the fullest instant of the layer's backward.

        Formula: gradient of the residual stream + the larger of MLP, norm and attention; a recomputed layer may peak
            at its own softmax.
        Source: traced op by op, tests/oracles/trace_activations.py (torch 2.13, transformers 5.24).
        Leaves out: the weight gradient being produced, which belongs to the gradients.
        """
        scores = self.backward_scores * seq_len - self.freed_before_scores if self.backward_scores else 0
        if recomputed and self.recomputed_scores:
            again = self.recomputed_scores * seq_len - self.mlp - self.after_attention + self.shared_input
            scores = max(scores, again)
        return self.gradient + max(self.mlp_peak, self.norm_peak, scores)


@lru_cache(maxsize=512)
def layer_bytes(
    shape: ModelShape, *, tp: int, width: int, attention: Attention, masked: bool, experts: bool
) -> LayerBytes:
    """One kind of layer of `shape`: `masked` with an explicit s x s mask, `experts` with a routed MLP."""
    family = family_of(shape.model_type)
    heads, kv_heads = ceil_div(shape.heads, tp), max(1, ceil_div(shape.kv_heads, tp))
    before, after, shared = norm_bytes_per_token(shape, family, width)
    mlp = moe_kept_bytes_per_token(shape, family, tp, width) if experts else mlp_kept_bytes_per_token(shape, tp, width)
    math = _math_attention(shape, family, attention, kv_heads)
    scores = score_bytes_per_position(shape, family, heads, width, attention, math=math)
    sdpa_mask = width if masked and attention is Attention.SDPA else 0
    grads, again = _score_temporaries(shape, family, heads, width) if scores else (0, 0)
    own_attention = attention_kept_bytes_per_token(
        shape, family, heads, kv_heads, width, attention, masked=masked, math=math
    )
    peak = (
        moe_backward_bytes_per_token(shape, family, tp, width)
        if experts
        else mlp_backward_bytes_per_token(shape, tp, width)
    )
    return LayerBytes(
        norms=before + after + residual_dropout_bytes_per_token(shape, family),
        attention=own_attention + qk_norm_bytes_per_token(shape, family, heads, kv_heads, width),
        mlp=mlp,
        after_attention=after,
        shared_input=shared,
        kept_scores=scores + sdpa_mask,
        mlp_peak=peak - (_post_norm_bytes(shape) if family.place is not NormPlace.BEFORE else 0),
        norm_peak=16 * shape.hidden if family.place is not NormPlace.BEFORE else 0,
        gradient=width * shape.hidden,
        freed_before_scores=mlp
        + after
        + width * heads * shape.head_dim
        - (width * shape.hidden if shape.parallel_block else 0),
        backward_scores=grads,
        recomputed_scores=again,
    )


def _post_norm_bytes(shape: ModelShape) -> int:
    return 8 * shape.hidden + 4


def norm_bytes_per_token(shape: ModelShape, family: Family, width: int) -> tuple[int, int, int]:
    """Hidden-wide norms: bytes kept before and after attention, and which of them are the layer's input itself.

    Formula: RMS (4 + w + w)h + 4; RMS in fp32 8h + 4, and wh for the output that a projection reads; LayerNorm
        wh input + wh output + 8; LayerNorm in fp32 steps 12h + wh + 4. In fp32 (w = 4) the fp32 input is the input.
    Source: transformers 5.24, the norm class in models/<model_type>/modeling_<model_type>.py; traced.
    Leaves out: norm weights cast to fp32 (4h a layer).
    """
    hidden = shape.hidden
    stream = width * hidden
    if family.norm is NormCode.LAYER_FP32:
        one = 12 * hidden + stream + 4
        return (one, 0, 0) if shape.parallel_block else (one, one, 0)
    if family.norm is NormCode.LAYER:
        if shape.parallel_block:
            outputs = shape.norms_per_layer * (stream + 8)
            return stream + stream + 8, outputs - (stream + 8), stream
        return 2 * stream + 8, 2 * stream + 8, stream
    fp32_input_is_stream = stream if width == 4 else 0
    if family.norm is NormCode.RMS:
        one = 4 * hidden + 2 * stream + 4
        return one, one, fp32_input_is_stream
    pre, post = 8 * hidden + stream + 4, _post_norm_bytes(shape)
    if family.place is NormPlace.BEFORE:
        return pre, pre, fp32_input_is_stream
    if family.place is NormPlace.AROUND:
        return pre, post + pre + post, fp32_input_is_stream
    return stream, post + stream + post, stream


def qk_norm_bytes_per_token(shape: ModelShape, family: Family, heads: int, kv_heads: int, width: int) -> int:
    """Norms of query and key: what each keeps beside its output, which attention keeps anyway.

    Formula: RMS (4 + w)(A + K)d + 4(A + K); RMS in fp32 8(A + K)d + 4(A + K); LayerNorm w(A + K)d + 8(A + K);
        LayerNorm in fp32 steps 12(A + K)d + 4(A + K).
    Source: transformers 5.24, models/{qwen3,gemma3,olmo2,stablelm,cohere}; traced for qwen3, gemma3_text and olmo2.
    Leaves out: that norms over all heads together (OLMo 2) keep one statistic instead of one a head.
    """
    if not shape.qk_norm:
        return 0
    both = (heads + kv_heads) * shape.head_dim
    if family.norm is NormCode.LAYER:
        return width * both + 8 * (heads + kv_heads)
    by_value = {NormCode.RMS: 4 + width, NormCode.RMS_FP32: 8, NormCode.LAYER_FP32: 12}[family.norm]
    return by_value * both + 4 * (heads + kv_heads)


def attention_kept_bytes_per_token(
    shape: ModelShape,
    family: Family,
    heads: int,
    kv_heads: int,
    width: int,
    attention: Attention,
    *,
    masked: bool,
    math: bool,
) -> int:
    """Projections, output and statistics of attention, without its scores.

    Formula: fused kernel w(2A + 2K)d + 4A, with w(A + 2K)d more where a fused projection stays alive and wAd where the
        output is copied; with a mask, or eager, key and value are expanded: w * 4Ad (GPT-J query and key in fp32).
    Source: transformers 5.24 integrations/sdpa_attention.py (`use_gqa_in_sdpa`), torch 2.13; traced.
    Leaves out: padding of the statistics in memory-efficient kernels.
    """
    query, key = heads * shape.head_dim, kv_heads * shape.head_dim
    if attention is Attention.EAGER:
        operand = 4 if family.eager_fp32_operands else width
        return 2 * operand * query + 2 * width * query
    if math:
        return 12 * query + width * query
    fused = width * (query + 2 * key)
    statistics = 4 * heads
    copied = width * query if family.output_copied else 0
    if masked or shape.trait("new_decoder_architecture", False):
        return 4 * width * query + copied + statistics + (fused if family.projections is Projections.VIEWS else 0)
    if family.projections is Projections.VIEWS:
        return fused + width * query + statistics
    if family.projections is Projections.ROTATED:
        return fused + width * (2 * query + key) + copied + statistics
    return 2 * width * (query + key) + copied + statistics


def _math_attention(shape: ModelShape, family: Family, attention: Attention, kv_heads: int) -> bool:
    """Falcon-7B broadcasts one key/value head under a mask: no fused kernel takes that, and torch computes in fp32."""
    return family.always_masked and attention is Attention.SDPA and kv_heads == 1 and shape.kv_heads == 1


def score_bytes_per_position(
    shape: ModelShape, family: Family, heads: int, width: int, attention: Attention, *, math: bool
) -> int:
    """Attention scores kept for each token and each position of its context, where they are materialised.

    Formula: A(4 + w) with the softmax in fp32 (4A where w = 4), A * w with it in the storage type, w * A more for a soft
        cap and A (1 + w where nothing was cast) with attention dropout; 4A in torch's own mathematics; none if fused.
    Source: transformers 5.24, `eager_attention_forward` of the modeling files; traced.
    Leaves out: the mask, shared by all layers.
    """
    if math:
        return 4 * heads
    if attention is not Attention.EAGER:
        return 0
    bytes_each = (4 + (width if width < 4 else 0)) if family.fp32_softmax else width
    if shape.trait("attn_logit_softcapping"):
        bytes_each += width
    if shape.trait("attention_dropout"):
        bytes_each += 1 if family.fp32_softmax else 1 + width
    return bytes_each * heads


def _score_temporaries(shape: ModelShape, family: Family, heads: int, width: int) -> tuple[int, int]:
    """Scores beyond the kept ones when the softmax is differentiated, and when it is recomputed."""
    kept = score_bytes_per_position(shape, family, heads, width, Attention.EAGER, math=False)
    if shape.model_type == "falcon" and shape.kv_heads == 1 and kept == 0:
        return 8 * heads, 0
    backward = (8 - (width if width < 4 else 0) if family.fp32_softmax else 2 * width) * heads
    recomputed = family.eager_score_copies * width * heads - kept
    return backward, max(0, recomputed)


def residual_dropout_bytes_per_token(shape: ModelShape, family: Family) -> int:
    """Masks of the dropouts on the outputs of attention and MLP: one byte an element on a GPU.

    Formula: dropouts * h.
    Source: torch 2.13 `native_dropout` (boolean mask); the dropouts of the modeling files.
    Leaves out: nothing.
    """
    if not shape.trait("residual_dropout"):
        return 0
    dropouts = 1 if shape.parallel_block and shape.model_type == "falcon" else family.residual_dropouts
    return dropouts * shape.hidden


def _kept_by(activation: str) -> int:
    kept = KEPT_BY_ACTIVATION.get(activation)
    if kept is None:
        raise PlannerError(
            f"what activation function `{activation}` keeps for backward is not known",
            hint=f"known functions: {', '.join(sorted(KEPT_BY_ACTIVATION))}",
        )
    return kept


def mlp_kept_bytes_per_token(shape: ModelShape, tp: int, width: int) -> int:
    """A dense MLP.

    Formula: w * I * (what the activation keeps + its output, and with a gate the up projection and the product).
    Source: transformers 5.24 MLP classes and activations.py (`gelu_new` is a formula in Python: 4 tensors); traced.
    Leaves out: nothing.
    """
    tensors = _kept_by(shape.activation) + (3 if shape.gated_mlp else 1)
    return width * ceil_div(shape.ffn_hidden, tp) * tensors


def mlp_backward_bytes_per_token(shape: ModelShape, tp: int, width: int) -> int:
    """What a dense MLP's backward needs beyond the kept tensors.

    Formula: 2wI with a gate, a formula in Python or relu; wI with one fused activation.
    Source: traced op by op (torch 2.13): the gradients of both factors while that of their product is alive.
    Leaves out: weight gradients.
    """
    fused = not shape.gated_mlp and _kept_by(shape.activation) == 1
    return width * ceil_div(shape.ffn_hidden, tp) * (1 if fused else 2)


def moe_kept_bytes_per_token(shape: ModelShape, family: Family, tp: int, width: int) -> int:
    """A routed MLP with all experts of a layer in one grouped product.

    Formula: k(4w I_e + 2wh) + router 4E + 8k, slots 24k + wk (fp32 routing: 16k + 4); shared expert 4w I_s + wh + w.
    Source: transformers 5.24, integrations/moe.py (`grouped_mm_experts_forward`) and the router classes; traced.
    Leaves out: uneven routing (the sum over experts does not change), expert offsets.
    """
    chosen = shape.experts_per_token
    slots = chosen * (4 * width * ceil_div(shape.expert_ffn_hidden, tp) + 2 * width * shape.hidden)
    routing = 4 * shape.experts + 8 * chosen + 24 * chosen
    routing += 8 * chosen + 4 if family.fp32_routing else width * chosen
    shared = 0
    if shape.shared_ffn_hidden:
        shared = 4 * width * ceil_div(shape.shared_ffn_hidden, tp) + width * shape.hidden + width
    return slots + routing + shared


def moe_backward_bytes_per_token(shape: ModelShape, family: Family, tp: int, width: int) -> int:
    """What a routed MLP's backward needs beyond the kept tensors.

    Formula: max(3 copies of the slots' gradients, k * (4 | w) * h each, and wh for a shared expert; k(2w I_e - wh)).
    Source: traced op by op (torch 2.13, transformers 5.24).
    Leaves out: gradients of the expert weights.
    """
    slot = 4 if family.fp32_routing else width
    outputs = 3 * shape.experts_per_token * slot * shape.hidden + (
        width * shape.hidden if shape.shared_ffn_hidden else 0
    )
    inner = shape.experts_per_token * width * (2 * ceil_div(shape.expert_ffn_hidden, tp) - shape.hidden)
    return max(outputs, inner)


def rotary_table_bytes(shape: ModelShape, seq_len: int, width: int) -> int:
    """Cosines and sines shared by all layers.

    Formula: 2 * w * d * s, once for the batch.
    Source: transformers 5.24, the rotary embedding class of the modeling files; traced.
    Leaves out: partial rotation, where the tables are narrower.
    """
    return 2 * width * shape.head_dim * seq_len if shape.position is Position.ROTARY else 0
