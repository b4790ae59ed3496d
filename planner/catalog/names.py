"""Spelling: goes in, a name as typed; comes out, the key it is looked up by. Which two spellings are the same?

Matching is exact after normalising; likeness is only ever used for the hint of an error (`planner.errors.nearest`).
"""

from __future__ import annotations

import re
import unicodedata

VENDORS = ("nvidia", "geforce", "tesla", "amd", "instinct", "intel", "habana")
"""Words that may stand before the name of an accelerator and say nothing that the name does not."""

_DROPPED = str.maketrans("", "", " \t-_")
_MEMORY = re.compile(r"(?<![a-z0-9.])([0-9]{1,5}(?:\.[0-9]{1,2})?)\s*(?:gib|gb|g)(?![a-z0-9])", re.IGNORECASE)


def normalise(name: str) -> str:
    """The name without case, spaces, hyphens and underscores; dots stay, because `2.5` is not `25`."""
    return unicodedata.normalize("NFKC", name).casefold().translate(_DROPPED)


def gpu_key(name: str) -> str:
    """`normalise`, and the vendor words before the name dropped."""
    key = normalise(name)
    while True:
        for vendor in VENDORS:
            if key.startswith(vendor) and key != vendor:
                key = key[len(vendor) :]
                break
        else:
            return key


def split_memory(text: str) -> tuple[str, tuple[float, ...]]:
    """The text without its memory sizes (`80G`, `24 GB`, `40GiB`), and the sizes; the `10G` of `A10G` is no size."""
    return _MEMORY.sub(" ", text), tuple(float(size) for size in _MEMORY.findall(text))
