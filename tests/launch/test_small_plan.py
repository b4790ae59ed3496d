"""The plan made small is the same strategy: what differs is the model, the ranks, the tokens and the sizes."""

from __future__ import annotations

import json

import pytest

import planner
from planner.launch.small_plan import LONGEST, SHORTEST, SmallPlan, small_plan
from planner.records.request import Attention, Loss

PINNED = {"model": "qwen2.5-0.5b", "gpus": "8xA100-80G", "zero": 3, "tp": 2, "offload": "none", "micro_batch": 4}


def made_small(tmp_path, *, ranks: int = 4, **fields) -> tuple[SmallPlan, dict]:
    files = planner.plan(**{**PINNED, **fields}).files()
    (tmp_path / "ds_config.json").write_text(files["ds_config.json"], encoding="utf-8")
    document = json.loads(files["plan.json"])
    return small_plan(document, tmp_path / "ds_config.json", ranks=ranks), document


def test_the_strategy_is_the_plans_own(tmp_path):
    small, document = made_small(tmp_path, checkpointing="full", accumulation=3)
    plan, candidate = document["plans"][0], small.candidate
    assert int(candidate.zero) == plan["zero_stage"] == 3
    assert (candidate.degrees.tp, candidate.degrees.dp) == (2, 2)
    assert small.ranks == 4
    for name in ("micro_batch", "accumulation"):
        assert getattr(candidate, name) == plan[name]
    assert candidate.checkpointing.value == plan["checkpointing"] == "full"
    assert small.workload.precision.value == plan["precision"]
    sizes = json.loads((tmp_path / "ds_config.json").read_text("utf-8"))["zero_optimization"]
    assert small.planned_settings.reduce_bucket_elements == sizes["reduce_bucket_size"]
    assert candidate.settings.overlap_comm == sizes["overlap_comm"]


@pytest.mark.parametrize(("micro_batch", "seq_len"), [(1, LONGEST), (2, 112), (4, 56), (16, SHORTEST), (64, SHORTEST)])
def test_a_larger_micro_batch_gets_shorter_samples(tmp_path, micro_batch, seq_len):
    assert made_small(tmp_path, micro_batch=micro_batch, seq_len=512)[0].workload.seq_len == seq_len


def test_what_needs_a_gpu_is_replaced_and_what_does_not_stays(tmp_path):
    flash = made_small(tmp_path, tp=1, attention="flash", loss="fused")[0].workload
    assert (flash.attention, flash.loss) == (Attention.SDPA, Loss.STANDARD)
    assert made_small(tmp_path, attention="eager")[0].workload.attention is Attention.EAGER
