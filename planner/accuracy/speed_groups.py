"""How well the predicted speeds put plans of one job in order: regret of the top plan, and Kendall's tau.

In: scored rows. Out: `Group` records. Question: had somebody followed the ranking, what would it have cost?
A job is a model on given GPUs with a global batch; its plans differ in tensor-parallel degree, micro-batch,
recomputation and stage. The order is that of `planner.search.rank`, ties and rule of thumb included.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from planner.accuracy.predict import predict
from planner.accuracy.speed import SpeedRow
from planner.records.plan import Evaluation, Limit, Verdict
from planner.records.request import Objective
from planner.search.rank import baseline, ranked


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The measured plans of one job. Regret: the share of the best measured speed that a choice gives away."""

    source_name: str
    job: str
    plans: int
    regret: float  # of the plan ranked first
    rule_regret: float  # of the plan that the rule of thumb takes
    place_of_best: int  # where the ranking puts the best measured plan, from 1
    kendall: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFigures:
    """What the groups of one source come to."""

    groups: int
    plans: int
    best_found: float  # share of groups whose best plan is ranked first
    mean_regret: float
    worst_regret: float
    rule_mean_regret: float
    rule_worst_regret: float
    behind_rule: int  # groups in which the plan ranked first is slower than the rule's
    kendall: float


def groups_of(rows: Iterable[SpeedRow]) -> tuple[Group, ...]:
    """Every job with at least two different plans, whose plans differ in nothing that no plan of ours decides."""
    jobs: dict[tuple[object, ...], list[SpeedRow]] = {}
    for row in rows:
        if row.error is not None and row.run is not None:
            jobs.setdefault(_job(row), []).append(row)
    return tuple(_group(members) for members in jobs.values() if len(members) > 1)


def _job(row: SpeedRow) -> tuple[object, ...]:
    p = row.point
    return (p.source_name, p.model, p.hidden, p.layers, p.heads, p.method, p.dtype, p.gpu_class, p.gpu_count,
            p.seq_len, p.global_batch, p.kernels, p.flash_attn, p.compile, p.optimizer, p.offload, p.fused_ce,
            p.sp, p.cp, p.framework)  # fmt: skip


def _group(rows: list[SpeedRow]) -> Group:
    evaluations = [_evaluation(row) for row in rows]
    speeds = {id(evaluation): row.measured or 0.0 for evaluation, row in zip(evaluations, rows, strict=True)}
    order = ranked(evaluations, Objective.THROUGHPUT, fixed_batch=True)
    best = max(speeds.values())
    rule = baseline(evaluations)
    measured = [speeds[id(evaluation)] for evaluation in order]
    return Group(
        source_name=rows[0].point.source_name,
        job=f"{rows[0].point.model} on {rows[0].point.gpu_count} x {rows[0].point.gpu_class}",
        plans=len(rows),
        regret=1 - measured[0] / best,
        rule_regret=1 - speeds[id(rule)] / best if rule is not None else 0.0,
        place_of_best=1 + measured.index(best),
        kendall=kendall([(row.predicted or 0.0, row.measured or 0.0) for row in rows]),
    )


def _evaluation(row: SpeedRow) -> Evaluation:
    """The row as a plan that fits, for it ran."""
    if row.run is None or row.time is None:
        raise ValueError(f"`{row.point.id}` has no prediction")
    return Evaluation(
        candidate=row.run.candidate,
        verdict=Verdict.FITS,
        limit=Limit(resource="gpu", phase="step", excess_bytes=0),
        memory=predict(row.run).memory,
        time=row.time,
    )


def kendall(pairs: list[tuple[float, float]]) -> float:
    """Kendall's tau of (predicted, measured).

    Formula: (concordant - discordant) / pairs of rows whose measured speeds differ.
    Source: Kendall 1938, Biometrika 30, 81-93.
    Leaves out: a correction for equal predictions, which count as neither.
    """
    signs = [_sign(a[0] - b[0]) * _sign(a[1] - b[1]) for a, b in itertools.combinations(pairs, 2) if a[1] != b[1]]
    return sum(signs) / len(signs) if signs else 1.0


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def group_figures(groups: Iterable[Group]) -> dict[str, GroupFigures]:
    """Figures by source."""
    by_source: dict[str, list[Group]] = {}
    for group in groups:
        by_source.setdefault(group.source_name, []).append(group)
    return {source: _figures(members) for source, members in by_source.items()}


def _figures(groups: list[Group]) -> GroupFigures:
    return GroupFigures(
        groups=len(groups),
        plans=sum(group.plans for group in groups),
        best_found=statistics.fmean(group.regret == 0 for group in groups),
        mean_regret=statistics.fmean(group.regret for group in groups),
        worst_regret=max(group.regret for group in groups),
        rule_mean_regret=statistics.fmean(group.rule_regret for group in groups),
        rule_worst_regret=max(group.rule_regret for group in groups),
        behind_rule=sum(group.regret > group.rule_regret for group in groups),
        kendall=statistics.fmean(group.kendall for group in groups),
    )
