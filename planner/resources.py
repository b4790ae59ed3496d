"""Finds `schemas/` and `templates/` in a wheel, a zipped wheel, an editable install or a bare checkout."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Traversable


def folder(kind: str) -> Traversable:
    """The folder `schemas` or `templates`, wherever this installation keeps it."""
    packaged = files("planner") / kind
    if packaged.is_dir():
        return packaged
    return Path(__file__).parent.parent / kind


def read_text(kind: str, name: str) -> str:
    """One file of that folder; raises FileNotFoundError if the installation is broken."""
    return (folder(kind) / name).read_text(encoding="utf-8")
