"""Findings as text: file by file, the worst first, each with its place, what happens and when, and the fix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from planner.check import CheckResult
from planner.records.problem import Problem, Severity

WHEN = {
    "config": "when the file is read",
    "launch": "when the run is launched",
    "engine init": "when the engine starts",
    "first step": "at the first step",
    "save": "when the model is saved",
    "silently": "silently: no message",
}


def findings_as_text(result: CheckResult) -> Iterator[str]:
    """The lines to print."""
    kinds = dict(result.files)
    for name in dict.fromkeys(problem.file for problem in result.findings):
        yield f"{name} ({kinds[name]})" if name in kinds else name
        for severity in Severity:
            for problem in result.findings:
                if problem.file == name and problem.severity is severity:
                    yield from _finding(problem)
        yield ""
    yield summary(result)


def _finding(problem: Problem) -> Iterator[str]:
    place = f"{problem.file}:{problem.line}:{problem.column}"
    yield f"  {place}: {problem.severity.value} {problem.rule} {problem.path}"
    yield f"    {problem.message}"
    yield f"    bites {WHEN.get(problem.bites, problem.bites)}; fix: {problem.fix}"


def summary(result: CheckResult) -> str:
    """`2 files checked: 1 error, 3 warnings, 0 notes`."""
    counts = Counter(problem.severity for problem in result.findings)
    words = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
    parts = [_counted(counts[severity], word) for severity, word in words.items()]
    return f"{_counted(len(result.files), 'file')} checked: {', '.join(parts)}"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
