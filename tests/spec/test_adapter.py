"""`--method`, `--lora-rank` and `--lora-targets` as they reach the plan document."""

from __future__ import annotations

from typing import Any

import pytest

from planner import estimate, plan
from planner.errors import PlannerError
from planner.records.model import Method
from planner.spec.request import build_request

BASE: dict[str, Any] = {"model": "llama-3-8b", "gpus": "2xA100-80G"}


def test_defaults_are_all_linear_layers_at_rank_sixteen_and_the_answer_says_so() -> None:
    document = estimate(**BASE, method="lora").to_dict()
    assert document["request"]["method"] == "lora"
    assert document["request"]["lora_rank"] == 16
    assert document["request"]["lora_targets"] == ["all-linear"]
    assert any(
        "rank 16 on every linear layer but the head, 41,943,040 parameters (0.52% of the model)" in note
        for note in document["assumptions"]
    )


def test_full_training_has_neither_rank_nor_targets() -> None:
    request = estimate(**BASE).to_dict()["request"]
    assert (request["method"], request["lora_rank"], request["lora_targets"]) == ("full", None, None)


@pytest.mark.parametrize("targets", ["q_proj,v_proj", "v_proj, q_proj,v_proj", ["q_proj", "v_proj"]])
def test_targets_are_text_or_a_list_and_count_once(targets: Any) -> None:
    adapter = build_request({**BASE, "method": "lora", "lora_targets": targets, "lora_rank": "8"}).workload.adapter
    assert adapter is not None
    assert (set(adapter.targets), len(adapter.targets), adapter.rank) == ({"q_proj", "v_proj"}, 2, 8)


def test_a_document_asks_for_itself_again() -> None:
    asked = {"method": "qlora", "lora_rank": 4, "lora_targets": ["o_proj"]}
    first = estimate(**BASE, **asked).to_dict()
    again = {key: first["request"][key] for key in ("method", "lora_rank", "lora_targets", "precision")}
    assert estimate(**BASE, **again).to_dict()["plans"] == first["plans"]


def test_qlora_says_what_is_quantised_and_what_is_not() -> None:
    notes = estimate(**BASE, method="qlora").to_dict()["assumptions"]
    assert any("6,979,321,856 parameters in nf4 with double quantisation" in note for note in notes)


def test_a_mixture_of_experts_names_what_carries_adapters() -> None:
    document = estimate(model="mixtral-8x7b", gpus="8xA100-80G", method="qlora").to_dict()
    assert document["request"]["lora_targets"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert any("carry no adapters and stay unquantised" in note for note in document["assumptions"])


def test_rank_must_be_a_whole_number() -> None:
    with pytest.raises(PlannerError, match=r"`--lora-rank 2\.5` is not a whole number"):
        build_request({**BASE, "method": "lora", "lora_rank": "2.5"})
    with pytest.raises(PlannerError, match="`--lora-targets` is empty"):
        build_request({**BASE, "method": "lora", "lora_targets": " , "})


def test_plans_with_adapters_name_the_packages_they_need() -> None:
    for method, extra in (("full", set()), ("lora", {"peft"}), ("qlora", {"peft", "bitsandbytes"})):
        versions = estimate(**BASE, method=method).to_dict()["versions"]
        assert set(versions) - {"dsplan", "deepspeed", "accelerate", "transformers", "torch"} == extra


def test_what_does_not_fit_whole_is_offered_as_adapters() -> None:
    found = plan(model="13b", gpus="1xRTX-4090", host_ram=64)
    assert not found.fits
    methods = [dict(remedy.fields).get("method") for remedy in found.plan.remedies]
    assert methods[:2] == ["lora", "qlora"]
    assert found.plan.remedies[1].request.workload.method is Method.QLORA


def test_a_script_of_the_user_s_is_told_how_to_make_its_adapters() -> None:
    notes = estimate(**BASE, method="lora", script="mine.py").to_dict()["assumptions"]
    assert any("`mine.py` makes its adapters with `autocast_adapter_dtype=False`" in note for note in notes)
    assert not any("autocast" in note for note in estimate(**BASE, method="lora").to_dict()["assumptions"])


def test_rules_keep_adapters_from_tensor_parallelism_and_packed_weights_on_the_gpu() -> None:
    with pytest.raises(PlannerError, match="AutoTP replaces the modules that carry adapters") as raised:
        estimate(**BASE, method="lora", tp=2)
    assert "tp-adapters" in raised.value.hint
    found = plan(**BASE, method="qlora", micro_batch=1)
    rules = {rejection.rule for rejection in found.plan.rejected}
    assert {"tp-adapters", "qlora-param-offload"} <= rules
    assert all(one.candidate.degrees.tp == 1 for one in found.plan.ranked)
    assert all(one.candidate.offload.param_device == "none" for one in found.plan.ranked)
