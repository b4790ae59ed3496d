"""Paths as typed to files.

In: paths of files, of folders, and patterns. Out: names and texts; of a folder with a plan.json the files of the plan,
of any other folder its configurations. Answers: which files are meant, and what do they hold?
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from planner.check.reading.nodes import Lines
from planner.check.rules import finding
from planner.errors import PlannerError, one_line
from planner.records.problem import Problem

LARGEST_FILE_BYTES = 64 * 2**20
LARGEST_FOUND_BYTES = 2**20
"""What lies in a folder and is larger is data; a file that is named may be larger."""
ENDINGS = (".json", ".yaml", ".yml", ".sh", ".sbatch")
PLAN_FILES = ("plan.json", "ds_config.json", "accelerate.yaml", "training_args.json", "launch.sh", "smoke.json")
SIGNS = re.compile(
    r"zero_optimization|train_micro_batch_size_per_gpu|train_batch_size|distributed_type|deepspeed_config"
    r"|per_device_train_batch_size|accelerate\s+launch|torchrun\s|deepspeed\s+(-|\S+\.py)"
)
PATTERN = re.compile(r"[*?\[]")
SKIPPED_FOLDERS = ("node_modules", "__pycache__", "site-packages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A file that was named, or found; `problem` says why its text is no text."""

    name: str
    text: str = ""
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPlan:
    """A folder that dsplan wrote."""

    folder: str
    files: dict[str, str]


def given(paths: tuple[str | os.PathLike[str], ...]) -> Iterator[Given | GivenPlan]:
    """What the paths mean, each file once; raises PlannerError for a path that means nothing."""
    seen: set[Path] = set()
    for text in paths:
        for path in _expanded(str(os.fspath(text))):
            if path.is_dir():
                if (path / "plan.json").is_file():
                    yield GivenPlan(folder=str(path), files=_plan_files(path))
                    continue
                found = [file for file in _configurations(path) if _once(file, seen)]
                yield from (read(file) for file in found)
            elif _once(path, seen):
                yield read(path)


def read(path: Path) -> Given:
    """One file; raises PlannerError where it cannot be read at all."""
    name = str(path)
    try:
        if path.exists() and not path.is_file():
            raise PlannerError(f"`{one_line(name)}` is no regular file", hint="name a file or a folder")
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise PlannerError(f"`{one_line(name)}` is too large for a configuration", hint="name the file itself")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PlannerError(f"cannot read `{one_line(name)}`: {reason}", hint="name a file or a folder") from None
    return decoded(name, data)


def decoded(name: str, data: bytes) -> Given:
    """The text, or the place where it stops being UTF-8; raises PlannerError for what is no text at all."""
    try:
        return Given(name=name, text=data.decode("utf-8"))
    except UnicodeDecodeError as error:
        wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        if wide and len(data) % 2 == 0:
            message, offset = "UTF-16, where every reader expects UTF-8", 0
        elif b"\0" in data:
            raise PlannerError(f"`{one_line(name)}` is no text", hint="name a DeepSpeed JSON or a YAML") from None
        else:
            message, offset = f"the byte 0x{data[error.start]:02x} is not UTF-8", error.start
    line, column = Lines(data[:offset].decode("utf-8") + "\n").at(len(data[:offset].decode("utf-8")))
    problem = replace(finding("DS001", "$", message, fix="save the file as UTF-8"), file=name, line=line, column=column)
    return Given(name=name, problem=problem)


def _once(path: Path, seen: set[Path]) -> bool:
    real = Path(os.path.abspath(path))
    if real in seen:
        return False
    seen.add(real)
    return True


def _expanded(text: str) -> list[Path]:
    """The paths that a pattern stands for; a path that exists is no pattern."""
    path = Path(text)
    try:
        if path.exists() or not PATTERN.search(text):
            return [path]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PlannerError(f"cannot read `{one_line(text)}`: {reason}", hint="name a file or a folder") from None
    import glob

    found = sorted(glob.glob(text, recursive=True))
    matching = [Path(name) for name in found if Path(name).is_file()] or [Path(name) for name in found]
    if not matching:
        raise PlannerError(f"no file matches `{one_line(text)}`", hint="put the pattern in quotes, or name the files")
    return [path for path in matching if path.is_dir() or _is_configuration(path)] or matching


def _plan_files(folder: Path) -> dict[str, str]:
    files = {}
    for name in PLAN_FILES:
        if (folder / name).is_file():
            file = read(folder / name)
            if file.problem is not None:
                raise PlannerError(f"`{one_line(file.name)}` is not UTF-8 text", hint="plan again")
            files[name] = file.text
    return files


def _configurations(folder: Path) -> list[Path]:
    """The files below a folder that look like configurations of a run."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED_FOLDERS)
        for name in sorted(names):
            path = Path(place) / name
            if (name.lower().endswith(ENDINGS) or name == "training_args") and _is_configuration(path):
                found.append(path)
    if not found:
        raise PlannerError(
            f"`{one_line(str(folder))}` holds no configuration",
            hint="name a folder with DeepSpeed JSON, Accelerate YAML or launch scripts, or the folder of a plan",
        )
    return found


def _is_configuration(path: Path) -> bool:
    try:
        if path.stat().st_size > LARGEST_FOUND_BYTES:
            return False
        return bool(SIGNS.search(path.read_bytes().decode("utf-8", errors="replace")))
    except OSError:
        return False
