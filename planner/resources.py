"""Finds `schemas/`, `templates/` and the tables of a package in a wheel, a zipped wheel, an editable install or a bare
checkout. importlib.resources would cost 15 ms at its first use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent


def read_text(kind: str, name: str) -> str:
    """One file of the folder `schemas` or `templates`, wherever this installation keeps it: inside the package or, in
    a checkout, beside it. Raises OSError if the installation is broken."""
    try:
        return _text(PACKAGE / kind / name)
    except OSError:
        return _text(PACKAGE.parent / kind / name)


def read_table(package: str, file: str) -> str:
    """A file of `planner/<package>/data`; raises OSError if the installation is broken."""
    return _text(PACKAGE / package / "data" / file)


def _text(path: Path) -> str:
    loader: Any = __spec__.loader  # also reads a zipped wheel
    data: bytes = loader.get_data(str(path))
    return data.decode("utf-8").replace("\r\n", "\n")
