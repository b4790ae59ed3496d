"""`dsplan check --fix`: the mechanical fixes, applied and checked again.

In: paths and a context. Out: the new texts with their diffs, and what is still wrong. Answers: how do the files look
when everything is mended that needs no decision? A fix stays only if its finding is gone and no error has come.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

from planner.check import CheckResult
from planner.check.context import Context
from planner.check.mending.edit import edited
from planner.check.mending.meant import mechanical
from planner.check.run_all import Collected, collect, findings_of
from planner.check.single import Looked, look_at
from planner.records.problem import Problem, Severity

ROUNDS = 5
"""A fix may bring a finding to light that has a fix again: a key under its right name may have a wrong value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """What was mended: texts by file, the findings that went, and what is left."""

    texts: Mapping[str, str]  # of the files that changed
    diffs: Mapping[str, str]
    mended: tuple[Problem, ...]
    result: CheckResult


def fix_paths(paths: Sequence[str | PathLike[str]], context: Context) -> Fixed:
    """Mend what the paths mean; nothing is written here, and the files of a plan are left alone."""
    collected = collect(paths)
    before = {looked.name: looked.text for looked in collected.loose}
    found = findings_of(collected, context)
    mended: list[Problem] = []
    for _ in range(ROUNDS):
        again = False
        refused: set[tuple[str, str, str]] = set()
        for problem in [problem for problem in found if _key(problem) not in refused]:
            if _key(problem) not in {_key(other) for other in found}:
                continue  # went with another fix
            changed = _with_edits(collected, problem)
            after = findings_of(changed, context) if changed is not None else []
            if changed is None or not _better(problem, found, after):
                refused.add(_key(problem))
                continue
            collected, found, again = changed, after, True
            mended.append(problem)
        if not again:
            break
    texts = {one.name: one.text for one in collected.loose if one.text != before[one.name]}
    return Fixed(
        texts=texts,
        diffs={name: diff_of(name, before[name], text) for name, text in texts.items()},
        mended=tuple(mended),
        result=CheckResult(findings=tuple(found), files=tuple(collected.kinds.items())),
    )


def diff_of(name: str, old: str, new: str) -> str:
    """A unified diff."""
    lines: Iterable[str] = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _key(problem: Problem) -> tuple[str, str, str]:
    return problem.rule, problem.file, problem.path


def _with_edits(collected: Collected, problem: Problem) -> Collected | None:
    """The files after all edits of one problem; None where there are none, or one of them has no place."""
    by_name: dict[str, Looked] = {looked.name: looked for looked in collected.loose}
    own = by_name.get(problem.file)
    edits = mechanical(problem, own.files[0]) if own is not None and own.files else problem.edits
    if not edits:
        return None
    for edit in edits:
        looked = by_name.get(edit.file or problem.file)
        text = edited(looked.text, looked.notation, edit) if looked is not None else None
        if looked is None or text is None:
            return None
        by_name[looked.name] = look_at(looked.name, text)
    return collected.with_files(list(by_name.values()))


def _better(problem: Problem, before: Sequence[Problem], after: Sequence[Problem]) -> bool:
    """The finding is gone, and no error is there that was not."""
    known = {_key(other) for other in before if other.severity is Severity.ERROR}
    new = [other for other in after if other.severity is Severity.ERROR and _key(other) not in known]
    return _key(problem) not in {_key(other) for other in after} and not new
