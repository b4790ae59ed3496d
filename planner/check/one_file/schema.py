"""A document against one of our JSON Schemas.

In: the document and the schema's name. Out: Problems with `$.path`, the unknown keys one by one with the nearest
right spelling or the section they belong to. Answers: are all keys known, and all values of the right type and range?
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from planner.check.loader import refusals
from planner.check.loader.kept import is_typed, outcome_of
from planner.check.loader.kept_in_yaml import outcome_in_yaml
from planner.check.loader.launching import launch_refusals
from planner.check.one_file.keys import unknown_key
from planner.check.one_file.violations import Violation, violations
from planner.check.rules import finding
from planner.errors import one_line
from planner.records.problem import Problem, Severity
from planner.resources import read_text

IDLE_WHEN_OFF = ("autotuning", "data_efficiency", "flops_profiler", "expert_parallel")
"""Plain sections of DeepSpeed of which nothing but `enabled` is looked at while it is false."""
AS_IT_IS = (("fsdp_cpu_offload", False), ("fsdp_limit_all_gathers", True), ("limit_all_gathers", True))
"""Keys that accelerate does not read, with the value that it takes anyway."""
VALUE_RULE = {"deepspeed": "DS013", "accelerate": "DS112"}  # DS201 for our own documents


def schema_problems(document: Any, schema_name: str) -> list[Problem]:
    """Everything the schema `schemas/<schema_name>.schema.json` has to say."""
    schema = load_schema(schema_name)
    refused = {}
    if schema_name in VALUE_RULE:
        refused = refusals(document, schema) if schema_name == "deepspeed" else launch_refusals(document)
    broken_rules = violations(schema, document)
    problems = [p for broken in broken_rules for p in _problems_of(broken, schema_name, schema, refused, document)]
    if schema_name == "deepspeed":
        problems = [_milder(problem) if _is_idle(document, problem) else problem for problem in problems]
    elif schema_name == "accelerate":
        problems = [_milder(problem) if _changes_nothing(document, problem) else problem for problem in problems]
    return sorted(problems, key=lambda problem: (problem.path, problem.rule, problem.message))


def _changes_nothing(document: Any, problem: Problem) -> bool:
    """Whether a key that nobody reads asks for what is in force anyway, or for speed only."""
    if problem.rule != "DS111" or not isinstance(document, Mapping):
        return False
    block, _, key = problem.path.removeprefix("$.").partition(".")
    if key in ("bf16", "fp16") and document.get("mixed_precision") == key:
        value = document[block].get(key)
        return (value.get("enabled") if isinstance(value, Mapping) else value) in (True, "auto")
    return key in ("fsdp_backward_prefetch_policy", "fsdp") or (key, document[block].get(key)) in AS_IT_IS


def _is_idle(document: Any, problem: Problem) -> bool:
    """Whether the fault stands in a section that is not looked at: switched off, or aio without NVMe."""
    if problem.severity is not Severity.ERROR or problem.bites not in ("silently", "engine init", "first step"):
        return False
    name = problem.path.removeprefix("$.").partition(".")[0]
    block = document.get(name) if isinstance(document, Mapping) else None
    if name == "aio":
        return '"nvme"' not in json.dumps(document.get("zero_optimization"), default=str)
    return name in IDLE_WHEN_OFF and isinstance(block, Mapping) and block.get("enabled") is False


def _milder(problem: Problem) -> Problem:
    return replace(problem, severity=Severity.WARNING, bites="silently")


@cache
def load_schema(name: str) -> dict[str, Any]:
    """One of the schemas as a dict; not to be changed by the caller."""
    loaded: dict[str, Any] = json.loads(read_text("schemas", f"{name}.schema.json"))
    return loaded


def json_path(parts: Iterable[str | int]) -> str:
    """`$.a.b[0]` from the parts of a path."""
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _problems_of(
    broken: Violation, schema_name: str, schema: Mapping[str, Any], refused: Mapping[str, str], document: Any
) -> Iterator[Problem]:
    path, rule = json_path(broken.path), VALUE_RULE.get(schema_name, "DS201")
    if broken.keyword == "additionalProperties":
        for key in sorted(map(str, broken.wanted)):
            problem = unknown_key(path, key, broken.value, broken.schema, schema, schema_name)
            dropped = problem.rule == "DS010" and problem.path not in refused  # its value is "auto"
            yield replace(problem, severity=Severity.WARNING, bites="silently") if dropped else problem
    elif broken.keyword == "required":
        for key in broken.wanted:
            if key not in broken.value:
                yield finding(rule, f"{path}.{key}", f"`{key}` is missing", fix=f"add `{key}`")
    elif broken.keyword == "not":
        keys = broken.wanted["required"]
        message = f"{' and '.join(f'`{key}`' for key in keys)} are the same setting"
        place = f"{path}.{keys[0]}"
        if schema_name != "deepspeed" or place in refused:
            yield finding("DS003", place, message, fix="leave one of them")
    elif schema_name == "deepspeed" and broken.value == "auto" and path == "$.steps_per_print":
        return  # accelerate writes infinity over it; who does not read through it is told by reader_rules
    elif schema_name == "deepspeed" and broken.value == "auto" and path not in refused and not _is_switch(broken):
        yield _unresolved_auto(path)
    else:
        expected, note, severity, bites = _expected(broken), "", None, None
        if schema_name in VALUE_RULE and path not in refused:
            outcome = (
                outcome_of(path, broken.value, broken.schema)
                if schema_name == "deepspeed"
                else outcome_in_yaml(document, path, broken.value)
            )
            if outcome is None:
                return
            note, severity, bites = outcome.note, outcome.severity, outcome.bites
        message = f"`{_shortened(broken.value)}` is not {expected}{note}"
        yield finding(rule, path, message, fix=f"write {expected}", severity=severity, bites=bites)


def _is_switch(broken: Violation) -> bool:
    """A plain true or false, which DeepSpeed only asks whether it is true."""
    return broken.schema.get("type") == "boolean" and not is_typed(json_path(broken.path))


def _shortened(value: Any) -> str:
    text = one_line(json.dumps(value, default=str))
    return text if len(text) <= 80 else text[:77] + "..."


def _unresolved_auto(path: str) -> Problem:
    if path in ("$.zero_optimization.stage", "$.tensor_parallel.autotp_size"):
        return finding(
            "DS014", path, 'nothing replaces `"auto"` here: ZeRO and tensor parallelism stay off', fix="write a number"
        )
    if path.endswith(".device"):
        return finding("DS014", path, 'nothing replaces `"auto"` here: nothing is offloaded', fix="write the device")
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
    if keyword == "pattern" and "examples" in schema:  # a closed list of words, in any case
        return "one of " + ", ".join(json.dumps(item) for item in schema["examples"])
    if keyword == "pattern":
        return f"text of the form {wanted}"
    if keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        return "a number" + _range(schema)
    return f"allowed ({keyword} {json.dumps(wanted, default=str)[:80]})"


def _range(schema: Mapping[str, Any]) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    bounds = [f"{word} {schema[key]}" for key, word in words.items() if key in schema]
    return " " + " and ".join(bounds) if bounds else ""
