"""The speed model's score as text tables and as JSON.

In: scored rows. Out: lines, or a document. Sources count once each; rows that cannot be compared are counted and the
reason is said.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from planner.accuracy.score import Average, average, error_figures
from planner.accuracy.speed import SpeedRow
from planner.accuracy.speed_bands import bands_of
from planner.accuracy.speed_groups import Group, group_figures, groups_of
from planner.accuracy.speed_peers import peer_errors
from planner.report.accuracy import percent, signed
from planner.report.table import table, wrapped

NEAR = 0.2
"""An error that nine rows in ten are hoped not to exceed."""


def errors_by_source(rows: Sequence[SpeedRow]) -> dict[str, list[float]]:
    """Signed errors of the rows that can be compared."""
    errors: dict[str, list[float]] = {}
    for row in rows:
        if row.error is not None:
            errors.setdefault(row.point.source_name, []).append(row.error)
    return errors


def near_share(errors: Mapping[str, Sequence[float]]) -> float:
    """Share of rows within 20 %, mean over sources."""
    return statistics.fmean(statistics.fmean(abs(e) <= NEAR for e in found) for found in errors.values())


def middle_source(errors: Mapping[str, Sequence[float]]) -> float:
    """The median error of the source that half of the others are better than."""
    return statistics.median(error_figures(found).median for found in errors.values())


def speed_text(rows: Sequence[SpeedRow]) -> list[str]:
    """Errors by source, their means over sources, the rules of thumb beside, bands, and the order of plans."""
    errors = errors_by_source(rows)
    mean = average(errors)
    if mean is None:
        return ["no row with a measured speed that can be compared"]
    cells = []
    for source, found in sorted(errors.items()):
        figures = error_figures(found)
        near = statistics.fmean(abs(error) <= NEAR for error in found)
        cells.append((source, str(figures.rows), percent(figures.median), percent(figures.ninth_decile),
                      percent(near), signed(figures.bias)))  # fmt: skip
    header = ("source", "rows", "median", "90 % within", "within 20 %", "bias")
    lines = ["Speed: |predicted / measured - 1| of tokens per second", "", *table(header, cells)]
    lines += ["", *_peers(rows), "", *_bands(rows), "", *_groups(groups_of(rows))]
    return lines + _apart(rows)


def _peers(rows: Sequence[SpeedRow]) -> list[str]:
    cells = []
    for name, errors in peer_errors(rows).items():
        found = average(errors)
        if found:
            cells.append((name, str(found.rows), percent(found.median), percent(middle_source(errors)),
                          percent(found.ninth_decile), percent(near_share(errors))))  # fmt: skip
    header = (f"{len(errors_by_source(rows))} sources", "rows", "median", "middle", "90 % within", "within 20 %")
    note = "median, 90 % within, within 20 %: means over sources; middle: the median of the source in the middle."
    return [*table(header, cells), *wrapped(note, first="")]


def _bands(rows: Sequence[SpeedRow]) -> list[str]:
    cells = [
        (band.name.split(":")[0], str(band.sources), str(band.rows), percent(band.median),
         percent(band.derived), f"+-{band.in_use:.0%}", f"{band.inside:.0%}")
        for band in bands_of(rows)
    ]  # fmt: skip
    return table(("class of plan", "sources", "rows", "median", "derived", "range", "inside"), cells)


def _groups(groups: Sequence[Group]) -> list[str]:
    cells = [
        (source, str(f.groups), str(f.plans), percent(f.best_found), percent(f.mean_regret), percent(f.worst_regret),
         percent(f.rule_mean_regret), percent(f.rule_worst_regret), f"{f.kendall:.2f}")
        for source, f in sorted(group_figures(groups).items())
    ]  # fmt: skip
    header = ("order of plans", "jobs", "plans", "best", "regret", "worst", "rule", "worst", "tau")
    note = "regret: speed given away by the plan ranked first; rule: by the smallest tp, then the largest micro-batch."
    return [*table(header, cells), *wrapped(note, first="")]


def _apart(rows: Sequence[SpeedRow]) -> list[str]:
    counts: dict[str, int] = {}
    for row in rows:
        if row.error is None:
            why = row.apart if not row.apart.startswith("`") else "no geometry, card or micro-batch given"
            counts[why or "no speed that can be read"] = counts.get(why or "no speed that can be read", 0) + 1
    return [""] + [f"left out, {count} rows: {why}" for why, count in sorted(counts.items())] if counts else []


def speed_document(rows: Sequence[SpeedRow]) -> dict[str, Any]:
    """Everything the tables say, and every row."""
    errors, groups = errors_by_source(rows), groups_of(rows)
    by_peer = peer_errors(rows)
    peers = {name: average(found) for name, found in by_peer.items()}
    return {
        "speed": {source: asdict(error_figures(found)) for source, found in sorted(errors.items())},
        "speed_mean_over_sources": {name: _mean(found) for name, found in peers.items()},
        "speed_middle_source": {name: middle_source(found) for name, found in by_peer.items() if found},
        "speed_within_20_percent": near_share(errors) if errors else None,
        "speed_bands": [asdict(band) for band in bands_of(rows)],
        "speed_order": {source: asdict(found) for source, found in sorted(group_figures(groups).items())},
        "speed_rows": [_row(row) for row in rows],
    }


def _mean(found: Average | None) -> dict[str, Any] | None:
    return asdict(found) if found else None


def _row(row: SpeedRow) -> dict[str, Any]:
    return {
        "id": row.point.id,
        "source_name": row.point.source_name,
        "source_url": row.point.source_url,
        "measured_tokens_per_second_per_gpu": row.measured,
        "predicted_tokens_per_second_per_gpu": row.predicted,
        "error": row.error,
        "error_class": row.time.error_class if row.time else None,
        "left_out": row.apart,
    }
