"""The table of constants: complete, sourced, and equal to the published constant set it was taken from."""

from __future__ import annotations

import json

import pytest
import speed_cases as cases

from planner.catalog import speed
from planner.records.request import Stack

PUBLISHED = cases.SHARED_DATA / "speed_constants.json"


def test_every_constant_has_a_source_and_a_level_of_evidence() -> None:
    table = speed.speed_table()
    rows = [row for section in table.values() for row in section.values()]
    assert len(rows) >= 29
    assert all(row["source"] and row["evidence"] in speed.EVIDENCE for row in rows)


def test_row_without_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed.toml, "loads", lambda _: {"engine": {"zero3_hook_s": {"value": 1, "evidence": "guess"}}})
    with pytest.raises(ValueError, match=r"`engine\.zero3_hook_s` needs a source and one of measured"):
        speed.speed_table()


def test_constants_are_read_once() -> None:
    assert speed.speed_constants() is speed.speed_constants()


def test_every_stack_has_a_profile_with_ascending_degrees() -> None:
    for stack in Stack:
        degrees = [tp for tp, _ in speed.speed_constants().profile(stack).floor_s]
        assert degrees == sorted(degrees)
        assert degrees[0] == 1


@pytest.mark.parametrize("seconds", [2.1, 2.2])
def test_hooks_of_stage_three_fill_what_full_training_of_a_small_model_takes(seconds: float) -> None:
    """Qwen-1.8B, all parameters, ZeRO-3 on one A100, s/iter at 256, 512 and 1,024 tokens: 8 micro-batches of 24 layers
    and three passes, whatever the length (README of https://github.com/QwenLM/Qwen)."""
    ours = speed.speed_constants()
    floor = ours.profile(Stack.EAGER).floor_s[0][1]
    assert ours.engine.zero3_hook_s + floor == pytest.approx(seconds / (8 * 24 * 3), rel=0.1)


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="the published constants are not beside this checkout")
def test_values_equal_the_published_constants() -> None:
    published = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    ours = speed.speed_constants()
    assert ours.gemm_launch_s == published["gemm"]["per_gemm_overhead_s"]
    assert ours.gemm_operand_share == published["gemm"]["unhidden_operand_bytes_fraction"]
    assert ours.attention_backward_flop_ratio == published["attention"]["bwd_flops_multiple"]
    assert ours.profile(Stack.FUSED).logit_bytes == published["head"]["logit_bytes_per_token_per_vocab"]
    assert ours.overlap_exposed_share == published["overlap"]["k"]
    assert ours.engine.optimizer_traffic_bytes == published["optimizer_gpu_bytes_per_param"]["fused_adam"]
    assert ours.cpu_adam_parameters_per_s == published["cpu_adam_params_per_s"]["per_socket_default"]
    assert ours.cpu_adam_core_parameters_per_s == published["cpu_adam_params_per_s"]["starved_floor"]
    assert ours.nvme_state_bytes == published["offload_bytes_per_param"]["nvme_read"]
    alpha = published["collective_alpha_us"]
    assert ours.collective_base_s * 1e6 == pytest.approx(alpha["base"])
    assert ours.collective_rank_s * 1e6 == pytest.approx(alpha["per_rank"])
    assert ours.collective_cross_node_s * 1e6 == pytest.approx(alpha["extra_when_tp_crosses_nodes"])
    for stack in Stack:
        profile, expected = ours.profile(stack), published["stack_profiles"][stack.value]
        floors = dict(profile.floor_s)
        assert floors == {int(tp): floor for tp, floor in expected["floor_s"].items() if tp != "4"}
        assert floors[2] == expected["floor_s"]["4"]
