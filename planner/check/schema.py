"""A document against one of our JSON Schemas.

In: the document and the schema's name. Out: Problems with `$.path`, the unknown keys one by one with the nearest
right spelling or the section they belong to. Answers: are all keys known, and all values of the right type and range?
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from planner.check.keys import unknown_key
from planner.check.rules import finding
from planner.errors import one_line
from planner.records.problem import Problem, Severity
from planner.resources import read_text

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

VALUE_RULE = {"deepspeed": "DS013", "accelerate": "DS112", "plan": "DS201", "smoke": "DS201"}
LOOSE_WORDS = {"true", "false", "yes", "no", "on", "off"}


def schema_problems(document: Any, schema_name: str) -> list[Problem]:
    """Everything the schema `schemas/<schema_name>.schema.json` has to say."""
    problems: list[Problem] = []
    for error in _validator(schema_name).iter_errors(document):
        problems.extend(_problems_of(_deepest(error), schema_name))
    return sorted(problems, key=lambda problem: (problem.path, problem.rule, problem.message))


@cache
def load_schema(name: str) -> dict[str, Any]:
    """One of the schemas as a dict; not to be changed by the caller."""
    loaded: dict[str, Any] = json.loads(read_text("schemas", f"{name}.schema.json"))
    return loaded


@cache
def _validator(name: str) -> Validator:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(load_schema(name))


def json_path(parts: Any) -> str:
    """`$.a.b[0]` from the parts of a path."""
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _deepest(error: Any) -> Any:
    """Of several alternatives that all fail, the complaint that got furthest into the document."""
    while error.validator in ("anyOf", "oneOf") and error.context:
        inside = [inner for inner in error.context if inner.validator != "const"] or list(error.context)
        deeper = [inner for inner in inside if len(inner.path) > 0 or inner.validator == "additionalProperties"]
        error = max(deeper or inside[:1], key=lambda inner: len(inner.path))
    return error


def _problems_of(error: Any, schema_name: str) -> Iterator[Problem]:
    path = json_path(error.absolute_path)
    if error.validator == "additionalProperties":
        known = error.schema.get("properties", {})
        for key in sorted(set(error.instance) - set(known), key=str):
            yield unknown_key(path, str(key), known, load_schema(schema_name), schema_name)
        return
    value = one_line(json.dumps(error.instance, default=str))
    value = value if len(value) <= 80 else value[:77] + "..."
    if schema_name == "deepspeed" and error.instance == "auto":
        yield _unresolved_auto(path)
        return
    rule = VALUE_RULE[schema_name]
    if error.validator == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        for key in missing:
            yield finding(rule, f"{path}.{key}", f"`{key}` is missing", fix=f"add `{key}`")
        return
    if error.validator == "not":
        keys = error.validator_value["required"]
        message = f"{' and '.join(f'`{key}`' for key in keys)} are the same setting"
        yield finding("DS003", f"{path}.{keys[0]}", message, fix="leave one of them")
        return
    expected = _expected(error)
    loose = schema_name == "deepspeed" and path.count(".") > 1 and _is_loose(error)
    yield finding(
        rule,
        path,
        f"`{value}` is not {expected}" + ("; DeepSpeed converts it" if loose else ""),
        fix=f"write {expected}",
        severity=Severity.WARNING if loose else None,
    )


def _unresolved_auto(path: str) -> Problem:
    if path in ("$.zero_optimization.stage", "$.tensor_parallel.autotp_size"):
        return finding(
            "DS014", path, 'nothing replaces `"auto"` here: ZeRO and tensor parallelism stay off', fix="write a number"
        )
    if path.count(".") > 1 and not path.startswith(("$.optimizer", "$.scheduler")):
        message = '`"auto"` is dropped here, and DeepSpeed takes its default'
        return finding("DS014", path, message, fix="write a value, or leave the key out", severity=Severity.WARNING)
    return finding("DS014", path, 'nothing replaces `"auto"` here', fix="write a value", bites="engine init")


def _expected(error: Any) -> str:
    """What the schema wants, in words."""
    wanted, schema = error.validator_value, error.schema
    names = {
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
        "string": "text",
        "null": "null",
    }
    names |= {"object": "a section", "array": "a list"}
    if error.validator == "enum":
        return "one of " + ", ".join(json.dumps(item) for item in wanted)
    if error.validator == "const":
        return json.dumps(wanted)
    if error.validator == "type":
        kinds = [wanted] if isinstance(wanted, str) else wanted
        return " or ".join(names[kind] for kind in kinds) + _range(schema)
    if error.validator == "pattern":
        return f"text of the form {wanted}"
    if error.validator in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        return "a number" + _range(schema)
    return f"allowed ({error.validator} {json.dumps(wanted, default=str)[:80]})"


def _range(schema: Mapping[str, Any]) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    bounds = [f"{word} {schema[key]}" for key, word in words.items() if key in schema]
    return " " + " and ".join(bounds) if bounds else ""


def _is_loose(error: Any) -> bool:
    """Whether pydantic would quietly turn the value into the wanted type."""
    wanted, value = error.validator_value, error.instance
    if error.validator == "enum" and all(isinstance(item, int) for item in wanted):
        return str(value) in {str(item) for item in wanted} or (isinstance(value, bool) and int(value) in wanted)
    if error.validator != "type":
        return False
    kinds = [wanted] if isinstance(wanted, str) else wanted
    if "boolean" in kinds:
        return value in (0, 1) or (
            isinstance(value, str) and value.lower() in LOOSE_WORDS | {"0", "1", "t", "f", "y", "n"}
        )
    if ("integer" in kinds or "number" in kinds) and isinstance(value, str):
        return _parses(value, integer="number" not in kinds)
    return isinstance(value, bool)


def _parses(text: str, *, integer: bool) -> bool:
    try:
        return float(int(text) if integer else float(text)) >= 0
    except (ValueError, OverflowError):
        return False
