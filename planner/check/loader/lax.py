"""A value against the type of a field, as pydantic's lax mode sees it.

In: a part of the DeepSpeed schema and a value. Out: the value as the field will hold it, or Refused. Answers: will the
typed sections of DeepSpeed take this value, and as what? Source: https://pydantic.dev/docs/validation/latest/concepts/conversion_table,
each row compared with the installed models by the tests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

TRUE_WORDS = frozenset({"1", "on", "t", "true", "y", "yes"})
FALSE_WORDS = frozenset({"0", "off", "f", "false", "n", "no"})
WHOLE = re.compile(r"[+-]?\d+(?:_\d+)*(?:\.0+)?", re.ASCII)
BOUNDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda value, bound: value >= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
}


class Refused(ValueError):
    """The field does not take the value."""


def as_field(part: Mapping[str, Any], value: Any) -> Any:
    """The value as a field of this type holds it; raises Refused. Sections are not looked into."""
    if "anyOf" in part:
        for option in part["anyOf"]:
            try:
                return as_field(option, value)
            except Refused:
                continue
        raise Refused
    if "const" in part:
        return _one_of((part["const"],), value)
    if "enum" in part:
        return _one_of(part["enum"], value)
    kinds: Sequence[str] = [part["type"]] if isinstance(part.get("type"), str) else part.get("type", ())
    for kind in kinds:
        try:
            return _bounded(part, CONVERSIONS[kind](part, value))
        except Refused:
            continue
    if kinds:
        raise Refused
    return value


def _bounded(part: Mapping[str, Any], value: Any) -> Any:
    if isinstance(value, (int, float)) and not all(BOUNDS[key](value, part[key]) for key in BOUNDS if key in part):
        raise Refused
    return value


def _one_of(options: Sequence[Any], value: Any) -> Any:
    """An enum of words takes the very word; one of numbers takes what is equal to a number, also as text."""
    for option in options:
        if value is option or (isinstance(value, str) and value == option):
            return option
        if isinstance(option, int) and isinstance(value, (int, float, str)) and option == _number_or_none(value):
            return option
    raise Refused


def _number_or_none(value: Any) -> int | None:
    try:
        return _integer({}, value)
    except Refused:
        return None


def _boolean(part: Mapping[str, Any], value: Any) -> bool:
    if isinstance(value, str) and value.lower() in TRUE_WORDS | FALSE_WORDS:
        return value.lower() in TRUE_WORDS
    if isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    raise Refused


def _integer(part: Mapping[str, Any], value: Any) -> int:
    if isinstance(value, str) and "words" not in part and WHOLE.fullmatch(value.strip()) and len(value) < 4300:
        return int(value.strip().partition(".")[0])
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    raise Refused


def _number(part: Mapping[str, Any], value: Any) -> float:
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str) and value.isascii():
        try:
            return float(value.strip())
        except ValueError:
            raise Refused from None
    raise Refused


def _exactly(*types: type) -> Callable[[Mapping[str, Any], Any], Any]:
    def convert(part: Mapping[str, Any], value: Any) -> Any:
        if not isinstance(value, types):
            raise Refused
        return value

    return convert


def _list(part: Mapping[str, Any], value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Refused
    return [as_field(part["items"], item) for item in value] if "items" in part else value


CONVERSIONS: Mapping[str, Callable[[Mapping[str, Any], Any], Any]] = {
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "string": _exactly(str),
    "null": _exactly(type(None)),
    "object": _exactly(dict),
    "array": _list,
}
