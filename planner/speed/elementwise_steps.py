"""The steps of one layer beside its matrix products and attention kernels, each with the widths it works on.

In: model shape, the architecture's code, a software stack's blocks. Out: steps. Symbols: `planner.geometry.legend`.
Every step is named after what the modeling files of transformers 5.24 do in forward; backward was read off traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from planner.memory.activations_families import FAMILIES, Family, NormCode, family_of
from planner.records.model import ModelShape, Norm, ParameterTensor, Position
from planner.records.request import Stack
from planner.speed.elementwise_blocks import (
    ACTIVATIONS,
    BLOCKS,
    BLOOM_GELU,
    CONCATENATED,
    JOINTS,
    LAYERS,
    ONE_KERNEL,
    ROTATED_PART,
    ROTATIONS,
    SHARED_COPIES,
    Block,
    Joint,
    LayerCode,
    Rotation,
    Scores,
)

MATH_SCORES = Scores(3, 11, 1, 6)
"""Of torch's own mathematics, which runs where no fused kernel takes one key and value head under a mask."""
NO_SCORES = Scores(0, 0, 0, 0)
NARROW_SCORES = Scores(3, 6, 2, 5)
"""Of a softmax in 16 bits."""
FP32_SCORES = Scores(6, 21, 3, 13)
"""Of a softmax whose position bias is added in fp32 (Falcon with ALiBi)."""
ROUTING = Block(12, 0, 10, 0)
"""Router softmax, choice of experts, sorting of tokens; gathering and summing them are counted by width."""
MATH_QUERY, MATH_KEY = Block(6, 20, 5, 18), Block(4, 14, 4, 14)
"""fp32 copies, scalings and repetitions around torch's own mathematics."""
REPEATED = Block(1, 1, 1, 1)
"""A key or value repeated for the query heads that share it; its gradients summed."""
UNIT_OFFSET_KERNELS = 2
"""Gemma's norm casts its weight and adds 1 to it."""
MASK = Block(3, 0, 0, 0)
"""A boolean mask turned into one that is added."""


class Step(NamedTuple):
    """One block on tensors that tensor parallelism leaves whole, or divides."""

    block: Block
    whole: float = 0.0
    split: float = 0.0


class Code(NamedTuple):
    """An architecture's code: what activation memory and speed know of it."""

    family: Family
    layer: LayerCode


def code_of(model: ModelShape) -> Code:
    """The rows of an architecture, or what its geometry suggests where it has none."""
    if model.model_type not in FAMILIES:
        norms = {Norm.RMS: NormCode.RMS, Norm.RMS_UNIT_OFFSET: NormCode.RMS_FP32, Norm.LAYER: NormCode.LAYER}
        return Code(Family(norm=norms[model.norm]), LayerCode())
    family, layer = family_of(model), LAYERS.get(model.model_type, LayerCode())
    if model.model_type == "falcon" and model.kv_heads < model.heads:
        layer = replace(layer, joint=Joint.INDEXED)
    if family.fp32_scores:
        layer = replace(layer, scores=FP32_SCORES)
    elif not family.fp32_softmax:
        layer = replace(layer, scores=NARROW_SCORES)
    return Code(family, layer)


def hidden_steps(model: ModelShape, code: Code, stack: Stack, *, frozen: bool) -> Iterator[Step]:
    """Norms, residual sums, dropouts and scalings of the residual stream.

    Formula: norms * norm(h) + norms of query and key + 2 residual sums (backward: 1 in a parallel block of one norm).
    Source: transformers 5.24 modeling files; traced.
    Leaves out: statistics, a few values a token.
    """
    blocks, hidden = BLOCKS[stack], model.hidden
    norm = (blocks.frozen_norms if frozen else blocks.norms)[code.family.norm]
    if model.norm is Norm.RMS_UNIT_OFFSET and stack is Stack.EAGER:
        norm = norm._replace(forward_kernels=norm.forward_kernels + UNIT_OFFSET_KERNELS)
    for _ in range(model.norms_per_layer):
        yield Step(norm, whole=hidden)
    if model.qk_norm:
        yield from _head_norm_steps(model, norm, stack)
    forward = blocks.residual._replace(backward_kernels=0, backward_values=0)
    backward = blocks.residual._replace(forward_kernels=0, forward_values=0)
    sums = model.norms_per_layer if model.parallel_block else 2
    yield from (Step(forward, whole=hidden) for _ in range(2))
    yield from (Step(backward, whole=hidden) for _ in range(sums))
    if model.trait("residual_dropout"):
        yield from (Step(blocks.dropout, whole=hidden) for _ in range(code.family.residual_dropouts))
    if stack is Stack.EAGER:
        yield from (Step(Block(1, 2, 1, 2), whole=hidden) for _ in range(code.layer.scaled))


