"""What dsplan writes has the form that the schemas say: answers, requests, rendered files, examples, shipped tables."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from schema_cases import ROOT
from schema_documents import REQUESTS, answers

from planner import toml
from planner.check.one_file.schema import load_schema
from planner.check.one_file.violations import violations

ROWS = {
    "autotp": 34,
    "families": 34,
    "gpus": 61,
    "liger": 30,
    "links": 44,
    "models": 142,
    "nodes": 106,
    "optimizers": 6,
    "speed": 43,
    "versions": 14,
}


def found(name: str, document: Any) -> list[Any]:
    return list(violations(load_schema(name), document))


def test_plan_documents_have_their_form_also_after_json() -> None:
    documents = [answer.to_dict() for answer in answers()]
    for document in documents:
        assert found("plan", json.loads(json.dumps(document))) == []
    assert len(documents) == len(REQUESTS) == 6
    assert [bool(document["plans"]) for document in documents].count(True) == 5
    assert any(document["remedies"] for document in documents)


def test_the_request_of_a_plan_document_is_a_request_that_gives_the_same_plan() -> None:
    from planner import plan

    for answer in answers():
        document = answer.to_dict()
        assert found("request", document["request"]) == []
    again = plan(**answers()[3].to_dict()["request"]).to_dict()
    assert again["plans"] == answers()[3].to_dict()["plans"]


def test_estimates_have_the_form_of_plan_documents() -> None:
    from planner import estimate

    for request in ({"zero": 3, "micro_batch": 2}, {"zero": 0, "micro_batch": 64}):
        assert found("plan", estimate(model="7b", gpus="8xA100-80G", **request).to_dict()) == []


def test_rendered_files_have_their_form() -> None:
    count = 0
    for answer in answers():
        if answer.to_dict()["plans"]:
            files = answer.files()
            assert found("deepspeed", json.loads(files["ds_config.json"])) == []
            assert found("accelerate", yaml.safe_load(files["accelerate.yaml"])) == []
            assert found("plan", json.loads(files["plan.json"])) == []
            count += 1
    assert count == 5


def test_the_schema_beside_a_rendered_file_is_ours() -> None:
    files = answers()[0].files()
    named = json.loads(files["ds_config.json"])["$schema"]
    assert json.loads(files[named]) == load_schema("deepspeed")
    assert json.loads(files["accelerate.schema.json"]) == load_schema("accelerate")


def test_committed_examples_have_their_form() -> None:
    folders = sorted((ROOT / "examples").glob("*/plan"))
    for folder in folders:
        assert found("plan", json.loads((folder / "plan.json").read_text())) == []
        assert found("deepspeed", json.loads((folder / "ds_config.json").read_text())) == []
        assert found("accelerate", yaml.safe_load((folder / "accelerate.yaml").read_text())) == []
    assert len(folders) >= 2


@pytest.mark.parametrize("name", sorted(ROWS))
def test_shipped_tables_have_their_form(name: str) -> None:
    document = toml.loads((ROOT / "planner" / "catalog" / "data" / f"{name}.toml").read_text(encoding="utf-8"))
    schema = load_schema("catalog")
    assert found("catalog", document) == []
    assert list(violations({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]}, document)) == []
    tables = [document] if name in ("families", "optimizers") else [document["types"]] if "types" in document else []
    tables = tables or [table for table in document.values() if isinstance(table, (list, dict))]
    assert sum(len(table) for table in tables) >= ROWS[name]


def test_every_shipped_table_is_checked() -> None:
    files = {path.stem for path in (ROOT / "planner" / "catalog" / "data").glob("*.toml")}
    assert files == set(ROWS)


def test_rows_have_the_keys_that_dsplan_reads() -> None:
    from planner.spec import cluster_file, hf_config

    definitions = load_schema("catalog")["$defs"]
    assert set(definitions["cluster"]["properties"]) == set(cluster_file.KEYS)
    assert {*hf_config.SWITCHES, *hf_config.FIXED_TRAITS} <= set(definitions["family"]["properties"])


def test_requests_have_the_keys_and_choices_that_dsplan_knows() -> None:
    from planner.records.model import Method, Precision
    from planner.records.request import Attention, Integration, Launcher, Loss, Objective, Optimizer, Stack
    from planner.spec.request import FIELDS

    properties = load_schema("request")["properties"]
    assert set(properties) == {"id", *FIELDS}
    kinds = {"method": Method, "attention": Attention, "loss": Loss, "objective": Objective, "optimizer": Optimizer}
    kinds |= {"stack": Stack, "integration": Integration}
    for name, kind in kinds.items():
        assert set(properties[name]["enum"]) - {None} == {member.value for member in kind}, name
    assert set(properties["precision"]["enum"]) - {None} == {"auto", *(member.value for member in Precision)}
    assert {member.value for member in Launcher} <= set(properties["launcher"]["enum"])


def test_a_measurement_holds_what_a_point_needs_to_be_scored() -> None:
    """What a point has to say, its counters and its speed, by where a measurement says it."""
    from planner.accuracy.points import KEYS

    schema = load_schema("measurement")
    run = schema["properties"]["run"]["properties"]
    hardware = schema["properties"]["hardware"]["properties"]
    places = {
        **dict.fromkeys(("hidden", "layers", "heads", "ffn", "vocab"), schema["properties"]["model_config"]),
        "model": schema["properties"]["model"],
        "params_b": schema["properties"]["parameters"],
        "gpu_class": hardware["gpu"],
        "gpu_mem_gb": hardware["gpu_memory_bytes"],
        "gpu_count": hardware["gpus_per_node"],
        "nodes": hardware["nodes"],
        "zero_stage": run["zero_stage"],
        "tp": run["tp"],
        "dp": run["dp"],
        "micro_batch": run["micro_batch"],
        "seq_len": run["seq_len"],
        "grad_checkpoint": run["checkpointing"],
        "offload": run["offload"],
        "dtype": run["precision"],
        "optimizer": run["optimizer"],
        "method": run["method"],
        "grad_accum": run["accumulation"],
        "measured_peak_gib": schema["$defs"]["peaks"]["properties"]["allocated_bytes"],
        "reserved_gib": schema["$defs"]["peaks"]["properties"]["reserved_bytes"],
        "host_ram_gb": schema["$defs"]["memory"]["properties"]["host_bytes"],
        "step_time_s": schema["$defs"]["time"]["properties"]["step_seconds"],
        "outcome": schema["properties"]["outcome"],
    }
    assert set(places) <= set(KEYS)
    assert all(place["description"] for place in places.values())
    assert {"run", "model_config", "hardware", "memory", "time", "versions", "outcome"} <= set(schema["required"])
