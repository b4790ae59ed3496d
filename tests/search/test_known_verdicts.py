"""Verdicts that people measured, or that follow from the 16 to 22 bytes a parameter needs (arXiv:1910.02054)."""

from __future__ import annotations

import pytest

from planner import estimate, plan
from planner.records.candidate import Offload, ZeroStage
from planner.records.plan import Verdict


def test_13b_on_four_80g_cards_needs_stage_three_and_the_step_is_the_reason() -> None:
    answer = plan(model="13b", gpus="4xA100-80G", seq_len=2048)
    best = answer.plan.ranked[0]
    assert best.candidate.zero is ZeroStage.PARAMETERS
    assert best.candidate.offload is Offload.NONE
    for stage in (1, 2):
        alone = plan(model="13b", gpus="4xA100-80G", seq_len=2048, zero=stage, tp=1, offload="none")
        assert not alone.fits
        assert all("the optimizer step" in r.detail for r in alone.plan.rejected)
        assert any(f"ZeRO-{stage}" in reason and "the optimizer step" in reason for reason in best.reasons)


def test_tensor_parallel_plans_close_to_the_limit_are_only_borderline() -> None:
    answer = plan(model="13b", gpus="4xA100-80G", zero="1,2", offload="none", seq_len=2048)
    assert {e.verdict for e in answer.plan.ranked} == {Verdict.BORDERLINE}


def test_7b_on_one_80g_card_needs_offload() -> None:
    assert not plan(model="7b", gpus="1xA100-80G", offload="none").fits
    assert plan(model="7b", gpus="1xA100-80G", host_ram=256).fits


def test_70b_on_eight_80g_cards_fits_only_with_offload() -> None:
    assert not plan(model="70b", gpus="8xA100-80G", offload="none").fits
    assert plan(model="70b", gpus="8xA100-80G", host_ram=3000).fits


ALONE = {"tp": 1, "offload": "none", "micro_batch": 1}
ALL_OFFLOADED = {"zero": 3, "tp": 1, "offload": "optimizer+param", "micro_batch": 1}
# One line a public thread: what was run, and whether it ran.
THREADS: tuple[tuple[str, str, dict[str, object], bool, str], ...] = (
    ("13b", "4xA100-80G", {**ALONE, "zero": 2, "seq_len": 1536}, False, "LlamaFactory#1158"),
    ("qwen3-32b", "8xH200", {**ALONE, "zero": 2, "seq_len": 1024}, False, "LlamaFactory#8642"),
    ("llama-3-8b", "8x3090", {**ALL_OFFLOADED, "seq_len": 1024, "precision": "fp16"}, True, "LlamaFactory#5977"),
    ("llama-3.3-70b", "8xH200", {**ALONE, "zero": 3}, False, "LlamaFactory#7282"),
    ("llama-30b", "8xA100-40G", {**ALL_OFFLOADED, "host_ram": 558}, False, "DeepSpeed#3448"),
    ("70b", "8xA100-80G", {**ALL_OFFLOADED, "host_ram": 1024}, False, "axolotl#1439"),
    ("qwen2.5-7b", "4xA100-80G", {**ALONE, "zero": 3, "seq_len": 8192}, True, "ms-swift examples/train/liger"),
)


@pytest.mark.parametrize(("model", "gpus", "fields", "ran", "thread"), THREADS, ids=[f"{t[4]}" for t in THREADS])
def test_the_verdict_agrees_with_the_thread(
    model: str, gpus: str, fields: dict[str, object], ran: bool, thread: str
) -> None:
    assert estimate(model=model, gpus=gpus, checkpointing="full", **fields).fits is ran, thread
