"""Which arithmetic a GPU has, also one that the catalogue lacks.

In: a name as people write it. Out: its compute capability, from `data/cards.toml`; None for a name without a row.
"""

from __future__ import annotations

import re
from functools import cache

from planner import toml
from planner.resources import read_table

FP16_FROM = (7, 0)
"""Source: deepspeed/accelerator/cuda_accelerator.py `is_fp16_supported` (0.19.8).
DS_ALLOW_DEPRECATED_FP16=1 lifts it."""
BF16_FROM = (8, 0)
"""Source: https://docs.nvidia.com/cuda/ampere-tuning-guide/index.html, tensor cores with bf16 since Ampere."""
FP8_FROM = (8, 9)
"""Source: accelerate 1.15, utils/environment.py `check_cuda_fp8_capability`."""


def capability_of(name: str) -> tuple[int, int] | None:
    """Compute capability of the card that the name means."""
    plain = re.sub(r"^\s*(\d+\s*[x*×]\s*)+", "", name.casefold())
    plain = re.sub(r"[\s()\[\]_-]+", " ", re.sub(r"nvidia|tesla|geforce", " ", plain))
    plain = re.sub(r"(?<=\d) ?(ti|super)\b", "", plain).strip()
    for pattern, capability in _rows():
        if pattern.search(plain):
            return capability
    return None


@cache
def _rows() -> tuple[tuple[re.Pattern[str], tuple[int, int]], ...]:
    rows = []
    for row in toml.loads(read_table("check", "cards.toml"))["card"]:
        major, minor = row["capability"].split(".")
        rows.append((re.compile(row["pattern"]), (int(major), int(minor))))
    return tuple(rows)
