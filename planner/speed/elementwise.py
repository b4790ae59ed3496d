"""Kernels that one layer launches, and what those beside matrix products and attention kernels move.

In: model shape, adapter, attention, software stack. Out: for forward and backward: launches by kind, and 16-bit values
read or written per token. Question: what do norms, rotations, activations, residuals and copies cost?
Compared with the operators of real layers: tests/oracles/trace_kernels.py, tests/golden/kernels.toml.
Symbols: `planner.geometry.legend`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from planner.geometry.adapters import linear_tensors, target_tensors
from planner.geometry.params import EXPERT_PREFIX, parameter_tensors
from planner.memory.activations_families import Projections, attention_in_force, supports_activations
from planner.records.model import Adapter, Method, ModelShape, ParameterTensor
from planner.records.request import Attention, Stack
from planner.speed.elementwise_blocks import BLOCKS
from planner.speed.elementwise_steps import (
    MATH_SCORES,
    NO_SCORES,
    Step,
    adapter_steps,
    attention_steps,
    bias_steps,
    code_of,
    expert_steps,
    hidden_steps,
    mlp_steps,
    reader_steps,
)

ATTENTION_KERNELS, ATTENTION_BACKWARD_KERNELS, GROUPED_SUMS = 1, 3, 2
"""Of a fused attention; where query heads share a key and value, their gradients are summed.
Source: torch 2.13, aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp `mha_bwd`."""
UNPACKING_KERNELS = 3
"""Of a 4-bit weight with doubly quantised scales, in either pass: scales, their offset, the weight.
Source: bitsandbytes 0.50, functional.py `dequantize_4bit`; beyond 1,536 tokens, backends/cuda/ops.py."""
BATCHED_PRODUCTS = 2
"""Of attention with materialised scores, forward; backward twice that."""


class PassWork(NamedTuple):
    """One pass over one layer. Values are per token; a value is one of the run's 16-bit numbers, read or written."""

    products: float  # matrix products launched
    attention: float  # attention kernels launched
    elementwise: float  # other kernels launched
    whole_values: float  # moved on tensors that every tensor-parallel rank holds whole
    split_values: float  # on tensors that tensor parallelism divides
    score_values: float  # on materialised scores: per token, position of its context and head

    @property
    def kernels(self) -> float:
        """All launches, whatever the tensor-parallel degree."""
        return self.products + self.attention + self.elementwise

    def values(self, tp: int) -> float:
        """Values per token that one tensor-parallel rank moves, without scores.

        Formula: whole + split / t.
        Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.1: norms, dropouts and residuals are replicated.
        Leaves out: what stays in the L2 cache from one kernel to the next.
        """
        return self.whole_values + self.split_values / tp


class LayerKernels(NamedTuple):
    """Forward and backward of one kind of layer; recomputation is forward once more."""

    layers: int
    forward: PassWork
    backward: PassWork


@lru_cache(maxsize=512)
def layer_kernels(
    model: ModelShape,
    adapter: Adapter | None = None,
    *,
    attention: Attention = Attention.SDPA,
    stack: Stack = Stack.EAGER,
    masked: bool = False,
) -> tuple[LayerKernels, ...]:
    """What every kind of layer launches and moves, in the order of `geometry.flops.model_work`.

    `masked`: SDPA gets an explicit mask, as in layers whose sliding window does not exceed the sequence.

    Formula: sums over the steps of a layer: kernels, and values per element * width of the step.
    Source: transformers 5.24 modeling code, traced: tests/golden/kernels.toml. FUSED and COMPILED by the same steps,
        each reading its inputs and writing its outputs once: lower bounds.
    Leaves out: caches, which hold small tensors between kernels; an explicit mask's own s * s values; sorts and top-k
        count as one kernel; the engine's own kernels for gradients; fp32 runs, whose casts launch nothing.
    """
    return tuple(
        _layer(model, adapter, layers, tensors, attention, stack, masked=masked, experts=experts)
        for layers, tensors, experts in _kinds(model)
    )


def elementwise_values(model: ModelShape) -> tuple[float, float]:
    """Values per token of the first kind of layer, forward and backward, in eager code without tensor parallelism.

    Formula: see `layer_kernels`; for Llama 42h + 10(q + kv*d) + 5f and 107h + 17(q + kv*d) + 9f.
    Source: see `layer_kernels`.
    Leaves out: see `layer_kernels`.
    """
    layer = layer_kernels(model)[0]
    return layer.forward.values(1), layer.backward.values(1)


def kernels(model: ModelShape, adapter: Adapter | None = None) -> tuple[float, float]:
    """Launches of the first kind of layer in eager code, forward and backward.

    Formula: products + attention + element-wise.
    Source: see `layer_kernels`.
    Leaves out: see `layer_kernels`.
    """
    layer = layer_kernels(model, adapter)[0]
    return layer.forward.kernels, layer.backward.kernels


