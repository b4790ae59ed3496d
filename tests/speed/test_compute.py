"""Kernel times against measured tables and hand-computed values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import speed_cases as cases

from planner.catalog.speed import speed_constants
from planner.geometry.flops import model_work
from planner.records.model import Precision
from planner.speed.compute import (
    eager_attention_s,
    elementwise_s,
    flash_attention_backward_s,
    flash_attention_s,
    gemm_s,
    head_s,
    host_floor_s,
    layer_gemm_s,
    peak_flop_per_s,
)
from planner.speed.constants import Stack

CONSTANTS = speed_constants()


@pytest.mark.parametrize(
    ("smallest", "low", "high"), [(768, 0.50, 0.70), (1536, 0.62, 0.76), (8192, 0.70, 0.78)], ids=str
)
def test_small_matrix_products_reach_the_measured_share_of_peak(smallest: int, low: float, high: float) -> None:
    """SimuMax on A100 PCIe, median efficiency by smallest dimension: .61 (512-1k), .70 (1-2k), .74 (>= 4k)."""
    m, n, k = 8192, smallest, max(4096, smallest)
    flop = 2 * m * n * k
    seconds = gemm_s(
        flop,
        2 * (m * k + k * n + m * n),
        1,
        flop_per_s=0.779 * 312e12,
        hbm_bytes_per_s=1.935e12,
        constants=CONSTANTS,
    )
    assert low < flop / seconds / 312e12 < high


def test_layer_products_are_the_sum_of_the_listed_shapes() -> None:
    """(T, (q + 2 kv d)/t, h), (T, h, q/t), up and gate (T, f/t, h), down (T, h, f/t), each by the same formula."""
    (layer,) = model_work(cases.LLAMA_8B).kinds
    tokens, tp, rate, bandwidth = 4096, 2, 2e14, 2e12
    shapes = [(6144 // tp, 4096), (4096, 4096 // tp), (14336 // tp, 4096), (14336 // tp, 4096), (4096, 14336 // tp)]
    expected = sum(
        2 * tokens * n * k / rate + 0.56 * 2 * (tokens * k + k * n + tokens * n) / bandwidth + 11e-6 for n, k in shapes
    )
    seconds = layer_gemm_s(
        layer, tokens, tp, weight_bytes=2, flop_per_s=rate, hbm_bytes_per_s=bandwidth, constants=CONSTANTS
    )
    assert seconds == pytest.approx(expected, rel=1e-9)


def test_flash_attention_counts_causal_flops_and_its_slower_backward() -> None:
    forward = flash_attention_s(4096, 2048, 8192, 1, flop_per_s=0.353 * 312e12)
    assert forward == pytest.approx(2 * 2048 * 4096 * 8192 / (0.353 * 312e12))
    assert flash_attention_backward_s(forward, CONSTANTS) / forward == pytest.approx(2.94, abs=0.005)


def test_materialised_scores_cost_five_passes_over_them() -> None:
    seconds = eager_attention_s(
        4096, 32, 2048, 4096, 4, weight_bytes=2, flop_per_s=1e30, hbm_bytes_per_s=1.555e12, constants=CONSTANTS
    )
    assert seconds == pytest.approx(2 * 2 * (32 / 4) * 2048**2 * 5 / 1.555e12)


def test_half_of_the_element_wise_work_is_replicated() -> None:
    def seconds(tp: int) -> float:
        profile = CONSTANTS.profile(Stack.EAGER)
        return elementwise_s(4096, 2048, tp, weight_bytes=2, hbm_bytes_per_s=2e12, profile=profile, constants=CONSTANTS)

    assert seconds(1) == pytest.approx(57 * 2 * 4096 * 2048 / 2e12)
    assert seconds(4) == pytest.approx(seconds(1) * 0.625)


def test_whole_logits_cost_as_much_on_every_rank() -> None:
    def seconds(head_tp: int, logits_tp: int) -> float:
        return head_s(
            4096,
            128256,
            8192,
            head_tp=head_tp,
            logits_tp=logits_tp,
            weight_bytes=2,
            flop_per_s=1e30,
            hbm_bytes_per_s=2e12,
            constants=replace(CONSTANTS, gemm_operand_share=0.0, gemm_launch_s=0.0),
        )

    assert seconds(4, 1) == pytest.approx(10 * 8192 * 128256 / 2e12)
    assert seconds(4, 4) == pytest.approx(seconds(4, 1) / 4)


@pytest.mark.parametrize(
    ("tp", "seconds"), [(1, 1.0e-3), (2, 1.1e-3), (3, 1.1e-3), (4, 1.1e-3), (8, 1.5e-3), (16, 1.5e-3)]
)
def test_host_floor_takes_the_last_row_not_above_the_degree(tp: int, seconds: float) -> None:
    assert host_floor_s(CONSTANTS.profile(Stack.EAGER), tp) == seconds


def test_card_without_16_bit_units_runs_at_its_fp32_rate() -> None:
    old = cases.gpu(312e12, 0.8, 0.3, 2e12, 12e9, bf16_flop_per_s=None)
    assert peak_flop_per_s(old, Precision.BF16) == old.fp32_flop_per_s
    assert peak_flop_per_s(old, Precision.FP16) == 312e12
    assert peak_flop_per_s(cases.GPU_A, Precision.FP32) == cases.GPU_A.fp32_flop_per_s
