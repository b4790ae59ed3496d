"""What a dry run found: the record, its document, and its text for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from planner.errors import LaunchFailed
from planner.launch.memory_check import MemoryComparison
from planner.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing asked inside the engine: what the plan says, what the engine answered, which ranks disagreed."""

    what: str
    expected: Any
    found: Any
    ok: bool
    ranks_failed: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeResult:
    """What the dry run did and found."""

    passed: bool
    error: str | None  # why it failed, where it did
    launcher: str
    ranks: int
    tp: int
    dp: int
    steps: int
    losses: tuple[float, ...]  # of rank 0, one an optimizer step
    seconds: float
    checks: tuple[Check, ...]
    memory: MemoryComparison
    not_shown: tuple[str, ...]  # what this run cannot prove, and what it changed
    versions: Mapping[str, str]
    model_config: Mapping[str, Any]  # the shrunken model
    log_tail: tuple[str, ...]  # the last lines of the launch, where it failed

    def to_dict(self) -> dict[str, Any]:
        """The document of `smoke.json`."""
        return asdict(self)


class DryRunFailed(LaunchFailed):
    """The dry run did not do what the plan says, or held other tensors than predicted; `result` tells everything."""

    def __init__(self, result: SmokeResult, *, hint: str) -> None:
        super().__init__(result.error or "", hint=hint)
        self.result = result


def smoke_text(result: SmokeResult) -> str:
    """The verdict, every comparison, the memory of each phase, and what was not shown."""
    width = max((len(check.what) for check in result.checks), default=0)
    lines = [f"{'ok ' if c.ok else 'BAD'}  {c.what:<{width}}  {_answer(c)}" for c in result.checks]
    verdict = "the plan is in force" if result.passed else f"failed: {result.error}"
    ranks = (
        f"{result.ranks} ranks (dp {result.dp} x tp {result.tp}), {result.steps} optimizer steps, {result.seconds:g} s"
    )
    losses = f"loss {', '.join(f'{loss:.3f}' for loss in result.losses)}" if result.losses else ""
    open_points = [f"not shown: {line}" for line in result.not_shown]
    said = [f"dry run: {verdict}", ranks, *([losses] if losses else []), *lines, *_memory_lines(result.memory)]
    return "\n".join([*said, *open_points])


def _memory_lines(memory: MemoryComparison) -> list[str]:
    """Predicted and measured bytes of each phase, or why they were not compared."""
    if memory.skipped is not None:
        return [f"memory: predicted and measured bytes were not compared: {memory.skipped}"]
    title = f"memory: tensors of the fullest rank, device and host together, at most {memory.limit_percent:g} % apart"
    head = f"     {'phase':<9}{'predicted':>13}{'measured':>13}{'difference':>13}"
    rows = [
        f"{'ok ' if p.within_limit else 'BAD'}  {p.phase:<9}{_mib(p.predicted_bytes):>13}{_mib(p.measured_bytes):>13}"
        f"{f'{p.difference_percent:+.2f} %':>13}"
        for p in memory.phases
    ]
    return [title, head, *rows]


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.3f} MiB"


def _answer(check: Check) -> str:
    """What was found, and what the plan says where that differs."""
    if check.ok:
        return _short(check.found)
    return f"{_short(check.found)}, the plan says {_short(check.expected)} (ranks {_short(check.ranks_failed)})"


def _short(value: Any) -> str:
    """Lists without brackets, repeated numbers once."""
    if isinstance(value, list | tuple):
        same = len(value) > 1 and all(item == value[0] for item in value)
        return f"{value[0]} each" if same else ", ".join(str(item) for item in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
