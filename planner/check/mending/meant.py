"""Fixes of the rules that judge by the schema, by the notation or by "auto": they do not know what was meant.

In: a finding and its file. Out: edits; none where there is something to decide. Answers: what is `"True"`, `"CPU"`,
an unquoted `no` or a size left to "auto" here? A finding that brings edits of its own keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import SequenceMatcher
from math import isfinite
from typing import Any

from planner.check.one_file.deepspeed_rules import ZERO
from planner.check.one_file.schema import load_schema
from planner.check.rules import take_out, write
from planner.check.together import File
from planner.records.problem import Edit, EditKind, Problem, Severity

Edits = tuple[Edit, ...]
MISSING = object()
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
DEVICES = {"gpu": "none", "cuda": "none", "disk": "nvme"}
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
SLIP = 0.8
"""Likeness of a word to the one that was meant: one letter of six."""


def mechanical(problem: Problem, file: File) -> Edits:
    """The edits that mend a finding in its file."""
    if problem.edits:
        return problem.edits
    rule = MENDERS.get(problem.rule)
    return rule(problem, file) if rule is not None and file.name == problem.file else ()


def value_at(document: Any, path: str) -> Any:
    """The value at a path without list items; MISSING where there is none."""
    for key in path.split(".")[1:]:
        if not isinstance(document, Mapping) or key not in document:
            return MISSING
        document = document[key]
    return document


def _strict(problem: Problem, file: File) -> Edits:
    """Where the reader takes strict JSON only; for DeepSpeed itself the comments may stay."""
    return (Edit(kind=EditKind.STRICT, path="$"),) if problem.severity is Severity.ERROR else ()


def _same_setting(problem: Problem, file: File) -> Edits:
    """A name and its alias with one value."""
    value = value_at(file.document, problem.path)
    section, _, key = problem.path.rpartition(".")
    other = key.removeprefix("stage3_") if key.startswith("stage3_") else f"stage3_{key}"
    return take_out(problem.path) if value == value_at(file.document, f"{section}.{other}") else ()


def _auto(problem: Problem, file: File) -> Edits:
    """Left out, the key has the same default; not so for those that the run needs."""
    path = problem.path
    if path == "$.train_batch_size":
        micro = value_at(file.document, "$.train_micro_batch_size_per_gpu")
        return take_out(path) if micro not in (MISSING, None) else ()
    needed = path.count(".") == 1 or path.startswith(("$.optimizer", "$.scheduler"))
    return () if needed or path.endswith(".enabled") or path == f"{ZERO}.stage" else take_out(path)


def _wrong_value(problem: Problem, file: File) -> Edits:
    """A value that plainly means one of those that are allowed."""
    path, value = problem.path, value_at(file.document, problem.path)
    if value is MISSING:
        return ()
    part = _part(load_schema(file.kind.value), path)
    options = [part, *part.get("anyOf", ())]
    kinds = {kind for option in options for kind in _kinds(option)}
    allowed = [item for option in options for item in option.get("enum", ())]
    if value is False and path in ("$.mixed_precision", "$.distributed_type"):
        return write(path, "no" if path == "$.mixed_precision" else "NO")
    if isinstance(value, float) and not isfinite(value):
        return write(path, 0) if path == "$.fp16.loss_scale" else ()
    if isinstance(value, str):
        meant = _meant(value, kinds, allowed)
        return write(path, meant[0]) if meant and meant[0] != value else ()
    numeric = bool(kinds & {"integer", "number"})
    if isinstance(value, bool):
        return write(path, int(value)) if numeric and "boolean" not in kinds else ()
    if isinstance(value, float) and value.is_integer() and "integer" in kinds:
        return write(path, int(value))
    return write(path, bool(value)) if value in (0, 1) and "boolean" in kinds and not numeric else ()


def _kinds(part: Mapping[str, Any]) -> list[str]:
    kind = part.get("type", [])
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    listed = [names[type(item)] for item in part.get("enum", ()) if type(item) in names]
    return ([kind] if isinstance(kind, str) else list(kind)) + listed


def _meant(text: str, kinds: set[str], allowed: list[Any]) -> list[Any]:
    """The value that a text stands for; empty where it may be several."""
    word = text.strip().rstrip(",").casefold()
    texts = {str(item).casefold(): item for item in allowed}
    for other in (word, DTYPES.get(word, word), DEVICES.get(word, word)):
        if other in texts:
            return [texts[other]]
    if "boolean" in kinds and word in TRUE + FALSE:
        return [word in TRUE]
    if kinds & {"integer", "number"}:
        try:
            number = float(word.replace("_", ""))
        except ValueError:
            return []
        if isfinite(number) and number.is_integer() and abs(number) < 1e15:
            return [int(number)]
        return [number] if "number" in kinds and isfinite(number) else []
    likeness = {other: SequenceMatcher(None, word, other).ratio() for other in texts}
    return [texts[other] for other, ratio in likeness.items() if ratio >= SLIP and ratio == max(likeness.values())]


def _part(schema: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The part of the schema that describes a path; empty where there is none."""
    part: Mapping[str, Any] = schema
    for key in path.split(".")[1:]:
        options = [_resolved(schema, option) for option in (part, *part.get("anyOf", ()))]
        found = next((option["properties"][key] for option in options if key in option.get("properties", {})), None)
        if found is None:
            return {}
        part = _resolved(schema, found)
    return part


def _resolved(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    resolved: Mapping[str, Any] = schema["$defs"][part["$ref"].removeprefix("#/$defs/")] if "$ref" in part else part
    return resolved


MENDERS: Mapping[str, Callable[[Problem, File], Edits]] = {
    "DS002": _strict,
    "DS003": _same_setting,
    "DS013": _wrong_value,
    "DS014": _auto,
    "DS112": _wrong_value,
}
