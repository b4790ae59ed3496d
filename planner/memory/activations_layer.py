"""Bytes that one decoder layer keeps for backward and needs while it is differentiated, per token.

In: model shape, tensor-parallel degree, storage bytes w, attention. Out: `LayerBytes`. Question: what costs a layer?
Symbols: h hidden, I ffn width on this rank, I_e and I_s those of a routed and the shared expert, E experts, k chosen
experts per token, s sequence length, w bytes of a stored value (2 in bf16 and fp16, 4 in fp32); A, d as in attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from planner.errors import PlannerError
from planner.geometry.params import rank_heads
from planner.memory.activations_attention import (
    attention_kept_bytes_per_token,
    operand_bytes_per_token,
    qk_norm_bytes_per_token,
    score_backward_bytes_per_position,
    score_bytes_per_position,
    score_forward_bytes_per_position,
    score_recompute_bytes_per_position,
    uncopied_bytes_per_token,
)
from planner.memory.activations_families import Family, NormCode, NormPlace, Projections, family_of
from planner.records.model import ModelShape
from planner.records.request import Attention
from planner.units import ceil_div

KEPT_BY_ACTIVATION = {"silu": 1, "gelu": 1, "gelu_pytorch_tanh": 1, "relu": 0, "gelu_new": 4}
"""I-wide tensors an activation keeps beside its output: its input, none, or each step of a formula in Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormBytes:
    """The hidden-wide norms of a layer, in bytes per token."""

    before: int  # freed only after attention is differentiated
    after: int  # freed before
    last: int  # of `after`: freed before the MLP is differentiated
    shared: int  # of `before`: the layer's own input, which a checkpoint holds anyway


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerBytes:
    """One kind of layer. All but `by_position` and `scores_*` are bytes per token."""

    kept: int  # without scores
    shared: int  # of `kept`: the layer's own input
    kept_scores: int  # per token and position of its context
    by_position: int  # per position, whatever the batch: rotary tables that every layer keeps
    gradient: int  # of the residual stream
    block_peak: int  # beyond the kept bytes while MLP or norm are differentiated
    block_cast: int  # more of it where the layer is not recomputed
    scores_peak: int  # per token and position: beyond the kept scores while the softmax is differentiated
    scores_freed: int  # kept bytes gone by then
    scores_again: int  # per token and position: beyond the kept scores at the softmax of a recomputed layer
    scores_not_yet: int  # kept bytes that do not exist by then
    scores_forward: int  # per token and position: alive at the softmax of a checkpointed layer's first forward
    scores_forward_released: int  # of them, gone by then where nothing is recomputed
    operands_forward: int  # beside them where the layer is checkpointed
    recompute_peak: int = 0  # beyond the kept bytes while a recomputed layer's MLP runs forward, where that is fullest

    def kept_bytes(self, seq_len: int) -> int:
        """Bytes per token that the layer keeps from forward to backward.

        Formula: norms + attention + MLP + scores * s.
        Source: the parts: `norm_bytes`, `activations_attention`, `mlp_kept_bytes_per_token`.
        Leaves out: norm weights cast to fp32 (4h a layer), token ids.
        """
        return self.kept + self.kept_scores * seq_len

    def backward_bytes(self, seq_len: int, *, recomputed: bool) -> int:
        """Bytes per token beyond the kept ones at the fullest instant of the layer's backward.

        Formula: gradient of the residual stream wh + the larger of MLP and norm, and scores; a recomputed layer may
            peak at its own softmax.
        Source: traced op by op, tests/oracles/trace_activations.py (torch 2.13, transformers 5.24).
        Leaves out: the weight gradient being produced, which belongs to the gradients.
        """
        peak = self.block_peak + (0 if recomputed else self.block_cast)
        if self.scores_peak:
            peak = max(peak, self.scores_peak * seq_len - self.scores_freed)
        if recomputed and self.scores_again:
            peak = max(peak, self.scores_again * seq_len - self.scores_not_yet)
        if recomputed:
            peak = max(peak, self.recompute_peak)
        return self.gradient + peak

    def forward_bytes(self, seq_len: int, *, checkpointed: bool) -> int:
        """Bytes per token at an eager softmax of the first forward, beyond what the layer keeps; 0 without scores.

        Formula: scores * s + the operands of attention where the layer is checkpointed, else less what the layer keeps
            of the scores and what does not exist by then.
        Source: traced, tests/golden/activations.toml.
        Leaves out: nothing.
        """
        if not self.scores_forward:
            return 0
        if checkpointed:
            return self.scores_forward * seq_len + self.operands_forward
        return (self.scores_forward - self.scores_forward_released - self.kept_scores) * seq_len - self.scores_not_yet


