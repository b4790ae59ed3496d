"""A document against one of our JSON Schemas.

In: the document and the schema's name. Out: Problems with `$.path`, the unknown keys one by one with the nearest
right spelling or the section they belong to. Answers: are all keys known, and all values of the right type and range?
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from planner.check.keys import unknown_key
from planner.check.rules import finding
from planner.check.violations import Violation, violations
from planner.errors import one_line
from planner.records.problem import Problem, Severity
from planner.resources import read_text

VALUE_RULE = {"deepspeed": "DS013", "accelerate": "DS112", "plan": "DS201", "smoke": "DS201"}
LOOSE_WORDS = {"true", "false", "yes", "no", "on", "off"}


def schema_problems(document: Any, schema_name: str) -> list[Problem]:
    """Everything the schema `schemas/<schema_name>.schema.json` has to say."""
    schema = load_schema(schema_name)
    problems = [p for broken in violations(schema, document) for p in _problems_of(broken, schema_name, schema)]
    return sorted(problems, key=lambda problem: (problem.path, problem.rule, problem.message))


@cache
def load_schema(name: str) -> dict[str, Any]:
    """One of the schemas as a dict; not to be changed by the caller."""
    loaded: dict[str, Any] = json.loads(read_text("schemas", f"{name}.schema.json"))
    return loaded


def json_path(parts: Iterable[str | int]) -> str:
    """`$.a.b[0]` from the parts of a path."""
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _problems_of(broken: Violation, schema_name: str, schema: Mapping[str, Any]) -> Iterator[Problem]:
    path, rule = json_path(broken.path), VALUE_RULE[schema_name]
    if broken.keyword == "additionalProperties":
        for key in sorted(map(str, broken.wanted)):
            yield unknown_key(path, key, broken.schema.get("properties", {}), schema, schema_name)
    elif broken.keyword == "required":
        for key in broken.wanted:
            if key not in broken.value:
                yield finding(rule, f"{path}.{key}", f"`{key}` is missing", fix=f"add `{key}`")
    elif broken.keyword == "not":
        keys = broken.wanted["required"]
        message = f"{' and '.join(f'`{key}`' for key in keys)} are the same setting"
        yield finding("DS003", f"{path}.{keys[0]}", message, fix="leave one of them")
    elif schema_name == "deepspeed" and broken.value == "auto":
        yield _unresolved_auto(path)
    else:
        loose = schema_name == "deepspeed" and path.count(".") > 1 and _is_loose(broken)
        expected = _expected(broken)
        message = f"`{_shortened(broken.value)}` is not {expected}" + ("; DeepSpeed converts it" if loose else "")
        yield finding(rule, path, message, fix=f"write {expected}", severity=Severity.WARNING if loose else None)


def _shortened(value: Any) -> str:
    text = one_line(json.dumps(value, default=str))
    return text if len(text) <= 80 else text[:77] + "..."


def _unresolved_auto(path: str) -> Problem:
    if path in ("$.zero_optimization.stage", "$.tensor_parallel.autotp_size"):
        return finding(
            "DS014", path, 'nothing replaces `"auto"` here: ZeRO and tensor parallelism stay off', fix="write a number"
        )
    if path.count(".") > 1 and not path.startswith(("$.optimizer", "$.scheduler")):
        message = '`"auto"` is dropped here, and DeepSpeed takes its default'
        return finding("DS014", path, message, fix="write a value, or leave the key out", severity=Severity.WARNING)
    return finding("DS014", path, 'nothing replaces `"auto"` here', fix="write a value", bites="engine init")


def _expected(broken: Violation) -> str:
    """What the schema wants, in words."""
    wanted, schema, keyword = broken.wanted, broken.schema, broken.keyword
    names = {
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
        "string": "text",
        "null": "null",
    }
    names |= {"object": "a section", "array": "a list"}
    if keyword == "enum":
        return "one of " + ", ".join(json.dumps(item) for item in wanted)
    if keyword == "const":
        return json.dumps(wanted)
    if keyword == "type":
        kinds = [wanted] if isinstance(wanted, str) else wanted
        return " or ".join(names[kind] for kind in kinds) + _range(schema)
    if keyword == "pattern":
        return f"text of the form {wanted}"
    if keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        return "a number" + _range(schema)
    return f"allowed ({keyword} {json.dumps(wanted, default=str)[:80]})"


def _range(schema: Mapping[str, Any]) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    bounds = [f"{word} {schema[key]}" for key, word in words.items() if key in schema]
    return " " + " and ".join(bounds) if bounds else ""


def _is_loose(broken: Violation) -> bool:
    """Whether pydantic would quietly turn the value into the wanted type."""
    wanted, value, keyword = broken.wanted, broken.value, broken.keyword
    if keyword == "enum" and all(isinstance(item, int) for item in wanted):
        return str(value) in {str(item) for item in wanted} or (isinstance(value, bool) and int(value) in wanted)
    if keyword != "type":
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
