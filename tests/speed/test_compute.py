"""Kernel times against measured tables and hand-computed values."""

from __future__ import annotations

from dataclasses import replace

import pytest
import speed_cases as cases

from planner.catalog.speed import speed_constants
from planner.geometry.flops import model_work
from planner.records.candidate import ZeroStage
from planner.records.model import Precision
from planner.records.request import Stack
from planner.speed.compute import (
    eager_attention_s,
    flash_attention_backward_s,
    flash_attention_s,
    gemm_efficiency,
    gemm_s,
    gradient_traffic_s,
    head_s,
    host_floor_s,
    layer_gemm_s,
    peak_flop_per_s,
)

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
    forward = flash_attention_s(
        4096, 2048, 8192, 1, flop_per_s=0.353 * 312e12, constants=replace(CONSTANTS, attention_half_rate_tokens=0.0)
    )
    assert forward == pytest.approx(2 * 2048 * 4096 * 8192 / (0.353 * 312e12))
    assert flash_attention_backward_s(forward, CONSTANTS) / forward == pytest.approx(2.94, abs=0.005)


@pytest.mark.parametrize(
    ("seq_len", "share"), [(512, 0.32), (1024, 0.42), (2048, 0.50), (4096, 0.55), (8192, 0.58), (16384, 0.60)]
)
def test_attention_reaches_its_rate_on_long_samples(seq_len: int, share: float) -> None:
    """FlashAttention-2 on A100, causal, head dimension 128, forward: arXiv:2307.08691, figure 5, read off the chart."""
    seconds = flash_attention_s(2048, seq_len, 16384, 1, flop_per_s=0.6 * 312e12, constants=CONSTANTS)
    assert 2 * seq_len * 2048 * 16384 / seconds / 312e12 == pytest.approx(share, abs=0.03)


def test_materialised_scores_cross_memory_once_a_pass() -> None:
    products, score_pass = eager_attention_s(
        4096, 32, 2048, 4096, 4, weight_bytes=2, flop_per_s=1e14, hbm_bytes_per_s=1.555e12
    )
    assert score_pass == pytest.approx(2 * 2 * (32 / 4) * 2048**2 / 1.555e12)
    assert products == pytest.approx(4 * 2048 * 4096 * 4096 / 4 / 1e14)


@pytest.mark.parametrize(
    ("stage", "accumulation", "accumulator", "moved"),
    [
        (0, 1, 2, 0.0),  # the first gradient stays where it is
        (1, 4, 2, 6 * 3 / 4),  # read, add to, write: all but the first
        (0, 4, 4, 10.0),  # read 2, read 4, write 4: all of them
        (2, 4, 2, 4.0),  # copied into a bucket every time
        (3, 1, 2, 4.0),
    ],
)
def test_fresh_gradients_move_the_bytes_of_their_stage(
    stage: int, accumulation: int, accumulator: int, moved: float
) -> None:
    seconds = gradient_traffic_s(
        1e9, ZeroStage(stage), accumulation, weight_bytes=2, accumulator_bytes=accumulator, hbm_bytes_per_s=1e12
    )
    assert seconds == pytest.approx(moved * 1e9 / 1e12)


def test_fp32_products_reach_their_own_share_of_the_peak() -> None:
    assert gemm_efficiency(cases.GPU_A, Precision.FP32, CONSTANTS) == CONSTANTS.fp32_gemm_efficiency
    assert gemm_efficiency(cases.GPU_A, Precision.BF16, CONSTANTS) == 0.82


def test_whole_logits_cost_as_much_on_every_rank() -> None:
    def seconds(head_tp: int, logits_tp: int) -> float:
        return head_s(
            4096,
            128256,
            8192,
            head_tp=head_tp,
            logits_tp=logits_tp,
            weight_bytes=2,
            logit_bytes=10.0,
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
