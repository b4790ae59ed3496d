"""Bytes that attention keeps for backward and needs while it is differentiated, per token.

In: model shape, its family, heads on this rank, storage bytes w. Out: bytes. Question: what does attention cost?
Symbols: A and K query and key/value heads on this rank, d head size, s sequence length, w bytes of a stored value.
"""

from __future__ import annotations

from planner.memory.activations_families import Family, NormCode, NormPlace, Projections
from planner.records.model import ModelShape
from planner.records.request import Attention


def qk_norm_bytes_per_token(shape: ModelShape, family: Family, heads: int, kv_heads: int, width: int) -> int:
    """Norms of query and key: what they keep beside their output, which attention keeps anyway.

    Formula: RMS (4 + w)(A + K)d + 4(A + K); RMS in fp32 8(A + K)d + 4(A + K); LayerNorm w(A + K)d + 8(A + K);
        LayerNorm in fp32 steps 12(A + K)d + 4(A + K).
    Source: transformers 5.24, models/{qwen3,gemma3,olmo2,olmoe,phi,stablelm,cohere}; traced.
    Leaves out: that one norm over all heads together (OLMo 2, OLMoE) keeps one statistic, not one a head.
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
    single: bool,
) -> int:
    """Projections, output and statistics of attention, without scores and norms.

    Formula: fused kernel w(2A + 2K)d + 4A; w(2A + 2A)d + 4A with key and value expanded, as under a mask; a fused
        projection kept w(A + 2K)d more, or in place of query, key and value; wAd more where the output is copied;
        eager 4wAd (query and key in fp32: (8 + 2w)Ad); torch's own mathematics (12 + w)Ad, of a single sample
        (4A + 8K + wA)d, because one key/value head is then broadcast without a copy.
    Source: transformers 5.24 integrations/sdpa_attention.py (`use_gqa_in_sdpa`) and modeling files, torch 2.13; traced.
    Leaves out: padding of the statistics in memory-efficient kernels.
    """
    query, key = heads * shape.head_dim, kv_heads * shape.head_dim
    if attention is Attention.EAGER:
        return (2 * (4 if family.fp32_operands else width) + 2 * width) * query
    if family.projections is Projections.MATH and attention is Attention.SDPA:
        return ((4 * query + 8 * key) if single else 12 * query) + width * query
    projection = width * (query + 2 * key)
    kernel = width * query + 4 * heads + (width * query if family.output_copied else 0)
    if family.projections is Projections.VIEWS:
        return projection + kernel
    if family.projections is Projections.ROTATED:
        return projection + width * (query + key) + kernel
    return (3 * width * query if masked or family.projections is Projections.EXPANDED else projection) + kernel


def score_bytes_per_position(
    shape: ModelShape, family: Family, heads: int, width: int, attention: Attention, *, masked: bool
) -> int:
    """Attention scores kept for each token and each position of its context, or the mask in their place.

    Formula: eager A(4 + w) with the softmax in fp32 (4A where w = 4), wA with it in the storage type; wA more for a
        soft cap and A, or (1 + w)A, with attention dropout; torch's own mathematics 4A; w for an explicit mask; else 0.
    Source: transformers 5.24, `eager_attention_forward` of the modeling files; torch 2.13
        `convert_boolean_attn_mask`: every layer keeps its own copy of the mask; traced.
    Leaves out: dropout inside a fused kernel, which keeps a seed.
    """
    if attention is not Attention.EAGER:
        if attention is Attention.SDPA and family.projections is Projections.MATH:
            return 4 * heads
        return width if masked and attention is Attention.SDPA else 0
    each = (4 + (width if width < 4 else 0)) if family.fp32_softmax else width
    if shape.trait("attn_logit_softcapping"):
        each += width
    if shape.trait("attention_dropout"):
        each += 1 if family.fp32_softmax else 1 + width
    return each * heads


def score_backward_bytes_per_position(family: Family, heads: int, width: int, attention: Attention) -> int:
    """Scores beyond the kept ones while the softmax is differentiated.

    Formula: gradients before and after the softmax, 8A in fp32 less the freed copy wA; 2wA in the storage type,
        (4 + w)A where the scores had been cast to fp32.
    Source: traced op by op (torch 2.13 `_softmax_backward_data`).
    Leaves out: nothing.
    """
    if attention is Attention.EAGER:
        if not family.fp32_softmax:
            return (width + (4 if family.fp32_scores else width)) * heads
        return (8 - (width if width < 4 else 0)) * heads
    return 8 * heads if attention is Attention.SDPA and family.projections is Projections.MATH else 0


def score_recompute_bytes_per_position(family: Family, heads: int, width: int, kept: int) -> int:
    """Scores beyond the kept ones at the softmax of a layer that is being recomputed.

    Formula: 12A (bloom), 3wA (falcon), (14 + 2w)A (falcon with ALiBi) less the kept; 0 where backward is always higher.
    Source: traced op by op for bloom and falcon, which add a mask out of place and cast inside the softmax.
    Leaves out: nothing.
    """
    fixed, stored = family.softmax_bytes
    return max(0, (fixed + stored * width) * heads - kept)


def score_forward_bytes_per_position(family: Family, heads: int, width: int, attention: Attention) -> tuple[int, int]:
    """Scores alive at a softmax of the first forward, and how many of them only a checkpointed layer holds.

    Formula: (8 + w)A: scores, their fp32 copy and the softmax (8A where w = 4); 2wA with the softmax in the storage
        type; (12 + w)A bloom, 4wA falcon, 12A mpt, of which wA under checkpointing alone; 20A falcon with ALiBi;
        (8 + w)A gpt_neo, whose loop still names the weights of the layer below; 8A where torch's own mathematics stands
        in for a fused kernel.
    Source: traced op by op; bloom, falcon and mpt add a mask out of place.
    Leaves out: nothing.
    """
    if attention is not Attention.EAGER:
        return (8 * heads if attention is Attention.SDPA and family.projections is Projections.MATH else 0), 0
    if family.forward_softmax_bytes is not None:
        fixed, stored, released = family.forward_softmax_bytes
        return (fixed + stored * width) * heads, released * width * heads
    if not family.fp32_softmax:
        return 2 * width * heads, 0
    return (8 + (width if width < 4 else 0)) * heads, 0


def operand_bytes_per_token(
    shape: ModelShape, family: Family, heads: int, kv_heads: int, width: int, *, single: bool
) -> int:
    """What lies beside the scores in the first forward of a checkpointed layer.

    Formula: wh of the normed input (none with the norms behind) + w(A + 2K)d; rotated queries and keys w(A + K)d more
        where the fused projection stays; key and value repeated for every query head 2wAd (a view where K = 1); the
        family's own tensors of wh each, without the 3wAd that a single sample does not copy; fp32 copies 12Ad for
        torch's own mathematics (4Ad, the scaled query, where w = 4), 8Ad of query and key (gpt_neo, none where w = 4).
    Source: traced with every model type.
    Leaves out: nothing.
    """
    query, key = heads * shape.head_dim, kv_heads * shape.head_dim
    values = query + 2 * key
    if family.place is not NormPlace.AFTER:
        values += shape.hidden
    if family.projections in (Projections.ROTATED, Projections.MATH, Projections.EXPANDED):
        values += query + key
    if 1 < kv_heads < heads:
        values += 2 * query
    uncopied = uncopied_bytes_per_token(shape, family, heads, width, single=single)
    in_fp32 = 8 * query if family.fp32_names and width < 4 else 0
    if family.projections is Projections.MATH:
        in_fp32 = (12 if width < 4 else 4) * query
    return width * (values + family.forward_streams * shape.hidden) - uncopied + in_fp32


def uncopied_bytes_per_token(shape: ModelShape, family: Family, heads: int, width: int, *, single: bool) -> int:
    """What a micro-batch of one sample does not copy, because its reshape is a view.

    Formula: 3wAd: query, key and value (bloom).
    Source: torch `reshape` of (b, A, s, d) to (b * A, s, d); transformers 5.24, models/bloom; traced.
    Leaves out: nothing.
    """
    return 3 * width * heads * shape.head_dim if single and family.copies_for_batches else 0
