"""One strategy at one micro-batch: the best of its settings variants, or the one that misses by least.

In: request, strategy, its ladder of settings. Out: `Evaluation` or `Rejection`, the same as if every variant had been
evaluated. Memory is asked lazily, and speed only where something fits.

What is best: plans that fit before borderline ones; then by the objective, throughput and cost by the predicted time of
a step, memory by GPU bytes; among variants whose step is within 2 % of the fastest, the first of the ladder. The one
that misses by least needs the smallest multiple of what there is. A rule that forbids every variant comes before all.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import inf

from planner.memory.estimate import Strategy, batch_part, estimate_memory, needs, strategy_part
from planner.records.candidate import Candidate, ZeroSettings
from planner.records.estimate import Needs
from planner.records.plan import Evaluation, Rejection
from planner.records.request import Objective, Request
from planner.search.capacity import inside_margins, limits, overflow
from planner.search.evaluate import breached, kept, too_large
from planner.search.rules import RULES_OF_SETTINGS, Breach, first_breach
from planner.search.space import accumulation_for
from planner.search.variants import settings_variants
from planner.speed.constants import SpeedConstants
from planner.speed.estimate import step_seconds, time_estimate

PAYS = 0.02
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

    __slots__ = (
        "_candidates",
        "_constants",
        "_known",
        "_limits",
        "_parts",
        "_quick",
        "_request",
        "_settings",
        "_strategy",
        "_usual",
    )

    def __init__(self, request: Request, strategy: Candidate, constants: SpeedConstants) -> None:
        self._request, self._strategy, self._constants = request, strategy, constants
        quick, frugal = settings_variants(request, strategy)

        def legal(settings: ZeroSettings) -> bool:
            return first_breach(request, _with(strategy, settings, 1, 1), RULES_OF_SETTINGS) is None

        self._settings = tuple(filter(legal, (*quick, *frugal))) or quick[:1]
        self._quick = sum(settings in quick for settings in self._settings)
        self._usual = self._settings[0] == quick[0]
        self._limits = limits(request, strategy)
        self._known: dict[tuple[int, bool], Known] = {}
        self._candidates: dict[tuple[int, int], Candidate] = {}
        self._parts: dict[tuple[int, bool], Strategy] = {}

    def at(self, micro_batch: int) -> Evaluation | Rejection:
        """The best variant at a micro-batch, or the nearest miss."""
        request, breach = self._request, self.breach(micro_batch)
        if breach is not None:
            return breached(self._candidate(0, micro_batch), breach)
        place = self._best(micro_batch)
        candidate = self._candidate(self._nearest(micro_batch) if place is None else place, micro_batch)
        memory = estimate_memory(request.model, request.cluster, request.workload, candidate)
        if place is None:
            return too_large(request, candidate, memory)
        time = time_estimate(request.model, request.cluster, request.workload, candidate, constants=self._constants)
        return kept(request, candidate, memory, time)

    def breach(self, micro_batch: int) -> Breach | None:
        """The rule that forbids every variant."""
        return first_breach(self._request, self._candidate(0, micro_batch))

    def fits(self, micro_batch: int) -> bool:
        """Whether any variant fits, however narrowly."""
        return any(self._fits(place, micro_batch, Fit.BORDERLINE) for place in range(len(self._settings)))

    def _best(self, micro_batch: int) -> int | None:
        """The best variant that fits, as the module says."""
        places = range(len(self._settings))
        for level in (Fit.FITS, Fit.BORDERLINE):
            if any(self._fits(place, micro_batch, level) for place in places):
                break
        else:
            return None
        if self._request.objective is Objective.MEMORY:
            fitting = [place for place in places if self._fits(place, micro_batch, level)]
            return min(fitting, key=lambda place: self._needs(place, micro_batch).gpu_bytes)
        return self._fastest(micro_batch, level)

    def _fastest(self, micro_batch: int, level: Fit) -> int:
        """The first variant within 2 % of the fastest that reaches a level.

        A frugal one is never faster than the usual one, which comes first: where that fits, the others need no look.
        Where no quick one fits, the first frugal one is the fastest.
        """

        def fits(place: int) -> bool:
            return self._fits(place, micro_batch, level)

        compared = range(len(self._settings))
        if self._usual and fits(0):
            compared = range(self._quick)
        elif not any(map(fits, range(self._quick))):
            return next(filter(fits, compared))
        if len(compared) == 1:
            return 0
        request, candidates = self._request, [self._candidate(place, micro_batch) for place in compared]
        seconds = step_seconds(request.model, request.cluster, request.workload, candidates, constants=self._constants)
        fastest = next(filter(fits, sorted(compared, key=seconds.__getitem__)))
        enough = seconds[fastest] * (1 + PAYS)
        return next(place for place in compared if seconds[place] <= enough and fits(place))

    def _candidate(self, place: int, micro_batch: int) -> Candidate:
        """A variant at a micro-batch."""
        found = self._candidates.get((place, micro_batch))
        if found is None:
            accumulation = accumulation_for(self._request, self._strategy.degrees.dp, micro_batch)
            found = _with(self._strategy, self._settings[place], micro_batch, accumulation)
            self._candidates[place, micro_batch] = found
        return found

    def _fits(self, place: int, micro_batch: int, level: Fit) -> bool:
        """Whether a variant reaches a level."""
        key = place, accumulation_for(self._request, self._strategy.degrees.dp, micro_batch) > 1
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Known([0, 0, 0], [inf, inf, inf])
        if known.reached[level] < micro_batch < known.missed[level]:
            found = self._look(self._needs(place, micro_batch))
            for reached in range(found + 1):
                known.reached[reached] = max(known.reached[reached], micro_batch)
            for missed in range(found + 1, len(known.missed)):
                known.missed[missed] = min(known.missed[missed], micro_batch)
        return micro_batch <= known.reached[level]

    def _look(self, needed: Needs) -> Fit:
        """What memory says."""
        if overflow(self._limits, needed) is not None:
            return Fit.MISSES
        return Fit.FITS if inside_margins(self._limits, needed) else Fit.BORDERLINE

    def _needs(self, place: int, micro_batch: int) -> Needs:
        """The memory of a variant; its strategy's part is looked up once."""
        request, candidate = self._request, self._candidate(place, micro_batch)
        key = place, candidate.accumulation > 1
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = strategy_part(request.model, request.cluster, request.workload, candidate)
        return needs(request.model, part, batch_part(request.model, request.workload, candidate), candidate)

    def _nearest(self, micro_batch: int) -> int:
        """The variant that needs the smallest multiple of what there is, the first of equals."""
        return min(range(len(self._settings)), key=lambda place: self._excess(self._needs(place, micro_batch)))

    def _excess(self, needed: Needs) -> float:
        """Needed over available, of the first device that overflows."""
        pairs = zip(needed, self._limits.available, strict=True)
        return next(need / max(1, room) for need, room in pairs if room is not None and need > room)


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
