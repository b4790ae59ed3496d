"""Rules that need more than one file, or what is known beside them.

In: the files of one run, and the context. Out: Problems, each with its file. Answers: who hands the DeepSpeed file to
the engine, and do the files, the machine, the model and the releases go together?
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.check import releases
from planner.check.context import Context
from planner.check.one_run import (
    argument_rules,
    launch_rules,
    launcher_rules,
    layer_rules,
    loader_rules,
    machine_rules,
    model_rules,
    optimizer_rules,
    rare_rules,
    reach_rules,
    reader_rules,
    slurm_rules,
    trainer_rules,
)
from planner.check.one_run.run_facts import reader_of
from planner.check.together import Rule, Together
from planner.records.problem import Problem, Severity

__all__ = ["across_problems", "reader_of", "settled"]


def memory(together: Together, context: Context) -> Iterator[Problem]:
    """The estimate, which is loaded only where a model and a cluster are known."""
    if context.model is not None and context.cluster is not None:
        from planner.check.one_run.memory_rules import memory_is_enough

        yield from memory_is_enough(together, context)


RULES: tuple[Rule, ...] = (
    *reader_rules.RULES,
    *reach_rules.RULES,
    *optimizer_rules.RULES,
    *argument_rules.RULES,
    *trainer_rules.RULES,
    *launch_rules.RULES,
    *launcher_rules.RULES,
    *slurm_rules.RULES,
    *machine_rules.RULES,
    *model_rules.RULES,
    *layer_rules.RULES,
    *rare_rules.RULES,
    *releases.RULES,
    memory,
    *loader_rules.RULES,
)
WORST_FIRST = (Severity.ERROR, Severity.WARNING, Severity.INFO)


def across_problems(together: Together, context: Context) -> list[Problem]:
    """Every rule of this kind over the files of one run; lines and columns are still to be filled in."""
    return [problem for rule in RULES for problem in rule(together, context)]


def settled(problems: list[Problem], context: Context) -> list[Problem]:
    """What holds for the release, in order, each fault once: of two with one rule and place, the worse one, of two
    that are as bad the later one.

    A rule over one file may find what a rule with the context judges anew: `"auto"` is a warning where nobody knows
    the reader, and an error for a reader that refuses it. Such rules come later and know more.
    """
    best: dict[tuple[str, str, str], Problem] = {}
    for problem in releases.for_release(problems, context):
        key = (problem.rule, problem.file, problem.path)
        other = best.get(key)
        if other is None or WORST_FIRST.index(problem.severity) <= WORST_FIRST.index(other.severity):
            best[key] = problem
    return list(best.values())
