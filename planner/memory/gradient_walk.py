"""One backward of stages 1 and 2, gradient by gradient: what lies outside the reduction buckets on the fullest rank.

In: the trained tensors of one rank in order, the bucket, the partition, and what a rank keeps. Out: `GradientWalk`.
Gradients come in the reverse of the tensors' order; one that does not fit flushes the bucket.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from planner.geometry.sharding import fullest_part, touched_elements
from planner.memory.backward import PARTS
from planner.memory.tensor_order import TensorOrder
from planner.units import ceil_div


class Held(NamedTuple):
    """Elements of gradients outside the buckets at one instant, on one rank."""

    left: int  # layers that still keep their activations, in parts
    partition: int  # the rank's own part, once it exists
    whole: int  # of earlier micro-batches, or too large for the bucket and not let go
    passing: int  # the gradient that has just come, and the flattened copy of a bucket that crosses partitions

    @property
    def elements(self) -> int:
        """All of them."""
        return self.partition + self.whole + self.passing


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeps:
    """What a rank keeps beside the buckets."""

    partition: int | None  # elements of its partition, from its first gradient on; None: all tensors it has a part of
    casts: int  # elements that an own one takes for a moment on its way into the partition, each
    own: bool  # its own ones above the bucket whole, to the end of backward
    foreign: bool  # other ranks' ones above the bucket whole, to the end of backward (stage 1)
    unreduced: bool  # whole gradients of earlier micro-batches, until this one's go into the bucket (stage 1)
    accumulated: bool  # its own part of earlier micro-batches (stage 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientWalk:
    """The instants that can be the fullest of their part of backward."""

    head: Held  # at final norm and head
    layer: Held  # the last layer's first matrix has just been differentiated
    made: tuple[Held, ...]  # in any layer, as a gradient comes: fuller and fuller, with fewer and fewer layers left
    reduced: tuple[Held, ...]  # in any layer, as the bucket is flushed
    end: Held  # at the embeddings and in the last flush
    done: Held  # when all are reduced


class _Bucket:
    """The bucket of one backward, and what the ranks that matter hold beside it."""

    def __init__(self, order: TensorOrder, bucket: int, share: int, ranks: tuple[int, ...], keeps: Keeps) -> None:
        owned = {rank: touched_elements(order.flat, share, rank) for rank in ranks}
        self.size, self.share, self.keeps = bucket, share, keeps
        self.partitions = owned if keeps.partition is None else dict.fromkeys(ranks, keeps.partition)
        self.held = {rank: (0, owned[rank] if keeps.accumulated else 0) for rank in ranks}  # partition and whole ones
        self.fullest = max(self.held.values(), key=sum)
        self.end = sum(order.flat)  # of the tensors that are not reduced yet
        self.unreduced = self.end if keeps.unreduced else 0
        self.waiting = 0  # elements in the bucket, or of one tensor outside that is too large for it
        self.largest = 0  # the largest tensor of these
        self.next_start = (max(ranks) + 1) * share  # the next partition comes to be below this element
        self.elements = sum(self.fullest) + self.unreduced  # everything that the fullest rank holds

    def now(self, left: int, passing: int) -> Held:
        """What the fullest rank holds."""
        partition, whole = self.fullest
        return Held(left, partition, whole + self.unreduced + self._outside(), passing)

    def is_full_for(self, numel: int) -> bool:
        """Whether a gradient makes it flush what it has."""
        return self.waiting > 0 and self.waiting + numel > self.size

    def fresh(self, numel: int) -> int:
        """Elements of a gradient that comes, until it is in the bucket: it is added to an earlier one and gone."""
        return 0 if self.keeps.unreduced else numel

    def take(self, numel: int) -> None:
        """A gradient goes into the bucket, or waits outside."""
        self.waiting, self.largest = self.waiting + numel, max(self.largest, numel)
        if self.keeps.unreduced and numel <= self.size:
            self.unreduced -= numel
            self.elements -= numel
        elif not self.keeps.unreduced and numel > self.size:
            self.elements += numel

    def flush(self, left: int, passing: int) -> Held:
        """The bucket is reduced; the fullest instant, while its copy exists or when a partition has come to be."""
        copied = self._copy()
        fullest = self.now(left, passing + copied)
        start, oversize = self.end - self.waiting, self.waiting if self.waiting > self.size else 0
        if self.keeps.unreduced:
            self.unreduced -= oversize
        kept = oversize and (self.keeps.own or self.keeps.foreign)
        if kept or self.keeps.casts or start < self.next_start:
            fullest = max(fullest, self._change(left, passing, start, oversize, copied), key=_elements)
        self.end, self.waiting, self.largest = start, 0, 0
        self.elements = sum(self.fullest) + self.unreduced
        return fullest

    def _change(self, left: int, passing: int, start: int, oversize: int, copied: int) -> Held:
        """What the ranks hold after a flush; the fullest instant before a large gradient is dropped, or copied into
        the partition."""
        fullest = Held(left, 0, 0, 0)
        for rank, (partition, whole) in self.held.items():
            own = start < (rank + 1) * self.share and self.end > rank * self.share
            if own:
                partition = self.partitions[rank]
            cast = self.keeps.casts * min(self.largest, self.share) + copied if own and self.keeps.casts else 0
            instant = Held(left, partition, whole + oversize + self.unreduced, passing + cast)
            fullest = max(fullest, instant, key=_elements)
            if self.keeps.own if own else self.keeps.foreign:
                whole += oversize
            self.held[rank] = (partition, whole)
        self.fullest = max(self.held.values(), key=sum)
        self.next_start = max(
            ((rank + 1) * self.share for rank in self.held if (rank + 1) * self.share <= start), default=0
        )
        return fullest

    def _outside(self) -> int:
        """Elements of a gradient that waits outside the bucket, and is none of those counted as unreduced."""
        return self.waiting if self.waiting > self.size and not self.keeps.unreduced else 0

    def _copy(self) -> int:
        """Elements flattened for an all-reduce: slices of several partitions, until they are more than a bucket."""
        start = self.end - self.waiting
        first = self.share - start % self.share
        if first >= self.waiting:
            return 0
        if self.waiting <= self.size:
            return self.waiting
        return 0 if min(first, self.share) > self.size else min(self.waiting, first + max(self.share, self.size))


def _elements(held: Held) -> int:
    return held.partition + held.whole + held.passing


def ranks_that_matter(order: TensorOrder, share: int, dp: int) -> tuple[int, ...]:
    """The first and the last rank, the one whose part touches most, and those with both layers and what lies before or
    after them. A tensor that reaches into a part is kept whole."""
    total = sum(order.flat)
    edges = (sum(order.before) // share, (total - sum(order.after)) // share)
    fullest = fullest_part(order.flat, share, dp)
    return tuple(sorted({0, fullest, dp - 1, *(min(edge, dp - 1) for edge in edges)}, reverse=True))


@lru_cache(maxsize=512)
def gradient_walk(order: TensorOrder, bucket: int, share: int, dp: int, keeps: Keeps) -> GradientWalk:
    """Walk through one backward.

    Formula: at every gradient X, on each of `ranks_that_matter`: the partition once one of the rank's own
    gradients was flushed + whole gradients that are kept + X + the bucket's flattened copy where it crosses a
    partition. A gradient that fits moves into the bucket at once; a larger one waits outside for the next.
    Where a layer is half differentiated, its activations go evenly, matrix by matrix.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `reduce_independent_p_g_buckets_and_remove_grads`,
    `reduce_ipg_grads`, `copy_grads_in_partition`, `average_tensor` (0.19.8).
    Leaves out: the order of tensors within a layer beyond "last used, first differentiated".
    """
    state, depth = _Bucket(order, bucket, share, ranks_that_matter(order, share, dp), keeps), len(order.layers)
    head = _through(state, order.after, depth * PARTS)
    layer: Held | None = None
    made: list[Held] = []
    reduced: list[Held] = []
    for index in range(depth - 1, -1, -1):
        for numel, parts in _backwards(order.layers[index]):
            left = index * PARTS + parts
            if not made or state.elements + numel > _elements(made[-1]):
                made.append(state.now(left, numel))
            if layer is None and numel >= order.last_matrix:
                layer = state.now(left, numel)
            if state.is_full_for(numel):
                flushed = state.flush(left, state.fresh(numel))
                if not reduced or _elements(flushed) > _elements(reduced[-1]):
                    reduced.append(flushed)
            state.take(numel)
    nothing = Held(depth * PARTS, 0, 0, 0)
    # a tied head's gradient, the embedding's and their sum exist together
    embeddings = tuple(numel * (3 if order.tied and numel == max(order.before) else 1) for numel in order.before)
    end = max(_through(state, order.before, 0, made=embeddings), state.flush(0, 0), key=_elements)
    return GradientWalk(
        head=head,
        layer=layer or nothing,
        made=_hull(made) or (nothing,),
        reduced=_hull(reduced) or (nothing,),
        end=end,
        done=state.now(0, 0),
    )


@lru_cache(maxsize=512)
def _backwards(layer: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Tensors of a layer from the last to the first, each with the parts of the layer that keep their activations."""
    threshold = max(layer, default=0) / 8  # vectors beside matrices do not matter
    matrices = sum(numel >= threshold for numel in layer)
    found, waiting = [], matrices + 1
    for numel in reversed(layer):
        found.append((numel, ceil_div(waiting * PARTS, matrices + 1)))
        waiting -= numel >= threshold
    return tuple(found)


