"""One strategy at one micro-batch: the best of its settings variants, or the one that misses by least.

In: request, strategy, its ladder of settings. Out: `Evaluation` or `Rejection`, the same as if every variant had been
evaluated. Memory is asked lazily, and speed only where something fits.

What is best: plans that fit before borderline ones; then by the objective, throughput and cost by the predicted time of
a step, memory by GPU bytes; among variants whose step is within 1 % of the fastest, the first of the ladder. The one
that misses by least needs the smallest multiple of what there is. A rule that forbids every variant comes before all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from planner.memory.estimate import estimate_memory, needs
from planner.records.candidate import Candidate, ZeroSettings
from planner.records.plan import Evaluation, Rejection
from planner.records.request import Objective, Request
from planner.search.capacity import inside_margins, overflow
from planner.search.evaluate import breached, kept, too_large
from planner.search.rules import RULES_OF_SETTINGS, RULES_OF_STRATEGY, first_breach
from planner.search.space import accumulation_for
from planner.search.variants import settings_variants
from planner.speed.constants import SpeedConstants
from planner.speed.estimate import step_s, time_estimate

PAYS = 0.01
"""A variant is chosen over an earlier one when it is faster by this much: the speed model is far from telling less, and
the usual settings are the ones most runs have."""


class Fit(IntEnum):
    """How much of it fits."""

    MISSES = 0
    BORDERLINE = 1
    """Only inside the error of the memory model."""
    FITS = 2


@dataclass(slots=True)
class Known:
    """The largest micro-batch at which a variant reached each `Fit`, and the smallest at which it did not."""

    reached: list[int]
    missed: list[float]


class Ladder:
    """The legal settings of one strategy, and what is known of the micro-batches at which each fits.

    Memory never falls when the micro-batch grows at the same number of accumulation steps. So a variant that fits at
    one micro-batch fits at every smaller one, and memory is not asked again.
    """

    __slots__ = ("_constants", "_known", "_request", "_settings", "_strategy")

    def __init__(self, request: Request, strategy: Candidate, constants: SpeedConstants) -> None:
        self._request, self._strategy, self._constants = request, strategy, constants
        ladder = settings_variants(request, strategy)
        legal = [s for s in ladder if first_breach(request, _with(strategy, s, 1, 1), RULES_OF_SETTINGS) is None]
        self._settings = tuple(legal) or ladder[:1]
        self._known: dict[tuple[int, bool], Known] = {}

    def at(self, micro_batch: int) -> Evaluation | Rejection:
        """The best variant at a micro-batch, or the nearest miss."""
        request, strategy = self._request, self._strategy
        accumulation = accumulation_for(request, strategy.degrees.dp, micro_batch)
        candidates = [_with(strategy, settings, micro_batch, accumulation) for settings in self._settings]
        breach = first_breach(request, candidates[0], RULES_OF_STRATEGY + RULES_OF_SETTINGS)
        if breach is not None:
            return breached(candidates[0], breach)
        chosen = self._best(candidates)
        if chosen is None:
            return self._nearest_miss(candidates)
        memory = estimate_memory(request.model, request.cluster, request.workload, chosen)
        time = time_estimate(request.model, request.cluster, request.workload, chosen, constants=self._constants)
        return kept(request, chosen, memory, time)

    def _best(self, candidates: list[Candidate]) -> Candidate | None:
        """The best one that fits, as the module says."""
        places = range(len(candidates))
        for level in (Fit.FITS, Fit.BORDERLINE):
            if any(self._fits(place, candidates[place], level) for place in places):
                break
        else:
            return None
        if len(candidates) == 1:
            return candidates[0]
        request, constants = self._request, self._constants
        model, cluster, workload = request.model, request.cluster, request.workload
        if request.objective is Objective.MEMORY:
            fitting = [c for place, c in enumerate(candidates) if self._fits(place, c, level)]
            return min(fitting, key=lambda c: needs(model, cluster, workload, c).gpu_bytes)
        seconds = [step_s(model, cluster, workload, c, constants=constants) for c in candidates]
        by_speed = sorted(places, key=seconds.__getitem__)
        fastest = next(place for place in by_speed if self._fits(place, candidates[place], level))
        enough = seconds[fastest] * (1 + PAYS)
        return next(c for place, c in enumerate(candidates) if seconds[place] <= enough and self._fits(place, c, level))

    def _fits(self, place: int, candidate: Candidate, level: Fit) -> bool:
        """Whether a variant reaches a level."""
        micro_batch = candidate.micro_batch
        known = self._known.setdefault((place, candidate.accumulation > 1), Known([0, 0, 0], [float("inf")] * 3))
        if known.reached[level] < micro_batch < known.missed[level]:
            found = self._look(candidate)
            for reached in range(found + 1):
                known.reached[reached] = max(known.reached[reached], micro_batch)
            for missed in range(found + 1, len(Fit)):
                known.missed[missed] = min(known.missed[missed], micro_batch)
        return micro_batch <= known.reached[level]

    def _look(self, candidate: Candidate) -> Fit:
        """What memory says."""
        request = self._request
        needed = needs(request.model, request.cluster, request.workload, candidate)
        if overflow(request, needed) is not None:
            return Fit.MISSES
        return Fit.FITS if inside_margins(request, candidate, needed) else Fit.BORDERLINE

    def _nearest_miss(self, candidates: list[Candidate]) -> Rejection:
        """The variant that needs the smallest multiple of what there is, the first of equals."""
        request = self._request
        nearest = min(candidates, key=self._excess)
        memory = estimate_memory(request.model, request.cluster, request.workload, nearest)
        return too_large(request, nearest, memory)

    def _excess(self, candidate: Candidate) -> float:
        """Needed over available, of the first device that overflows."""
        request = self._request
        found = overflow(request, needs(request.model, request.cluster, request.workload, candidate))
        return found[1] / max(1, found[2]) if found else 0.0


def _with(strategy: Candidate, settings: ZeroSettings, micro_batch: int, accumulation: int) -> Candidate:
    """A strategy with other settings at another micro-batch."""
    return Candidate(
        zero=strategy.zero,
        degrees=strategy.degrees,
        checkpointing=strategy.checkpointing,
        offload=strategy.offload,
        micro_batch=micro_batch,
        accumulation=accumulation,
        settings=settings,
    )
