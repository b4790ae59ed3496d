"""Scores: how far predictions are from what people measured, and how often the verdict was wrong.

In: points. Out: `Scores`. Question: how good is the memory model on each source, and over all of them?
Rows of one source resemble each other, so every figure is taken per source first and then averaged over sources.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.accuracy.points import Point
from planner.accuracy.predict import Prediction, predict_point
from planner.errors import PlannerError
from planner.units import GIB

COUNTERS = ("allocated", "active", "reserved", "nvidia_smi")
TENSOR_COUNTERS, CARD_COUNTERS = ("allocated", "active"), ("reserved", "nvidia_smi")
NEARLY_FULL = 0.95
"""Above this share of the card, what nvidia-smi shows is the allocator's cache, not the need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A point with its prediction; None where it gives no geometry or no batch."""

    point: Point
    prediction: Prediction | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFigures:
    """Relative errors of a group of rows."""

    rows: int
    median: float
    ninth_decile: float  # the error that nine rows in ten do not exceed
    bias: float  # median of the signed errors: positive, predicted too high


@dataclass(frozen=True, slots=True, kw_only=True)
class FitFigures:
    """Verdicts on the rows of one source."""

    fits: int
    fits_rejected: int  # ran, and the model says it does not fit
    fits_borderline: int  # ran, and the model says it fits only inside the margin
    ooms: int
    ooms_accepted: int  # ran out of memory, and the model says it fits
    ooms_borderline: int
    untested: int  # ran out of memory, with gaps: only a lower bound can be tested on them


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """Means over sources, every source counting once."""

    sources: int
    rows: int
    median: float
    ninth_decile: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A share of rows: the mean of the sources' shares, and that of all rows together."""

    sources: int
    rows: int
    mean: float
    pooled: float


def score_all(points: Iterable[Point]) -> tuple[Scored, ...]:
    """Every point predicted."""
    return tuple(_scored(point) for point in points)


def _scored(point: Point) -> Scored:
    try:
        return Scored(point=point, prediction=predict_point(point))
    except PlannerError as error:
        return Scored(point=point, prediction=None, reason=error.message)


def predicted_gib(scored: Scored) -> float | None:
    """The predicted counterpart of what was measured."""
    if scored.prediction is None:
        return None
    found = scored.prediction
    by_counter = {"allocated": found.tensor_bytes, "active": found.tensor_bytes, "reserved": found.reserved_bytes}
    return by_counter.get(scored.point.counter_class or "", found.card_bytes) / GIB


def signed_error(scored: Scored) -> float | None:
    """Predicted over measured, less one; 0 where a nearly full card shows less than an upper bound."""
    predicted = predicted_gib(scored)
    return None if predicted is None else error_of(scored, predicted)


def error_of(scored: Scored, predicted: float) -> float | None:
    """The error that any prediction in GiB would have on this row."""
    measured = scored.point.measured_peak_gib
    if not measured or scored.prediction is None:
        return None
    error = predicted / measured - 1
    full = measured * GIB >= NEARLY_FULL * scored.prediction.capacity_bytes
    return 0.0 if scored.point.counter_class == "nvidia_smi" and full and error < 0 else error


def memory_errors(scored: Iterable[Scored], counters: Sequence[str]) -> dict[str, list[float]]:
    """Signed errors by source of the rows that are for scoring memory and were counted so."""
    errors: dict[str, list[float]] = {}
    for row in scored:
        if "memory" in row.point.for_scoring and row.point.counter_class in counters:
            error = signed_error(row)
            if error is not None:
                errors.setdefault(row.point.source_name, []).append(error)
    return errors


def error_figures(errors: Sequence[float]) -> ErrorFigures:
    """Median, ninth decile and bias."""
    sizes = sorted(abs(error) for error in errors)
    return ErrorFigures(
        rows=len(sizes),
        median=statistics.median(sizes),
        ninth_decile=sizes[-(-9 * len(sizes) // 10) - 1],
        bias=statistics.median(errors),
    )


def average(errors: dict[str, list[float]]) -> Average | None:
    """The mean over sources of their medians, and of their ninth deciles."""
    if not errors:
        return None
    figures = [error_figures(found) for found in errors.values()]
    return Average(
        sources=len(figures),
        rows=sum(figure.rows for figure in figures),
        median=statistics.fmean(figure.median for figure in figures),
        ninth_decile=statistics.fmean(figure.ninth_decile for figure in figures),
    )


def fit_figures(scored: Iterable[Scored], margin: float) -> dict[str, FitFigures]:
    """Verdicts by source. Of a row with gaps, or good for an order only, just weights and states have to fit."""
    by_source: dict[str, list[tuple[Scored, str]]] = {}
    for row in scored:
        if "fit" in row.point.for_scoring and row.prediction is not None and row.prediction.capacity_bytes:
            by_source.setdefault(row.point.source_name, []).append((row, verdict(row, margin)))
    return {source: _fit_figures(rows) for source, rows in by_source.items()}


def verdict(scored: Scored, margin: float) -> str:
    """`fits`, `borderline` or `does_not_fit`, as plans say it; `untested` for a failed row with gaps whose weights and
    states would have fitted."""
    found = scored.prediction
    if found is None:
        return "untested"
    if not scored.point.firm:
        holds = found.static_bytes <= found.capacity_bytes
        return "does_not_fit" if not holds else "fits" if scored.point.outcome == "fit" else "untested"
    if found.total_bytes > found.capacity_bytes:
        return "does_not_fit"
    return "fits" if found.total_bytes <= found.capacity_bytes * (1 - margin) else "borderline"


def _fit_figures(rows: Sequence[tuple[Scored, str]]) -> FitFigures:
    ran = [said for row, said in rows if row.point.outcome == "fit"]
    failed = [said for row, said in rows if row.point.outcome != "fit"]
    return FitFigures(
        fits=len(ran),
        fits_rejected=ran.count("does_not_fit"),
        fits_borderline=ran.count("borderline"),
        ooms=len(failed) - failed.count("untested"),
        ooms_accepted=failed.count("fits"),
        ooms_borderline=failed.count("borderline"),
        untested=failed.count("untested"),
    )


def false_fit(figures: Iterable[FitFigures]) -> Share | None:
    """The share of runs that ran out of memory and were predicted to fit."""
    return _share([(figure.ooms, figure.ooms_accepted) for figure in figures if figure.ooms])


def false_oom(figures: Iterable[FitFigures]) -> Share | None:
    """The share of runs that ran and were predicted not to fit."""
    return _share([(figure.fits, figure.fits_rejected) for figure in figures if figure.fits])


def _share(counts: Sequence[tuple[int, int]]) -> Share | None:
    if not counts:
        return None
    rows = sum(of for of, _ in counts)
    return Share(
        sources=len(counts),
        rows=rows,
        mean=statistics.fmean(wrong / of for of, wrong in counts),
        pooled=sum(wrong for _, wrong in counts) / rows,
    )
