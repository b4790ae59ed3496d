"""A finding in a file."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    """How bad it is."""

    ERROR = "error"
    """It will fail, or silently train something else."""
    WARNING = "warning"
    """Wasteful, deprecated or version-bound."""
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One finding: the rule, the place, what happens and when, and the fix."""

    rule: str
    severity: Severity
    file: str
    path: str  # JSON path, `$.zero_optimization.stage`
    message: str
    bites: str  # config, engine init, first step, save, silently
    fix: str
    line: int = 0
    column: int = 0
