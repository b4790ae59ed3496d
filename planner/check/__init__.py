"""Finds what is wrong in DeepSpeed JSON, Accelerate YAML and plan folders.

In: paths. Out: a CheckResult. Answers: which line of which file will fail, when, and what to write instead?
Paths that are given together are checked together: an Accelerate file and the DeepSpeed file it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from planner.check.folder import KINDS, check_files, named_file_problems
from planner.check.rules import RULES
from planner.check.single import Looked, check_text, look_at
from planner.check.together import Kind
from planner.errors import PlannerError
from planner.records.problem import Problem, Severity

__all__ = ["RULES", "CheckResult", "check", "check_files", "check_text"]

LARGEST_FILE_BYTES = 64 * 2**20


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
        findings = [{**asdict(problem), "severity": problem.severity.value} for problem in self.findings]
        order = ("rule", "severity", "file", "line", "column", "path", "message", "bites", "fix")
        return {
            "findings": [{key: problem[key] for key in order} for problem in findings],
            "files": [{"file": file, "kind": kind} for file, kind in self.files],
        }


def check(*paths: str | PathLike[str]) -> CheckResult:
    """Check files and plan folders; raises PlannerError for a path that cannot be read."""
    if not paths:
        raise PlannerError("no file to check", hint="name a DeepSpeed JSON, an Accelerate YAML or a plan folder")
    findings: list[Problem] = []
    looked_at: list[tuple[str, str]] = []
    loose: dict[str, str] = {}
    for path in map(Path, paths):
        if path.is_dir():
            files = _read_folder(path)
            findings += [_inside(path, problem) for problem in check_files(files)]
            looked_at += [(str(path / name), KINDS[name].value if name in KINDS else "text") for name in files]
        else:
            loose[str(path)] = _read(path)
    seen = {name: look_at(name, text) for name, text in loose.items()}
    for name, looked in seen.items():
        looked_at.append((name, looked.kind.value))
        findings += looked.problems
    findings += _across(seen)
    return CheckResult(findings=tuple(findings), files=tuple(looked_at))


def _across(seen: Mapping[str, Looked]) -> list[Problem]:
    """Rules between an Accelerate file and a DeepSpeed file given with it, whatever their folders."""
    findings: list[Problem] = []
    by_name = {Path(name).name: name for name in seen}
    documents = {name: looked.files[0].document for name, looked in seen.items() if looked.files}
    for name, looked in seen.items():
        document = documents.get(name)
        if isinstance(document, Mapping) and looked.kind is Kind.ACCELERATE:
            named = document.get("deepspeed_config")
            target = Path(str(named.get("deepspeed_config_file"))).name if isinstance(named, Mapping) else ""
            if target in by_name:
                full = by_name[target]
                config = {**document, "deepspeed_config": {"deepspeed_config_file": full}}
                for problem in named_file_problems(config, documents, documents, file=name):
                    findings += seen[problem.file].located([problem])
    return findings


def _read_folder(folder: Path) -> dict[str, str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    wanted = [name for name in names if name in KINDS or name == "launch.sh"]
    if not wanted:
        raise PlannerError(f"`{folder}` is no plan folder", hint="a plan folder holds plan.json and ds_config.json")
    return {name: _read(folder / name) for name in wanted}


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise PlannerError(f"`{path}` is too large for a configuration file", hint="name the configuration itself")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise PlannerError(f"cannot read `{path}`: {error.strerror}", hint="name a file or a plan folder") from None
    except UnicodeDecodeError:
        raise PlannerError(f"`{path}` is not UTF-8 text", hint="name a DeepSpeed JSON or an Accelerate YAML") from None


def _inside(folder: Path, problem: Problem) -> Problem:
    return replace(problem, file=str(folder / problem.file))
