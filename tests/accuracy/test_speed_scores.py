"""The arithmetic of the speed scores, and what people measured against what the model predicts.

    dsplan accuracy --speed        prints every figure behind the bounds below

The bounds are what the model reaches, rounded up: a change that makes it worse has to say so here.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from functools import lru_cache

import pytest

from planner.accuracy.measured_speed import Convention, convention_of, flop_per_token
from planner.accuracy.points import Point, packaged_points
from planner.accuracy.run import run_of
from planner.accuracy.score import error_figures
from planner.accuracy.speed import SpeedRow, speed_row
from planner.accuracy.speed_bands import bands_of
from planner.accuracy.speed_groups import group_figures, groups_of, kendall
from planner.accuracy.speed_peers import half_peak_tokens, peer_errors
from planner.catalog.speed import speed_constants
from planner.report.speed_accuracy import errors_by_source

GPT3_175B = Point(
    id="gpt3", source_name="Narayanan et al. 2021", hidden=12288, layers=96, heads=96, ffn=49152, vocab=51200,
    gated_mlp=False, tied=True, framework="megatron", gpu_class="A100-80GB", gpu_count=8, nodes=1, tp=8,
    zero_stage=0, dtype="fp16", grad_checkpoint="full", flash_attn=False, micro_batch=1, seq_len=2048, grad_accum=1,
)  # fmt: skip


@lru_cache(maxsize=1)
def rows() -> tuple[SpeedRow, ...]:
    constants = speed_constants()
    return tuple(speed_row(point, constants) for point in packaged_points() if "speed" in point.for_scoring)


def test_flops_of_a_token_are_those_of_the_published_formula() -> None:
    """96 * B * s * l * h^2 * (1 + s/6h + V/16lh) with recomputation, arXiv:2104.04473, section 5.1."""
    h, layers, s, v = 12288, 96, 2048, 51200
    published = 96 * layers * h * h * (1 + s / (6 * h) + v / (16 * layers * h))
    shape = run_of(GPT3_175B).shape
    assert flop_per_token(shape, s, Convention.HARDWARE) == pytest.approx(published, rel=1e-6)
    full = 72 * layers * h * h * (1 + s / (6 * h)) + 6 * h * v
    assert flop_per_token(shape, s, Convention.FULL) == pytest.approx(full, rel=1e-6)
    causal = 72 * layers * h * h * (1 + s / (12 * h)) + 6 * h * v
    assert flop_per_token(shape, s, Convention.CAUSAL) == pytest.approx(causal, rel=1e-6)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("model (causal attention counted half)", Convention.CAUSAL),
        ("hardware (recompute counted)", Convention.HARDWARE),
        ("model", Convention.FULL),
        (None, Convention.FULL),
    ],
)
def test_the_words_of_a_source_name_its_convention(words: str | None, meant: Convention) -> None:
    assert convention_of(words) is meant


def test_a_measured_run_in_any_unit_is_the_same_speed() -> None:
    """138 TFLOP/s of one A100 on the 175B model, tp 8: table 1 of arXiv:2104.04473 counts the recomputed pass."""
    constants = speed_constants()
    per_token = 96 * 96 * 12288**2 * (1 + 2048 / (6 * 12288) + 51200 / (16 * 96 * 12288))
    tokens = 138e12 / per_token
    units = (
        {"tflops_per_gpu": 138.0, "tflops_kind": "hardware"},
        {"tokens_per_s_per_gpu": tokens},
        {"samples_per_s": tokens * 8 / 2048},
        {"step_time_s": 2048 / (tokens * 8), "global_batch": 1},
        {"hfu_percent": 138 / 312 * 100},
    )
    for unit in units:
        row = speed_row(replace(GPT3_175B, **unit), constants)
        assert row.measured == pytest.approx(tokens, rel=1e-3), unit


@pytest.mark.parametrize(
    ("pairs", "tau"),
    [
        ([(1, 1), (2, 2), (3, 3)], 1.0),
        ([(1, 3), (2, 2), (3, 1)], -1.0),
        ([(1, 1), (3, 2), (2, 3)], 1 / 3),  # one of three pairs is turned round
        ([(1, 5), (2, 5)], 1.0),  # equal measurements say nothing
    ],
)
def test_kendall_by_hand(pairs: list[tuple[float, float]], tau: float) -> None:
    assert kendall(pairs) == pytest.approx(tau)


def test_half_of_peak_by_hand() -> None:
    """A100: 156 TFLOP/s over 8 * N with recomputation."""
    row = speed_row(replace(GPT3_175B, tokens_per_s_per_gpu=100.0), speed_constants())
    assert half_peak_tokens(row) == pytest.approx(156e12 / (8 * 174.6e9), rel=0.01)


def test_rows_are_many_and_what_is_left_out_is_said() -> None:
    compared = [row for row in rows() if row.error is not None]
    assert len(rows()) >= 700
    assert len(compared) >= 660
    assert len({row.point.source_name for row in compared}) >= 24
    assert all(row.apart for row in rows() if row.error is None and row.time is None)


def test_ranking_of_measured_jobs() -> None:
    """vTrain's groups: what the issue asks of the ranking."""
    figures = group_figures(groups_of(rows()))["vtrain-single"]
    assert figures.groups == 45
    assert figures.mean_regret <= 0.025
    assert figures.worst_regret <= 0.15
    assert figures.kendall >= 0.9
    assert figures.behind_rule == 0
    assert figures.mean_regret <= figures.rule_mean_regret
    assert figures.worst_regret <= figures.rule_worst_regret


