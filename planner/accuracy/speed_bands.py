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


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """One class: its rows, their errors as means over sources, and the half-width that answers print."""

    name: str
    sources: int
    rows: int
    median: float
    ninth_decile: float
    inside: float  # share of rows inside the printed range, mean over sources
    in_use: float


def bands_of(rows: Iterable[SpeedRow]) -> tuple[Band, ...]:
    """Every class of plan with measured rows, the narrowest band first."""
    classes: dict[tuple[float, str], dict[str, list[float]]] = {}
    for row in rows:
        if row.error is not None and row.time is not None:
            key = (row.time.relative_error, row.time.error_class)
            classes.setdefault(key, {}).setdefault(row.point.source_name, []).append(row.error)
    return tuple(_band(name, in_use, by_source) for (in_use, name), by_source in sorted(classes.items()))


def _band(name: str, in_use: float, by_source: dict[str, list[float]]) -> Band:
    figures = [error_figures(errors) for errors in by_source.values()]
    return Band(
        name=name,
        sources=len(figures),
        rows=sum(figure.rows for figure in figures),
        median=statistics.fmean(figure.median for figure in figures),
        ninth_decile=statistics.fmean(figure.ninth_decile for figure in figures),
        inside=statistics.fmean(
            statistics.fmean(abs(error) <= in_use for error in errors) for errors in by_source.values()
        ),
        in_use=in_use,
    )
