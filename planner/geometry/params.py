"""Parameter tensors of a model: from its shape to every tensor by name and size, and to counts per model and rank.

Answers "how many parameters are there, how many does one token use, and how many does a tensor-parallel rank hold?".
Names, sizes and counts are those of the transformers 5.24 classes: fused projections are one tensor, all experts of a
layer are two. The split of each tensor is what DeepSpeed 0.19.8's AutoTP did in a run of the real engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from planner.records.model import AutoTP, ModelShape, ParameterTensor, Position, Split
from planner.units import ceil_div

if TYPE_CHECKING:
    from planner.records.traced import TracedModel

EXPERT_PREFIX = "layer/mlp/expert/"
"""The tensors that hold all routed experts of a layer."""


@lru_cache(maxsize=512)
def parameter_tensors(shape: ModelShape) -> tuple[ParameterTensor, ...]:
    """Every parameter tensor of the model; a tied head is not listed, because it is the embedding.

    Formula: the sum of `numel * count` equals `sum(p.numel() for p in model.parameters())`.
    Source: transformers 5.24, the modeling file of each model_type (named in catalog/data/families.toml).
    Leaves out: buffers (rotary tables, masks), which are no parameters.
    """
    if shape.traced is not None:
        return tuple(_traced_tensors(shape.traced))
    if shape.autotp is AutoTP.REFUSED:
        return tuple(replace(tensor, split=Split.REPLICATED) for tensor in _tensors(shape))
    return tuple(_tensors(shape))


def parameter_count(shape: ModelShape) -> int:
    """All parameters of the model.

    Formula: sum of numel * count over the tensors.
    Source: transformers 5.24, `model.num_parameters()`.
    Leaves out: nothing; tied weights count once.
    """
    return sum(tensor.numel * tensor.count for tensor in parameter_tensors(shape))


def active_parameter_count(shape: ModelShape) -> int:
    """Parameters that one token is multiplied by.

    Formula: all, less (E - k) / E of the routed experts.
    Source: Jiang et al. 2024, arXiv:2401.04088, section 2.1: k of E experts per token.
    Leaves out: that the embedding is looked up rather than multiplied.
    """
    idle = shape.experts - shape.experts_per_token
    routed = sum(t.numel * t.count for t in parameter_tensors(shape) if t.name.startswith(EXPERT_PREFIX))
    return parameter_count(shape) - (routed // shape.experts * idle if shape.experts else 0)


def rank_numel(tensor: ParameterTensor, tp: int) -> int:
    """Elements of one occurrence on the fullest tensor-parallel rank.

    Formula: ceil(rows / tp) * columns when split by columns, rows * ceil(columns / tp) when by rows, else all;
    attention goes by whole key-value heads: ceil(K / tp) of K pieces.
    Source: DeepSpeed 0.19.8, deepspeed/module_inject/tp_shard.py `get_shard_size`, deepspeed/module_inject/layers.py;
    equal to the engine's own count where tp divides neither heads nor ffn.
    Leaves out: MLP matrices outside a module called mlp (OPT), which are cut by heads too.
    """
    if tensor.split is Split.COLUMN:
        return _rank_width(tensor, tensor.rows, tp) * tensor.columns
    if tensor.split is Split.ROW:
        return tensor.rows * _rank_width(tensor, tensor.columns, tp)
    return tensor.numel


def _rank_width(tensor: ParameterTensor, width: int, tp: int) -> int:
    """The fullest rank's part of the dimension that is cut."""
    if not tensor.pieces:
        return ceil_div(width, tp)
    return width // tensor.pieces * ceil_div(tensor.pieces, tp)


def rank_heads(shape: ModelShape, tp: int) -> tuple[int, int]:
    """Query and key-value heads on the fullest tensor-parallel rank: whole key-value heads with their queries."""
    key_value = ceil_div(shape.kv_heads, tp)
    return key_value * shape.heads // shape.kv_heads, key_value


def rank_parameter_count(shape: ModelShape, tp: int) -> int:
    """All parameters on the fullest tensor-parallel rank.

    Formula: sum of rank_numel * count.
    Source: DeepSpeed 0.19.8, deepspeed/module_inject/auto_tp.py; equal to the engine's own count at tp 2.
    Leaves out: what `rank_numel` leaves out.
    """
    return sum(rank_numel(tensor, tp) * tensor.count for tensor in parameter_tensors(shape))


