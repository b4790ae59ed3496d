"""The part of JSON Schema 2020-12 that dsplan's own schemas use.

In: a schema and a document. Out: violations. Answers: does the document have the schema's form, and where not?
Why not the package `jsonschema`: importing it takes longer than the whole search (150 ms), and the files of every plan
are checked before they are written. The tests compare both on every schema and thousands of documents. A keyword that
is not known here is refused, so no schema can say more than is checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

ANNOTATIONS = {"$schema", "$defs", "$comment", "title", "description", "deprecated"}
PYTHON_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One keyword that one value breaks; `value` is that value, `schema` the part of the schema that says so."""

    path: tuple[str | int, ...]
    keyword: str
    wanted: Any
    value: Any
    schema: Mapping[str, Any]


def violations(schema: Mapping[str, Any], document: Any) -> Iterator[Violation]:
    """Everything that is wrong with the document; raises ValueError for a schema with an unknown keyword."""
    return _walk(schema, schema, document, ())


def _walk(
    root: Mapping[str, Any], schema: Mapping[str, Any], value: Any, path: tuple[str | int, ...]
) -> Iterator[Violation]:
    for keyword, wanted in schema.items():
        if keyword in ANNOTATIONS or keyword == "then":
            continue
        if keyword in NESTED:
            yield from NESTED[keyword](root, schema, value, path)
        elif keyword not in SIMPLE:
            raise ValueError(f"`{keyword}` is no keyword that dsplan's schemas may use")
        elif not SIMPLE[keyword](value, wanted):
            yield Violation(path=path, keyword=keyword, wanted=wanted, value=value, schema=schema)


def _is_type(value: Any, wanted: str | list[str]) -> bool:
    return any(_is_one_type(value, name) for name in ([wanted] if isinstance(wanted, str) else wanted))


def _is_one_type(value: Any, name: str) -> bool:
    if name == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if name == "integer":
        return (isinstance(value, int) and not isinstance(value, bool)) or (
            isinstance(value, float) and value.is_integer()
        )
    return isinstance(value, PYTHON_TYPES[name])


def _same(one: Any, other: Any) -> bool:
    """JSON equality: true is not 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _number(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda value, bound: not _is_one_type(value, "number") or compare(value, bound)


def _are_unique(items: list[Any]) -> bool:
    return not any(_same(item, other) for i, item in enumerate(items) for other in items[:i])


SIMPLE: Mapping[str, Callable[[Any, Any], bool]] = {
    "type": _is_type,
    "enum": lambda value, wanted: any(_same(value, item) for item in wanted),
    "const": _same,
    "minimum": _number(lambda value, bound: value >= bound),
    "maximum": _number(lambda value, bound: value <= bound),
    "exclusiveMinimum": _number(lambda value, bound: value > bound),
    "exclusiveMaximum": _number(lambda value, bound: value < bound),
    "minLength": lambda value, bound: not isinstance(value, str) or len(value) >= bound,
    "pattern": lambda value, pattern: not isinstance(value, str) or re.search(pattern, value) is not None,
    "required": lambda value, keys: not isinstance(value, dict) or all(key in value for key in keys),
    "minProperties": lambda value, bound: not isinstance(value, dict) or len(value) >= bound,
    "minItems": lambda value, bound: not isinstance(value, list) or len(value) >= bound,
    "maxItems": lambda value, bound: not isinstance(value, list) or len(value) <= bound,
    "uniqueItems": lambda value, wanted: not isinstance(value, list) or not wanted or _are_unique(value),
}


def _reference(root: Mapping[str, Any], schema: Mapping[str, Any], value: Any, path: Any) -> Iterator[Violation]:
    return _walk(root, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], value, path)


def _properties(root: Mapping[str, Any], schema: Mapping[str, Any], value: Any, path: Any) -> Iterator[Violation]:
    if isinstance(value, dict):
        for key, inner in schema["properties"].items():
            if key in value:
                yield from _walk(root, inner, value[key], (*path, key))


def _additional(root: Mapping[str, Any], schema: Mapping[str, Any], value: Any, path: Any) -> Iterator[Violation]:
    if not isinstance(value, dict):
        return
    rest, known = schema["additionalProperties"], schema.get("properties", {})
    unknown = [key for key in value if key not in known]
    if rest is False and unknown:
        yield Violation(path=path, keyword="additionalProperties", wanted=unknown, value=value, schema=schema)
    elif isinstance(rest, Mapping):
        for key in unknown:
            yield from _walk(root, rest, value[key], (*path, key))


def _items(root: Mapping[str, Any], schema: Mapping[str, Any], value: Any, path: Any) -> Iterator[Violation]:
    for index, item in enumerate(value if isinstance(value, list) else ()):
        yield from _walk(root, schema["items"], item, (*path, index))


def _all_of(root: Mapping[str, Any], schema: Mapping[str, Any], value: Any, path: Any) -> Iterator[Violation]:
    for part in schema["allOf"]:
        yield from _walk(root, part, value, path)


def _any_of(root: Mapping[str, Any], schema: Mapping[str, Any], value: Any, path: Any) -> Iterator[Violation]:
    """Of alternatives that all fail, the complaints of the one meant: of the value's type, and the furthest inside."""
    failed = []
    for option in schema["anyOf"]:
        found = list(_walk(root, option, value, path))
        if not found:
            return
        failed.append(found)
    yield from max(failed, key=_closeness)


def _closeness(found: list[Violation]) -> tuple[bool, int]:
    other_kind = found[0].keyword == "const" or (found[0].keyword == "type" and found[0].wanted == "null")
    return not other_kind, max(
        len(violation.path) + (violation.keyword not in ("type", "const")) for violation in found
    )


def _not(root: Mapping[str, Any], schema: Mapping[str, Any], value: Any, path: Any) -> Iterator[Violation]:
    if next(_walk(root, schema["not"], value, path), None) is None:
        yield Violation(path=path, keyword="not", wanted=schema["not"], value=value, schema=schema)


def _if(root: Mapping[str, Any], schema: Mapping[str, Any], value: Any, path: Any) -> Iterator[Violation]:
    if next(_walk(root, schema["if"], value, path), None) is None:
        yield from _walk(root, schema["then"], value, path)


NESTED: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any], Any, Any], Iterator[Violation]]] = {
    "$ref": _reference,
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
    "allOf": _all_of,
    "anyOf": _any_of,
    "not": _not,
    "if": _if,
}
