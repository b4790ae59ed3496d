"""The whole search: every strategy, every micro-batch worth a look, nothing skipped silently.

In: request, speed constants. Out: a `Plan` without remedies. Memory grows with the micro-batch, so the largest one that
fits a strategy is found by doubling and halving; the first one that does not fit is recorded as rejected.
"""

from __future__ import annotations

from dataclasses import replace

from planner.records.candidate import Candidate
from planner.records.plan import Evaluation, Plan, Rejection
from planner.records.request import Request
from planner.search.choose import Ladder
from planner.search.rank import ranked_for
from planner.search.space import LARGEST_MICRO_BATCH, accumulation_for, micro_batches, strategies
from planner.speed.constants import SpeedConstants


def search(request: Request, constants: SpeedConstants) -> Plan:
    """Evaluate the space and rank what fits."""
    kept: list[Evaluation] = []
    rejected: list[Rejection] = []
    for strategy in strategies(request):
        for outcome in explore(request, strategy, constants):
            if isinstance(outcome, Evaluation):
                kept.append(outcome)
            else:
                rejected.append(outcome)
    return Plan(request=request, ranked=ranked_for(request, kept), rejected=tuple(rejected), remedies=())


def explore(request: Request, strategy: Candidate, constants: SpeedConstants) -> list[Evaluation | Rejection]:
    """All micro-batches of one strategy, each with the settings that suit it best."""
    ladder = Ladder(request, strategy, constants)
    listed = micro_batches(request, strategy.degrees.dp)
    if listed is None:
        return _up_to_largest(ladder)
    return [ladder.at(micro_batch) for micro_batch in listed or (strategy.micro_batch,)]


def with_micro_batch(request: Request, strategy: Candidate, micro_batch: int) -> Candidate:
    """The strategy at another micro-batch, with the accumulation that goes with it."""
    return replace(
        strategy, micro_batch=micro_batch, accumulation=accumulation_for(request, strategy.degrees.dp, micro_batch)
    )


def _up_to_largest(ladder: Ladder) -> list[Evaluation | Rejection]:
    """Powers of two, then the largest micro-batch between the last that fits and the first that does not."""
    outcomes: list[Evaluation | Rejection] = []
    fits, micro = 0, 1
    while micro <= LARGEST_MICRO_BATCH:
        outcome = ladder.at(micro)
        outcomes.append(outcome)
        if isinstance(outcome, Rejection):
            break
        fits, micro = micro, micro * 2
    else:
        return outcomes
    if outcome.memory is None:
        return outcomes
    largest: Evaluation | None = None
    fails = micro
    while fails - fits > 1:
        middle = (fits + fails) // 2
        outcome = ladder.at(middle)
        if isinstance(outcome, Rejection):
            fails, outcomes[-1] = middle, outcome
        else:
            fits, largest = middle, outcome
    return [*outcomes, largest] if largest is not None else outcomes
