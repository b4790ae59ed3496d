"""The formulas for foreign layers against what LitGPT's and torchtune's own layers keep, traced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner import toml
from planner.accuracy.activations import code_of
from planner.accuracy.layers import layer_kept_bytes_per_token
from planner.accuracy.points import Point
from planner.accuracy.run import shape_of
from planner.accuracy.tuning import tuning_of
from planner.accuracy.words import Layers, framework_of
from planner.records.request import Attention

GOLDEN = toml.loads((Path(__file__).parents[1] / "golden" / "foreign_layers.toml").read_text(encoding="utf-8"))
CASES: list[dict[str, Any]] = GOLDEN["case"]
TOLERANCE = 0.025  # the ranks of adapters and the statistics of norms are left out, and weigh most in a small model


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_layer_keeps_what_its_framework_keeps(case: dict[str, Any]) -> None:
    point = Point(
        id="case", source_name="traced", hidden=case["hidden"], layers=2, heads=case["heads"],
        kv_heads=case["kv_heads"], ffn=case["ffn"], vocab=case["vocab"], gated_mlp=case["gated"],
    )  # fmt: skip
    shape, _ = shape_of(point, framework_of(case["layers"]))
    code = code_of(Layers(case["layers"]), fused_kernels=case.get("compiled", False))
    tuning = tuning_of(case["method"], Layers(case["layers"]))
    kept = layer_kept_bytes_per_token(shape, code, tuning, Attention.SDPA, 256)
    assert kept == pytest.approx(case["layer_bytes_per_token"], rel=TOLERANCE)


def test_both_frameworks_are_covered_with_and_without_adapters() -> None:
    assert len(CASES) >= 16
    assert {(case["layers"], case["method"] == "full") for case in CASES} == {
        ("litgpt", True), ("litgpt", False), ("torchtune", True), ("torchtune", False),
    }  # fmt: skip
