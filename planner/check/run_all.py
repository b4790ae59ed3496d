"""All files of one command, each by itself and with those it belongs to.

In: paths and a context. Out: findings with places, and the files with their kinds. Answers: what is wrong with all of
this, each fault once, file by file?
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

from planner.check.context import Context, Reader
from planner.check.folder import looked_in, plan_findings
from planner.check.given import READERS
from planner.check.group import Named, candidates, named_files, resolve, runs
from planner.check.inputs import Given, GivenPlan, given, read
from planner.check.one_run.across import across_problems, reader_of, settled
from planner.check.rules import finding
from planner.check.single import Looked, look_at
from planner.check.together import Kind
from planner.errors import PlannerError, one_line
from planner.records.problem import Problem, Severity

ARGUMENTS = "training_args.json"
ESTIMATED = ("DS415", "DS416")
STRICT_READERS = {Reader.TRAINER, Reader.ACCELERATE}
LAUNCH_SECTION = re.compile(r"^\$\.(?:launcher_flags|script_flags|environment)\.")
"""Whose flag it is shows on the line itself; a path names the flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFolder:
    """A folder that dsplan wrote: its files, and what its own rules say."""

    looked: tuple[Looked, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """Everything that the paths mean, read."""

    loose: tuple[Looked, ...]
    plans: tuple[PlanFolder, ...]
    unreadable: tuple[Problem, ...]  # files that are no UTF-8 text

    @property
    def kinds(self) -> dict[str, str]:
        """Each file and what it is."""
        kinds = {problem.file: Kind.TEXT.value for problem in self.unreadable}
        looked = (*(one for plan in self.plans for one in plan.looked), *self.loose)
        return kinds | {one.name: one.kind.value for one in looked}

    def with_files(self, loose: Sequence[Looked]) -> Collected:
        """The same with other files."""
        return replace(self, loose=tuple(loose))


def collect(paths: Sequence[str | PathLike[str]]) -> Collected:
    """Read what the paths mean, and what those files name; raises PlannerError for a path that means nothing."""
    if not paths:
        raise PlannerError("no file to check", hint="name a DeepSpeed JSON, an Accelerate YAML or a plan folder")
    loose: list[Looked] = []
    plans: list[PlanFolder] = []
    unreadable: list[Problem] = []
    for one in given(tuple(paths)):
        if isinstance(one, GivenPlan):
            plans.append(_plan_folder(one))
        elif one.problem is not None:
            unreadable.append(one.problem)
        else:
            loose.append(look_at(one.name, one.text))
    loose += _also_named(loose)
    loose += _arguments_beside(loose)
    return Collected(loose=tuple(loose), plans=tuple(plans), unreadable=tuple(unreadable))


def findings_of(collected: Collected, context: Context) -> list[Problem]:
    """Every fault of the files, once, by file and place."""
    findings = [problem for plan in collected.plans for problem in _plan(plan, context)]
    findings += collected.unreadable
    findings += _own(collected.loose, context)
    findings += _missing(collected.loose)
    findings += _across(collected.loose, context)
    return _in_order(settled(findings, context), list(collected.kinds))


def _plan_folder(plan: GivenPlan) -> PlanFolder:
    looked = looked_in(plan.files)
    problems = [replace(problem, file=os.path.join(plan.folder, problem.file)) for problem in plan_findings(looked)]
    full = (one.renamed(os.path.join(plan.folder, name)) for name, one in looked.items())
    return PlanFolder(looked=tuple(full), problems=tuple(problems))


def _plan(plan: PlanFolder, context: Context) -> list[Problem]:
    """A folder that dsplan wrote: its own rules, and those of any run."""
    if context.reader is None:
        context = replace(context, reader=_reader_in(plan.looked))
    across = [one for one in _across(plan.looked, context) if one.rule not in ESTIMATED]  # plan.json judges memory
    return [*plan.problems, *across]


def _reader_in(plan: Sequence[Looked]) -> Reader | None:
    """Whom the plan was written for."""
    documents = (one.files[0].fields for one in plan if one.kind is Kind.PLAN and one.files)
    request = next((document.get("request") for document in documents), None)
    integration = request.get("integration") if isinstance(request, Mapping) else None
    return READERS.get(integration) if isinstance(integration, str) else None


def _also_named(loose: Sequence[Looked]) -> list[Looked]:
    """Files that are named, were not given, and lie where they are named."""
    found: dict[str, Looked] = {}
    waiting = list(loose)
    names = [one.name for one in loose]
    while waiting:
        for named in named_files(waiting.pop(0)):
            if resolve(named, [*names, *found]) is not None:
                continue
            path = next((Path(place) for place in candidates(named) if _is_file(place)), None)
            if path is not None:
                other = _read_quietly(path)
                if other is not None:
                    found[other.name] = other
                    waiting.append(other)
    return list(found.values())


def _arguments_beside(loose: Sequence[Looked]) -> list[Looked]:
    """The Trainer's arguments of a plan, where they lie beside its DeepSpeed file and name it: without them an
    Accelerate file that names it too would say that accelerate reads it."""
    kinds = {one.kind for one in loose}
    if Kind.TRAINING in kinds or Kind.ACCELERATE not in kinds:
        return []
    beside = {os.path.join(os.path.dirname(one.name), ARGUMENTS) for one in loose if one.kind is Kind.DEEPSPEED}
    read_ones = (_read_quietly(Path(place)) for place in sorted(beside) if _is_file(place))
    names = [one.name for one in loose]
    return [one for one in read_ones if one and any(resolve(named, names) for named in named_files(one))]


def _is_file(place: str) -> bool:
    try:
        return os.path.isfile(place)
    except ValueError:
        return False


def _read_quietly(path: Path) -> Looked | None:
    try:
        file: Given = read(path)
    except PlannerError:
        return None
    return look_at(file.name, file.text) if file.problem is None else None


def _missing(loose: Sequence[Looked]) -> Iterable[Problem]:
    """Files that are named and are nowhere."""
    names = [one.name for one in loose]
    for one in loose:
        for named in named_files(one):
            if named.path != "$" and resolve(named, names) is None and not _is_written(one.text, named.name):
                problem = one.located([_not_there(named)])[0]
                yield replace(problem, path=LAUNCH_SECTION.sub("$.", problem.path))


def _is_written(text: str, name: str) -> bool:
    """Whether a script writes the file itself, `cat > ds.json << EOF`."""
    return re.search(rf">\s*[\"']?{re.escape(name)}", text) is not None


def _not_there(named: Named) -> Problem:
    message = f"there is no file `{one_line(named.name)}` beside it, nor from here"
    fix = "check the path: it counts from the folder in which the run starts"
    return finding("DS121", named.path, message, fix=fix, severity=Severity.WARNING, file=named.by)


def _across(loose: Sequence[Looked], context: Context) -> list[Problem]:
    by_name = {one.name: one for one in loose}
    found: list[Problem] = []
    for run in runs(loose):
        for problem in across_problems(run, context):
            found += by_name[problem.file].located([problem])
    return [replace(problem, path=LAUNCH_SECTION.sub("$.", problem.path)) for problem in found]


def _own(loose: Sequence[Looked], context: Context) -> Iterator[Problem]:
    """The findings of each file; a JSON that only DeepSpeed reads is an error for a reader that refuses it."""
    readers: dict[str, set[Reader | None]] = {}
    for run in runs(loose):
        if run.deepspeed is not None:
            readers.setdefault(run.deepspeed.name, set()).add(reader_of(run, context))
    for looked in loose:
        who = readers.get(looked.name, set())
        for problem in looked.problems:
            if problem.rule == "DS002" and who & STRICT_READERS:
                yield replace(problem, severity=Severity.ERROR)
            elif problem.rule == "DS002" and who == {Reader.DEEPSPEED}:
                yield replace(problem, severity=Severity.INFO)
            else:
                yield problem


def _in_order(findings: list[Problem], files: list[str]) -> list[Problem]:
    """By file in the order given, then by place."""
    rank = {name: number for number, name in enumerate(files)}
    last = len(rank)
    return sorted(findings, key=lambda p: (rank.get(p.file, last), p.file, p.line, p.column, p.rule, p.path))
