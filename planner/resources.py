"""Finds `schemas/` and `templates/` in a wheel, a zipped wheel, an editable install or a bare checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def read_text(kind: str, name: str) -> str:
    """One file of the folder `schemas` or `templates`, wherever this installation keeps it: inside the package or, in
    a checkout, beside it. Raises OSError if the installation is broken."""
    loader: Any = __spec__.loader  # also reads a zipped wheel; importlib.resources costs 15 ms at first use
    package = Path(__file__).parent
    try:
        data: bytes = loader.get_data(str(package / kind / name))
    except OSError:
        data = loader.get_data(str(package.parent / kind / name))
    return data.decode("utf-8").replace("\r\n", "\n")
