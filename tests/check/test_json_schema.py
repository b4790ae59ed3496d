"""Our schemas are schemas, accept what we write, and say where a broken document is broken."""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
from handmade_plans import make_document, make_plan, random_plans

from planner.check.one_file.schema import load_schema
from planner.check.one_file.violations import violations
from planner.render.accelerate_yaml import accelerate_config
from planner.render.deepspeed_json import deepspeed_config

jsonschema = pytest.importorskip("jsonschema")
sys.path.insert(0, str(Path(__file__).parents[1] / "schemas"))
from schema_cases import NAMES, read_cases  # noqa: E402

ODD_VALUES = (None, True, False, 0, 1, -1, 1.0, 1.5, 2, "auto", "", "3", [], [1, 1], [True, 1], {}, {"a": 1}, 10**30)


def documents(name: str) -> list[Any]:
    plans = random_plans(12, seed=5)
    if name == "plan":
        return [make_document(plan) for plan in plans]
    if name == "deepspeed":
        return [deepspeed_config(plan.request, plan.ranked[0].candidate) for plan in plans]
    if name == "accelerate":
        return [accelerate_config(plan.request.cluster, plan.ranked[0].candidate) for plan in plans]
    return [case["document"] for case in read_cases(name)["good"]]


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
def test_good_documents_pass_and_broken_ones_are_found(name: str) -> None:
    schema, draw = load_schema(name), Random(7)
    good = documents(name)
    bad = [copy for document in good for copy in broken_copies(document, 600 // len(good), draw)]
    for document in good:
        assert list(violations(schema, document)) == []
    reference = jsonschema.Draft202012Validator(schema)
    refused = [document for document in bad if not reference.is_valid(document)]
    assert len(bad) == 600
    assert len(refused) > 150
    for document in refused:
        found = list(violations(schema, document))
        assert found
        assert len({(v.path, v.keyword) for v in found if v.keyword == "required"}) == sum(
            v.keyword == "required" for v in found
        )


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
