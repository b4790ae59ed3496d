"""Every schema is one, says what each key means, takes its good examples and refuses its bad ones in their place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from schema_cases import NAMES, ROOT, broken, parts, read_cases
from schema_documents import plan_documents

from planner.check.one_file.schema import load_schema
from planner.check.one_file.violations import violations

COUNTS = {
    "accelerate": (7, 21),
    "catalog": (5, 15),
    "deepspeed": (7, 29),
    "measurement": (3, 15),
    "plan": (0, 12),
    "request": (3, 16),
    "smoke": (2, 10),
}


def test_there_is_a_test_for_every_schema() -> None:
    assert {path.name for path in (ROOT / "schemas").iterdir()} == {f"{name}.schema.json" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_is_valid_by_the_metaschema_and_bound_to_no_place(name: str) -> None:
    schema = load_schema(name)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"]
    assert schema["description"]
    references = [value for key, value in walk(schema) if key == "$ref"]
    assert all(reference.startswith("#/$defs/") for reference in references)
    assert {reference.removeprefix("#/$defs/").split("/")[0] for reference in references} <= set(
        schema.get("$defs", ())
    )
    assert "$id" not in dict(walk(schema))


def walk(value: Any) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(inner, str):
            yield str(key), inner
        yield from walk(inner)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_comes_with_a_sentence(name: str) -> None:
    """Its own, or that of the section that it refers to."""
    schema, silent, count = load_schema(name), [], 0

    def describe(part: Any, path: str) -> None:
        nonlocal count
        if not isinstance(part, dict):
            return
        for key, inner in part.get("properties", {}).items() if "description" in part else ():
            count += 1
            options = [inner, *inner.get("anyOf", ())]
            sections = [schema["$defs"][o["$ref"].removeprefix("#/$defs/")] for o in options if "$ref" in o]
            rows = inner.get("items", inner.get("additionalProperties", {}))
            if not any(str(o.get("description", "")).endswith((".", "?")) for o in (*options, *sections)) and (
                not isinstance(rows, dict) or "$ref" not in rows
            ):
                silent.append(f"{path}.{key}")
        for key, inner in part.items():
            if isinstance(inner, dict):
                describe(inner, f"{path}.{key}")

    describe(schema, "$")
    assert silent == []
    assert count > 15


def documents(name: str) -> list[Any]:
    return plan_documents() if name == "plan" else [case["document"] for case in read_cases(name)["good"]]


@pytest.mark.parametrize("name", NAMES)
def test_good_examples_pass(name: str) -> None:
    schema = load_schema(name)
    for document in documents(name):
        assert list(violations(schema, document)) == []
    assert len(read_cases(name)["good"]) == COUNTS[name][0]


@pytest.mark.parametrize("name", NAMES)
def test_bad_examples_are_refused_at_their_place(name: str) -> None:
    schema, good = load_schema(name), documents(name)
    cases = read_cases(name)["bad"]
    for case in cases:
        found = {(v.path, v.keyword) for v in violations(schema, broken(good[case.get("of", 0)], case))}
        place = parts(case.get("of_path", case["at"]))
        assert (place, case["keyword"]) in found, (case["what"], found)
    assert len(cases) == COUNTS[name][1]


@pytest.mark.slow
@pytest.mark.deepspeed
def test_deepspeed_loads_the_good_examples_and_refuses_the_bad_ones_that_say_so() -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig

    cases, refused = read_cases("deepspeed"), 0
    for case in cases["good"]:
        DeepSpeedConfig(filled(case["document"]))
    for case in cases["bad"]:
        document = filled(broken(cases["good"][case["of"]]["document"], case), keep=case["at"])
        try:
            DeepSpeedConfig(document)
            took = True
        except Exception:
            took = False
        assert took is (case["loads"] == "takes"), case["what"]
        refused += not took
    assert refused == 22


def filled(document: dict[str, Any], keep: str = "") -> dict[str, Any]:
    """The document as the Trainer would fill it; what `keep` names stays."""
    batch = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0}
    return {
        key: batch[key] if value == "auto" and key in batch and key not in keep else value
        for key, value in document.items()
    }


@pytest.mark.slow
@pytest.mark.accelerate
def test_accelerate_loads_the_good_examples_and_refuses_the_bad_ones_that_say_so(tmp_path: Any) -> None:
    pytest.importorskip("accelerate")
    import yaml
    from accelerate.commands.config.config_args import load_config_from_file

    cases, refused = read_cases("accelerate"), 0
    file = tmp_path / "accelerate.yaml"
    for case in cases["good"]:
        file.write_text(yaml.safe_dump(case["document"]))
        load_config_from_file(str(file))
    for case in cases["bad"]:
        file.write_text(yaml.safe_dump(broken(cases["good"][case["of"]]["document"], case)))
        try:
            load_config_from_file(str(file))
            took = True
        except (ValueError, TypeError, KeyError):
            took = False
        assert took is (case["loads"] == "takes"), case["what"]
        refused += not took
    assert refused == 7


def test_dsplan_takes_the_good_requests_and_refuses_the_bad_ones() -> None:
    from planner.errors import PlannerError
    from planner.spec.request import build_request

    cases, refused = read_cases("request"), 0
    for case in cases["good"]:
        build_request({key: value for key, value in case["document"].items() if key not in ("id", "config")})
    for case in cases["bad"]:
        try:
            build_request(broken(cases["good"][case["of"]]["document"], case))
            took = True
        except PlannerError:
            took = False
        assert took is (case.get("asked") == "takes"), case["what"]
        refused += not took
    assert refused == 15
