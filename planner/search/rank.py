"""The order of plans: by objective, ties within 3 % to the simpler one, borderline plans after those that fit.

In: evaluations in any order. Out: the same, best first, independent of the order they came in. Everything else an
order depends on is said: the objective, whether the global batch is fixed, and the usual settings of a candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from heapq import heappop, heappush
from operator import attrgetter

from planner.records.candidate import Candidate, Checkpointing, Offload, ZeroSettings
from planner.records.plan import Evaluation, Verdict
from planner.records.request import Objective, Request
from planner.search.pareto import speed
from planner.search.space import usual_settings

TIE = 0.03
"""The speed model cannot tell plans this close apart (its own mean error in one group of plans is about as large)."""

OFFLOAD_ORDER = tuple(Offload)
SETTING_VALUES = attrgetter(*(field.name for field in fields(ZeroSettings)))

Usual = Callable[[Candidate], ZeroSettings]
Key = tuple[object, ...]


def own_settings(candidate: Candidate) -> ZeroSettings:
    """Where nobody says what is usual, nothing counts as changed."""
    return candidate.settings


def simplicity(evaluation: Evaluation, *, fixed_batch: bool = False, usual: Usual = own_settings) -> Key:
    """Lower stage, smaller tp, less offload, no recomputation, fewer changed settings, then the micro-batch.

    At a fixed global batch the larger micro-batch is simpler, for it needs fewer accumulation steps. Otherwise the
    smaller one, which leaves more memory free. The settings themselves come last, so that no two plans are equal.
    """
    c = evaluation.candidate
    batch = (c.accumulation, c.micro_batch) if fixed_batch else (c.micro_batch, c.accumulation)
    values = SETTING_VALUES(c.settings)
    return (
        int(c.zero),
        c.degrees.tp,
        OFFLOAD_ORDER.index(c.offload),
        int(c.checkpointing is Checkpointing.FULL),
        sum(mine != theirs for mine, theirs in zip(values, SETTING_VALUES(usual(c)), strict=True)),
        *batch,
        values,
    )


def score(objective: Objective) -> Callable[[Evaluation], float]:
    """Higher is better. On a given cluster the cheapest token is the fastest one, so cost ranks as throughput does."""
    if objective is Objective.MEMORY:
        return lambda evaluation: -float(evaluation.memory.gpu_total_bytes)
    return speed


def baseline(evaluations: Iterable[Evaluation]) -> Evaluation | None:
    """What the rule of thumb takes: smallest tp that fits, then the largest micro-batch. It looks at no speed.

    Over everything else that a plan decides, the rule is: among plans that fit (if none does, the borderline ones)
    the least offload, then the smallest tp, no recomputation before recomputation, the lowest stage, the largest
    micro-batch, the fewest accumulation steps. Recomputation stands before the stage because it costs a third of the
    layers' work wherever the plan runs, and a stage only traffic.
    Source: the measured benchmark to beat of 120 groups of Megatron runs (vTrain, MICRO 2024): the best plan of 71 %
        of them. The LLaMA-13B and -30B grids of Aleph Alpha have their best layouts without recomputation at the
        smallest tp.
    """
    pool = list(evaluations)
    fitting = [evaluation for evaluation in pool if evaluation.verdict is Verdict.FITS]
    return min(fitting or pool, key=_rule_of_thumb, default=None)


def _rule_of_thumb(evaluation: Evaluation) -> Key:
    c = evaluation.candidate
    return (
        OFFLOAD_ORDER.index(c.offload),
        c.degrees.tp,
        int(c.checkpointing is Checkpointing.FULL),
        int(c.zero),
        -c.micro_batch,
        c.accumulation,
        SETTING_VALUES(c.settings),
    )


def ranked(
    evaluations: Iterable[Evaluation], objective: Objective, *, fixed_batch: bool = False, usual: Usual = own_settings
) -> tuple[Evaluation, ...]:
    """Best first: repeatedly the simplest of those within 3 % of the best that is left.

    The first place knows the rule of thumb too: when its plan (`baseline`) is within 3 % of the fastest, its strategy
    leads, at the simplest micro-batch within the 3 %. So the rule is left only for a predicted gain above the error.
    """
    value = score(objective)
    pool = list(evaluations)
    ordered: list[Evaluation] = []
    for verdict in (Verdict.FITS, Verdict.BORDERLINE):
        members = [e for e in pool if e.verdict is verdict]
        thumb = None if objective is Objective.MEMORY else baseline(members)
        keyed = [(value(e), simplicity(e, fixed_batch=fixed_batch, usual=usual), e) for e in members]
        ordered += _in_order(keyed, thumb)
    return tuple(ordered)


def ranked_for(request: Request, evaluations: Iterable[Evaluation]) -> tuple[Evaluation, ...]:
    """`ranked` with what a request says: its objective, its global batch, and the settings its strategies usually
    have."""

    def usual(candidate: Candidate) -> ZeroSettings:
        return usual_settings(request, candidate.zero, candidate.degrees, candidate.offload)

    fixed = request.workload.global_batch is not None
    return ranked(evaluations, request.objective, fixed_batch=fixed, usual=usual)


def _in_order(group: list[tuple[float, Key, Evaluation]], thumb: Evaluation | None) -> Iterator[Evaluation]:
    """Tie class by tie class. The best that is left only falls, so a plan that is within reach once stays so: it waits
    in a heap by simplicity, and n plans take n log n steps."""
    queue = sorted(group, key=lambda item: (-item[0], item[1]))
    waiting: list[tuple[Key, int]] = []
    taken = [False] * len(queue)
    best = reached = 0
    for place in range(len(queue)):
        while taken[best]:
            best += 1
        floor = queue[best][0] - abs(queue[best][0]) * TIE
        while reached < len(queue) and queue[reached][0] >= floor:
            heappush(waiting, (queue[reached][1], reached))
            reached += 1
        at = _of_strategy(thumb, queue, reached) if place == 0 else None
        while at is None or taken[at]:
            at = heappop(waiting)[1]
        taken[at] = True
        yield queue[at][2]


def _of_strategy(thumb: Evaluation | None, queue: list[tuple[float, Key, Evaluation]], reached: int) -> int | None:
    """Where the simplest plan of the rule's strategy stands among the first ones; None when its own is not there."""
    if thumb is None or all(queue[at][2] is not thumb for at in range(reached)):
        return None
    wanted = strategy_key(thumb.candidate)
    return min(
        (at for at in range(reached) if strategy_key(queue[at][2].candidate) == wanted), key=lambda at: queue[at][1]
    )


def strategy_key(candidate: Candidate) -> Key:
    """What makes two candidates the same strategy at another micro-batch."""
    return (candidate.zero, candidate.degrees, candidate.checkpointing, candidate.offload)


def best_of_each_strategy(plans: Iterable[Evaluation]) -> tuple[Evaluation, ...]:
    """The first plan of every strategy: the same strategy at another micro-batch is not another choice to show."""
    seen: dict[Key, Evaluation] = {}
    for plan in plans:
        seen.setdefault(strategy_key(plan.candidate), plan)
    return tuple(seen.values())
