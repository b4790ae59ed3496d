"""What a dry run found: the record, its document, and its text for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


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
    not_shown: tuple[str, ...]  # what this run cannot prove, and what it changed
    versions: Mapping[str, str]
    model_config: Mapping[str, Any]  # the shrunken model
    log_tail: tuple[str, ...]  # the last lines of the launch, where it failed

    def to_dict(self) -> dict[str, Any]:
        """The document of `smoke.json`."""
        return asdict(self)


def smoke_text(result: SmokeResult) -> str:
    """The verdict, every comparison, and what was not shown."""
    width = max((len(check.what) for check in result.checks), default=0)
    lines = [f"{'ok ' if c.ok else 'BAD'}  {c.what:<{width}}  {_answer(c)}" for c in result.checks]
    verdict = "the plan is in force" if result.passed else f"failed: {result.error}"
    ranks = (
        f"{result.ranks} ranks (dp {result.dp} x tp {result.tp}), {result.steps} optimizer steps, {result.seconds:g} s"
    )
    losses = f"loss {', '.join(f'{loss:.3f}' for loss in result.losses)}" if result.losses else ""
    open_points = [f"not shown: {line}" for line in result.not_shown]
    return "\n".join([f"dry run: {verdict}", ranks, *([losses] if losses else []), *lines, *open_points])


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
