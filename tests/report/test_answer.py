"""The answer as text and as a document: what it says about speed, price and energy, and what it may not say.

Expected figures are worked out by hand from the prices, power limits and token counts of the request.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))
from strategies import CLUSTERS, MODELS, requests

from planner import estimate, plan
from planner.records.plan import Verdict
from planner.report.as_json import document
from planner.report.text import estimate_text, plan_text
from planner.resources import read_text

SCHEMA = jsonschema.Draft202012Validator(json.loads(read_text("schemas", "plan.schema.json")))
POWER_W = {"A100-80G": 400, "V100-32G": 300}  # NVIDIA's data sheets of the SXM cards


def flat(text: str) -> str:
    """The text with its line breaks undone."""
    return " ".join(text.split())


@settings(max_examples=40, deadline=None)
@given(requests(), st.sampled_from(("throughput", "memory", "cost")), st.sampled_from((None, 1_000_000)))
def test_every_answer_follows_the_schema_in_eighty_columns(
    fields: dict[str, Any], objective: str, tokens: int | None
) -> None:
    answer = plan(**fields, objective=objective, tokens=tokens)
    SCHEMA.validate(answer.to_dict())
    assert max(map(len, plan_text(answer.plan).splitlines())) <= 80


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.sampled_from(CLUSTERS),
    st.integers(0, 3),
    st.sampled_from((1, 8, 64)),
    st.sampled_from(("none", "full")),
)
def test_a_plan_that_does_not_fit_shows_no_speed(model: str, gpus: str, zero: int, micro: int, kept: str) -> None:
    answer = estimate(model=model, gpus=gpus, zero=zero, micro_batch=micro, checkpointing=kept, tokens=10**9)
    (found,) = answer.to_dict()["plans"]
    SCHEMA.validate(answer.to_dict())
    text = estimate_text(answer.plan)
    assert max(map(len, text.splitlines())) <= 80
    fits = answer.plan.ranked[0].verdict is not Verdict.DOES_NOT_FIT
    assert [found[key] is not None for key in ("time", "energy")] == [fits, fits]
    assert found["pareto"] is fits
    assert fits or found["cost"] is None
    for words in ("tok/s", "time of one step", "where the step", "tokens take", "MFU"):
        assert (words in text) <= fits
    assert ("tok/s" in text) is fits


@pytest.mark.parametrize(("gpus", "name", "count"), [("8xA100-80G", "A100-80G", 8), ("2x8xV100-32G", "V100-32G", 16)])
def test_time_dollars_and_energy_of_a_run_follow_from_its_speed(gpus: str, name: str, count: int) -> None:
    tokens = 250_000_000
    (found, *_) = plan(model="tinyllama-1.1b", gpus=gpus, tokens=tokens).to_dict()["plans"]
    speed = found["time"]["tokens_per_second"]
    seconds = tokens / speed
    assert found["time"]["total_seconds"] == pytest.approx(seconds)
    assert found["cost"]["usd_total"] == pytest.approx(found["cost"]["usd_per_hour"] * seconds / 3600)
    assert found["cost"]["usd_per_billion_tokens"] == pytest.approx(found["cost"]["usd_total"] * 4)
    energy = found["energy"]
    assert energy["gpu_power_limit_watts"] == POWER_W[name]
    assert energy["joules_per_token"] == pytest.approx(POWER_W[name] * count / speed)
    assert energy["kwh_total"] == pytest.approx(POWER_W[name] / 1000 * count * seconds / 3600)
    assert energy["kwh_per_billion_tokens"] == pytest.approx(energy["kwh_total"] * 4)
    assert energy["bound"].startswith("upper")


def test_the_text_says_hours_with_their_range_dollars_and_the_bound_of_energy() -> None:
    answer = plan(model="7b", gpus="8xA100-80G", tokens=10**10)
    found = answer.to_dict()["plans"][0]
    text = flat(plan_text(answer.plan))
    said = re.search(
        r"10,000,000,000 tokens take ([\d.]+) days \(([\d.]+) days to ([\d.]+) days\) and \$([\d,]+)\.", text
    )
    assert said
    days, least, most = (float(said[i]) for i in (1, 2, 3))
    time = found["time"]
    assert days == pytest.approx(10**10 / time["tokens_per_second"] / 86400, abs=0.05)
    assert least == pytest.approx(10**10 / time["tokens_per_second_high"] / 86400, abs=0.05)
    assert most == pytest.approx(10**10 / time["tokens_per_second_low"] / 86400, abs=0.05)
    assert float(said[4].replace(",", "")) == pytest.approx(found["cost"]["usd_total"], abs=0.5)
    assert "8 GPUs at their limit of 400 W, hosts and cooling not counted" in text


def test_the_price_is_that_of_the_cluster_file_and_without_one_there_is_no_cost(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text('gpus = "4xA100-80G"\nusd_per_hour = 7.2\n')
    answer = plan(model="7b", gpus=str(file))
    found = answer.to_dict()["plans"][0]
    per_second = 7.2 / 3600
    assert found["cost"] == {
        "usd_per_hour": 7.2,
        "usd_per_billion_tokens": pytest.approx(per_second * 1e9 / found["time"]["tokens_per_second"]),
    }
    assert "kwh_total" not in found["energy"]
    assert "tokens take" not in plan_text(answer.plan)
    unpriced = replace(answer.plan.request, cluster=replace(answer.plan.request.cluster, usd_per_hour=None))
    assert document(replace(answer.plan, request=unpriced))["plans"][0]["cost"] is None
    gpu = replace(unpriced.cluster.gpu, tdp_w=None)
    unknown = replace(unpriced, cluster=replace(unpriced.cluster, gpu=gpu))
    assert document(replace(answer.plan, request=unknown))["plans"][0]["energy"] is None


def test_the_convention_of_mfu_is_said() -> None:
    answer = plan(model="7b", gpus="8xA100-80G")
    words = "three times forward, causal attention counted half, output head once, no recomputation"
    assert answer.to_dict()["plans"][0]["time"]["mfu_convention"] == f"model FLOPs: {words}"
    assert words in flat(plan_text(answer.plan))
    adapters = plan(model="7b", gpus="8xA100-80G", method="lora").to_dict()["plans"][0]
    assert "two times forward for frozen weights" in adapters["time"]["mfu_convention"]


def test_every_range_is_explained() -> None:
    """Offload rests on few reports and is wider; each plan that is shown is named under its class."""
    answer = plan(model="13b", gpus="4xA100-80G")
    documents = answer.to_dict()["plans"]
    text = flat(plan_text(answer.plan))
    said = re.findall(r"range of plans? ([\d, ]+): \+-(\d+)% \(([^)]*)\)", text)
    assert len(said) == len({d["time"]["error_class"] for d in documents}) == 2
    found = {int(rank): (int(error), reason) for ranks, error, reason in said for rank in ranks.split(",")}
    assert sorted(found) == [1, 2, 3, 4, 5]
    for shown in documents:
        error, reason = found[shown["rank"]]
        time = shown["time"]
        assert reason == time["error_class"]
        assert time["tokens_per_second_high"] == pytest.approx(time["tokens_per_second"] * (1 + error / 100))
        assert time["tokens_per_second_low"] == pytest.approx(time["tokens_per_second"] * (1 - error / 100))


def test_where_the_step_time_goes_adds_up() -> None:
    answer = plan(model="70b", gpus="8x8xH100-80G", checkpointing="full")
    text = flat(plan_text(answer.plan))
    said = re.search(r"where the step time goes: ([^.]*)\.", text)
    assert said
    parts = dict(part.rsplit(" ", 2)[:2] for part in said[1].split(", "))
    assert {"gemm", "recompute"} <= set(parts)
    assert sum(map(int, parts.values())) == pytest.approx(100, abs=3)
    time = answer.to_dict()["plans"][0]["time"]
    gemm = next(t for t in time["terms"] if t["name"] == "compute/gemm")
    assert int(parts["gemm"]) == pytest.approx(100 * gemm["seconds"] / time["step_seconds"], abs=0.51)


def test_estimate_lists_every_time_term() -> None:
    answer = estimate(model="7b", gpus="8xA100-80G", zero=2, micro_batch=1, checkpointing="full")
    time = answer.to_dict()["plans"][0]["time"]
    lines = estimate_text(answer.plan).split("time of one step")[1].split("\n\n")[0].splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[2:]}
    assert len(rows) == len(time["terms"]) + 1 >= 9
    for term in time["terms"]:
        seconds, hidden, share = rows[term["name"]]
        assert float(seconds) == pytest.approx(term["seconds"], rel=1e-3)
        assert float(hidden) == pytest.approx(term["hidden_seconds"], rel=1e-3)
        added = (term["seconds"] - term["hidden_seconds"]) / time["step_seconds"]
        assert float(share.rstrip("%")) == pytest.approx(100 * added, abs=0.051)
        assert term["formula"]
        assert term["source"]
    assert float(rows["step"][0]) == pytest.approx(time["step_seconds"], rel=1e-3)
    assert rows["step"][1] == "100.0%"


def test_the_front_is_marked_in_the_table_and_in_the_document() -> None:
    answer = plan(model="13b", gpus="4xA100-80G", top=20)
    documents = answer.to_dict()["plans"]
    marks = {
        int(found[1]): "+" in found[2]
        for found in (re.match(r"(\d+)([+*]*) +Z\d", line) for line in plan_text(answer.plan).splitlines())
        if found
    }
    assert len(documents) >= 10
    assert marks == {found["rank"]: found["pareto"] for found in documents}
    assert len(set(marks.values())) == 2
    for one in documents:
        for other in documents:
            faster = one["time"]["tokens_per_second"] > other["time"]["tokens_per_second"]
            smaller = one["memory"]["gpu"]["peak_bytes"] < other["memory"]["gpu"]["peak_bytes"]
            assert not (faster and smaller and other["pareto"])


def test_near_misses_and_remedies_are_on_no_front() -> None:
    answer = plan(model="70b", gpus="8xA100-80G", host_ram=512).to_dict()
    near = [*answer["rejected"]["nearest"], *(remedy["plan"] for remedy in answer["remedies"])]
    assert len(near) >= 4
    assert not any(entry["pareto"] for entry in near)
