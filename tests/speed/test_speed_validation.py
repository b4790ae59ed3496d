"""The model against public measurements: Megatron-DeepSpeed on one A100 node (vTrain), FSDP (llm-foundry).

FSDP's full shard stands for ZeRO-3 without DeepSpeed's hooks; gradients travel in 16 bits under `PURE` and in 32
under `DEFAULT`. All vTrain rows use fp16, full recomputation, no flash attention and no ZeRO; a step is predicted
with the fused stack. Device and network rates are those of the machines the rows were measured on.
"""

from __future__ import annotations

import csv
import itertools
import json
import statistics
from collections.abc import Iterator

import pytest
import speed_cases as cases

from planner.records.candidate import Checkpointing
from planner.records.estimate import TimeEstimate
from planner.records.model import ModelShape, Precision
from planner.records.request import Attention
from planner.speed.constants import Stack
from planner.speed.estimate import time_estimate

VTRAIN = cases.SHARED_DATA / "vtrain_single.csv"
MOSAIC = cases.SHARED_DATA / "mosaic_throughput.json"

VTRAIN_GPU = cases.gpu(312e12, 0.82, 0.377, 1.555e12, 24e9)
MEGATRON = cases.textbook(optimizer_traffic_bytes=28.0, zero3_hook_s=0.0)

MOSAIC_GPUS = {
    "a100_40gb": (cases.gpu(312e12, 0.82, 0.353, 1.555e12, 24e9), 234e9, 160e9),
    "a100_80gb": (cases.gpu(312e12, 0.82, 0.353, 2.039e12, 24e9), 234e9, 160e9),
    "h100_80gb": (cases.gpu(989e12, 0.72, 0.20, 3.35e12, 50e9), 365e9, 300e9),
}
MOSAIC_SHAPES = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
}


def gpt(hidden: int, layers: int, heads: int, vocab: int) -> ModelShape:
    traits = (("vocab_parallel_head", True),)  # Megatron divides embedding, head and loss
    return cases.model(
        hidden, layers, heads, heads, 4 * hidden, vocab, tied_embeddings=True, gated_mlp=False, traits=traits
    )


def vtrain_rows() -> Iterator[tuple[tuple[int, ...], tuple[int, ...], float, float]]:
    """Group, plan, measured and predicted seconds of every row without pipeline parallelism."""
    with VTRAIN.open(encoding="utf-8") as lines:
        for row in itertools.islice(csv.reader(lines), 1, None):
            gpus, batch, micro_batch, hidden, heads, layers, seq_len, tp, dp, pp = map(int, row[:10])
            if pp > 1:
                continue
            result = time_estimate(
                gpt(hidden, layers, heads, 51200),
                cases.cluster(VTRAIN_GPU, gpus, 1, 229e9, None),
                cases.workload(seq_len, precision=Precision.FP16, attention=Attention.EAGER),
                cases.candidate(0, dp, micro_batch, batch // (micro_batch * dp), tp=tp),
                constants=MEGATRON,
                stack=Stack.FUSED,
            )
            group = (gpus, batch, hidden, heads, layers, seq_len)
            yield group, (tp, micro_batch), float(row[10]) / 1000, result.step_seconds


def mosaic_estimate(row: dict) -> TimeEstimate:
    device, bus, network = MOSAIC_GPUS[row["gpu"]]
    per_node = min(row["gpus"], 8)
    return time_estimate(
        gpt(*MOSAIC_SHAPES[row["model"]], 50368),
        cases.cluster(device, per_node, row["gpus"] // per_node, bus, network),
        cases.workload(row["seq"]),
        cases.candidate(
            3,
            row["gpus"],
            row["mbs"],
            row["ga"],
            checkpointing=Checkpointing.FULL if row["ac"] else Checkpointing.NONE,
        ),
        constants=cases.textbook(
            zero3_hook_s=0.0,
            zero3_backward_gathers=0 if row["shard"] == "SHARD_GRAD_OP" else 1,
            gradient_wire_bytes=2 if row["mp"] == "PURE" else 4,
        ),
    )


def error(measured: float, predicted: float) -> float:
    return abs(predicted / measured - 1)


@pytest.mark.skipif(not VTRAIN.is_file(), reason="the visible vTrain rows are not beside this checkout")
def test_megatron_rows_of_one_node_are_predicted_within_their_bound() -> None:
    errors = [error(1 / measured, 1 / predicted) for _, _, measured, predicted in vtrain_rows()]
    print(f"vTrain: {len(errors)} rows, MAPE {statistics.mean(errors):.2%}, median {statistics.median(errors):.2%}")
    assert len(errors) == 270
    assert statistics.mean(errors) <= 0.075


@pytest.mark.skipif(not VTRAIN.is_file(), reason="the visible vTrain rows are not beside this checkout")
def test_measured_best_plan_is_among_the_three_predicted_best_of_every_group() -> None:
    groups: dict[tuple[int, ...], list[tuple[float, float]]] = {}
    for group, _, measured, predicted in vtrain_rows():
        groups.setdefault(group, []).append((predicted, measured))
    ranked = [[measured for _, measured in sorted(rows)] for rows in groups.values() if len(rows) > 1]
    regret = [1 - min(plans) / plans[0] for plans in ranked]  # throughput lost by taking the predicted best
    print(f"vTrain: {len(ranked)} groups, mean regret {statistics.mean(regret):.2%}, worst {max(regret):.2%}")
    assert len(ranked) == 45
    assert all(min(plans) in plans[:3] for plans in ranked)
    assert statistics.mean(regret) <= 0.03


@pytest.mark.skipif(not MOSAIC.is_file(), reason="the visible llm-foundry rows are not beside this checkout")
def test_fsdp_rows_up_to_512_gpus_are_predicted_within_their_bound() -> None:
    rows = [row for row in json.loads(MOSAIC.read_text(encoding="utf-8")) if row["prec"] != "amp_fp8"]
    errors = [error(row["tps_gpu"], mosaic_estimate(row).tokens_per_second_per_gpu) for row in rows]
    print(
        f"llm-foundry: {len(errors)} rows, MAPE {statistics.mean(errors):.2%}, median {statistics.median(errors):.2%}"
    )
    assert len(errors) == 87
    assert statistics.mean(errors) <= 0.055
