"""What the small steps of a layer launch and move, for one value of their width: norms, rotations, activations, sums.

In: nothing. Out: tables. Question: how many kernels and how many 16-bit values read or written does one step cost?
Read off the operators of real layers, transformers 5.24 and torch 2.13: tests/oracles/trace_kernels.py --operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from planner.memory.activations_families import NormCode
from planner.records.request import Stack


class Block(NamedTuple):
    """One step: kernels, and 16-bit values that cross memory for each value of its width."""

    forward_kernels: int
    forward_values: float
    backward_kernels: int
    backward_values: float


class Blocks(NamedTuple):
    """The steps that a software stack writes as it likes."""

    norms: Mapping[NormCode, Block]
    frozen_norms: Mapping[NormCode, Block]  # without gradients of their weights
    residual: Block  # the sum of stream and branch; in backward the sum of their gradients
    fan_in: Block  # one more reader of a tensor: its gradient is added
    bias: Block
    dropout: Block
    gate: Block  # of an activation's product with the up projection
    adapter_output: Block  # scaled and added to the frozen module's output
    adapter_input: Block  # gradient added to that of the frozen module's input


_EAGER_NORMS = {
    NormCode.RMS: Block(8, 18, 16, 46),
    NormCode.RMS_FP32: Block(8, 20, 17, 52),
    NormCode.LAYER: Block(1, 2, 2, 5),
    NormCode.LAYER_CAST: Block(3, 10, 3, 12),
    NormCode.LAYER_FP32: Block(12, 30, 24, 72),
}
"""Steps of the norm classes; torch's layer norm reads gradient and input a second time for its weights."""
_EAGER_FROZEN_NORMS = {
    NormCode.RMS: Block(8, 18, 14, 42),
    NormCode.RMS_FP32: Block(8, 20, 14, 44),
    NormCode.LAYER: Block(1, 2, 1, 3),
    NormCode.LAYER_CAST: Block(3, 10, 3, 12),
    NormCode.LAYER_FP32: Block(12, 30, 21, 64),
}
_FUSED_NORMS = dict.fromkeys(NormCode, Block(1, 2, 2, 5))
_ONE_KERNEL_NORMS = dict.fromkeys(NormCode, Block(1, 2, 1, 3))
BLOCKS: Mapping[Stack, Blocks] = {
    Stack.EAGER: Blocks(
        norms=_EAGER_NORMS,
        frozen_norms=_EAGER_FROZEN_NORMS,
        residual=Block(1, 3, 1, 3),
        fan_in=Block(0, 0, 1, 3),
        bias=Block(0, 0, 1, 1),
        dropout=Block(1, 2.5, 1, 2.5),
        gate=Block(1, 3, 2, 6),
        adapter_output=Block(2, 5, 1, 2),
        adapter_input=Block(0, 0, 1, 3),
    ),
    Stack.FUSED: Blocks(
        norms=_FUSED_NORMS,
        frozen_norms=_ONE_KERNEL_NORMS,
        residual=Block(1, 3, 1, 3),
        fan_in=Block(0, 0, 1, 3),
        bias=Block(0, 0, 1, 1),
        dropout=Block(0, 0.5, 1, 2.5),  # in one kernel with the residual
        gate=Block(0, 1, 0, 2),  # in one kernel with the activation
        adapter_output=Block(2, 5, 1, 2),
        adapter_input=Block(0, 0, 1, 3),
    ),
    Stack.COMPILED: Blocks(
        norms=_ONE_KERNEL_NORMS,
        frozen_norms=_ONE_KERNEL_NORMS,
        residual=Block(0, 2, 0, 1),  # in one kernel with the norm that follows
        fan_in=Block(0, 0, 0, 1),  # in one kernel with the backward that follows
        bias=Block(0, 0, 1, 1),
        dropout=Block(0, 0.5, 0, 0.5),
        gate=Block(0, 1, 0, 2),
        adapter_output=Block(0, 2, 1, 2),
        adapter_input=Block(0, 0, 0, 1),
    ),
}
"""FUSED and COMPILED are lower bounds, counted by hand: each step reads its inputs and writes its outputs once."""

ACTIVATIONS: Mapping[str, Block] = {
    "silu": Block(1, 2, 1, 3),
    "gelu": Block(1, 2, 1, 3),
    "gelu_pytorch_tanh": Block(1, 2, 1, 3),
    "relu": Block(1, 2, 1, 3),
    "gelu_new": Block(8, 18, 11, 28),
}
"""`gelu_new` is a formula in Python."""
ONE_KERNEL = Block(1, 2, 1, 3)
BLOOM_GELU = Block(9, 21, 18, 43)
"""models/bloom/modeling_bloom.py `BloomGelu`: a formula in Python, forward and backward."""


