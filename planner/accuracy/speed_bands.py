"""The error of the speed model by class of plan, and the bands that answers print.

In: scored rows. Out: `Band` records. Question: how far off is a prediction of this class, and is the printed range that
wide?
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from planner.accuracy.score import error_figures
from planner.accuracy.speed import SpeedRow
from planner.units import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """One class: its rows, their errors as means over sources, and the half-width that answers print."""

    name: str
    sources: int
    rows: int
    median: float
    ninth_decile: float
    inside: float  # share of rows inside the printed range, mean over sources
    derived: float  # what two rows in three stay inside, in the middle source on cards of 2020 and later
    in_use: float


EARLIER = ("V100", "P100", "T4", "Titan")
"""Cards whose measured runs are of software of their time."""


def bands_of(rows: Iterable[SpeedRow]) -> tuple[Band, ...]:
    """Every class of plan with measured rows, the narrowest band first."""
    classes: dict[tuple[float, str], dict[str, list[SpeedRow]]] = {}
    for row in rows:
        if row.error is not None and row.time is not None:
            key = (row.time.relative_error, row.time.error_class)
            classes.setdefault(key, {}).setdefault(row.point.source_name, []).append(row)
    return tuple(_band(name, in_use, by_source) for (in_use, name), by_source in sorted(classes.items()))


def _band(name: str, in_use: float, by_source: dict[str, list[SpeedRow]]) -> Band:
    errors = [[abs(row.error or 0.0) for row in rows] for rows in by_source.values()]
    figures = [error_figures(found) for found in errors]
    recent = [
        sorted(abs(row.error or 0.0) for row in rows)
        for rows in by_source.values()
        if not rows[0].card.startswith(EARLIER)
    ]
    return Band(
        name=name,
        sources=len(figures),
        rows=sum(figure.rows for figure in figures),
        median=statistics.fmean(figure.median for figure in figures),
        ninth_decile=statistics.fmean(figure.ninth_decile for figure in figures),
        inside=statistics.fmean(statistics.fmean(error <= in_use for error in found) for found in errors),
        derived=statistics.median(found[ceil_div(2 * len(found), 3) - 1] for found in recent) if recent else 0.0,
        in_use=in_use,
    )