@lru_cache(maxsize=256)
def layer_bytes(
    shape: ModelShape, *, tp: int, width: int, attention: Attention, masked: bool, experts: bool, single: bool = False
) -> LayerBytes:
    """One kind of layer of `shape`: `masked` with an explicit s x s mask under SDPA, `experts` with a routed MLP,
    `single` for a micro-batch of one sample.

    Formula: kept = norms + q/k norms + attention + MLP + dropout masks; the other fields are the peaks beside it.
    Source: the functions it adds up; compared with traced transformers 5.24 models in tests/golden/activations.toml.
    Leaves out: padding inside memory-efficient attention kernels.
    """
    family = family_of(shape)
    heads, kv_heads = rank_heads(shape, tp)
    norms = norm_bytes(shape, family, width)
    if experts:
        mlp, mlp_peak = _routed_mlp(shape, family, tp, width)
    else:
        mlp, mlp_peak = mlp_kept_bytes_per_token(shape, tp, width), mlp_backward_bytes_per_token(shape, tp, width)
    inside = attention_kept_bytes_per_token(
        shape, family, heads, kv_heads, width, attention, masked=masked, single=single
    )
    scores = score_bytes_per_position(shape, family, heads, width, attention, masked=masked)
    peak = score_backward_bytes_per_position(family, heads, width, attention)
    stream, output = width * shape.hidden, width * heads * shape.head_dim
    # By the time of its softmax, torch's own mathematics has freed the fp32 copy of the value.
    value = 4 * heads * shape.head_dim if family.projections is Projections.MATH and attention is Attention.SDPA else 0
    # A local name holds the fused projection.
    fused = width * (heads + 2 * kv_heads) * shape.head_dim if shape.trait("fused_qkv") else 0
    per_dim, per_stored_dim = family.rotary_bytes
    forward, released = score_forward_bytes_per_position(family, heads, width, attention)
    return LayerBytes(
        kept=norms.before
        + norms.after
        + qk_norm_bytes_per_token(shape, family, heads, kv_heads, width)
        + inside
        + mlp
        + residual_dropout_bytes_per_token(shape, family),
        shared=norms.shared,
        kept_scores=scores,
        by_position=(per_dim + per_stored_dim * width) * shape.head_dim,
        gradient=stream,
        block_peak=max(mlp_peak - norms.last, norm_backward_bytes_per_token(family, shape.hidden, width)),
        block_cast=shape.experts_per_token * stream if experts and family.fp32_routing else 0,
        scores_peak=peak,
        scores_freed=mlp + norms.after + output + value - (stream if shape.parallel_block else 0),
        scores_again=score_recompute_bytes_per_position(family, heads, width, scores)
        if attention is Attention.EAGER
        else 0,
        scores_not_yet=mlp
        + stream
        + 4
        - norms.shared
        - fused
        + uncopied_bytes_per_token(shape, family, heads, width, single=single),
        scores_forward=forward,
        scores_forward_released=released,
        operands_forward=operand_bytes_per_token(shape, family, heads, kv_heads, width, single=single),
    )


def norm_bytes(shape: ModelShape, family: Family, width: int) -> NormBytes:
    """What the hidden-wide norms keep: their copies, and the outputs that projections read.

    Formula: RMS 4h + wh + 4, RMS in fp32 8h + 4, LayerNorm on an fp32 copy 4h + 8, LayerNorm in fp32 steps 12h + 4,
        LayerNorm wh + 8 (a parallel block's second one shares the input); wh for each output that is read. In fp32 the
        fp32 input is the residual stream itself.
    Source: transformers 5.24, the norm class in models/<model_type>/modeling_<model_type>.py; traced.
    Leaves out: norm weights cast to fp32 (4h a layer).
    """
    hidden, stream = shape.hidden, width * shape.hidden
    one = norm_copy_bytes(family.norm, hidden, width)
    is_stream = family.norm is NormCode.LAYER or (width == 4 and family.norm is not NormCode.LAYER_FP32)
    shared = stream if is_stream else 0
    if family.place is NormPlace.AFTER:
        return NormBytes(before=stream, after=one + stream + one, last=one, shared=stream)
    if family.place is NormPlace.AROUND:
        return NormBytes(before=one + stream, after=one + one + stream + one, last=one, shared=shared)
    if shape.parallel_block:
        second = stream + 8 if shape.norms_per_layer == 2 else 0
        return NormBytes(before=one + stream, after=second, last=0, shared=shared)
    last = one if shape.trait("post_norm") else 0
    return NormBytes(before=one + stream, after=one + stream, last=last, shared=shared)


def norm_copy_bytes(norm: NormCode, hidden: int, width: int) -> int:
    """What one norm keeps beside its output.

    Formula: RMS 4h + wh + 4; RMS in fp32 8h + 4; LayerNorm wh + 8, on an fp32 copy 4h + 8, in fp32 steps 12h + 4.
    Source: as `norm_bytes`. Statistics in fp32, as the GPU kernels keep them.
    Leaves out: nothing.
    """
    return {
        NormCode.RMS: 4 * hidden + width * hidden + 4,
        NormCode.RMS_FP32: 8 * hidden + 4,
        NormCode.LAYER: width * hidden + 8,
        NormCode.LAYER_CAST: 4 * hidden + 8,
        NormCode.LAYER_FP32: 12 * hidden + 4,
    }[norm]


