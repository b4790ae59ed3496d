"""The memory model against published measurements, and the arithmetic of the scores themselves.

    dsplan accuracy        prints every figure behind the bounds below

The bounds are what the model reaches, rounded up: a change that makes it worse has to say so here.
"""

from __future__ import annotations

from functools import lru_cache

import pytest

from planner.accuracy.points import Point, packaged_points
from planner.accuracy.predict import predict_point
from planner.accuracy.score import (
    CARD_COUNTERS,
    TENSOR_COUNTERS,
    Scored,
    average,
    error_figures,
    false_fit,
    false_oom,
    fit_figures,
    memory_errors,
    score_all,
    signed_error,
    verdict,
)
from planner.errors import PlannerError
from planner.spec.request import DEFAULT_MARGIN
from planner.units import GIB


@lru_cache(maxsize=1)
def firm() -> tuple[Scored, ...]:
    return tuple(row for row in score_all(packaged_points()) if row.point.firm)


@pytest.mark.parametrize(
    ("counters", "sources", "rows", "median", "ninth_decile"),
    [(TENSOR_COUNTERS, 9, 110, 0.06, 0.12), (CARD_COUNTERS, 8, 190, 0.10, 0.20)],
    ids=["torch counters", "reserved and nvidia-smi"],
)
def test_peaks_are_near_what_people_measured(
    counters: tuple[str, ...], sources: int, rows: int, median: float, ninth_decile: float
) -> None:
    found = average(memory_errors(firm(), counters))
    assert found is not None
    assert found.sources >= sources
    assert found.rows >= rows
    assert found.median <= median
    assert found.ninth_decile <= ninth_decile


@pytest.mark.parametrize(
    ("source", "rows", "median"),
    [
        ("simumax-b200", 25, 0.04),  # Megatron, tensor and context parallelism
        ("litgpt-restable", 29, 0.02),  # adapters on one GPU, with and without 4 bits
        ("torchtune", 12, 0.05),  # the ladder of memory savings
        ("stas-z3-offload", 12, 0.09),  # DeepSpeed ZeRO-3 with optimizer offload, 8k to 256k tokens
        ("bigscience-tr11", 5, 0.04),  # DeepSpeed ZeRO-1 on Megatron's layers
        ("bigscience-logs", 2, 0.05),  # DeepSpeed ZeRO-3 with tensor parallelism
        ("peft-bench", 13, 0.05),  # peft's methods beside transformers' layers
        ("qwen1", 75, 0.09),  # LoRA and GPTQ, 256 to 8192 tokens
    ],
)
def test_sources_with_many_settings_are_met_one_by_one(source: str, rows: int, median: float) -> None:
    errors = memory_errors(firm(), (*TENSOR_COUNTERS, *CARD_COUNTERS))[source]
    figures = error_figures(errors)
    assert figures.rows >= rows
    assert figures.median <= median


def test_few_failed_runs_are_accepted_and_few_runs_are_lost() -> None:
    figures = fit_figures(score_all(packaged_points()), DEFAULT_MARGIN).values()
    accepted, lost = false_fit(figures), false_oom(figures)
    assert accepted is not None
    assert lost is not None
    assert (accepted.sources, lost.sources) >= (8, 40)
    assert accepted.rows >= 110
    assert lost.rows >= 900
    assert accepted.mean <= 0.02
    assert accepted.pooled <= 0.04
    assert lost.mean <= 0.10


def test_a_row_without_a_geometry_is_left_out_with_a_reason() -> None:
    left_out = [row for row in score_all(packaged_points()) if row.prediction is None]
    assert 10 <= len(left_out) <= 30
    assert all("gives no" in row.reason for row in left_out)


POINT = Point(
    id="row", source_name="source", hidden=4096, layers=32, heads=32, ffn=11008, vocab=32000, gated_mlp=True,
    tied=False, method="full", framework="deepspeed (HF Trainer)",
    gpu_class="A100-80GB", gpu_mem_gb=80, gpu_count=8, nodes=1,
    zero_stage=3, tp=1, dp=8, dtype="bf16", grad_checkpoint="full", flash_attn=True, offload="none", micro_batch=1,
    seq_len=2048, grad_accum=1, measured_peak_gib=20.0, counter_class="allocated", quality="A",
    for_scoring=("memory", "fit"),
)  # fmt: skip


def scored(**changes: object) -> Scored:
    (row,) = score_all([Point(**{**{f: getattr(POINT, f) for f in POINT.__slots__}, **changes})])  # type: ignore[arg-type]
    return row


def test_each_counter_is_compared_with_its_own_prediction() -> None:
    found = predict_point(POINT)
    assert found.tensor_bytes < found.reserved_bytes < found.card_bytes
    for counter, size in (
        ("allocated", found.tensor_bytes),
        ("active", found.tensor_bytes),
        ("reserved", found.reserved_bytes),
        ("nvidia_smi", found.card_bytes),
    ):
        row = scored(counter_class=counter, measured_peak_gib=size / GIB)
        assert signed_error(row) == pytest.approx(0, abs=1e-9)


def test_a_nearly_full_card_is_an_upper_bound() -> None:
    assert signed_error(scored(counter_class="nvidia_smi", measured_peak_gib=79.0)) == 0
    below = signed_error(scored(counter_class="nvidia_smi", measured_peak_gib=70.0))
    assert below is not None
    assert below < 0


def test_the_margin_decides_between_fitting_and_borderline() -> None:
    total = predict_point(POINT).total_bytes
    assert verdict(scored(), 0.0) == "fits"
    assert verdict(scored(), 1 - total / predict_point(POINT).capacity_bytes + 1e-6) == "borderline"
    assert verdict(scored(gpu_class="A10G-24GB", gpu_count=2, dp=2), 0.0) == "does_not_fit"


def test_of_a_row_with_gaps_only_weights_and_states_are_tested() -> None:
    gaps = {"missing": ("grad_checkpoint",), "grad_checkpoint": None, "outcome": "oom"}
    assert verdict(scored(**gaps), 0.05) == "untested"
    assert verdict(scored(**gaps, gpu_count=1, dp=1), 0.05) == "does_not_fit"


def test_what_a_run_that_fitted_leaves_open_is_the_first_setting_that_fits() -> None:
    row = scored(missing=("grad_checkpoint",), grad_checkpoint=None, micro_batch=16)
    assert row.prediction is not None
    assert row.prediction.total_bytes <= row.prediction.capacity_bytes
    assert any("checkpointing full" in said for said in row.prediction.assumed)


def test_figures_of_a_group() -> None:
    figures = error_figures([0.1, -0.2, 0.3, -0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    assert (figures.rows, figures.ninth_decile) == (10, 0.9)
    assert figures.median == pytest.approx(0.55)
    assert figures.bias == pytest.approx(0.55)


def test_every_source_counts_once() -> None:
    found = average({"large": [0.1] * 99, "small": [0.3]})
    assert found is not None
    assert (found.sources, found.rows) == (2, 100)
    assert found.median == pytest.approx(0.2)


def test_a_point_without_a_batch_has_no_prediction() -> None:
    with pytest.raises(PlannerError, match="micro_batch"):
        predict_point(Point(**{**{f: getattr(POINT, f) for f in POINT.__slots__}, "micro_batch": None}))
