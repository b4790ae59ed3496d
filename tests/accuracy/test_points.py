"""The measured points that ship: readable, sourced, and the same facts as the file they were taken from."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from build_points import corrected, kept, scored

from planner.accuracy.points import Point, packaged_points, read_points
from planner.errors import PlannerError

MEASURED = Path(__file__).parents[2].parent / "shared" / "data" / "points.jsonl"


def test_every_point_names_a_public_source_and_what_it_is_good_for() -> None:
    points = packaged_points()
    assert len(points) >= 1000
    assert len({point.id for point in points}) == len(points)
    assert len({point.source_name for point in points}) >= 40
    for point in points:
        assert (point.source_url or "").startswith("https://"), point.id
        assert set(point.for_scoring) <= {"memory", "fit", "speed"}, point.id
        assert point.for_scoring, point.id
        assert point.outcome in ("fit", "oom"), point.id
        assert point.quality in ("A", "B", "C"), point.id


def test_memory_points_have_a_peak_and_say_what_was_counted() -> None:
    points = [point for point in packaged_points() if "memory" in point.for_scoring]
    assert len(points) >= 300
    for point in points:
        assert point.measured_peak_gib, point.id
        assert point.counter_class in ("allocated", "active", "reserved", "nvidia_smi", "unknown"), point.id


def test_the_table_is_small() -> None:
    table = Path(__file__).parents[2] / "planner" / "accuracy" / "data" / "points.jsonl"
    assert table.stat().st_size < 400_000


@pytest.mark.skipif(not MEASURED.exists(), reason="the file with the original rows is not beside this checkout")
def test_the_table_agrees_with_the_rows_it_was_built_from(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in MEASURED.read_text(encoding="utf-8").splitlines()]
    chosen = tmp_path / "chosen.jsonl"
    chosen.write_text("\n".join(json.dumps(kept(corrected(row))) for row in rows if scored(row)), encoding="utf-8")
    expected = {point.id: point for point in read_points(chosen)}
    found = {point.id: point for point in packaged_points()}
    assert found == expected
    assert len(found) >= 1000


@pytest.mark.skipif(not MEASURED.exists(), reason="the file with the original rows is not beside this checkout")
def test_the_original_rows_are_read_as_they_are() -> None:
    points = read_points(MEASURED)
    assert len(points) >= 1200
    assert all(isinstance(point, Point) for point in points)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no points"),
        ("not json", "line 1"),
        ('{"id": "a", "source_name": "b"}\n[1]', "line 2"),
        ('{"source_name": "b"}', "`id`"),
        ('{"id": "a"}', "`source_name`"),
        ('{"id": "a", "source_name": "b", "hidden": "wide"}', "`hidden`"),
        ('{"id": "a", "source_name": "b", "layers": -1}', "`layers`"),
        ('{"id": "a", "source_name": "b", "layers": 1.5}', "`layers`"),
        ('{"id": "a", "source_name": "b", "micro_batch": Infinity}', "`micro_batch`"),
        ('{"id": "a", "source_name": "b", "for_scoring": "memory"}', "`for_scoring`"),
    ],
)
def test_a_bad_file_is_an_error_that_says_where(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "points.jsonl"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PlannerError, match=said):
        read_points(file)


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="cannot read"):
        read_points(tmp_path / "nowhere.jsonl")


def test_common_values_reach_the_rows_below_them(tmp_path: Path) -> None:
    file = tmp_path / "points.jsonl"
    lines = (
        {"source": {"source_name": "s", "hidden": 8}},
        {"common": {"layers": 2}},
        {"id": "a"},
        {"id": "b", "layers": 3},
        {"source": {"source_name": "t"}},
        {"id": "c", "fused_ce": True},
    )
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    a, b, c = read_points(file)
    assert (a.hidden, a.layers, b.layers) == (8, 2, 3)
    assert (c.source_name, c.hidden, c.layers, c.fused_ce) == ("t", None, None, "fused")
    assert asdict(a)["missing"] == ()