@lru_cache(maxsize=512)
def layer_numel(shape: ModelShape, tp: int) -> int:
    """Elements of the largest decoder layer on the fullest tensor-parallel rank.

    Formula: sum of rank_numel over the tensors of one layer; the larger kind where dense and expert layers mix.
    Source: transformers 5.24, the modeling file of each model_type.
    Leaves out: nothing.
    """
    if shape.traced is not None:
        return max(sum(t.numel * t.count for t in kind.tensors) for kind in shape.traced.kinds)
    dense = experts = common = 0
    for tensor in parameter_tensors(shape):
        if tensor.name.startswith("layer/mlp/"):
            if shape.experts and tensor.name in _EXPERT_LAYER_NAMES:
                experts += rank_numel(tensor, tp) * (tensor.count // (shape.layers - shape.dense_layers))
            else:
                layers = shape.dense_layers if shape.experts else shape.layers
                dense += rank_numel(tensor, tp) * (tensor.count // layers)
        elif tensor.name.startswith("layer/"):
            common += rank_numel(tensor, tp) * (tensor.count // shape.layers)
    return common + max(dense, experts)


@lru_cache(maxsize=512)
def largest_tensor_numel(shape: ModelShape, tp: int) -> int:
    """Elements of the largest single tensor on the fullest tensor-parallel rank.

    Formula: the maximum of rank_numel.
    Source: transformers 5.24, the modeling file of each model_type.
    Leaves out: nothing.
    """
    return max(rank_numel(tensor, tp) for tensor in parameter_tensors(shape))


_EXPERT_LAYER_NAMES = frozenset(
    (
        "layer/mlp/router",
        "layer/mlp/expert/gate_up",
        "layer/mlp/expert/down",
        "layer/mlp/shared/gate",
        "layer/mlp/shared/up",
        "layer/mlp/shared/down",
        "layer/mlp/shared/router",
    )
)


def _tensor(name: str, rows: int, columns: int, count: int, split: Split, *, pieces: int = 0) -> ParameterTensor:
    return ParameterTensor(name=name, rows=rows, columns=columns, count=count, split=split, pieces=pieces)


def _traced_tensors(traced: TracedModel) -> Iterator[ParameterTensor]:
    """The tensors outside the layers, then those of the layers; a tensor that several kinds of layers have, once."""
    yield from traced.others
    counts: dict[ParameterTensor, int] = {}
    for kind in traced.kinds:
        for tensor in kind.tensors:
            one = replace(tensor, count=1)
            counts[one] = counts.get(one, 0) + tensor.count * kind.layers
    yield from (replace(tensor, count=count) for tensor, count in counts.items())


def _tensors(shape: ModelShape) -> Iterator[ParameterTensor]:
    """The tensors in the order of a forward pass, with the split of a type that AutoTP converts."""
    width = shape.trait("embedding_width", shape.hidden)
    vocabulary_parallel = bool(shape.trait("vocab_parallel_head", default=False))
    yield _tensor("embedding", shape.vocab, width, 1, Split.COLUMN if vocabulary_parallel else Split.REPLICATED)
    if shape.position is Position.LEARNED:
        rows = shape.max_positions + shape.trait("position_offset", default=0)
        yield _tensor("position", rows, shape.hidden, 1, Split.REPLICATED)
    if width != shape.hidden:
        yield _tensor("embedding_projection", shape.hidden, width, 1, Split.REPLICATED)
        yield _tensor("head_projection", width, shape.hidden, 1, Split.REPLICATED)
    if shape.trait("embedding_norm", default=False):
        yield from _norm(shape, "embedding_norm", 1)
    yield from _norm(shape, "layer/norm", shape.layers * shape.norms_per_layer)
    yield from _attention(shape)
    yield from _dense_mlp(shape)
    if shape.experts:
        yield from _expert_mlp(shape)
    if shape.final_norm:
        yield from _norm(shape, "final_norm", 1)
    split = Split.REPLICATED if _head_is_whole(shape) else Split.COLUMN
    if not shape.tied_embeddings:
        yield _tensor("head", shape.vocab, width, 1, split)
    if shape.head_bias:
        yield _tensor("head_bias", shape.vocab, 1, 1, split)


def _head_is_whole(shape: ModelShape) -> bool:
    """Whether every tensor-parallel rank holds the whole output matrix."""
    if shape.tied_embeddings:
        return not shape.trait("vocab_parallel_head", default=False)
    return bool(shape.trait("replicated_head", default=False))


def _norm(shape: ModelShape, name: str, count: int) -> Iterator[ParameterTensor]:
    if shape.trait("norm_weight", default=True):
        yield _tensor(name, shape.hidden, 1, count, Split.REPLICATED)
    if shape.trait("norm_bias", default=False):
        yield _tensor(f"{name}_bias", shape.hidden, 1, count, Split.REPLICATED)


def _attention(shape: ModelShape) -> Iterator[ParameterTensor]:
    layers = shape.layers
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    fused = bool(shape.trait("fused_qkv", default=False))
    projections = (("qkv", query + 2 * key),) if fused else (("q", query), ("k", key), ("v", key))
    for name, rows in projections:
        yield _tensor(f"layer/attention/{name}", rows, shape.hidden, layers, Split.COLUMN, pieces=shape.kv_heads)
        if shape.qkv_bias:
            yield _tensor(f"layer/attention/{name}_bias", rows, 1, layers, Split.COLUMN, pieces=shape.kv_heads)
    if shape.qk_norm:
        kind = shape.trait("qk_norm_width", "head")
        for name, heads in (("q_norm", shape.heads), ("k_norm", shape.kv_heads)):
            width = shape.head_dim * (heads if kind == "heads" else 1)
            count = layers * (heads if kind == "each_head" else 1)
            yield _tensor(f"layer/attention/{name}", width, 1, count, Split.REPLICATED)
            if shape.trait("qk_norm_bias", default=False):
                yield _tensor(f"layer/attention/{name}_bias", width, 1, count, Split.REPLICATED)
    yield _tensor("layer/attention/o", shape.hidden, query, layers, Split.ROW, pieces=shape.kv_heads)
    if shape.attention_output_bias:
        yield _tensor("layer/attention/o_bias", shape.hidden, 1, layers, Split.REPLICATED)


def _dense_mlp(shape: ModelShape) -> Iterator[ParameterTensor]:
    layers = shape.dense_layers if shape.experts else shape.layers
    if not layers:
        return
    if shape.trait("fused_gate_up", default=False):
        inner: tuple[tuple[str, int], ...] = (("gate_up", 2 * shape.ffn_hidden),)
    else:
        inner = tuple((name, shape.ffn_hidden) for name in (("gate", "up") if shape.gated_mlp else ("up",)))
    for name, rows in inner:
        yield _tensor(f"layer/mlp/{name}", rows, shape.hidden, layers, Split.COLUMN)
        if shape.mlp_bias:
            yield _tensor(f"layer/mlp/{name}_bias", rows, 1, layers, Split.COLUMN)
    yield _tensor("layer/mlp/down", shape.hidden, shape.ffn_hidden, layers, Split.ROW)
    if shape.mlp_bias:
        yield _tensor("layer/mlp/down_bias", shape.hidden, 1, layers, Split.REPLICATED)


def _expert_mlp(shape: ModelShape) -> Iterator[ParameterTensor]:
    """Routed experts as transformers 5 stores them: all of a layer stacked in two tensors."""
    layers = shape.layers - shape.dense_layers
    hidden, width, shared = shape.hidden, shape.expert_ffn_hidden, shape.shared_ffn_hidden
    yield _tensor("layer/mlp/router", shape.experts, hidden, layers, Split.REPLICATED)
    yield _tensor("layer/mlp/expert/gate_up", shape.experts * 2 * width, hidden, layers, Split.COLUMN)
    yield _tensor("layer/mlp/expert/down", shape.experts * hidden, width, layers, Split.ROW)
    if shared:
        yield _tensor("layer/mlp/shared/gate", shared, hidden, layers, Split.COLUMN)
        yield _tensor("layer/mlp/shared/up", shared, hidden, layers, Split.COLUMN)
        yield _tensor("layer/mlp/shared/down", hidden, shared, layers, Split.ROW)
        yield _tensor("layer/mlp/shared/router", 1, hidden, layers, Split.REPLICATED)
