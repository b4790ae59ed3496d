"""Rules that need more than one file, or what is known beside them.

In: the files of one run, and the context. Out: Problems, each with its file. Answers: who hands the DeepSpeed file to
the engine, and do the files, the machine, the model and the releases go together?
"""

from __future__ import annotations

from planner.check.context import Context, Reader
from planner.check.together import Rule, Together
from planner.records.problem import Problem

RULES: tuple[Rule, ...] = ()


def across_problems(together: Together, context: Context) -> list[Problem]:
    """Every rule of this kind over the files of one run; lines and columns are still to be filled in."""
    return [problem for rule in RULES for problem in rule(together, context)]


def reader_of(together: Together, context: Context) -> Reader | None:
    """Who reads the DeepSpeed file: as told, else the Trainer where its arguments are there, else accelerate where a
    YAML names the file; None where nothing tells."""
    if context.reader is not None:
        return context.reader
    if together.training is not None:
        return Reader.TRAINER
    if any(names_a_file(file.fields) for file in together.accelerate):
        return Reader.ACCELERATE
    return None


def names_a_file(accelerate: object) -> bool:
    """Whether an Accelerate document hands a DeepSpeed file on."""
    if not isinstance(accelerate, dict):
        return False
    block = accelerate.get("deepspeed_config")
    return isinstance(block, dict) and block.get("deepspeed_config_file") is not None