def outside_values(model: ModelShape) -> tuple[float, float]:
    """Values per token moved outside the layers, forward and backward: loss, final norm, embedding; not the head.

    Formula: cast to fp32 3V + log-softmax 4V, backward zeros 2V + log-softmax 6V + cast 3V; 6V and 7V more where logits
        are capped; V for the gradient of a head's bias; the norm as in a layer; 2h for the embedding.
    Source: transformers 5.24, loss/loss_utils.py `ForCausalLMLoss`, traced: tests/golden/kernels.toml, `rest`.
    Leaves out: fused losses; logits scaled by a constant (2V); embedding norms, scales and positions; eager masks.
    """
    norm = BLOCKS[Stack.EAGER].norms[code_of(model).family.norm]
    norms = 1 if model.final_norm else 0
    capped = 1 if model.trait("final_logit_softcapping") else 0
    forward = (7.0 + 6 * capped) * model.vocab + (2 + norms * norm.forward_values) * model.hidden
    backward = (11.0 + 7 * capped + model.head_bias) * model.vocab + (2 + norms * norm.backward_values) * model.hidden
    return forward, backward


def _kinds(model: ModelShape) -> Iterable[tuple[int, Sequence[ParameterTensor], bool]]:
    """Kinds of layers: how many, the tensors of one, whether its MLP is routed."""
    if model.traced is not None:
        for kind in model.traced.kinds:
            routed = bool(model.experts) and any(t.name.startswith(EXPERT_PREFIX) for t in kind.tensors)
            yield kind.layers, kind.tensors, routed
        return
    tensors = [tensor for tensor in parameter_tensors(model) if tensor.name.startswith("layer/")]
    dense = model.dense_layers if model.experts else model.layers
    for routed, layers in ((False, dense), (True, model.layers - dense)):
        if layers:
            yield layers, [tensor for tensor in tensors if _occurs(tensor, model, routed=routed)], routed


def _occurs(tensor: ParameterTensor, model: ModelShape, *, routed: bool) -> bool:
    if not model.experts or not tensor.name.startswith("layer/mlp/"):
        return True
    return tensor.name.startswith((EXPERT_PREFIX, "layer/mlp/router", "layer/mlp/shared/")) is routed


def _layer(
    model: ModelShape,
    adapter: Adapter | None,
    layers: int,
    tensors: Sequence[ParameterTensor],
    attention: Attention,
    stack: Stack,
    *,
    masked: bool,
    experts: bool,
) -> LayerKernels:
    code = code_of(model)
    masked = masked or code.family.masked
    if supports_activations(model.model_type) or model.traced is not None:
        attention = attention_in_force(model, attention)
    eager = attention is Attention.EAGER
    math = code.family.projections is Projections.MATH and attention is Attention.SDPA
    targets = _targets(model, adapter, tensors)
    steps = [
        *hidden_steps(model, code, stack, frozen=adapter is not None),
        *reader_steps(model, tensors, stack, experts=experts),
        *attention_steps(model, code, stack, eager=eager, math=math, masked=masked or math),
        *(expert_steps(model, code, stack) if experts else _mlp(model, stack)),
        *(bias_steps(tensors, stack) if adapter is None else ()),
        *adapter_steps(targets, stack),
    ]
    scores = code.layer.scores if eager else MATH_SCORES if math else NO_SCORES
    matrices = sum(1 for tensor in tensors if tensor.columns > 1)
    batched = BATCHED_PRODUCTS if eager or math else 0
    fused, fused_backward = ATTENTION_KERNELS, ATTENTION_BACKWARD_KERNELS
    if model.kv_heads < model.heads and not masked:
        fused_backward += GROUPED_SUMS
    unpacked = 0
    if adapter is not None and adapter.method is Method.QLORA:
        packed = {tensor.name for tensor in linear_tensors(model)}
        unpacked = UNPACKING_KERNELS * sum(1 for tensor in tensors if tensor.name in packed)
    return LayerKernels(
        layers=layers,
        forward=PassWork(
            products=matrices + batched + 2 * len(targets),
            attention=0 if batched else fused,
            elementwise=_kernels(steps, backward=False) + scores.forward_kernels + unpacked,
            whole_values=sum(step.block.forward_values * step.whole for step in steps),
            split_values=sum(step.block.forward_values * step.split for step in steps),
            score_values=scores.forward_values,
        ),
        backward=PassWork(
            products=matrices * (2 if adapter is None else 1) + 2 * batched + 4 * len(targets),
            attention=0 if batched else fused_backward,
            elementwise=_kernels(steps, backward=True) + scores.backward_kernels + unpacked,
            whole_values=sum(step.block.backward_values * step.whole for step in steps),
            split_values=sum(step.block.backward_values * step.split for step in steps),
            score_values=scores.backward_values,
        ),
    )


def _mlp(model: ModelShape, stack: Stack) -> Iterable[Step]:
    return mlp_steps(model, stack, model.ffn_hidden, joined=bool(model.trait("fused_gate_up")))


def _kernels(steps: Iterable[Step], *, backward: bool) -> int:
    return sum(step.block.backward_kernels if backward else step.block.forward_kernels for step in steps)


def _targets(
    model: ModelShape, adapter: Adapter | None, tensors: Iterable[ParameterTensor]
) -> tuple[ParameterTensor, ...]:
    """The matrices of a layer that carry adapters."""
    if adapter is None:
        return ()
    names = target_tensors(model, adapter.targets)
    return tuple(tensor for tensor in tensors if tensor.name in names)