def _through(state: _Bucket, tensors: tuple[int, ...], left: int, *, made: tuple[int, ...] | None = None) -> Held:
    """The fullest instant while gradients outside the layers are reduced, or while they are made and reduced; `made`:
    elements that each takes while it is made."""
    fullest = state.now(left, 0)
    for place in range(len(tensors) - 1, -1, -1):
        numel = tensors[place]
        passing = made[place] if made else state.fresh(numel)
        fullest = max(fullest, state.now(left, passing), key=_elements)
        if state.is_full_for(numel):
            fullest = max(fullest, state.flush(left, state.fresh(numel)), key=_elements)
        state.take(numel)
    return fullest


def _hull(instants: list[Held]) -> tuple[Held, ...]:
    """The instants that can be the fullest, whatever a layer keeps: those on the upper hull of elements over layers
    left, which come in the order of fewer layers and more elements."""
    hull: list[Held] = []
    for instant in instants:
        while hull and hull[-1].left == instant.left:
            hull.pop()
        while len(hull) > 1 and not _bends(hull[-2], hull[-1], instant):
            hull.pop()
        hull.append(instant)
    return tuple(hull)


def _bends(a: Held, b: Held, c: Held) -> bool:
    """Whether `b` lies above the line from `a` to `c`."""
    rise, run = _elements(b) - _elements(a), a.left - b.left
    return rise * (b.left - c.left) > (_elements(c) - _elements(b)) * run
