"""Scores as text tables and as JSON.

In: scored points. Out: lines, or a document. Every figure stands beside the number of sources and rows behind it. Rows
with gaps, which include those of quality C, are never mixed with the others.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from planner.accuracy.overhead import derive
from planner.accuracy.peers import peer_errors
from planner.accuracy.score import (
    CARD_COUNTERS,
    COUNTERS,
    TENSOR_COUNTERS,
    Average,
    FitFigures,
    Scored,
    Share,
    average,
    error_figures,
    false_fit,
    false_oom,
    fit_figures,
    memory_errors,
    predicted_gib,
    signed_error,
    verdict,
)
from planner.report.table import table, wrapped

GROUPS = (("torch counters", TENSOR_COUNTERS), ("reserved and nvidia-smi", CARD_COUNTERS))


def memory_text(scored: Sequence[Scored]) -> list[str]:
    """Errors by counter and source, and their means over sources."""
    rows = []
    firm = [row for row in scored if row.point.firm]
    for counter in COUNTERS:
        for source, errors in sorted(memory_errors(firm, (counter,)).items()):
            figures = error_figures(errors)
            rows.append((counter, source, str(figures.rows), percent(figures.median), percent(figures.ninth_decile),
                         signed(figures.bias)))  # fmt: skip
    if not rows:
        return ["no row with a measured peak and without gaps"]
    lines = ["Memory: |predicted / measured - 1|", ""]
    lines += table(("counter", "source", "rows", "median", "90 % within", "bias"), rows, left=frozenset({0, 1}))
    lines += ["", *table(("mean over sources", "sources", "rows", "median", "90 % within"), _averages(scored))]
    return lines


def _averages(scored: Sequence[Scored]) -> list[tuple[str, ...]]:
    firm = [row for row in scored if row.point.firm]
    gaps = [row for row in scored if not row.point.firm]
    cells = []
    for name, counters in GROUPS:
        for rows, suffix in ((firm, ""), (gaps, ", rows with gaps")):
            found = average(memory_errors(rows, counters))
            if found:
                cells.append(_average_cells(name + suffix, found))
    return cells


def _average_cells(name: str, found: Average) -> tuple[str, ...]:
    return name, str(found.sources), str(found.rows), percent(found.median), percent(found.ninth_decile)


def fit_text(scored: Sequence[Scored], margin: float) -> list[str]:
    """Verdicts by source, and the two shares that matter."""
    figures = fit_figures(scored, margin)
    if not figures:
        return ["no row with an outcome"]
    rows = [
        (source, str(f.fits), str(f.fits_rejected), str(f.fits_borderline), str(f.ooms), str(f.ooms_accepted),
         str(f.ooms_borderline), str(f.untested))
        for source, f in sorted(figures.items())
    ]  # fmt: skip
    header = ("source", "ran", "rejected", "borderline", "failed", "accepted", "borderline", "untested")
    lines = [f"Fit, with {percent(margin)} of the card kept free", "", *table(header, rows), ""]
    for name, share in _shares(figures):
        lines.append(
            f"{name}: {percent(share.mean)} (mean of {share.sources} sources), "
            f"{percent(share.pooled)} of all {share.rows} rows"
        )
    return lines


def _shares(figures: dict[str, FitFigures]) -> list[tuple[str, Share]]:
    shares = (
        ("false fit (ran out of memory, predicted to fit)", false_fit(figures.values())),
        ("false out-of-memory (ran, predicted not to fit)", false_oom(figures.values())),
    )
    return [(name, share) for name, share in shares if share is not None]


def peers_text(scored: Sequence[Scored]) -> list[str]:
    """Errors of three predictors on the same rows."""
    rows = _peer_rows(scored)
    if not rows:
        return ["no complete row of full fine-tuning with a measured peak"]
    header = ("predictor", "sources", "rows", "median", "90 % within", "bias")
    return ["Full fine-tuning, mean over sources", "", *table(header, rows)]


def _peer_rows(scored: Sequence[Scored]) -> list[tuple[str, ...]]:
    cells = []
    for name, errors in peer_errors(scored).items():
        found = average(errors)
        if found:
            bias = statistics.fmean(statistics.median(e) for e in errors.values())
            cells.append((*_average_cells(name, found), signed(bias)))
    return cells


def overhead_text(scored: Sequence[Scored]) -> list[str]:
    """The constants derived from the points beside those in use, and the rule behind each."""
    lines = ["Overhead beyond tensors, and the default margin, read off the points", ""]
    found = derive(scored)
    rows = [(d.name, f"{d.value:.4g}", f"{d.in_use:g}", d.unit, str(d.sources), str(d.rows)) for d in found]
    lines += table(("constant", "derived", "in use", "unit", "sources", "rows"), rows)
    for d in found:
        lines += ["", *wrapped(f"{d.name}: {d.rule}", first="")]
    return lines


def accuracy_document(scored: Sequence[Scored], margin: float) -> dict[str, Any]:
    """Everything the tables say, and every row."""
    figures = fit_figures(scored, margin)
    firm = [row for row in scored if row.point.firm]
    gaps = [row for row in scored if not row.point.firm]
    return {
        "margin": margin,
        "memory": {
            counter: {
                source: asdict(error_figures(errors)) for source, errors in memory_errors(firm, (counter,)).items()
            }
            for counter in COUNTERS
        },
        "memory_mean_over_sources": {
            name: asdict(found) for name, counters in GROUPS if (found := average(memory_errors(firm, counters)))
        },
        "memory_mean_over_sources_rows_with_gaps": {
            name: asdict(found) for name, counters in GROUPS if (found := average(memory_errors(gaps, counters)))
        },
        "fit": {source: asdict(found) for source, found in figures.items()},
        "false_fit": _optional(false_fit(figures.values())),
        "false_oom": _optional(false_oom(figures.values())),
        "overhead": [asdict(found) for found in derive(scored)],
        "rows": [_row(row, margin) for row in scored],
    }


def _optional(share: Share | None) -> dict[str, Any] | None:
    return asdict(share) if share else None


def _row(scored: Scored, margin: float) -> dict[str, Any]:
    point = scored.point
    predicted = predicted_gib(scored)
    return {
        "id": point.id,
        "source_name": point.source_name,
        "source_url": point.source_url,
        "counter_class": point.counter_class,
        "measured_gib": point.measured_peak_gib,
        "predicted_gib": None if predicted is None else round(predicted, 3),
        "error": signed_error(scored),
        "outcome": point.outcome,
        "verdict": verdict(scored, margin),
        "assumed": list(scored.prediction.assumed) if scored.prediction else [],
        "missing": list(point.missing),
        "reason": scored.reason,
    }


def percent(share: float) -> str:
    """A share as `12.3 %`."""
    return f"{100 * share:.1f} %"


def signed(share: float) -> str:
    """A share with its sign."""
    return f"{100 * share:+.1f} %"