class Rotation(Enum):
    """How a query or key is rotated."""

    HALVES = "halves"
    """Two products, halves swapped by a concatenation, a sum."""
    PART = "part"
    """The same on some of each head, the rest concatenated."""
    FP32_TABLES = "fp32 tables"
    """Products with fp32 tables, cast back (OLMo)."""
    FP32 = "fp32"
    """On an fp32 copy (Cohere)."""
    FP32_SWAPPED = "fp32, swapped before the copy"
    """On an fp32 copy of each product's operand (ERNIE)."""


ROTATIONS: Mapping[Rotation, Block] = {
    Rotation.HALVES: Block(5, 10, 10, 17),
    Rotation.FP32_TABLES: Block(6, 18, 13, 30),
    Rotation.FP32: Block(7, 26, 12, 38),
    Rotation.FP32_SWAPPED: Block(8, 26, 13, 30),
}
ROTATED_PART = Block(5, 10, 9, 15)
"""On the rotated values of a head; then on all of them:"""
CONCATENATED = Block(1, 2, 6, 9)
"""The concatenation; in backward two slices, their sum, and a copy into the projection's order."""
SHARED_COPIES = Block(0, 0, -1, -2)
"""Where the projection is fused the copy is that of all three."""


class Joint(Enum):
    """How gradients of query, key and value return to one fused projection."""

    CONCATENATED = "concatenated"
    """The projection was split or chunked."""
    COPIED = "concatenated and copied"
    """And reordered (GPT-NeoX)."""
    SLICED = "sliced"
    """Each fills a tensor of zeros; two sums (Phi-3, BLOOM, Falcon)."""
    INDEXED = "indexed"
    """Two of the three by indices (Falcon 40B)."""


JOINTS: Mapping[Joint, Block] = {
    Joint.CONCATENATED: Block(0, 0, 1, 2),
    Joint.COPIED: Block(0, 0, 2, 4),
    Joint.SLICED: Block(0, 0, 8, 11),
    Joint.INDEXED: Block(4, 2, 8, 14.7),
}


class Scores(NamedTuple):
    """The steps of eager attention on its scores: kernels, and values per head and position."""

    forward_kernels: int
    forward_values: float
    backward_kernels: int
    backward_values: float


USUAL_SCORES = Scores(5, 14, 4, 14)
"""Scaled, masked, cast, softmax in fp32, cast back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCode:
    """What one architecture's layer does that its geometry does not tell."""

    rotation: Rotation = Rotation.HALVES
    rotated_share: float = 1.0  # of each head, where a part is rotated
    joint: Joint = Joint.CONCATENATED
    table_copies: int = 0  # kernels that repeat cosines and sines in every layer
    scaled: int = 0  # multiplications of hidden-wide tensors by a constant (Granite)
    scaled_query: bool = False  # the query is multiplied before attention (OPT)
    scores: Scores = USUAL_SCORES


LAYERS: Mapping[str, LayerCode] = {
    "phi3": LayerCode(rotation=Rotation.PART, joint=Joint.SLICED),
    "glm": LayerCode(rotation=Rotation.PART, rotated_share=0.5, table_copies=2),
    "glm4": LayerCode(rotation=Rotation.PART, rotated_share=0.5, table_copies=2),
    "phi": LayerCode(rotation=Rotation.PART, rotated_share=0.5),
    "stablelm": LayerCode(rotation=Rotation.PART, rotated_share=0.25),
    "gpt_neox": LayerCode(rotation=Rotation.PART, rotated_share=0.25, joint=Joint.COPIED),
    "gptj": LayerCode(rotation=Rotation.PART, rotated_share=0.25, table_copies=4, scores=Scores(5, 15, 5, 13)),
    "olmo": LayerCode(rotation=Rotation.FP32_TABLES),
    "olmo2": LayerCode(rotation=Rotation.FP32_TABLES),
    "cohere": LayerCode(rotation=Rotation.FP32),
    "ernie4_5": LayerCode(rotation=Rotation.FP32_SWAPPED, table_copies=2),
    "granite": LayerCode(scaled=2),
    "opt": LayerCode(scaled_query=True),
    "gemma2": LayerCode(scores=Scores(8, 20, 7, 21)),
    "gpt_neo": LayerCode(scores=Scores(5, 15, 5, 13)),
    "bloom": LayerCode(joint=Joint.SLICED, scores=Scores(4, 12, 3, 12)),
    "mpt": LayerCode(scores=Scores(5, 16, 5, 18)),
    "falcon": LayerCode(joint=Joint.SLICED),
}