def _head_norm_steps(model: ModelShape, norm: Block, stack: Stack) -> Iterator[Step]:
    """Norms of query and key, of all heads at once; or one of each head, concatenated (StableLM)."""
    apart = model.trait("qk_norm_width") == "each_head" and stack is Stack.EAGER
    for heads in (model.heads, model.kv_heads):
        width = heads * model.head_dim
        yield Step(norm, split=width)
        if apart:
            more = heads - 1
            yield Step(Block(more * norm.forward_kernels + 1, 2, more * norm.backward_kernels + 1, 2), split=width)


def reader_steps(
    model: ModelShape, tensors: Iterable[ParameterTensor], stack: Stack, *, experts: bool
) -> Iterator[Step]:
    """Sums of the gradients of a tensor that several projections read.

    Formula: (readers - 1) * 3h for each normed tensor; a router and the gathering of tokens read it too.
    Source: autograd; traced.
    Leaves out: nothing.
    """
    names = [tensor.name.removeprefix("layer/") for tensor in tensors if tensor.columns > 1]
    attention = sum(name.startswith("attention/") for name in names) - 1
    mlp = 1 if model.trait("fused_gate_up") or not model.gated_mlp else 2
    if experts:
        mlp = 2 + (3 if model.shared_ffn_hidden else 0)
    shared = model.parallel_block and model.norms_per_layer == 1
    sums = attention + mlp - 1 if shared else attention - 1 + mlp - 1
    yield from (Step(BLOCKS[stack].fan_in, whole=model.hidden) for _ in range(sums))


def attention_steps(
    model: ModelShape, code: Code, stack: Stack, *, eager: bool, math: bool, masked: bool
) -> Iterator[Step]:
    """Rotations, and copies around attention.

    Formula: rotation(q) + rotation(kv*d); in eager code the joining of gradients of a fused projection, and copies of
        operands and output where the kernel cannot read them in place.
    Source: transformers 5.24 modeling files and integrations/sdpa_attention.py; traced.
    Leaves out: cosines and sines, which all samples share.
    """
    query, key = model.heads * model.head_dim, model.kv_heads * model.head_dim
    if stack is not Stack.EAGER:
        if model.position is Position.ROTARY:
            yield Step(Block(1, 2, 1, 2), split=query + key)
        return
    if model.position is Position.ROTARY:
        repeats_first = bool(model.trait("new_decoder_architecture"))  # Falcon 40B
        rotated = query if repeats_first else key
        yield from _rotation_steps(code.layer, query, rotated, fused_projection=bool(model.trait("fused_qkv")))
        if repeats_first:
            yield Step(Block(1, 2, 0, 0), split=query)
    if model.trait("fused_qkv"):
        yield Step(JOINTS[code.layer.joint], split=query + 2 * key)
    if code.layer.scaled_query:
        yield Step(Block(1, 2, 1, 2), split=query)
    if masked and not eager:
        yield Step(MASK)
    if math:
        yield Step(MATH_QUERY, split=query)
        yield Step(MATH_KEY, split=key)
    elif eager:
        yield from _eager_operand_steps(model, code, query, key)
    else:
        if code.family.output_copied:
            yield Step(Block(1, 2, 0, 0), split=query)
        if masked and model.kv_heads < model.heads:
            yield from (Step(REPEATED, split=query + key) for _ in range(2))


def _rotation_steps(code: LayerCode, query: int, key: int, *, fused_projection: bool) -> Iterator[Step]:
    yield Step(Block(code.table_copies, 0, 0, 0))
    for width in (query, key):
        if code.rotation is Rotation.PART:
            yield Step(ROTATED_PART, split=code.rotated_share * width)
            yield Step(CONCATENATED, split=width)
        else:
            yield Step(ROTATIONS[code.rotation], split=width)
        if fused_projection:
            yield Step(SHARED_COPIES, split=width)


