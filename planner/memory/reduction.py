"""Gradients on their way through the bucket of stage 3: what is alive beside it while backward goes on.

In: the trained tensors of one rank in order, the bucket. Out: `Reduction`, elements by the part of the
model that backward is in. Gradients come in the reverse of that order; one that does not fit flushes the bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from planner.memory.tensor_order import TensorOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """The most elements of gradients and copies outside the bucket, by where backward is.

    Layers are counted by how many still wait for their backward, the current one included; the head comes before all
    layers, so it has one more than there are.
    """

    elements: tuple[int, ...]  # by layers left: embeddings and the last flush, layers, final norm and head
    first_copy: int  # layers left at the first flush that makes a copy; 0 where none does

    @property
    def head(self) -> int:
        """At final norm and head."""
        return self.elements[-1]

    @property
    def last_layer(self) -> int:
        """In the layer that is differentiated first."""
        return self.elements[-2]

    @property
    def end(self) -> int:
        """At the embeddings, and when the bucket is flushed in the end."""
        return self.elements[0]

    def from_layer(self, left: int) -> int:
        """In any layer once no more than `left` wait for their backward."""
        return max(self.elements[1 : left + 1], default=0)


@lru_cache(maxsize=512)
def reduction(order: TensorOrder, bucket: int, ranks: int) -> Reduction:
    """Walk through one backward of stage 3.

    Formula: at every gradient X: X + the waiting gradient where it is larger than the bucket + a copy of the flushed
    bucket where it holds more than one tensor or one that its ranks do not divide.
    Source: deepspeed/runtime/zero/stage3.py `__add_grad_to_ipg_bucket`; runtime/comm/coalesced_collectives.py
    `reduce_scatter_coalesced` (0.19.8).
    Leaves out: the order of tensors within a layer beyond "last used, first differentiated".
    """
    most, first_copy, waiting, tensors = [0] * (len(order.layers) + 2), 0, 0, 0

    def copy() -> int:
        return waiting if tensors > 1 or waiting % ranks else 0

    for numel, left in _arrivals(order):
        beside = numel + (waiting if waiting > bucket else 0)
        if waiting and waiting + numel > bucket:
            beside += copy()
            first_copy = first_copy or (left if copy() else 0)
            waiting, tensors = 0, 0
        waiting, tensors = waiting + numel, tensors + 1
        most[left] = max(most[left], beside)
    most[0] = max(most[0], copy() + (waiting if waiting > bucket else 0))
    return Reduction(elements=tuple(most), first_copy=first_copy)


def _arrivals(order: TensorOrder) -> Iterator[tuple[int, int]]:
    """Gradients with the number of layers whose backward is not over: 0 for embeddings, one too many for the head."""
    depth = len(order.layers)
    for numel in reversed(order.after):
        yield numel, depth + 1
    for index in range(depth - 1, -1, -1):
        for numel in reversed(order.layers[index]):
            yield numel, index + 1
    for numel in reversed(order.before):
        yield numel, 0


def first_fill_elements(tensors: tuple[int, ...], bucket: int) -> int:
    """Elements that the bucket takes before it is flushed first, where gradients are reduced front to back.

    Formula: sum of the first tensors while they fit; 0 where the first one does not.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `reduce_gradients` (0.19.8).
    Leaves out: nothing.
    """
    filled = 0
    for numel in tensors:
        if filled + numel > bucket:
            break
        filled += numel
    return filled
