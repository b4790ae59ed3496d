"""Collectives against measured NCCL tables, ring arithmetic, and DeepSpeed's own code paths."""

from __future__ import annotations

import json

import pytest
import speed_cases as cases

from planner.catalog.speed import speed_constants
from planner.geometry.flops import model_work
from planner.records.candidate import Degrees
from planner.records.machine import Link
from planner.speed.communication import (
    backward_all_reduces,
    collective_latency_s,
    data_s_per_byte,
    group_rates,
    hidden_s,
    library,
    tensor_parallel_s,
    tensor_s_per_byte,
)

CONSTANTS = speed_constants()
LIBRARY = library(CONSTANTS)
NCCL = cases.SHARED_DATA / "nccl_tables.json"
NODE = cases.cluster(cases.GPU_A, 8, 1, 228e9, None)
FOUR = cases.cluster(cases.GPU_A, 8, 4, 228e9, 170e9)


@pytest.mark.skipif(not NCCL.is_file(), reason="the NCCL tables are not beside this checkout")
def test_all_reduces_of_activation_size_match_the_measured_tables() -> None:
    """vTrain, A100, 2 to 8 GPUs, 16 MiB to 1 GiB: median error within 15 % with that table's bus bandwidth at 1 GiB."""
    errors = []
    for table in json.loads(NCCL.read_text(encoding="utf-8"))["tables"]:
        if table["gpu"] != "a100" or table["src"] != "vtrain":
            continue
        ranks, points = table["n"], {int(mib): point for mib, point in table["points"].items()}
        cluster = cases.cluster(cases.GPU_A, ranks, 1, points[1024]["busbw"] * 1e9, None)
        rate = group_rates(cluster, Degrees(tp=ranks, dp=1), LIBRARY)
        for mib, point in points.items():
            if mib >= 16:
                seconds = tensor_parallel_s(rate, mib * 2**20, 1, 0.0)
                errors.append(abs(seconds / (point["us"] * 1e-6) - 1))
    assert len(errors) == 49
    assert sorted(errors)[len(errors) // 2] < 0.15


def test_one_rank_communicates_nothing() -> None:
    rate = group_rates(cases.cluster(cases.GPU_A, 1, 1, 228e9, None), Degrees(tp=1, dp=1), LIBRARY)
    assert set(rate) == {0.0}


def test_gather_in_a_node_moves_all_but_the_own_share() -> None:
    assert data_s_per_byte(NODE, Degrees(tp=1, dp=8), 0.0, flat_rings=False) == pytest.approx(7 / 8 / 228e9)


def test_groups_of_a_node_share_its_network() -> None:
    alone = data_s_per_byte(FOUR, Degrees(tp=1, dp=32), 170e9, flat_rings=False)
    assert alone == pytest.approx(3 / 4 / 170e9)
    assert data_s_per_byte(FOUR, Degrees(tp=8, dp=4), 170e9, flat_rings=False) == pytest.approx(8 * alone)


def test_network_never_makes_a_gather_faster_than_the_node_allows() -> None:
    assert data_s_per_byte(FOUR, Degrees(tp=1, dp=32), 1e15, flat_rings=False) == pytest.approx(31 / 32 / 228e9)


def test_tensor_parallelism_across_nodes_takes_the_slower_link_and_a_longer_start() -> None:
    inside, across = Degrees(tp=8, dp=4), Degrees(tp=16, dp=2)
    assert tensor_s_per_byte(FOUR, inside, 170e9) == pytest.approx(2 * 7 / 8 / 228e9)
    assert tensor_s_per_byte(FOUR, across, 170e9) == pytest.approx(2 * 15 / 16 / 170e9)
    assert collective_latency_s(FOUR, inside, LIBRARY) == pytest.approx(88e-6)
    assert collective_latency_s(FOUR, across, LIBRARY) == pytest.approx(186e-6)


def test_two_ranks_of_a_mesh_get_the_rate_of_two() -> None:
    mesh = Link(name="mesh", bus_bytes_per_s=((2, 22.5e9), (4, 85e9), (8, 134e9)), source="vTrain, V100")
    node = cases.cluster(cases.GPU_A, 8, 1, 1.0, None, intra_node=mesh)
    assert tensor_s_per_byte(node, Degrees(tp=2, dp=4), 0.0) == pytest.approx(1 / 22.5e9)
    assert data_s_per_byte(node, Degrees(tp=2, dp=4), 0.0, flat_rings=False) == pytest.approx(3 / 4 / 85e9)


def test_several_nodes_without_a_network_rate_are_refused() -> None:
    lonely = cases.cluster(cases.GPU_A, 8, 2, 228e9, None)
    with pytest.raises(ValueError, match="a cluster of 2 nodes needs a network rate"):
        group_rates(lonely, Degrees(tp=1, dp=16), LIBRARY)


@pytest.mark.parametrize(
    ("traits", "gated", "expected"),
    [
        ((), True, 5),
        ((), False, 4),
        ((("fused_qkv", True),), False, 2),
        ((("fused_qkv", True), ("fused_gate_up", True)), True, 2),
    ],
)
def test_backward_all_reduces_once_per_column_parallel_linear(traits: tuple, gated: bool, expected: int) -> None:
    """q, k, v, gate and up of a Llama layer: LinearLayer.forward wraps each input in ColumnParallel."""
    model = cases.model(1024, 4, 8, 8, 4096, 32000, gated_mlp=gated, traits=traits)
    (layer,) = model_work(model).kinds
    assert backward_all_reduces(layer, CONSTANTS.engine) == expected
    assert backward_all_reduces(layer, cases.textbook().engine) == 2


def test_overlapping_activities_take_the_longer_and_a_share_of_the_shorter() -> None:
    for compute, transfer in ((3.0, 1.0), (1.0, 3.0)):
        assert compute + transfer - hidden_s(compute, transfer, 0.6) == pytest.approx(3.0 + 0.6 * 1.0)
    assert hidden_s(3.0, 1.0, 1.0) == 0.0


@pytest.mark.slow
@pytest.mark.deepspeed
def test_deepspeed_still_reduces_as_the_constants_say() -> None:
    """Read in the installed sources: multi-rank buckets are all-reduced; AutoTP wraps every column-parallel Linear."""
    pytest.importorskip("deepspeed")
    import inspect

    from deepspeed.module_inject.layers import ColumnParallel, LinearLayer
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    assert DeepSpeedZeroConfig(stage=2).use_multi_rank_bucket_allreduce
    assert "allreduce_and_scatter" in inspect.getsource(DeepSpeedZeroOptimizer.average_tensor)
    assert "dist.all_reduce" in inspect.getsource(DeepSpeedZeroOptimizer.allreduce_bucket)
    assert "ColumnParallel.apply" in inspect.getsource(LinearLayer.forward)
    assert "dist.all_reduce" in inspect.getsource(ColumnParallel.backward)
