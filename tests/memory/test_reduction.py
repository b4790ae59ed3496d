"""Laws of partitions and buckets: what holds for every order of tensors, bucket and number of ranks.

The numbers themselves are compared with the engine in tests/memory/test_engine_memory.py.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog.models import model_rows
from planner.geometry.params import rank_parameter_count
from planner.geometry.sharding import padded_share, touched_elements
from planner.memory.backward import PARTS
from planner.memory.gradient_walk import Held, Keeps, gradient_walk
from planner.memory.reduction import reduction
from planner.memory.sizes import rank_sizes
from planner.memory.tensor_order import TensorOrder
from planner.spec.model import row_shape

NUMEL = st.integers(1, 10**6)
TENSORS = st.lists(NUMEL, min_size=1, max_size=9).map(tuple)
ORDERS = st.builds(
    TensorOrder, before=TENSORS, layers=st.lists(TENSORS, min_size=1, max_size=6).map(tuple), after=TENSORS
)
BUCKETS = st.integers(1, 10**7)
RANKS = st.integers(1, 32)
STAGE_TWO = Keeps(partition=None, casts=0, own=False, foreign=False, unreduced=False, accumulated=False)
STAGE_ONE = replace(STAGE_TWO, foreign=True)


def test_every_tensor_of_every_catalogue_model_has_its_place() -> None:
    rows = model_rows()
    for row in rows:
        shape = row_shape(row)
        for tp in (1, 2):
            order = rank_sizes(shape, tp).order
            assert sum(order.flat) == rank_parameter_count(shape, tp), row.name
            assert len(order.layers) == shape.layers
            assert order.last_matrix > 0
    assert len(rows) >= 40


@given(ORDERS, RANKS)
def test_the_tensors_that_all_partitions_touch_are_the_whole_model(order: TensorOrder, ranks: int) -> None:
    total = sum(order.flat)
    share = padded_share(total, ranks)
    touched = [touched_elements(order.flat, share, rank) for rank in range(ranks)]
    assert sum(touched) >= total
    assert sum(touched) <= total + 2 * (ranks - 1) * max(order.flat)
    assert all(size <= share + 2 * (max(order.flat) - 1) for size in touched)


@given(ORDERS, BUCKETS, RANKS, st.booleans())
def test_one_rank_copies_nothing_and_keeps_every_gradient_in_the_end(
    order: TensorOrder, bucket: int, ranks: int, stage_one: bool
) -> None:
    total, keeps = sum(order.flat), STAGE_ONE if stage_one else STAGE_TWO
    alone = gradient_walk(order, bucket, padded_share(total, 1), 1, keeps)
    assert alone.done.elements == total
    assert alone.end.elements <= total + 2 * max(order.flat)
    walk = gradient_walk(order, bucket, padded_share(total, ranks), ranks, keeps)
    assert walk.done.elements <= total + max(order.flat)


@given(ORDERS, BUCKETS, RANKS)
def test_beside_partition_and_bucket_there_are_at_most_two_gradients_and_one_copy(
    order: TensorOrder, bucket: int, ranks: int
) -> None:
    largest, share = max(order.flat), padded_share(sum(order.flat), ranks)
    walk = gradient_walk(order, bucket, share, ranks, replace(STAGE_TWO, partition=0))
    instants = (walk.head, *walk.made, *walk.reduced, walk.end)
    assert all(held.elements <= 2 * largest + max(bucket, largest) for held in instants)
    assert max(held.elements for held in instants) > 0
    most = max(reduction(order, bucket, ranks).elements)
    assert max(largest - 1, 0) < most <= 2 * largest + max(bucket, largest)


@given(ORDERS, BUCKETS, RANKS)
def test_stage_one_never_holds_less_than_stage_two(order: TensorOrder, bucket: int, ranks: int) -> None:
    share = padded_share(sum(order.flat), ranks)
    one, two = (gradient_walk(order, bucket, share, ranks, keeps) for keeps in (STAGE_ONE, STAGE_TWO))
    for part in ("head", "layer", "end", "done"):
        assert getattr(one, part).elements >= getattr(two, part).elements
    assert one.made[-1].elements >= two.made[-1].elements


@given(ORDERS, BUCKETS, RANKS)
def test_earlier_micro_batches_add_at_most_the_whole_model(order: TensorOrder, bucket: int, ranks: int) -> None:
    total = sum(order.flat)
    share = padded_share(total, ranks)
    first = gradient_walk(order, bucket, share, ranks, STAGE_ONE)
    later = gradient_walk(order, bucket, share, ranks, replace(STAGE_ONE, unreduced=True))
    assert later.done == first.done  # all of them are reduced in the end
    for part in ("head", "layer", "end"):
        assert getattr(first, part).elements <= getattr(later, part).elements <= getattr(first, part).elements + total


@given(ORDERS, BUCKETS, RANKS, st.integers(0, 10**7))
def test_the_instants_that_are_kept_are_fuller_and_later_one_by_one(
    order: TensorOrder, bucket: int, ranks: int, a_layer_keeps: int
) -> None:
    """On an upper hull the sums rise and fall again, whatever a layer keeps."""
    walk = gradient_walk(order, bucket, padded_share(sum(order.flat), ranks), ranks, STAGE_ONE)
    for instants in (walk.made, walk.reduced):
        for before, after in pairwise(instants):
            assert before.left > after.left
            assert before.elements < after.elements
        sums = [held.elements * PARTS + a_layer_keeps * held.left for held in instants]
        top = sums.index(max(sums))
        assert sums[: top + 1] == sorted(sums[: top + 1])
        assert sums[top:] == sorted(sums[top:], reverse=True)


@given(ORDERS)
def test_a_bucket_as_large_as_the_model_is_flushed_once_in_the_end(order: TensorOrder) -> None:
    total = sum(order.flat)
    walk = gradient_walk(order, total, padded_share(total, 2), 2, STAGE_ONE)
    assert all(held.partition == 0 for held in (walk.head, *walk.made, *walk.reduced))
    assert walk.done.partition > 0
    assert all(held.whole == 0 for held in (walk.head, *walk.made, *walk.reduced, walk.end, walk.done))


# Gradients come as 10 (head), 1 (norm), 4, 6 (a layer from back to front), 9 (embedding); two ranks of 15 each own
# (9, 6) and (4, 1, 10).
BY_HAND = TensorOrder(before=(9,), layers=((6, 4),), after=(1, 10))


@pytest.mark.parametrize(
    ("bucket", "keeps", "head", "layer", "end", "done"),
    [
        # Each matrix is larger than a bucket of 3: it waits outside for the next one. Head: norm, waiting head and the
        # last rank's partition of 15. Layer: 4 while norm is inside; then 6, the partition and 4 outside.
        (3, "two", 1 + 10 + 15, 15 + 4 + 6, 15 + 6 + 9, 15),
        # At stage 1 the first rank keeps 10 and 4, the last one 6 and 9, whole; the partition of the first exists when
        # its own 6 is reduced.
        (3, "one", 1 + 10 + 15, 15 + 4 + 6, 15 + 10 + 4 + 6 + 9, 15 + 15),
        # A bucket of 12 takes 10 and 1, then 4 and 6, whose flush crosses the two parts and makes a copy of 10.
        (12, "two", 10, 15 + 6, 15 + 9 + 10, 15),
        (12, "one", 10, 15 + 6, 15 + 9 + 10, 15),
        # All are inside: nothing but the gradient that comes; in the end the copy of everything, before the partition.
        (100, "two", 10, 6, 30, 15),
    ],
)
def test_a_walk_worked_by_hand(bucket: int, keeps: str, head: int, layer: int, end: int, done: int) -> None:
    walk = gradient_walk(BY_HAND, bucket, 15, 2, {"one": STAGE_ONE, "two": STAGE_TWO}[keeps])
    assert walk.head.elements == head
    assert max(held.elements for held in (*walk.made, *walk.reduced)) == layer
    assert (walk.end.elements, walk.done.elements) == (end, done)


def test_earlier_gradients_go_as_they_come_into_the_bucket() -> None:
    """Head and norm have gone into the bucket of 12 when 4 comes and flushes them; 4 as well when 6 comes."""
    walk = gradient_walk(BY_HAND, 12, 15, 2, replace(STAGE_ONE, unreduced=True))
    assert walk.head.elements == 30
    assert walk.layer == Held(PARTS, 0, 30 - 10 - 1, 4)
    assert walk.reduced == (Held(PARTS, 15, 30 - 10 - 1, 0),)
    assert walk.end.elements == 15 + 9 + 10  # its own earlier gradient, and the new one or the copy of 4 and 6