def norm_backward_bytes_per_token(family: Family, hidden: int, width: int) -> int:
    """What an RMS norm behind the MLP needs in backward beyond the kept tensors; it comes first, when all are alive.

    Formula: 16h: four fp32 tensors; wh more for the gradient of a weight that is multiplied after a cast back.
    Source: traced op by op (torch 2.13): gemma2, gemma3_text, olmo2, glm4.
    Leaves out: nothing.
    """
    if family.place is NormPlace.BEFORE:
        return 0
    return 16 * hidden + (width * hidden if family.norm is NormCode.RMS and width < 4 else 0)


def residual_dropout_bytes_per_token(shape: ModelShape, family: Family) -> int:
    """Masks of the dropouts on the outputs of attention and MLP: one byte an element on a GPU.

    Formula: dropouts * h.
    Source: torch 2.13 `native_dropout` (boolean mask); the dropouts of the modeling files, traced.
    Leaves out: nothing.
    """
    return family.residual_dropouts * shape.hidden if shape.trait("residual_dropout") else 0


def mlp_kept_bytes_per_token(shape: ModelShape, tp: int, width: int) -> int:
    """A dense MLP.

    Formula: wI * (what the activation keeps + its output; with a gate also the up projection and the product).
    Source: transformers 5.24 MLP classes and activations.py (`gelu_new` is a formula in Python: 4 tensors); traced.
    Leaves out: nothing.
    """
    tensors = _kept_by(shape) + (3 if shape.gated_mlp else 1)
    return width * ceil_div(shape.ffn_hidden, tp) * tensors


def mlp_backward_bytes_per_token(shape: ModelShape, tp: int, width: int) -> int:
    """What a dense MLP's backward needs beyond the kept tensors.

    Formula: 2wI with a gate, a formula in Python or relu; wI with one fused activation.
    Source: traced op by op (torch 2.13): the gradients of both factors while that of their product is alive.
    Leaves out: weight gradients.
    """
    fused = not shape.gated_mlp and _kept_by(shape) == 1
    return width * ceil_div(shape.ffn_hidden, tp) * (1 if fused else 2)


def _kept_by(shape: ModelShape) -> int:
    kept = KEPT_BY_ACTIVATION.get(shape.activation)
    if kept is None:
        raise PlannerError(
            f"what the activation function `{shape.activation}` of `{shape.name}` keeps for backward is not known",
            hint=f"known functions: {', '.join(sorted(KEPT_BY_ACTIVATION))}",
        )
    return kept


def _routed_mlp(shape: ModelShape, family: Family, tp: int, width: int) -> tuple[int, int]:
    """Kept bytes and backward peak of a layer's experts."""
    if _kept_by(shape) != 1 or not shape.gated_mlp:
        raise PlannerError(
            f"experts with the activation function `{shape.activation}` are not known", hint="known: gated silu or gelu"
        )
    return moe_kept_bytes_per_token(shape, family, tp, width), moe_backward_bytes_per_token(shape, family, tp, width)


def moe_kept_bytes_per_token(shape: ModelShape, family: Family, tp: int, width: int) -> int:
    """A routed MLP with all experts of a layer in one grouped product.

    Formula: k(4w I_e + 2wh) + router 4E + 32k + wk (8k + 4 in its place with fp32 routing); shared expert
        4w I_s + wh + w.
    Source: transformers 5.24, integrations/moe.py (`grouped_mm_experts_forward`) and the router classes; traced.
    Leaves out: expert offsets (4E a layer); routing normalised in place, a few bytes per token.
    """
    chosen = shape.experts_per_token
    slots = chosen * (4 * width * ceil_div(shape.expert_ffn_hidden, tp) + 2 * width * shape.hidden)
    routing = 4 * shape.experts + 32 * chosen + (12 * chosen + 4 if family.fp32_routing else width * chosen)
    shared = 0
    if shape.shared_ffn_hidden:
        shared = 4 * width * ceil_div(shape.shared_ffn_hidden, tp) + width * shape.hidden + width
    return slots + routing + shared


def moe_backward_bytes_per_token(shape: ModelShape, family: Family, tp: int, width: int) -> int:
    """What a routed MLP's backward needs beyond the kept tensors.

    Formula: max(3k * wh (4 in place of w with fp32 routing) + wh for a shared expert, kw(2 I_e - h)); with fp32 routing
        the cast kwh of the slots' gradients more, unless the layer has just been recomputed.
    Source: traced op by op (torch 2.13, transformers 5.24): three copies of the slots' gradients, or those of the gate.
    Leaves out: gradients of the expert weights.
    """
    slot, stream = 4 if family.fp32_routing else width, width * shape.hidden
    outputs = 3 * shape.experts_per_token * slot * shape.hidden + (stream if shape.shared_ffn_hidden else 0)
    inner = shape.experts_per_token * width * (2 * ceil_div(shape.expert_ffn_hidden, tp) - shape.hidden)
    return max(outputs, inner)
