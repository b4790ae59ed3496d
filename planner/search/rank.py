"""The order of plans: by objective, ties within 3 % to the simpler one, borderline plans after those that fit.

In: evaluations in any order. Out: the same, best first, independent of the order they came in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile

from planner.records.candidate import Candidate, Checkpointing, Offload
from planner.records.plan import Evaluation, Verdict
from planner.records.request import Objective

TIE = 0.03  # the speed model cannot tell plans this close apart
OFFLOAD_ORDER = tuple(Offload)


def simplicity(evaluation: Evaluation) -> tuple[int, ...]:
    """Lower stage, smaller tp, less offload, no recomputation, smaller micro-batch."""
    c = evaluation.candidate
    return (
        int(c.zero),
        c.degrees.tp,
        OFFLOAD_ORDER.index(c.offload),
        int(c.checkpointing is Checkpointing.FULL),
        c.micro_batch,
        c.accumulation,
    )


def score(objective: Objective) -> Callable[[Evaluation], float]:
    """Higher is better. On a given cluster the cheapest token is the fastest one, so cost ranks as throughput does."""
    if objective is Objective.MEMORY:
        return lambda evaluation: -float(evaluation.memory.gpu_total_bytes)
    return lambda evaluation: evaluation.time.tokens_per_second if evaluation.time else 0.0


def ranked(evaluations: Iterable[Evaluation], objective: Objective) -> tuple[Evaluation, ...]:
    """Best first: repeatedly the simplest of those within 3 % of the best that is left."""
    value = score(objective)
    ordered: list[Evaluation] = []
    pool = list(evaluations)
    for verdict in (Verdict.FITS, Verdict.BORDERLINE):
        left = sorted((e for e in pool if e.verdict is verdict), key=lambda e: (-value(e), simplicity(e)))
        while left:
            best = value(left[0])
            floor = best - abs(best) * TIE
            winner = min(_at_least(left, value, floor), key=simplicity)
            ordered.append(winner)
            left.remove(winner)
    return tuple(ordered)


def _at_least(ordered: list[Evaluation], value: Callable[[Evaluation], float], floor: float) -> Iterator[Evaluation]:
    """The leading evaluations of a descending list that reach `floor`."""
    return takewhile(lambda evaluation: value(evaluation) >= floor, ordered)


def strategy_key(candidate: Candidate) -> tuple[object, ...]:
    """What makes two candidates the same strategy at another micro-batch."""
    return (candidate.zero, candidate.degrees, candidate.checkpointing, candidate.offload)


def best_of_each_strategy(plans: Iterable[Evaluation]) -> tuple[Evaluation, ...]:
    """The first plan of every strategy: the same strategy at another micro-batch is not another choice to show."""
    seen: dict[tuple[object, ...], Evaluation] = {}
    for plan in plans:
        seen.setdefault(strategy_key(plan.candidate), plan)
    return tuple(seen.values())
