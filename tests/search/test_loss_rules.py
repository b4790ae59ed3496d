"""The fused loss under tensor parallelism: refused where a rank holds a part of the head, allowed where it is whole."""

from __future__ import annotations

import pytest

from planner import plan


@pytest.mark.parametrize(
    ("model", "divided"), [("llama-2-7b", True), ("opt-1.3b", False), ("gemma-7b", False), ("qwen2.5-0.5b", True)]
)
def test_the_fused_loss_needs_the_whole_head(model: str, divided: bool) -> None:
    document = plan(model=model, gpus="4xA100-80G", loss="fused", tp=2, top=1).to_dict()
    rejected = document["rejected"]["by_rule"]
    assert bool(document["plans"]) is not divided
    assert ("tp-fused-loss" in rejected) is divided
    standard = plan(model=model, gpus="4xA100-80G", tp=2, top=1).to_dict()
    assert standard["plans"]
    assert "tp-fused-loss" not in standard["rejected"]["by_rule"]
