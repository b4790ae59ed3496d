"""Our schemas are schemas, accept what we write, and say where a broken document is broken."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
from handmade_plans import make_document, make_plan, random_plans

from planner.check.conforms import KEYWORDS, SAYS_NOTHING, conforms
from planner.check.schema import load_schema
from planner.check.violations import violations
from planner.render.accelerate_yaml import accelerate_config
from planner.render.deepspeed_json import deepspeed_config

jsonschema = pytest.importorskip("jsonschema")
NAMES = ("accelerate", "deepspeed", "plan", "smoke")
ODD_VALUES = (None, True, False, 0, 1, -1, 1.0, 1.5, 2, "auto", "", "3", [], [1, 1], [True, 1], {}, {"a": 1}, 10**30)
SMOKE = {
    "passed": True,
    "error": None,
    "launcher": "accelerate",
    "ranks": 2,
    "tp": 1,
    "dp": 2,
    "steps": 3,
    "losses": [1.5, 1.4],
    "seconds": 20.5,
    "not_shown": ["memory"],
    "log_tail": [""],
    "versions": {"torch": "2.13.0"},
    "checks": [{"what": "stage", "expected": 3, "found": 3, "ok": True, "ranks_failed": []}],
    "memory": {
        "skipped": None,
        "limit_percent": 3.0,
        "phases": [
            {
                "phase": phase,
                "predicted_bytes": 100,
                "measured_bytes": 101,
                "difference_percent": -0.99,
                "within_limit": True,
            }
            for phase in ("load", "init", "forward", "backward", "step")
        ],
    },
    "model_config": {},
}


def documents(name: str) -> list[Any]:
    plans = random_plans(12, seed=5)
    if name == "smoke":
        return [SMOKE]
    if name == "plan":
        return [make_document(plan) for plan in plans]
    if name == "deepspeed":
        return [deepspeed_config(plan.request, plan.ranked[0].candidate) for plan in plans]
    return [accelerate_config(plan.request.cluster, plan.ranked[0].candidate) for plan in plans]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in inner for place in places(child, (*path, key)))]


def broken_copies(document: Any, count: int, draw: Random) -> list[Any]:
    """The document with one value replaced, removed, or one key added."""
    copies = []
    for _ in range(count):
        copy = deepcopy(document)
        path = draw.choice([place for place in places(copy) if place])
        parent = copy
        for key in path[:-1]:
            parent = parent[key]
        kind = draw.randrange(4)
        if kind == 0:
            del parent[path[-1]]
        elif kind == 1 and isinstance(parent, dict):
            parent[draw.choice(("stage", "made_up", "enabled", "device"))] = draw.choice(ODD_VALUES)
        else:
            parent[path[-1]] = draw.choice(ODD_VALUES)
        copies.append(copy)
    return copies


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_is_a_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(load_schema(name))


def test_every_schema_file_is_tested_here() -> None:
    names = {path.name.split(".")[0] for path in (Path(__file__).parents[2] / "schemas").glob("*.schema.json")}
    assert set(NAMES) <= names


@pytest.mark.parametrize("name", NAMES)
def test_good_documents_pass_and_broken_ones_are_found(name: str) -> None:
    schema, draw = load_schema(name), Random(7)
    good = documents(name)
    bad = [copy for document in good for copy in broken_copies(document, 600 // len(good), draw)]
    for document in good:
        assert conforms(document, schema, schema)
        assert list(violations(schema, document)) == []
    reference = jsonschema.Draft202012Validator(schema)
    refused = [document for document in bad if not reference.is_valid(document)]
    assert len(bad) == 600
    assert len(refused) > 150
    assert [document for document in bad if not conforms(document, schema, schema)] == refused
    for document in refused:
        found = list(violations(schema, document))
        assert found
        assert len({(v.path, v.keyword) for v in found if v.keyword == "required"}) == sum(
            v.keyword == "required" for v in found
        )


SMALL_SCHEMAS = (
    {"enum": [0, 1, "a", None, True]},
    {"const": 1},
    {"const": None},
    {"type": ["integer", "null"], "minimum": 0, "maximum": 2},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 2},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2, "uniqueItems": True},
    {"uniqueItems": True},
    {"type": "string", "minLength": 1, "pattern": "^a|3$"},
    {"type": "object", "required": ["a"], "minProperties": 1},
    {"properties": {"a": {"type": "integer"}}, "additionalProperties": False},
    {"properties": {"b": {}}, "additionalProperties": {"type": "string"}},
    {"$defs": {"one": {"const": 1}}, "properties": {"a": {"$ref": "#/$defs/one"}}},
    {"anyOf": [{"type": "string"}, {"minimum": 1}], "allOf": [{"not": {"const": 2}}]},
    {"if": {"type": "integer"}, "then": {"minimum": 1}},
)
MORE_VALUES = (
    *(False, 0.0, 2.0, 1e300, float("inf"), float("nan"), "a", "ab3"),
    *([1.0, 1], [1, True], [0, False], [1, 2, 3], [[1], [1]], [[1], [True]], [{"a": 1}, {"a": 1.0}]),
    *({"a": 2}, {"a": True}, {"b": "x"}, {"a": 1, "b": 1}),
)


def test_the_quick_judge_agrees_with_jsonschema_keyword_by_keyword() -> None:
    judged = 0
    for schema in SMALL_SCHEMAS:
        reference = jsonschema.Draft202012Validator(schema)
        for value in (*ODD_VALUES, *MORE_VALUES):
            assert conforms(value, schema, schema) is reference.is_valid(value), (schema, value)
            judged += 1
    assert judged == 14 * 37


def test_the_small_schemas_use_every_keyword_of_the_quick_judge() -> None:
    used = set().union(*map(keywords, SMALL_SCHEMAS))
    assert used - SAYS_NOTHING == set(KEYWORDS)


@pytest.mark.parametrize("name", NAMES)
def test_the_quick_judge_knows_every_keyword_of_our_schemas(name: str) -> None:
    found = keywords(load_schema(name))
    assert len(found) > 10
    assert found <= set(KEYWORDS) | SAYS_NOTHING


def keywords(schema: Any) -> set[str]:
    """The keywords of a schema and of all schemas inside it."""
    if not isinstance(schema, dict):
        return set()
    found = set(schema)
    for keyword, wanted in schema.items():
        if keyword in ("properties", "$defs"):
            inner = list(wanted.values())
        elif keyword in ("anyOf", "allOf"):
            inner = wanted
        else:
            inner = [wanted] if keyword in ("items", "additionalProperties", "not", "if", "then") else []
        found = found.union(*map(keywords, inner))
    return found


def test_the_smoke_schema_has_the_fields_of_the_record() -> None:
    from dataclasses import fields

    from planner.launch import Check, SmokeResult

    schema = load_schema("smoke")
    assert set(schema["required"]) == {field.name for field in fields(SmokeResult)}
    assert set(schema["properties"]["checks"]["items"]["required"]) == {field.name for field in fields(Check)}


def test_complaints_name_the_alternative_that_was_meant() -> None:
    document = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"offload_param": {"device": "gpu"}}}
    (broken,) = violations(load_schema("deepspeed"), document)
    assert broken.path == ("zero_optimization", "offload_param", "device")


def test_true_is_not_one_and_a_whole_float_is_an_integer() -> None:
    assert list(violations({"enum": [0, 1]}, True))
    assert not list(violations({"type": "integer"}, 5e8))
    assert list(violations({"type": "integer"}, True))


def test_a_plan_that_does_not_fit_has_no_speed() -> None:
    document = make_document(make_plan())
    document["plans"][0]["verdict"] = "does_not_fit"
    assert [broken.path for broken in violations(load_schema("plan"), document)] == [("plans", 0, "time")]
