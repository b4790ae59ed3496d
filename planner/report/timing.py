"""Speed in the terminal answer: the terms of a step, their shares, what MFU counts, and what a run takes.

In: request, evaluation. Out: lines of at most 80 columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.explain.timing import shares, time_sentence
from planner.geometry.flops import mfu_convention
from planner.records.estimate import TimeEstimate
from planner.records.plan import Evaluation
from planner.records.request import Request
from planner.report.table import table, wrapped
from planner.speed.bill import tokens_j, tokens_usd, training_s
from planner.units import duration_text

JOULES_PER_KWH = 3.6e6


def share_lines(time: TimeEstimate) -> list[str]:
    """Where the step time goes, in one sentence."""
    return wrapped(f"{time_sentence(time)}.")


def terms_table(time: TimeEstimate) -> list[str]:
    """One row a term, largest first: its seconds, those that overlap hides, and what it adds to the step."""
    seconds = {term.name: (term.seconds, term.hidden_seconds) for term in time.terms}
    rows = [(name, *(f"{s:.4g}" for s in seconds[name]), f"{share:.1%}") for name, share in shares(time)]
    lines = table(("term", "seconds", "hidden", "share"), [*rows, ("step", f"{time.step_seconds:.4g}", "", "100.0%")])
    return [f"time of one step ({time.tokens_per_step:,} tokens)", *lines]


def band_lines(request: Request, shown: Sequence[Evaluation]) -> list[str]:
    """How wide each plan's range is and why, and which FLOPs the MFU counts."""
    ranks: dict[tuple[float, str], list[str]] = {}
    for rank, evaluation in enumerate(shown, 1):
        if evaluation.time is not None:
            band = (evaluation.time.relative_error, evaluation.time.error_class)
            ranks.setdefault(band, []).append(str(rank))
    lines: list[str] = []
    for (error, reason), of_ranks in ranks.items():
        plans = f"plan{'s' if len(of_ranks) > 1 else ''} {', '.join(of_ranks)}"
        lines += wrapped(f"range of {plans}: +-{error:.0%} ({reason}).")
    if ranks:
        lines += wrapped(f"MFU counts {mfu_convention(request.workload.adapter)}.")
    return lines


def bill_lines(request: Request, time: TimeEstimate) -> list[str]:
    """What the tokens of the request take: hours with their range, dollars, energy."""
    tokens, cluster = request.workload.tokens, request.cluster
    if tokens is None:
        return []
    speeds = [time.tokens_per_second * (1 + sign * time.relative_error) for sign in (0, 1, -1)]
    expected, least, most = (duration_text(training_s(tokens, speed)) for speed in speeds)
    text = f"{tokens:,} tokens take {expected} ({least} to {most})"
    if cluster.usd_per_hour is not None:
        text += f" and ${tokens_usd(tokens, time.tokens_per_second, cluster.usd_per_hour):,.0f}"
    lines = wrapped(f"{text}.")
    if cluster.gpu.tdp_w is not None:
        kwh = tokens_j(tokens, time.tokens_per_second, cluster.gpu.tdp_w, time.world_size) / JOULES_PER_KWH
        lines += wrapped(
            f"energy at most {kwh:,.3g} kWh: {time.world_size} GPUs at their limit of {cluster.gpu.tdp_w:.0f} W, hosts "
            "and cooling not counted."
        )
    return lines
