"""What a plan gives and takes against another: tokens per second for GPU headroom.

In: the ranked plans of a request and those that are shown. Out: sentences.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.records.plan import Evaluation, Plan, Verdict
from planner.records.request import Objective, Request
from planner.search.pareto import fastest_with_headroom, pareto_front, speed
from planner.search.rank import TIE, baseline
from planner.units import gib_text

CLEARLY_MORE = 0.10
"""The share of a card that counts as clearly more headroom: 8 GiB of 80, twice the margin of the memory model."""

RULE = "smallest tp that fits, no recomputation, then largest micro-batch"


def change_percent(best: Evaluation, other: Evaluation) -> int:
    """The speed of another plan against the first, as a rounded change."""
    return round(100 * (speed(other) / speed(best) - 1))


def trade_text(best: Evaluation, other: Evaluation) -> str:
    """`+6 % tokens/s for 11.0 GiB less headroom`: what another plan gains and costs against the first."""
    if not speed(best) or not speed(other):
        return ""
    room = best.memory.gpu_total_bytes - other.memory.gpu_total_bytes
    gain = f"{change_percent(best, other):+d} % tokens/s"
    return f"{gain} for {gib_text(abs(room))} {'more' if room >= 0 else 'less'} headroom"


def trade_sentences(plan: Plan, shown: Sequence[Evaluation]) -> tuple[str, ...]:
    """What the first plan won and what it costs: against the fastest prediction, the rule of thumb, plan 2, and the
    plan with clearly more headroom where the table lacks it."""
    best = shown[0]
    if best.time is None:
        return ()
    sentences = list(_choice(plan, best))
    if len(shown) > 1:
        sentences.append(f"against plan 2 ({named(shown[1])}): {trade_text(shown[1], best)}")
    sentences += _missing_trade(plan, shown)
    if plan.request.objective is Objective.COST:
        sentences.append(_cost_sentence(plan.request))
    return tuple(sentences)


def named(evaluation: Evaluation) -> str:
    """The label of a plan, and that it is borderline."""
    tail = " (borderline)" if evaluation.verdict is Verdict.BORDERLINE else ""
    return f"{evaluation.candidate.label}{tail}"


def _choice(plan: Plan, best: Evaluation) -> list[str]:
    """Why the first plan leads although another is predicted faster, and what the rule of thumb would take."""
    if plan.request.objective is Objective.MEMORY:
        return []
    rivals = [evaluation for evaluation in plan.ranked if evaluation.verdict is best.verdict]
    fastest, thumb = max(rivals, key=speed), baseline(rivals)
    sentences = []
    if speed(fastest) > speed(best):
        also = f", which the rule of thumb ({RULE}) takes," if fastest is thumb else ""
        sentences.append(
            f"predicted fastest is {named(fastest)}{also} with {trade_text(best, fastest)}: inside the "
            f"{100 * TIE:.0f} % that the speed model cannot tell apart"
        )
    if thumb is not None and thumb is not best and thumb is not fastest:
        sentences.append(f"the rule of thumb ({RULE}) takes {named(thumb)}: {trade_text(best, thumb)}")
    return sentences


def _missing_trade(plan: Plan, shown: Sequence[Evaluation]) -> list[str]:
    """The plan of the front that the shown ones do not stand for: with clearly more headroom, or, where memory comes
    first, the fastest."""
    best, front = shown[0], pareto_front(plan.ranked)
    if plan.request.objective is Objective.MEMORY:
        fastest = front[0]
        if _stands_for(shown, fastest, most_bytes=plan.request.cluster.gpu.memory_bytes):
            return []
        return [f"fastest plan: {named(fastest)}, {trade_text(best, fastest)}"]
    most_bytes = best.memory.gpu_total_bytes - int(CLEARLY_MORE * plan.request.cluster.gpu.memory_bytes)
    roomy = fastest_with_headroom(front, most_bytes=most_bytes)
    if roomy is None or _stands_for(shown, roomy, most_bytes=most_bytes):
        return []
    more = gib_text(best.memory.gpu_total_bytes - roomy.memory.gpu_total_bytes)
    return [f"fastest plan with {more} more free: {named(roomy)}, {change_percent(best, roomy):+d} % tokens/s"]


def _stands_for(shown: Sequence[Evaluation], wanted: Evaluation, *, most_bytes: int) -> bool:
    """Whether a shown plan is as fast, up to a tie, and small enough."""
    return any(e.memory.gpu_total_bytes <= most_bytes and speed(e) >= speed(wanted) * (1 - TIE) for e in shown)


def _cost_sentence(request: Request) -> str:
    if request.cluster.usd_per_hour is None:
        return "no price of this cluster is known: the order by cost is the order by speed all the same"
    return (
        "one cluster has one price an hour, so the cheapest token is the fastest one: the order is that of throughput"
    )
