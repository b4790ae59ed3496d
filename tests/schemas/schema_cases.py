"""The examples of cases/*.yaml: good documents, and bad ones that are a good one with one change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
NAMES = ("accelerate", "catalog", "deepspeed", "measurement", "plan", "request", "smoke")


def read_cases(name: str) -> dict[str, list[dict[str, Any]]]:
    """The good and the bad examples of one schema."""
    text = (Path(__file__).parent / "cases" / f"{name}.yaml").read_text(encoding="utf-8")
    cases: dict[str, list[dict[str, Any]]] = yaml.safe_load(text)
    return cases


def broken(document: Any, case: Mapping[str, Any]) -> Any:
    """The document with the change that a bad example describes; `a.0.b` is a path in it."""
    copy = deepcopy(document)
    for path, value in case.get("change", {}).items():
        parent, last = _reached(copy, path)
        parent[last] = value
    if "remove" in case:
        parent, last = _reached(copy, case["remove"])
        del parent[last]
    return copy


def parts(path: str) -> tuple[str | int, ...]:
    """`$.a[0].b` as a tuple."""
    found = re.findall(r"\.([^.\[]+)|\[(\d+)\]", path)
    return tuple(key or int(index) for key, index in found)


def _reached(document: Any, path: str) -> tuple[Any, Any]:
    *keys, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for key in keys:
        document = document[key]
    return document, last
