"""What rules of thumb would have predicted: a constant share of the peak for each card, and 50 % of it with 6N.

In: scored rows. Out: signed errors by source. Question: how far are they from what was measured, on the same runs?
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from planner.accuracy.speed import SpeedRow
from planner.geometry.params import parameter_count
from planner.records.candidate import Checkpointing

PEERS = ("constant MFU of each card", "50 % of peak, 6N (8N recomputed)")


def constant_mfu_tokens(row: SpeedRow, share: float) -> float:
    """Tokens per second and GPU at that share of the peak.

    Formula: share * P / (3 * forward FLOPs of a token).
    Source: the convention of planner/geometry/flops.py.
    Leaves out: everything but the card.
    """
    return share * row.peak_flop_per_s / row.model_flop_per_token


def half_peak_tokens(row: SpeedRow) -> float:
    """Tokens per second and GPU at half the peak and 6 FLOPs per parameter, 8 with recomputation.

    Formula: P / 2 / (6 * N), or 8 * N.
    Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1.
    Leaves out: attention, and everything but the card.
    """
    if row.run is None:
        raise ValueError(f"`{row.point.id}` has no prediction")
    times = 8 if row.run.candidate.checkpointing is Checkpointing.FULL else 6
    return row.peak_flop_per_s / 2 / (times * parameter_count(row.run.shape))


def peer_errors(rows: Iterable[SpeedRow]) -> dict[str, dict[str, list[float]]]:
    """Signed errors of this planner and of both rules by source.

    The constant share of a card is the median over all its rows, which favours the rule: it has seen the answers.
    """
    known = [row for row in rows if row.error is not None and row.measured]
    shares: dict[str, list[float]] = {}
    for row in known:
        shares.setdefault(row.card, []).append((row.measured or 0) * row.model_flop_per_token / row.peak_flop_per_s)
    constants = {card: statistics.median(found) for card, found in shares.items()}
    errors: dict[str, dict[str, list[float]]] = {name: {} for name in ("dsplan", *PEERS)}
    for row in known:
        measured = row.measured or 1.0
        answers = (row.predicted or 0.0, constant_mfu_tokens(row, constants[row.card]), half_peak_tokens(row))
        for name, answer in zip(errors, answers, strict=True):
            errors[name].setdefault(row.point.source_name, []).append(answer / measured - 1)
    return errors
