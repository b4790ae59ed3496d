"""Whether a document has the form of one of our schemas: yes or no, without loading `jsonschema`.

In: a schema of `schemas/` and a document. Out: a bool. Question: is there anything to complain about? What is wrong
says `jsonschema` (violations.py), which is asked only after a no: loading it and walking a plan with it take a quarter
of the main command. The tests hold both to the same answer, on documents broken at every place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import combinations
from numbers import Number
from typing import Any

Schema = Mapping[str, Any]
Keyword = Callable[[Any, Any, Schema, Schema], bool]

SAYS_NOTHING = frozenset({"$schema", "$defs", "$comment", "title", "description", "deprecated", "then"})
"""Keywords that no value can break; `then` is read with its `if`."""


def conforms(document: Any, schema: Schema, root: Schema) -> bool:
    """Whether the document breaks no keyword; raises KeyError for a keyword that none of our schemas uses.

    `root` is the schema whose `$defs` a `$ref` names.
    """
    for keyword, wanted in schema.items():  # a loop, for `all` of a generator takes a third longer
        if keyword not in SAYS_NOTHING and not KEYWORDS[keyword](document, wanted, schema, root):
            return False
    return True


def _same(one: Any, other: Any) -> bool:
    """Equality as JSON has it: true is not 1, and 1.0 is."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())


TYPES: Mapping[str, Callable[[Any], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": _is_integer,
    "null": lambda value: value is None,
    "number": _is_number,
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


def _type(value: Any, wanted: Any, schema: Schema, root: Schema) -> bool:
    if isinstance(wanted, str):
        return TYPES[wanted](value)
    return any(TYPES[kind](value) for kind in wanted)


def _properties(value: Any, wanted: Any, schema: Schema, root: Schema) -> bool:
    if not isinstance(value, dict):
        return True
    return all(conforms(inner, wanted[key], root) for key, inner in value.items() if key in wanted)


def _additional_properties(value: Any, wanted: Any, schema: Schema, root: Schema) -> bool:
    if not isinstance(value, dict):
        return True
    others = value.keys() - schema.get("properties", {}).keys()
    return not others if wanted is False else all(conforms(value[key], wanted, root) for key in others)


def _if(value: Any, wanted: Any, schema: Schema, root: Schema) -> bool:
    return not conforms(value, wanted, root) or conforms(value, schema["then"], root)


KEYWORDS: Mapping[str, Keyword] = {
    "$ref": lambda value, wanted, schema, root: conforms(value, root["$defs"][wanted.removeprefix("#/$defs/")], root),
    "type": _type,
    "enum": lambda value, wanted, schema, root: any(_same(value, choice) for choice in wanted),
    "const": lambda value, wanted, schema, root: _same(value, wanted),
    "minimum": lambda value, wanted, schema, root: not (_is_number(value) and value < wanted),
    "maximum": lambda value, wanted, schema, root: not (_is_number(value) and value > wanted),
    "exclusiveMinimum": lambda value, wanted, schema, root: not (_is_number(value) and value <= wanted),
    "exclusiveMaximum": lambda value, wanted, schema, root: not (_is_number(value) and value >= wanted),
    "minLength": lambda value, wanted, schema, root: not isinstance(value, str) or len(value) >= wanted,
    "pattern": lambda value, wanted, schema, root: not isinstance(value, str) or re.search(wanted, value) is not None,
    "minItems": lambda value, wanted, schema, root: not isinstance(value, list) or len(value) >= wanted,
    "maxItems": lambda value, wanted, schema, root: not isinstance(value, list) or len(value) <= wanted,
    "uniqueItems": lambda value, wanted, schema, root: (
        not isinstance(value, list) or not any(_same(one, other) for one, other in combinations(value, 2))
    ),
    "items": lambda value, wanted, schema, root: (
        not isinstance(value, list) or all(conforms(item, wanted, root) for item in value)
    ),
    "properties": _properties,
    "additionalProperties": _additional_properties,
    "required": lambda value, wanted, schema, root: not isinstance(value, dict) or all(map(value.__contains__, wanted)),
    "minProperties": lambda value, wanted, schema, root: not isinstance(value, dict) or len(value) >= wanted,
    "anyOf": lambda value, wanted, schema, root: any(conforms(value, option, root) for option in wanted),
    "allOf": lambda value, wanted, schema, root: all(conforms(value, part, root) for part in wanted),
    "not": lambda value, wanted, schema, root: not conforms(value, wanted, root),
    "if": _if,
}
