"""Merges the keys of a plan into a template, and refuses a key that both sides hold.

In: two nested mappings. Out: one dict. Answers: which file of dsplan decides this key? Exactly one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def overlay(template: Mapping[str, Any], planned: Mapping[str, Any], *, path: str = "$") -> dict[str, Any]:
    """`template` with the keys of `planned` added, sections merged; raises ValueError where both hold a value."""
    merged = dict(template)
    for key, value in planned.items():
        place = f"{path}.{key}"
        if key not in merged:
            merged[key] = value
        elif isinstance(merged[key], Mapping) and isinstance(value, Mapping):
            merged[key] = overlay(merged[key], value, path=place)
        else:
            raise ValueError(f"`{place}` is in the template and in the plan")
    return merged
