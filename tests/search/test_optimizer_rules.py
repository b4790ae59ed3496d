"""Which optimizers and precisions go with which stage and offload: what DeepSpeed refuses or silently replaces."""

from __future__ import annotations

from typing import Any

import pytest

from planner import estimate, plan
from planner.errors import PlannerError

CLUSTER = {"gpus": "8xA100-80G", "host_ram": 1024}


def refused(**fields: Any) -> str:
    with pytest.raises(PlannerError) as caught:
        estimate(model="7b", micro_batch=1, tp=1, checkpointing="full", **CLUSTER, **fields)
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"precision": "pure-bf16", "zero": 0, "offload": "none"}, "from ZeRO stage 1 on only"),
        ({"optimizer": "adamw-8bit", "zero": 2, "offload": "optimizer"}, "32-bit CPU Adam"),
        ({"optimizer": "muon", "zero": 2, "offload": "optimizer"}, "issues/8463"),
        ({"optimizer": "lion", "precision": "pure-bf16", "zero": 2, "offload": "optimizer"}, "CPU Adam only"),
        ({"optimizer": "sgd", "zero": 3, "offload": "nvme"}, "AdamW's states only"),
    ],
)
def test_what_does_not_go_together_is_refused_with_its_reason(fields: dict[str, Any], said: str) -> None:
    assert said in refused(**fields)


def test_8_bit_states_need_partitions_that_32_bits_can_count() -> None:
    fields = {"model": "13b", "gpus": "4xA100-80G", "optimizer": "adamw-8bit", "micro_batch": 1, "tp": 1,
              "checkpointing": "full", "offload": "none"}  # fmt: skip
    with pytest.raises(PlannerError, match="counts in 32 bits"):
        estimate(zero=2, **fields)  # 13.0e9 / 4 elements in one partition, above 2 ** 31
    assert estimate(zero=3, **fields).to_dict()["plans"][0]["zero_stage"] == 3  # sub-groups are smaller


@pytest.mark.parametrize("optimizer", ["adamw-8bit", "adafactor", "lion", "muon", "sgd"])
def test_a_search_keeps_to_what_the_optimizer_bears(optimizer: str) -> None:
    answer = plan(model="1b", optimizer=optimizer, **CLUSTER)
    plans = answer.to_dict()["plans"]
    assert plans
    if optimizer in ("adamw-8bit", "muon"):
        assert {found["offload"] for found in plans} == {"none"}
        assert answer.to_dict()["rejected"]["by_rule"]["optimizer-offload"] > 0


def test_lighter_states_leave_more_memory() -> None:
    peaks = {}
    for optimizer in ("adamw", "lion", "sgd", "muon", "adamw-8bit"):
        best = estimate(model="7b", zero=2, micro_batch=1, tp=1, checkpointing="full", offload="none",
                        optimizer=optimizer, **CLUSTER).to_dict()["plans"][0]  # fmt: skip
        peaks[optimizer] = best["memory"]["gpu"]["phases"]["step"]
        named = next(term for term in best["memory"]["terms"] if term["name"] == "states/optimizer")
        assert optimizer.removesuffix("-8bit") in named["formula"].lower()
    assert peaks["adamw"] > peaks["lion"] == peaks["sgd"] > peaks["adamw-8bit"]
    assert peaks["adamw"] > peaks["muon"]


def test_pure_bf16_halves_what_the_ranks_share() -> None:
    """10 bytes a parameter: weights, master weights, gradients, momentum and variance in two bytes each."""
    steps = {}
    for precision in ("bf16", "pure-bf16"):
        best = estimate(model="7b", zero=3, micro_batch=1, tp=1, checkpointing="full", offload="none",
                        precision=precision, **CLUSTER).to_dict()["plans"][0]  # fmt: skip
        states = ("states/weights", "states/master", "states/optimizer", "gradients/partition")
        kept = sum(term["bytes"] for term in best["memory"]["terms"] if term["name"] in states)
        steps[precision] = kept * 8 / best_parameters()
    assert steps["bf16"] == pytest.approx(16, rel=1e-3)
    assert steps["pure-bf16"] == pytest.approx(10, rel=1e-3)


def best_parameters() -> int:
    return int(estimate(model="7b", zero=2, micro_batch=1, tp=1, checkpointing="full", offload="none",
                        **CLUSTER).to_dict()["model"]["parameters"])  # fmt: skip
