"""What a search threw out, put in order: counts by rule, the nearest misses, and each miss as a plan that does not fit.

In: rejections. Out: counts and the few rejections worth showing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from planner.records.plan import Evaluation, Plan, Rejection, Verdict
from planner.records.request import Request
from planner.search.evaluate import tightest
from planner.search.rank import OFFLOAD_ORDER, strategy_key

NEAREST = 5


def rules_counted(rejected: Iterable[Rejection]) -> Mapping[str, int]:
    """How many candidates each rule rejected, most first."""
    counts: dict[str, int] = {}
    for rejection in rejected:
        counts[rejection.rule] = counts.get(rejection.rule, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def nearest_misses(plan: Plan, *, limit: int = NEAREST) -> tuple[Rejection, ...]:
    """The strategies without any plan that miss by least, each at its smallest micro-batch."""
    fitted = {strategy_key(evaluation.candidate) for evaluation in plan.ranked}
    smallest: dict[tuple[object, ...], Rejection] = {}
    for rejection in plan.rejected:
        key = strategy_key(rejection.candidate)
        known = smallest.get(key)
        smaller = known is None or rejection.candidate.micro_batch < known.candidate.micro_batch
        if rejection.memory is not None and key not in fitted and smaller:
            smallest[key] = rejection
    return tuple(sorted(smallest.values(), key=_distance)[:limit])


def _distance(rejection: Rejection) -> tuple[float, ...]:
    c = rejection.candidate
    return (
        rejection.needed / max(1, rejection.available),
        OFFLOAD_ORDER.index(c.offload),
        int(c.zero),
        c.degrees.tp,
        c.micro_batch,
    )


def rejection_evaluation(request: Request, rejection: Rejection) -> Evaluation:
    """A candidate that memory rejected, as an evaluation without a speed."""
    if rejection.memory is None:
        raise ValueError(f"{rejection.rule} rejects before memory is known")
    return Evaluation(
        candidate=rejection.candidate,
        verdict=Verdict.DOES_NOT_FIT,
        limit=tightest(request, rejection.memory),
        memory=rejection.memory,
        time=None,
        reasons=(f"{rejection.rule}: {rejection.detail}",),
    )
