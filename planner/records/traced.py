"""What a trace of the real transformers model found: its tensors and how its activations grow.

Carried by the shape of a model whose type has no formula of its own; `planner.trace` writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from planner.records.candidate import Checkpointing
from planner.records.model import ParameterTensor
from planner.records.request import Attention

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Bytes of one amount as a polynomial in the micro-batch b and the sequence length s."""

    fixed: Fraction
    per_position: Fraction  # times s, whatever the batch: rotary tables
    per_position_pair: Fraction  # times s * s: a mask that the batch shares
    per_token: Fraction  # times b * s
    per_token_and_position: Fraction  # times b * s * s: attention scores

    def size_bytes(self, micro_batch: int, seq_len: int) -> int:
        """The amount, rounded up; may be negative where it is a difference."""
        shared = self.fixed + (self.per_position + self.per_position_pair * seq_len) * seq_len
        return ceil(shared + (self.per_token + self.per_token_and_position * seq_len) * micro_batch * seq_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """Layers of equal code and equal tensors."""

    layers: int  # of this kind in the model
    layers_after: tuple[int, ...]  # of each kind, after the last of this one
    tensors: tuple[ParameterTensor, ...]  # of one layer


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedKind:
    """Activations of one kind of layer. All but `kept` are counted beyond what the layers below keep."""

    kept: Growth  # from forward to backward
    in_forward: Growth  # at the layer's fullest instant of forward
    in_backward: Growth  # and of backward, its recomputation included


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStack:
    """Activations under one way of checkpointing, at lengths from `shortest` on."""

    checkpointing: Checkpointing
    shortest: int
    kinds: tuple[TracedKind, ...]  # in the order of `TracedModel.kinds`
    at_loss: Growth  # forward's end beyond what the layers keep and the logits
    at_head: Growth  # the same when the gradient passes the head


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedActivations:
    """All stacks of one attention and one width of stored values."""

    attention: Attention
    width: int
    stacks: tuple[TracedStack, ...]

    def stack(self, checkpointing: Checkpointing, seq_len: int) -> TracedStack:
        """The one that holds for that length."""
        usable = [s for s in self.stacks if s.checkpointing is checkpointing and s.shortest <= seq_len]
        return max(usable, key=lambda s: s.shortest)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TracedModel:
    """One model as transformers builds it. Compared by identity: it is part of the key of every cache."""

    versions: str  # the releases that were traced
    kinds: tuple[LayerKind, ...]
    others: tuple[ParameterTensor, ...]  # outside the layers
    kernels: tuple[Attention, ...]  # that the class accepts and a trace can follow, beside eager
    activations: TracedActivations | None = None  # None until attention and precision are known
