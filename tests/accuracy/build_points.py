"""Builds `planner/accuracy/data/points.jsonl` from a file with one measured run a line.

    python tests/accuracy/build_points.py POINTS.jsonl > planner/accuracy/data/points.jsonl

A line `{"source": {...}}` holds what all rows of a source share, a line `{"common": {...}}` what the rows below it
share besides; a key that a row leaves out is null.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from planner.accuracy.points import KEYS

Row = Mapping[str, Any]
GROUPED_BY = ("source_url", "model", "method", "gpu_class")


def kept(row: Row) -> dict[str, Any]:
    """The keys that a prediction or a score needs, without nulls."""
    return {key: row[key] for key in KEYS if row.get(key) not in (None, [])}


def scored(row: Row) -> bool:
    return bool(row["for_scoring"])


def shared(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Keys with one value in all rows."""
    first, *others = rows
    return {key: value for key, value in first.items() if key != "id" and all(o.get(key) == value for o in others)}


def without(row: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """What `known` does not say already."""
    return {key: value for key, value in row.items() if key not in known}


def table_lines(rows: list[Row]) -> Iterator[str]:
    """Sources in the order of their first row; rows of one model and method follow a line of common values."""
    by_source: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if scored(row):
            by_source.setdefault(row["source_name"], []).append(kept(row))
    for members in by_source.values():
        source = shared(members)
        yield line({"source": source})
        rest, before = [without(row, source) for row in members], {}
        for _, group in groupby(rest, key=lambda row: tuple(row.get(key) for key in GROUPED_BY)):
            grouped = list(group)
            common = shared(grouped) if len(grouped) > 1 else {}
            if common or before:
                yield line({"common": common})
            before = common
            yield from (line(without(row, common)) for row in grouped)


def line(value: Row) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def main() -> None:
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()]
    print("\n".join(table_lines(rows)))


if __name__ == "__main__":
    main()
