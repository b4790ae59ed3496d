"""The front of speed against headroom: the plans that no other plan beats in one without losing in the other.

In: evaluations of one request in any order. Out: the front, fastest first; the fastest plan with more memory free. On
one cluster every card has the same size, so the plan that takes least GPU memory has the most headroom.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.records.plan import Evaluation


def speed(evaluation: Evaluation) -> float:
    """Tokens per second, 0 for a plan without a speed."""
    return evaluation.time.tokens_per_second if evaluation.time else 0.0


def pareto_front(evaluations: Iterable[Evaluation]) -> tuple[Evaluation, ...]:
    """Every plan such that no other is at least as fast with at least as much memory free, and better in one of them.

    Plans equal in both are all on the front. A plan without a speed never is.
    """
    timed = sorted((e for e in evaluations if e.time), key=_point)
    front: list[Evaluation] = []
    for evaluation in timed:
        smaller = not front or evaluation.memory.gpu_total_bytes < front[-1].memory.gpu_total_bytes
        if smaller or _point(evaluation) == _point(front[-1]):
            front.append(evaluation)
    return tuple(front)


def _point(evaluation: Evaluation) -> tuple[float, int]:
    return -speed(evaluation), evaluation.memory.gpu_total_bytes


def fastest_with_headroom(front: Iterable[Evaluation], *, most_bytes: int) -> Evaluation | None:
    """The fastest plan of a front that takes at most so much GPU memory."""
    return next((e for e in front if e.memory.gpu_total_bytes <= most_bytes), None)
