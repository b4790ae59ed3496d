"""FLOPs of a decoder model: from its shape to the matrix work of each kind of layer, and to the model FLOPs of a step.

One convention for "model FLOPs", used for every MFU dsplan prints: backward is twice forward, causal attention counts
the half of the score matrix that a causal kernel computes, recomputation does not count, the output head counts
once, the embedding look-up not at all. Published tables that count full attention (llm-foundry, many Hugging Face
ones) show a higher MFU for the same run. Symbols: `planner.geometry.legend`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from planner.geometry.adapters import adapter_parameter_count, adapter_tensors
from planner.geometry.params import EXPERT_PREFIX
from planner.records.model import Adapter, ModelShape

if TYPE_CHECKING:
    from planner.records.traced import LayerKind, TracedModel


class LayerWork(NamedTuple):
    """The matrix products of one kind of layer, for one token, unsharded. A tuple, because every estimate reads it."""

    layers: int  # how many layers of this kind
    active_elements: int  # weights one token is multiplied by
    held_elements: int  # weights the layer holds, all experts
    whole_width: int  # inputs and outputs of the products that tensor parallelism leaves whole
    split_width: int  # inputs and outputs that it divides
    gemms: int  # matrix products launched
    column_gemms: int  # Linear modules that tensor parallelism divides by columns
    row_gemms: int  # and by rows


class ModelWork(NamedTuple):
    """The kinds of layers of a model and what else costs FLOPs."""

    kinds: tuple[LayerWork, ...]
    layers: int
    hidden: int
    heads: int
    head_dim: int
    vocab: int
    head_divided: bool  # tensor parallelism divides the output head
    logits_divided: bool  # and leaves its logits divided


@lru_cache(maxsize=256)
def model_work(model: ModelShape) -> ModelWork:
    """The work of every kind of layer: dense layers and, if there are any, layers of experts.

    Formula: weights h*(q + 2*kv*d) + q*h for attention, 3*h*f or 2*h*f for an MLP; of E experts a token visits k.
    Source: transformers 5.24, the modeling file of each model_type; what is divided: DeepSpeed 0.19.8,
        deepspeed/module_inject/auto_tp.py.
    Leaves out: biases and norms; the query, key and value products are one, which the fitted constants assume.
    """
    if model.traced is not None:
        return _traced_work(model, model.traced)
    dense = model.layers if not model.experts else model.dense_layers
    vocabulary_parallel = bool(model.trait("vocab_parallel_head"))
    kinds = []
    if dense:
        kinds.append(_layer_work(model, dense, _mlp(model, model.ffn_hidden)))
    if model.layers - dense:
        kinds.append(_layer_work(model, model.layers - dense, _experts(model)))
    return ModelWork(
        kinds=tuple(kinds),
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        head_dim=model.head_dim,
        vocab=model.vocab,
        head_divided=vocabulary_parallel or not (model.tied_embeddings or model.trait("replicated_head")),
        logits_divided=vocabulary_parallel,
    )


def _traced_work(model: ModelShape, traced: TracedModel) -> ModelWork:
    """Every matrix of a layer as one product; of E experts a token visits k. Never divided by tensor parallelism."""
    return ModelWork(
        kinds=tuple(_traced_layer(model, kind) for kind in traced.kinds),
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        head_dim=model.head_dim,
        vocab=model.vocab,
        head_divided=False,
        logits_divided=False,
    )


def _traced_layer(model: ModelShape, kind: LayerKind) -> LayerWork:
    active = held = width = gemms = 0
    for tensor in kind.tensors:
        if tensor.columns == 1:
            continue
        routed = model.experts and tensor.name.startswith(EXPERT_PREFIX)
        chosen, experts = (model.experts_per_token, model.experts) if routed else (1, 1)
        held += tensor.numel * tensor.count
        active += tensor.numel * tensor.count * chosen // experts
        width += (tensor.rows + tensor.columns * experts) * chosen // experts * tensor.count
        gemms += 1
    return LayerWork(
        layers=kind.layers,
        active_elements=active,
        held_elements=held,
        whole_width=width,
        split_width=0,
        gemms=gemms,
        column_gemms=0,
        row_gemms=0,
    )


class AdapterWork(NamedTuple):
    """The products that low-rank adapters add to one layer, for one token, on average over the layers."""

    elements: float  # weights of the adapters
    widths: float  # inputs and outputs of their products
    outputs: float  # outputs that are scaled and added to those of the frozen modules
    gemms: float


@lru_cache(maxsize=256)
def adapter_work(model: ModelShape, adapter: Adapter) -> AdapterWork:
    """What an adapter adds to a layer.

    Formula: r * (inputs + outputs) weights and two products for each target.
    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1; peft 0.21, tuners/lora/layer.py `Linear.forward`.
    Leaves out: that layers of experts and dense layers may carry different ones.
    """
    tensors = adapter_tensors(model, adapter)
    return AdapterWork(
        elements=sum(t.numel * t.count for t in tensors) / model.layers,
        widths=sum((t.rows + t.columns) * t.count for t in tensors) / model.layers,
        outputs=sum(t.rows * t.count for t in tensors if t.name.endswith("/lora_b")) / model.layers,
        gemms=sum(t.count for t in tensors) / model.layers,
    )


class _Mlp(NamedTuple):
    active_elements: int
    held_elements: int
    whole_width: int
    split_width: int
    gemms: int
    column_gemms: int
    row_gemms: int


def _mlp(model: ModelShape, width: int, *, active: int = 1, held: int = 1) -> _Mlp:
    """`active` of `held` equal MLPs of that inner width; equal experts run as one grouped product."""
    matrices = 3 if model.gated_mlp else 2
    elements = matrices * model.hidden * width
    return _Mlp(
        active_elements=active * elements,
        held_elements=held * elements,
        whole_width=active * matrices * model.hidden,
        split_width=active * matrices * width,
        gemms=matrices,
        column_gemms=1 if model.trait("fused_gate_up") else matrices - 1,
        row_gemms=1,
    )


def _experts(model: ModelShape) -> _Mlp:
    """Routed experts, the router, and the expert every token visits."""
    routed = _mlp(model, model.expert_ffn_hidden, active=model.experts_per_token, held=model.experts)
    router = model.hidden * model.experts
    total = _Mlp(
        active_elements=routed.active_elements + router,
        held_elements=routed.held_elements + router,
        whole_width=routed.whole_width + model.hidden + model.experts,
        split_width=routed.split_width,
        gemms=routed.gemms + 1,
        column_gemms=routed.column_gemms,
        row_gemms=routed.row_gemms,
    )
    if not model.shared_ffn_hidden:
        return total
    shared = _mlp(model, model.shared_ffn_hidden)
    return _Mlp(*(one + other for one, other in zip(total, shared, strict=True)))


def _layer_work(model: ModelShape, layers: int, mlp: _Mlp) -> LayerWork:
    """Attention projections (query, key and value in one product, output) and the MLP."""
    query = model.heads * model.head_dim
    key_value = 2 * model.kv_heads * model.head_dim
    projections = model.hidden * (query + key_value) + query * model.hidden
    return LayerWork(
        layers=layers,
        active_elements=projections + mlp.active_elements,
        held_elements=projections + mlp.held_elements,
        whole_width=2 * model.hidden + mlp.whole_width,
        split_width=query + key_value + query + mlp.split_width,
        gemms=2 + mlp.gemms,
        column_gemms=(1 if model.trait("fused_qkv") else 3) + mlp.column_gemms,
        row_gemms=1 + mlp.row_gemms,
    )


def linear_flop(elements: int, tokens: int) -> int:
    """Forward FLOPs of matrices with that many weights.

    Formula: 2 * elements * T.
    Source: Narayanan et al. 2021, arXiv:2104.04473, appendix: a multiplication and an addition per weight and token.
    Leaves out: bias, norms, activation functions, rotary embedding.
    """
    return 2 * elements * tokens


def attention_flop(query_width: int, seq_len: int, tokens: int) -> int:
    """Forward FLOPs of scores and weighted values in one layer, causal.

    Formula: 2 * s * q * T, half of the 4 * s * q * T of the full square.
    Source: Dao 2023, arXiv:2307.08691, section 4.1: FLOPs divided by 2 with a causal mask.
    Leaves out: softmax, masks of documents in a packed sample, sliding windows, which SDPA computes as a square.
    """
    return 2 * seq_len * query_width * tokens


def head_flop(model: ModelShape, tokens: int) -> int:
    """Forward FLOPs of the output head.

    Formula: 2 * h * V * T.
    Source: Narayanan et al. 2021, arXiv:2104.04473, appendix, logit layer.
    Leaves out: the loss.
    """
    return linear_flop(model.hidden * model.vocab, tokens)


def forward_flop(model: ModelShape, seq_len: int, tokens: int) -> int:
    """Forward FLOPs of the whole model: layers, attention and head.

    Formula: sum over layers of (2 * active weights * T + 2 * s * q * T) + 2 * h * V * T.
    Source: Narayanan et al. 2021, arXiv:2104.04473, appendix, with causal attention and active experts only.
    Leaves out: what its parts leave out, and the embedding look-up.
    """
    linear = sum(kind.layers * linear_flop(kind.active_elements, tokens) for kind in model_work(model).kinds)
    attention = model.layers * attention_flop(model.heads * model.head_dim, seq_len, tokens)
    return linear + attention + head_flop(model, tokens)


@lru_cache(maxsize=1024)
def model_flop(model: ModelShape, seq_len: int, tokens: int, adapter: Adapter | None = None) -> int:
    """Model FLOPs of forward and backward, the numerator of MFU.

    Formula: 3 * forward; beside adapters 2 * forward of the frozen matrices, whose weights get no gradient, 3 * forward
        of attention and of the adapters.
    Source: Chowdhery et al. 2022, arXiv:2204.02311, appendix B: MFU counts no recomputation; backward is twice forward,
        half of it for the weights (Hu et al. 2021, arXiv:2106.09685, section 4.2: no gradients of frozen weights).
    Leaves out: recomputation, and the extra half forward of a flash backward.
    """
    whole = 3 * forward_flop(model, seq_len, tokens)
    if adapter is None:
        return whole
    attention = model.layers * attention_flop(model.heads * model.head_dim, seq_len, tokens)
    frozen = whole // 3 - attention
    return whole - frozen + 3 * linear_flop(adapter_parameter_count(model, adapter), tokens)


def mfu_convention(adapter: Adapter | None = None) -> str:
    """The convention of `model_flop` in words, for whoever compares an MFU with a published one."""
    frozen = "two times forward for frozen weights, three times for the rest"
    layers = "three times forward" if adapter is None else frozen
    return f"model FLOPs: {layers}, causal attention counted half, output head once, no recomputation"