@pytest.mark.parametrize(
    ("source", "count", "median", "ninth_decile"),
    [
        ("mosaicml", 87, 0.045, 0.10),  # FSDP on 8 to 512 GPUs
        ("vtrain-single", 270, 0.065, 0.17),  # Megatron, one node
        ("ds-azure-a100", 54, 0.08, 0.24),  # DeepSpeed ZeRO-3 with offload on 128 to 1,024 GPUs, never fitted
        ("stas-z3-offload", 12, 0.05, 0.15),  # DeepSpeed ZeRO-3 with CPU optimizer, 8k to 256k tokens
        ("bigscience-logs", 5, 0.03, 0.30),  # ZeRO-3 on V100, the network and the host's threads as the source has them
        ("qwen1", 81, 0.08, 0.21),  # LoRA, GPTQ, ZeRO-3, 256 to 8,192 tokens
        ("automodel", 7, 0.04, 0.14),  # LoRA with FSDP2, and context parallelism, never fitted
        ("torchtune", 12, 0.04, 0.19),  # eager, compiled, LoRA and QLoRA on one GPU
        ("hfblog-ds-fsdp", 2, 0.03, 0.04),  # Trainer, ZeRO-3 and FSDP
    ],
)
def test_speed_of_the_kinds_of_run_that_plans_are_made_of(
    source: str, count: int, median: float, ninth_decile: float
) -> None:
    errors = errors_by_source(rows())[source]
    figures = error_figures(errors)
    assert figures.rows == count
    assert figures.median <= median
    assert figures.ninth_decile <= ninth_decile


def test_most_sources_are_nearer_than_a_constant_share_of_the_peak() -> None:
    by_name = peer_errors(rows())
    ours, constant, half = by_name.values()
    medians = [{source: error_figures(found).median for source, found in e.items()} for e in (ours, constant, half)]
    better = [source for source in medians[0] if medians[0][source] <= medians[1][source]]
    assert len(medians[0]) >= 24
    assert statistics.median(medians[0].values()) <= 0.08
    assert statistics.fmean(medians[0].values()) <= min(0.24, statistics.fmean(medians[1].values()))
    assert statistics.median(medians[1].values()) >= 0.15
    assert statistics.median(medians[2].values()) >= 0.3
    assert len(better) >= len(medians[0]) / 2


def test_seven_rows_in_ten_are_within_a_fifth() -> None:
    found = errors_by_source(rows()).values()
    shares = [sum(abs(error) <= 0.2 for error in errors) / len(errors) for errors in found]
    assert statistics.fmean(shares) >= 0.72


def test_printed_ranges_are_as_wide_as_the_measured_errors() -> None:
    bands = bands_of(rows())
    assert len(bands) == 5
    for band in bands:
        assert band.derived <= band.in_use, band
        assert band.in_use <= band.derived + 0.17, band
