"""Optimizer step and offload against public reports."""

from __future__ import annotations

import pytest
import speed_cases as cases

from planner.catalog.speed import speed_constants
from planner.records.candidate import Offload
from planner.records.machine import Gpu
from planner.speed.estimate import time_estimate
from planner.speed.update import (
    cpu_parameters_per_s,
    cpu_step_s,
    gathered_parameters_s,
    gpu_step_s,
    nvme_rates_bytes_per_s,
    nvme_states_s,
)

CONSTANTS = speed_constants()


def test_qwen_72b_on_four_nodes_steps_as_reported() -> None:
    """DeepSpeed issue 6834: about 10 s on the CPU, 0.2 s on the GPU."""
    node = cases.cluster(cases.GPU_A, 8, 4, 228e9, 85e9)
    assert 8 < cpu_step_s(72.7e9 / 4, node, CONSTANTS) < 12
    assert 0.01 < gpu_step_s(72.7e9 / 32, 2.039e12, CONSTANTS) < 0.2


def test_llama_7b_on_four_gpus_needs_more_than_three_seconds() -> None:
    """ZenFlow blog of DeepSpeed: Llama-2-7B on 4 A100, over 4 s for the CPU step."""
    assert 3.5 < cpu_step_s(6.74e9, cases.cluster(cases.GPU_A, 4, 1, 228e9, None), CONSTANTS) < 5


@pytest.mark.parametrize(
    ("gpus", "cores", "rate"),
    [
        (8, None, 1.8e9),
        (4, None, 1.8e9),
        (2, None, 1.8e9),
        (1, None, 0.9e9),
        (1, 64, 0.9e9),
        (8, 96, 1.8e9),
        (1, 4, 0.248e9),
        (8, 1, 62e6),
    ],
)
def test_cpu_rate_follows_sockets_and_is_capped_by_known_cores(gpus: int, cores: int | None, rate: float) -> None:
    node = cases.cluster(cases.GPU_A, gpus, 1, 228e9, None, cpu_cores=cores)
    assert cpu_parameters_per_s(node, CONSTANTS) == pytest.approx(rate)


@pytest.mark.parametrize(("card", "step_s", "others_s"), [("H200", 2.99, 1.07), ("B200", 2.52, 0.68)])
def test_hosts_with_ddr5_step_llama_8b_in_under_two_seconds(card: str, step_s: float, others_s: float) -> None:
    """8,192 tokens on each of 8 GPUs, 141 TFLOP/s on H200 and 167 on B200 (ml-engineering, when-to-upgrade-gpus); the
    kernels and copies beside the CPU's step take the rest."""
    node = cases.cluster(cases.gpu(989e12, 0.74, 0.5, 4.8e12, 50e9), 8, 1, 365e9, None)
    assert cpu_step_s(8.03e9, node, CONSTANTS) == pytest.approx(step_s - others_s, rel=0.05), card


@pytest.mark.parametrize(
    ("device", "tflops_per_gpu"),
    [
        (cases.gpu(989e12, 0.74, 0.5, 4.8e12, 50e9), 141),
        (cases.gpu(2250e12, 0.62, 0.5, 8e12, 50e9), 167),
    ],
    ids=["H200", "B200"],
)
def test_host_bound_step_on_pcie_5_is_in_its_band(device: Gpu, tflops_per_gpu: float) -> None:
    """ml-engineering, when-to-upgrade-gpus: Llama-3.1-8B, 8 GPUs, ZeRO-3, CPU optimizer, 8k tokens."""
    result = time_estimate(
        cases.LLAMA_8B,
        cases.cluster(device, 8, 1, 365e9, None),
        cases.workload(8192),
        cases.candidate(3, 8, 1, 1, offload=Offload.OPTIMIZER),
        constants=CONSTANTS,
    )
    assert result.model_flop_per_s_per_gpu / 1e12 == pytest.approx(tflops_per_gpu, rel=result.relative_error / 2)


def test_unknown_drives_count_as_one_old_drive() -> None:
    assert nvme_rates_bytes_per_s(cases.cluster(cases.GPU_A, 1, 1, 228e9, None), CONSTANTS) == (3.2e9, 2.0e9)
    known = cases.cluster(cases.GPU_A, 1, 1, 228e9, None, nvme_read_bytes_per_s=27e9, nvme_write_bytes_per_s=11e9)
    assert nvme_rates_bytes_per_s(known, CONSTANTS) == (27e9, 11e9)


def test_nvme_moves_master_weight_moments_and_gradient_both_ways() -> None:
    assert nvme_states_s(13e9, 10e9, 5e9, CONSTANTS) == pytest.approx(13e9 * (16 / 10e9 + 16 / 5e9))
    assert nvme_states_s(13e9, 10e9, 5e9, cases.textbook()) == pytest.approx(13e9 * (12 / 10e9 + 12 / 5e9))


def test_parameters_are_fetched_only_where_they_do_not_lie_on_the_gpu() -> None:
    node = cases.cluster(cases.GPU_A, 4, 1, 228e9, None, nvme_read_bytes_per_s=10e9, nvme_write_bytes_per_s=5e9)

    def seconds(offload: Offload) -> float:
        return gathered_parameters_s(1e9, 2, node, offload, CONSTANTS)

    assert seconds(Offload.NONE) == seconds(Offload.OPTIMIZER) == 0.0
    assert seconds(Offload.OPTIMIZER_AND_PARAMS) == pytest.approx(2e9 / 24e9)
    assert seconds(Offload.NVME) == pytest.approx(4 * 2e9 / 10e9)
