"""One file by itself: what it is, what it says, and what is wrong with it whoever else is there.

In: name and text. Out: `Looked`. Answers: is this a DeepSpeed, an Accelerate or a TrainingArguments file, a launch
script or a file of a plan, and which rules that need no other file does it break?
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.check.kinds import goes_with_a_plan, is_deepspeed, kind_of, likely_kind
from planner.check.one_file.accelerate_rules import accelerate_problems
from planner.check.one_file.arguments_file import OWN_TRAINERS, arguments_problems
from planner.check.one_file.deepspeed_rules import deepspeed_problems
from planner.check.one_file.rare_sections import rare_problems
from planner.check.one_file.schema import schema_problems
from planner.check.one_file.trainer_rules import trainer_problems
from planner.check.one_file.training_rules import training_problems
from planner.check.one_run.loader_rules import unreported
from planner.check.reading import arguments
from planner.check.reading.nodes import Node
from planner.check.reading.read import Notation, Parsed, locate, parse, parse_json
from planner.check.rules import finding
from planner.check.together import File, Kind
from planner.records.problem import Problem, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """A file that was read: once, or as launch line and as the TrainingArguments in it."""

    name: str
    text: str
    kind: Kind
    notation: Notation
    files: tuple[File, ...]  # empty where nobody can read it
    roots: tuple[Node | None, ...]
    problems: tuple[Problem, ...]  # with lines

    def renamed(self, name: str) -> Looked:
        """The same file under another name."""
        files = tuple(replace(file, name=name) for file in self.files)
        problems = tuple(replace(problem, file=name) for problem in self.problems)
        return replace(self, name=name, files=files, problems=problems)

    def located(self, problems: list[Problem]) -> list[Problem]:
        """Problems of this file with line and column."""
        return locate(problems, self.name, self.text, *self.roots)


def look_at(name: str, text: str, kind: Kind | None = None) -> Looked:
    """Read one file and apply the rules that need no other; `kind` where it is known, else told by the content."""
    if kind is None and arguments.looks_like_a_script(name, text):
        return _script(name, text)
    if kind is Kind.PLAN and (plan := _plan_in_order(name, text)):
        return plan
    parsed = parse(name, text)
    if kind is None:
        kind = kind_of(name, parsed.document) if parsed.document is not None else likely_kind(name, text)
    if kind is Kind.DEEPSPEED and parsed.notation is Notation.YAML:
        parsed = _as_deepspeed_reads_it(text) or parsed
    problems = [_for_kind(problem, kind) for problem in parsed.problems]
    readable = parsed.document is not None or not problems
    if readable:
        problems += _rules(kind, parsed.document, parsed.notation)
        problems += _notes(kind, parsed)
        problems = _of_arguments(problems, parsed.document) if kind is Kind.TRAINING else problems
    file = File(name=name, kind=kind, text=text, document=parsed.document)
    return Looked(
        name=name,
        text=text,
        kind=kind,
        notation=parsed.notation,
        files=(file,) if readable else (),
        roots=(parsed.root,),
        problems=tuple(locate(problems, name, text, parsed.root)),
    )


def _as_deepspeed_reads_it(text: str) -> Parsed | None:
    """JSON under a name of YAML: DeepSpeed, the Trainer and accelerate do not look at the name of a DeepSpeed file."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parse_json(text)


def _notes(kind: Kind, parsed: Parsed) -> list[Problem]:
    """What the kind itself gives reason to say."""
    if kind is Kind.DEEPSPEED and parsed.notation is Notation.YAML and parsed.document:
        message = "DeepSpeed, accelerate and the Trainer read JSON: a YAML has to be loaded by the script itself"
        return [finding("DS006", "$", message, fix="write JSON")]
    if kind is Kind.TEXT and not goes_with_a_plan(parsed.document):
        message = "none of its keys is one of DeepSpeed, accelerate or the Trainer: nothing was checked"
        return [finding("DS005", "$", message, fix="leave it out of the check")]
    return []


