"""Finds what is wrong in DeepSpeed JSON, Accelerate YAML, TrainingArguments, launch lines and plan folders.

In: paths. Out: a CheckResult. Answers: which line of which file will fail, when, and what to write instead?
Paths that are given together are checked together: an Accelerate file and the DeepSpeed file it names.
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from planner.records.problem import Problem, Severity

if TYPE_CHECKING:
    from planner.check.folder import check_files
    from planner.check.rules import RULES
    from planner.check.single import check_text

__all__ = ["RULES", "CheckResult", "check", "check_files", "check_text"]

ORDER = ("rule", "severity", "file", "line", "column", "path", "message", "bites", "fix")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What was looked at, and what was found."""

    findings: tuple[Problem, ...]
    files: tuple[tuple[str, str], ...]  # name, kind

    @property
    def has_errors(self) -> bool:
        """Whether anything found will fail or silently train something else."""
        return any(problem.severity is Severity.ERROR for problem in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The document of `dsplan check --json`."""
        return {
            "findings": [as_dict(problem) for problem in self.findings],
            "files": [{"file": file, "kind": kind} for file, kind in self.files],
        }


def as_dict(problem: Problem) -> dict[str, Any]:
    """A finding in the words of the document, which has none for a launcher that stops after it has read the file."""
    found = {key: getattr(problem, key) for key in ORDER}
    bites = "engine init" if problem.bites == "launch" else problem.bites
    return {**found, "severity": problem.severity.value, "bites": bites}


def check(
    *paths: str | PathLike[str],
    gpus: Any = None,
    model: Any = None,
    launcher: Any = None,
    trainer: Any = None,
    deepspeed_version: Any = None,
    host_ram: Any = None,
    seq_len: Any = None,
) -> CheckResult:
    """Check files, folders and patterns, with what is known beside them; raises PlannerError for a path that cannot be
    read or a keyword that cannot be understood."""
    from planner.check.given import context_of
    from planner.check.run_all import collect, findings_of

    context = context_of(
        gpus=gpus,
        model=model,
        launcher=launcher,
        trainer=trainer,
        deepspeed_version=deepspeed_version,
        host_ram=host_ram,
        seq_len=seq_len,
    )
    collected = collect(paths)
    return CheckResult(findings=tuple(findings_of(collected, context)), files=tuple(collected.kinds.items()))


def __getattr__(name: str) -> Any:
    """The other names, loaded on first use: importing `planner` stays light."""
    if name == "RULES":
        from planner.check.rules import RULES

        return RULES
    if name == "check_files":
        from planner.check.folder import check_files

        return check_files
    if name == "check_text":
        from planner.check.single import check_text

        return check_text
    raise AttributeError(f"module `planner.check` has no attribute `{name}`")
