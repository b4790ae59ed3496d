"""Plain text tables and bars: fixed columns, no colour needed, nothing wider than the given width.

In: rows of text. Out: lines.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

WIDTH = 80
NO_BREAK = "\u00a0"  # textwrap breaks at no such space
UNIT = re.compile(r"(?<=\d) (?=%|GiB)")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: frozenset[int] = frozenset({0})) -> list[str]:
    """Columns two spaces apart; the columns in `left` are left-aligned, the others right-aligned."""
    columns = [[row[i] for row in (header, *rows)] for i in range(len(header))]
    widths = [max(len(cell) for cell in column) for column in columns]

    def line(row: Sequence[str]) -> str:
        cells = (
            cell.ljust(w) if i in left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    return [line(row) for row in (header, *rows)]


def bar(share: float, *, width: int = 30) -> str:
    """`######....`: a share of the width, at least one mark for anything above zero."""
    marks = min(width, max(1 if share > 0 else 0, round(share * width)))
    return "#" * marks


def wrapped(text: str, *, indent: str = "  ", first: str | None = None, width: int = WIDTH) -> list[str]:
    """A paragraph no wider than `width`; `first` replaces the indent of the first line. A number keeps its unit."""
    opening = indent if first is None else first
    kept = UNIT.sub(NO_BREAK, text)
    lines = textwrap.wrap(kept, width, initial_indent=opening, subsequent_indent=indent, break_long_words=True)
    return [line.replace(NO_BREAK, " ") for line in lines] or [""]
