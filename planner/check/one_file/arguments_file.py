"""TrainingArguments by themselves: names that transformers does not take, values of another type.

In: the document, of a file or of the flags of a launch line. Out: Problems. Answers: does the Trainer get the
arguments at all, and as numbers? Other programs add arguments of their own, so an unknown name is a fault only if it is
almost one of the Trainer's. Source: transformers 5.24, TrainingArguments, seen by running: types are not checked there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

from planner.check.one_file.trainer_facts import is_plain
from planner.check.one_file.training_names import KINDS, NAMES, RENAMED
from planner.check.reading.arguments import is_told
from planner.check.rules import finding, rename, write
from planner.records.problem import Edit, Problem, Severity

OWN_TRAINERS = frozenset(("finetuning_type", "base_model", "sequence_len", "adapter", "dataset_dir", "defaults"))
"""Keys of LLaMA-Factory, axolotl and Hydra: they read the file, with names and types of their own."""
SLIP = 0.9
"""Likeness of a name to the one that was meant: `max_step` for `max_steps`."""
WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def arguments_problems(arguments: Mapping[str, Any], *, converted: bool = False) -> list[Problem]:
    """Every rule of this module over one set of arguments; `converted`: some readers make numbers of texts, as TRL does
    of a YAML."""
    found = [problem for name, value in arguments.items() for problem in _of(str(name), value, arguments)]
    if set(arguments) & OWN_TRAINERS:
        found = [problem for problem in found if problem.rule not in ("DS320", "DS322")]
    return [_milder(problem) if converted and problem.rule == "DS322" else problem for problem in found]


def _milder(problem: Problem) -> Problem:
    return replace(problem, severity=Severity.WARNING)


def _of(name: str, value: Any, arguments: Mapping[str, Any]) -> Iterator[Problem]:
    path = f"$.{name}"
    if name in KINDS:
        yield from _type(path, value, KINDS[name])
    elif name in NAMES:
        new = RENAMED.get(name)
        message = f"transformers 5 has no argument `{name}`: TypeError, or an unknown flag"
        plain = is_plain(arguments)
        edits = rename(path, new) if new and new not in arguments and plain else ()
        yield finding("DS320", path, message, fix=f"write `{new}`" if new else "take it out", edits=edits)
    elif is_plain({key: value for key, value in arguments.items() if key != name}):
        near = max(KINDS, key=lambda known: (SequenceMatcher(None, name, known).ratio(), known))
        if SequenceMatcher(None, name, near).ratio() >= SLIP:
            edits = rename(path, near) if near not in arguments else ()
            message = f"the Trainer has no argument `{name}`"
            yield finding("DS321", path, message, fix=f"did you mean `{near}`?", edits=edits)


def _type(path: str, value: Any, kind: str) -> Iterator[Problem]:
    """A value that the Trainer takes as it is, and fails over later, or takes for true."""
    if kind not in WORDS or value is None or isinstance(value, (dict, list)) or not is_told(value):
        return
    wanted = WORDS[kind]
    if isinstance(value, str):
        message, severity = f"the text `{value}` is not {wanted}; the Trainer does not convert it", Severity.ERROR
        edits = _converted(path, value, kind)
        if kind == "bool":
            message = f"the text `{value}` is not true or false: any text counts as true"
            severity = Severity.WARNING if value.strip().lower() in ("true", "yes", "on", "1") else Severity.ERROR
        bites = "silently" if kind == "bool" else "engine init"
        yield finding("DS322", path, message, fix=f"write {wanted}", severity=severity, bites=bites, edits=edits)
    elif kind == "int" and isinstance(value, float) and not value.is_integer():
        yield finding("DS322", path, f"`{value}` is not {wanted}", fix=f"write {wanted}")


def _converted(path: str, text: str, kind: str) -> tuple[Edit, ...]:
    word = text.strip().lower()
    if kind == "bool":
        known = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
        return write(path, known[word]) if word in known else ()
    if not NUMBER.fullmatch(word):
        return ()
    number = float(word)
    whole = number.is_integer() and abs(number) < 1e15
    return write(path, int(number) if whole else number) if whole or kind == "float" else ()
