"""The constants beyond tensors and the default margin, derived from the shipped points again."""

from __future__ import annotations

import pytest

from planner.accuracy.overhead import derive, fragmentation
from planner.accuracy.points import packaged_points
from planner.accuracy.score import score_all

ROUNDED_TO = {
    "FRAGMENTED_PER_MILLE": 10,
    "FRAGMENTED_BYTES": 100,
    "SLACK_PER_MILLE": 10,
    "CONTEXT_BYTES": 100,
    "DEFAULT_MARGIN": 0.01,
}


def test_the_constants_in_use_are_the_derived_ones_rounded() -> None:
    found = {constant.name: constant for constant in derive(score_all(packaged_points()))}
    assert set(found) == set(ROUNDED_TO)
    for name, step in ROUNDED_TO.items():
        assert found[name].in_use == pytest.approx(round(found[name].value / step) * step), name
        assert found[name].rows >= 8, name
        assert found[name].sources >= 1, name


def test_the_fragmented_line_is_read_off_runs_that_print_both_counters() -> None:
    points = packaged_points()
    pairs = [point for point in points if point.reserved_gib]
    assert len(pairs) >= 20
    assert all(point.reserved_gib > (point.measured_peak_gib or 0) for point in pairs if point.reserved_gib)
    _, _, rows, sources = fragmentation(score_all(pairs))
    assert (rows, sources) >= (15, 2)
