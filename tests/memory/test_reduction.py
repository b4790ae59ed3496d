"""Laws of partitions and buckets: what holds for every order of tensors, bucket and number of ranks.

The numbers themselves are compared with the engine in tests/memory/test_engine_memory.py.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog.models import model_rows
from planner.geometry.params import rank_parameter_count
from planner.geometry.sharding import padded_share, touched_elements
from planner.memory.reduction import oversize_elements, reduction
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


@given(ORDERS)
def test_one_rank_owns_everything_and_copies_nothing(order: TensorOrder) -> None:
    total = sum(order.flat)
    assert touched_elements(order.flat, padded_share(total, 1), 0) == total
    alone = reduction(order, 10**9, padded_share(total, 1))
    assert max(alone.elements) <= max(order.flat)


@given(ORDERS, BUCKETS, RANKS)
def test_beside_the_bucket_there_are_at_most_two_gradients_and_one_copy(
    order: TensorOrder, bucket: int, ranks: int
) -> None:
    largest = max(order.flat)
    for share in (padded_share(sum(order.flat), ranks), None):
        most = max(reduction(order, bucket, share).elements)
        assert max(largest - 1, 0) < most <= 2 * largest + max(bucket, largest)


@given(ORDERS, BUCKETS)
def test_a_bucket_as_large_as_the_model_is_flushed_once_in_the_end(order: TensorOrder, bucket: int) -> None:
    walk = reduction(order, sum(order.flat), padded_share(sum(order.flat), 2))
    assert walk.first_flush == 0
    assert oversize_elements(order.flat, sum(order.flat)) == 0
    smaller = reduction(order, bucket, padded_share(sum(order.flat), 2))
    assert smaller.first_flush >= walk.first_flush


@pytest.mark.parametrize(
    ("bucket", "share", "head", "layer", "end"),
    [
        (3, 30, 1 + 10, 6 + 4, 9 + 6),  # each matrix is larger than the bucket: it waits outside for the next one
        (5, 30, 1 + 10, 6, 9 + 6),  # norm and 4 are inside when 6 comes
        (10, 30, 10, 6, 9),  # all are inside
        (100, 30, 10, 6, 9),
        (12, 15, 10, 6, 9 + 10),  # 6 and 4 lie in two partitions of 15: they are copied when 9 comes
        (12, None, 10, 4 + 11, 9 + 10),  # stage 3 copies whatever is more than one tensor
    ],
)
def test_a_walk_worked_by_hand(bucket: int, share: int | None, head: int, layer: int, end: int) -> None:
    """Gradients come as 10 (head), 1 (norm), 4, 6 (a layer from back to front), 9 (embedding)."""
    walk = reduction(TensorOrder(before=(9,), layers=((6, 4),), after=(1, 10)), bucket, share)
    assert (walk.head, walk.last_layer, walk.end) == (head, layer, end)
