"""The fused loss: refused where Liger knows no such loss, or where a tensor-parallel rank holds a part of the head."""

from __future__ import annotations

import pytest

from planner import estimate, plan
from planner.catalog.models import fused_loss_types
from planner.errors import PlannerError


@pytest.mark.parametrize(("model", "divided"), [("llama-2-7b", True), ("gemma-7b", False), ("qwen2.5-0.5b", True)])
def test_under_tensor_parallelism_the_fused_loss_needs_the_whole_head(model: str, divided: bool) -> None:
    document = plan(model=model, gpus="4xA100-80G", loss="fused", tp=2, top=1).to_dict()
    rejected = document["rejected"]["by_rule"]
    assert bool(document["plans"]) is not divided
    assert ("tp-fused-loss" in rejected) is divided
    standard = plan(model=model, gpus="4xA100-80G", tp=2, top=1).to_dict()
    assert standard["plans"]
    assert "tp-fused-loss" not in standard["rejected"]["by_rule"]


@pytest.mark.parametrize("model", ["gpt2", "opt-1.3b"])
def test_a_type_that_liger_does_not_know_is_refused(model: str) -> None:
    with pytest.raises(PlannerError, match="`--loss fused` would change nothing: Liger Kernel does not know") as raised:
        estimate(model=model, gpus="1xA100-80G", loss="fused")
    assert "--loss standard" in raised.value.hint


def test_no_remedy_proposes_a_loss_that_does_not_exist() -> None:
    document = plan(model="opt-30b", gpus="4xA100-40G", offload="none").to_dict()
    assert not document["plans"]
    assert document["remedies"]
    assert all("loss" not in remedy["request"] for remedy in document["remedies"])


def test_the_table_names_types_once_and_in_order() -> None:
    assert len(fused_loss_types()) >= 30
    assert {"llama", "qwen3", "gemma2", "mixtral"} <= fused_loss_types()