def _eager_operand_steps(model: ModelShape, code: Code, query: int, key: int) -> Iterator[Step]:
    """Copies of query, key, value and output, which batched products read in one piece.

    A key or value that query heads share is repeated instead; a concatenated query or key needs no copy.
    """
    grouped = model.kv_heads < model.heads
    concatenated = code.layer.rotation is Rotation.PART
    repeated = REPEATED if grouped else REPEATED._replace(backward_kernels=0, backward_values=0)
    yield from (Step(repeated, split=query + key) for _ in range(1 if concatenated and not grouped else 2))
    yield from (Step(Block(1, 2, 0, 0), split=query) for _ in range(1 if concatenated else 2))
    yield Step(Block(0, 0, 1, 2), split=query)
    yield Step(Block(0, 0, 1, 2), split=key)
    if model.position is not Position.ROTARY:
        yield from (Step(Block(0, 0, 1, 2), split=query) for _ in range(1 if model.trait("fused_qkv") else 2))
    if code.family.fp32_operands:
        yield Step(Block(2, 10, 2, 6), split=query)


def mlp_steps(model: ModelShape, stack: Stack, width: int, *, joined: bool) -> Iterator[Step]:
    """An MLP's activation, its product with the up projection, and the joining of their gradients where one matrix
    holds both.

    Formula: activation(f) + gate(f).
    Source: transformers 5.24 MLP classes and activations.py; traced.
    Leaves out: nothing.
    """
    activation = ACTIVATIONS.get(model.activation, ONE_KERNEL) if stack is Stack.EAGER else ONE_KERNEL
    if model.model_type == "bloom" and stack is Stack.EAGER:
        activation = BLOOM_GELU
    yield Step(activation, split=width)
    if model.gated_mlp:
        yield Step(BLOCKS[stack].gate, split=width)
        if joined and stack is Stack.EAGER:
            yield Step(Block(0, 0, 1, 4), split=width)


def expert_steps(model: ModelShape, code: Code, stack: Stack) -> Iterator[Step]:
    """A routed MLP with all experts in grouped products: routing, gathering, activation, weighted sum.

    Formula: gather (1 + k)h, weights 2kh, order restored 2kh, sum (1 + k)h; backward 12kh + 4h; with fp32 routing
        10kh + 6h, backward 25kh + 8h; activation of kf.
    Source: transformers 5.24, integrations/moe.py `grouped_mm_experts_forward`; traced.
    Leaves out: the several kernels of a sort and of an accumulating index.
    """
    chosen, hidden = model.experts_per_token, model.hidden
    yield Step(ROUTING)
    if code.family.fp32_routing:
        yield Step(Block(8, 1, 10, 1), whole=(10 * chosen + 6) * hidden)
        yield Step(Block(0, 0, 0, 1), whole=(15 * chosen + 2) * hidden)
    else:
        yield Step(Block(4, 1, 5, 1), whole=(6 * chosen + 2) * hidden)
        yield Step(Block(0, 0, 0, 1), whole=(6 * chosen + 2) * hidden)
    yield from mlp_steps(model, stack, chosen * model.expert_ffn_hidden, joined=True)
    if model.shared_ffn_hidden:
        yield from mlp_steps(model, stack, model.shared_ffn_hidden, joined=False)
        yield Step(Block(3, 5, 4, 6), whole=hidden)


def bias_steps(tensors: Iterable[ParameterTensor], stack: Stack) -> Iterator[Step]:
    """Sums over the tokens for the gradients of biases; forward adds them inside the products.

    Formula: width of each bias.
    Source: torch `addmm`; traced.
    Leaves out: nothing.
    """
    for tensor in tensors:
        if tensor.columns == 1 and tensor.name.endswith("_bias") and "norm" not in tensor.name:
            divided = tensor.name.endswith(("/o_bias", "/down_bias"))
            yield Step(BLOCKS[stack].bias, **{"whole" if divided else "split": float(tensor.rows)})


def adapter_steps(targets: Iterable[ParameterTensor], stack: Stack) -> Iterator[Step]:
    """An adapter's output scaled and added, and the gradient of its input added, for each target.

    Formula: 5 * outputs; backward 2 * outputs + 3 * inputs.
    Source: peft 0.21, tuners/lora/layer.py `Linear.forward`; traced.
    Leaves out: casts where adapters stay in fp32; dropout.
    """
    for tensor in targets:
        yield Step(BLOCKS[stack].adapter_output, whole=tensor.rows)
        yield Step(BLOCKS[stack].adapter_input, whole=tensor.columns)
