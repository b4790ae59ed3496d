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
    """Powers of two that fit, the first micro-batch that does not, and the largest that does."""
    if ladder.breach(1) is not None or not ladder.fits(1):
        return [ladder.at(1)]
    powers = [1]
    while 2 * powers[-1] <= LARGEST_MICRO_BATCH and ladder.fits(2 * powers[-1]):
        powers.append(2 * powers[-1])
    outcomes = [ladder.at(micro) for micro in powers]
    fits, fails = powers[-1], 2 * powers[-1]
    if fails > LARGEST_MICRO_BATCH:
        return outcomes
    while fails - fits > 1:
        middle = (fits + fails) // 2
        fits, fails = (middle, fails) if ladder.fits(middle) else (fits, middle)
    outcomes.append(ladder.at(fails))
    return outcomes if fits == powers[-1] else [*outcomes, ladder.at(fits)]