def _of_arguments(problems: list[Problem], document: Any) -> list[Problem]:
    """One finding for a number that YAML 1.1 reads as text, none where the program that reads it makes it a number."""
    converts = isinstance(document, Mapping) and bool(set(document) & OWN_TRAINERS)
    numbers = {
        one.path for one in problems if one.rule == "DS004" and any(_is_number(edit.value) for edit in one.edits)
    }
    dropped = ("DS004", "DS322") if converts else ("DS322",)
    return [one for one in problems if one.path not in numbers or one.rule not in dropped]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _plan_in_order(name: str, text: str) -> Looked | None:
    """plan.json, where nothing is wrong with it; the tree that would say where takes longer than all the rest."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        section = dict(pairs)
        if len(section) < len(pairs):
            raise ValueError("a key is written twice")
        return section

    def refuse(word: str) -> float:
        raise ValueError(f"{word} is no number")

    try:
        document = json.loads(text, object_pairs_hook=once, parse_constant=refuse)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, Mapping) or _rules(Kind.PLAN, document):
        return None
    file = File(name=name, kind=Kind.PLAN, text=text, document=document)
    return Looked(
        name=name,
        text=text,
        kind=Kind.PLAN,
        notation=Notation.JSON,
        files=(file,),
        roots=(None,),
        problems=(),
    )


def check_text(name: str, text: str, kind: str = "") -> tuple[Any, list[Problem]]:
    """One file by itself: its document and its problems, with lines; `kind` is told by its keys unless given."""
    looked = look_at(name, text, Kind(kind) if kind else None)
    return looked.files[0].document if looked.files else None, list(looked.problems)


def _for_kind(problem: Problem, kind: Kind) -> Problem:
    """Only the DeepSpeed file is ever read by DeepSpeed; every other JSON goes to Python's own reader."""
    if kind is Kind.DEEPSPEED:
        return problem
    if problem.rule == "DS002":
        message = "no strict JSON, and nobody else reads this file: comments, commas or quotes are not those of JSON"
        return replace(problem, severity=Severity.ERROR, message=message)
    if problem.rule == "DS003" and problem.bites == "config":
        return replace(problem, message=f"{problem.message}; the last one counts, without a word", bites="silently")
    return problem


def _rules(kind: Kind, document: Any, notation: Notation = Notation.JSON) -> list[Problem]:
    problems: list[Problem] = []
    has_schema = kind in (Kind.DEEPSPEED, Kind.ACCELERATE, Kind.PLAN, Kind.SMOKE)
    if has_schema and isinstance(document, Mapping) and not _is_sagemaker(document):
        problems += schema_problems(document, kind.value)
    if kind is Kind.DEEPSPEED:
        problems += deepspeed_problems(document)
        problems += training_problems(document) if isinstance(document, Mapping) else []
        problems += rare_problems(document) if isinstance(document, Mapping) else []
        problems += unreported(document, problems, kind) if isinstance(document, Mapping) else []
    elif kind is Kind.ACCELERATE:
        problems += accelerate_problems(document)
        problems += unreported(document, problems, kind) if isinstance(document, Mapping) else []
    elif kind is Kind.TRAINING and isinstance(document, Mapping):
        problems += arguments_problems(document, converted=notation is Notation.YAML)
        problems += trainer_problems(document)
        if is_deepspeed(document.get("deepspeed")):
            problems += [_inside(problem, "deepspeed") for problem in _rules(Kind.DEEPSPEED, document["deepspeed"])]
    elif kind is Kind.TRAINING:
        problems.append(finding("DS001", "$", "TrainingArguments are names with values", fix="write one mapping"))
    return problems


def _inside(problem: Problem, key: str) -> Problem:
    """The problem of a document that stands under a key of another."""

    def moved(path: str) -> str:
        return path.replace("$", f"$.{key}", 1)

    edits = tuple(
        replace(edit, path=moved(edit.path), to=moved(edit.to) if edit.to.startswith("$") else edit.to)
        for edit in problem.edits
    )
    return replace(problem, path=moved(problem.path), edits=edits)


def _script(name: str, text: str) -> Looked:
    """A shell script, a launch line, or flags."""
    launch, files, roots = arguments.read_launch(text), [], []
    if launch is not None:
        files.append(File(name=name, kind=Kind.LAUNCH, text=text, document=arguments.document_of(launch)))
        roots.append(launch)
    flags = arguments.training_flags(launch) if launch is not None else arguments.read_flags(text)
    if flags is not None:
        files.append(File(name=name, kind=Kind.TRAINING, text=text, document=arguments.document_of(flags)))
        roots.append(flags)
    kind = files[0].kind if files else Kind.TEXT
    problems = _rules(Kind.TRAINING, files[-1].fields) if flags is not None else []
    if not files:
        message = "no line is found here that starts a run: nothing was checked"
        problems.append(finding("DS005", "$", message, fix="name the script that starts the run"))
    return Looked(
        name=name,
        text=text,
        kind=kind,
        notation=Notation.SHELL,
        files=tuple(files),
        roots=tuple(roots),
        problems=tuple(locate(problems, name, text, flags)),
    )


def _is_sagemaker(document: Mapping[str, Any]) -> bool:
    """SageMaker files have a form of their own, which is not checked here."""
    return bool(document.get("compute_environment") == "AMAZON_SAGEMAKER")
