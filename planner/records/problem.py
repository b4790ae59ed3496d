"""A finding in a file, and the edits that mend it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class Severity(str, Enum):
    """How bad it is."""

    ERROR = "error"
    """It will fail, or silently train something else."""
    WARNING = "warning"
    """Wasteful, deprecated or version-bound."""
    INFO = "info"


class EditKind(str, Enum):
    """What an edit does to its file."""

    SET = "set"
    """Write `value` at `path`: over the old value, or as a new key; sections that are missing on the way are made."""
    REMOVE = "remove"
    """Take the key at `path` out, with its value."""
    RENAME = "rename"
    """The key at `path` is called `to` from now on."""
    MOVE = "move"
    """The key at `path` goes, with its value, to the path `to`; sections that are missing on the way are made."""
    KEEP_LAST = "keep last"
    """Of a key that is written several times in one section, only the last stays: the one that counts."""
    STRICT = "strict"
    """The whole file becomes strict JSON: no comments, no trailing commas, quotes where they belong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One mechanical change of a file. `value` is plain: text, number, true, null, or a dict of these."""

    kind: EditKind
    path: str
    value: Any = None
    to: str = ""
    file: str = ""  # empty: the file of the finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One finding: the rule, the place, what happens and when, and the fix."""

    rule: str
    severity: Severity
    file: str
    path: str  # JSON path, `$.zero_optimization.stage`
    message: str
    bites: str  # config, launch, engine init, first step, save, silently
    fix: str
    line: int = 0
    column: int = 0
    edits: tuple[Edit, ...] = ()  # all of them together mend it; empty: there is something to decide
