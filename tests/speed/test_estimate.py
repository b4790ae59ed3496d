"""Laws that any step-time model must obey, for random plans, and what an estimate says about itself."""

from __future__ import annotations

import timeit
from dataclasses import replace
from math import fsum
from typing import Any

import pytest
import speed_cases as cases
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog.speed import speed_constants
from planner.records.candidate import Candidate, Checkpointing, Degrees, Offload, ZeroStage
from planner.records.estimate import TimeEstimate
from planner.records.machine import Cluster
from planner.records.model import ModelShape, Precision
from planner.records.request import Attention, Stack, Workload
from planner.speed.estimate import time_estimate
from planner.speed.terms import TERMS, TermSums

CONSTANTS = speed_constants()
MODELS = (cases.LLAMA_7B, cases.LLAMA_13B, cases.LLAMA_8B, cases.LLAMA_70B, cases.MIXTRAL)
Case = tuple[ModelShape, Cluster, Workload, Candidate]


@st.composite
def plans(draw: st.DrawFn) -> Case:
    per_node = draw(st.sampled_from((1, 2, 4, 8)))
    nodes = draw(st.sampled_from((1, 1, 2, 4)))
    tp = draw(st.sampled_from([t for t in (1, 2, 4, 8, 16) if t <= per_node * nodes]))
    stage = ZeroStage(draw(st.integers(0, 3)))
    offloads = {ZeroStage.DISABLED: [Offload.NONE], ZeroStage.PARAMETERS: list(Offload)}
    machine = cases.cluster(
        draw(st.sampled_from((cases.GPU_A, cases.GPU_H))),
        per_node,
        nodes,
        draw(st.sampled_from((12e9, 228e9, 365e9))),
        draw(st.sampled_from((3e9, 85e9, 340e9))) if nodes > 1 else None,
        cpu_cores=draw(st.sampled_from((None, 4, 64))),
        nvme_read_bytes_per_s=draw(st.sampled_from((None, 10e9))),
    )
    work = cases.workload(
        draw(st.sampled_from((512, 2048, 8192))),
        attention=draw(st.sampled_from(Attention)),
        precision=draw(st.sampled_from(Precision)),
    )
    plan = cases.candidate(
        int(stage),
        per_node * nodes // tp,
        draw(st.sampled_from((1, 2, 3, 8))),
        draw(st.sampled_from((1, 2, 16))),
        tp=tp,
        checkpointing=draw(st.sampled_from(Checkpointing)),
        offload=draw(st.sampled_from(offloads.get(stage, [Offload.NONE, Offload.OPTIMIZER]))),
        settings=cases.settings(overlap_comm=draw(st.booleans())),
    )
    return draw(st.sampled_from(MODELS)), machine, work, plan


def estimate(case: Case, **keywords: Any) -> TimeEstimate:
    return time_estimate(*case, **({"constants": CONSTANTS} | keywords))


def seconds(result: TimeEstimate, *names: str) -> float:
    return sum(term.seconds for term in result.terms if term.name in names)


@given(case=plans(), stack=st.sampled_from(Stack))
def test_exposed_seconds_of_the_terms_are_the_step(case: Case, stack: Stack) -> None:
    model, machine, work, plan = case
    result = estimate((model, machine, replace(work, stack=stack), plan))
    assert result.step_seconds == fsum(term.seconds - term.hidden_seconds for term in result.terms)
    assert result.step_seconds > 0
    assert all(0 <= term.hidden_seconds <= term.seconds * (1 + 1e-12) for term in result.terms)
    names = [term.name for term in result.terms]
    assert names == [name for name in TERMS if name in names]
    assert all(term.formula and term.source for term in result.terms)


@given(
    case=plans(),
    field=st.sampled_from(
        (
            "bf16_flop_per_s",
            "fp16_flop_per_s",
            "fp32_flop_per_s",
            "hbm_bytes_per_s",
            "gemm_efficiency",
            "attention_efficiency",
            "host_link_bytes_per_s",
        )
    ),
)
def test_a_faster_gpu_never_makes_a_plan_slower(case: Case, field: str) -> None:
    model, machine, work, plan = case
    faster = replace(machine, gpu=replace(machine.gpu, **{field: 1.5 * getattr(machine.gpu, field)}))
    assert estimate((model, faster, work, plan)).step_seconds <= estimate(case).step_seconds * (1 + 1e-12)


@given(case=plans(), factor=st.sampled_from((1.1, 10.0)))
def test_faster_links_drives_and_more_cores_never_make_a_plan_slower(case: Case, factor: float) -> None:
    model, machine, work, plan = case
    bus = tuple((ranks, factor * rate) for ranks, rate in machine.intra_node.bus_bytes_per_s)
    faster = replace(
        machine,
        intra_node=replace(machine.intra_node, bus_bytes_per_s=bus),
        network_bytes_per_s=factor * machine.network_bytes_per_s if machine.network_bytes_per_s else None,
        cpu_cores=machine.cpu_cores and 2 * machine.cpu_cores,
        nvme_read_bytes_per_s=factor * machine.nvme_read_bytes_per_s if machine.nvme_read_bytes_per_s else None,
    )
    assert estimate((model, faster, work, plan)).step_seconds <= estimate(case).step_seconds * (1 + 1e-12)


@given(case=plans())
def test_fewer_bytes_on_the_wire_never_make_a_plan_slower(case: Case) -> None:
    narrow, wide = cases.with_engine(gradient_wire_bytes=2), cases.with_engine(gradient_wire_bytes=4)
    assert estimate(case, constants=narrow).step_seconds <= estimate(case, constants=wide).step_seconds


@given(case=plans(), times=st.sampled_from((2, 3)))
def test_more_accumulation_at_the_same_micro_batch_never_lowers_the_throughput(case: Case, times: int) -> None:
    model, machine, work, plan = case
    longer = replace(plan, accumulation=times * plan.accumulation)
    more = estimate((model, machine, work, longer))
    assert more.tokens_per_second >= estimate(case).tokens_per_second * (1 - 1e-12)
    assert more.tokens_per_step == times * estimate(case).tokens_per_step


@given(case=plans())
def test_recomputation_repeats_one_forward(case: Case) -> None:
    """Less than half of the kernels, for backward is the longer pass, and no more than half a step again."""
    model, machine, work, plan = case
    kept = estimate((model, machine, work, replace(plan, checkpointing=Checkpointing.NONE)))
    repeated = estimate((model, machine, work, replace(plan, checkpointing=Checkpointing.FULL)))
    kernels = seconds(kept, "compute/gemm", "compute/attention", "compute/elementwise")
    assert 0 < seconds(repeated, "compute/recompute") <= kernels / 2 * (1 + 1e-12)
    assert kept.step_seconds <= repeated.step_seconds <= 1.5 * kept.step_seconds * (1 + 1e-12)


@given(case=plans())
def test_overlap_never_makes_a_plan_slower(case: Case) -> None:
    model, machine, work, plan = case
    without = replace(plan, settings=cases.settings(overlap_comm=False))
    together = replace(plan, settings=cases.settings(overlap_comm=True))
    assert (
        estimate((model, machine, work, together)).step_seconds
        <= estimate((model, machine, work, without)).step_seconds
    )


@given(case=plans())
@settings(max_examples=50)
def test_offload_never_makes_a_plan_faster_than_its_gpu_optimizer_is_slow(case: Case) -> None:
    model, machine, work, plan = case
    plan = replace(plan, zero=ZeroStage.PARAMETERS)
    steps = [estimate((model, machine, work, replace(plan, offload=offload))).step_seconds for offload in Offload]
    assert steps == sorted(steps)


def test_mfu_of_the_first_worked_plan_follows_the_stated_convention() -> None:
    """7B on 8 A100: 3 x (2 x 6.476e9 + 2 x 2048 x 4096 x 32 + 2 x 4096 x 32000) FLOPs a token."""
    plan = cases.candidate(2, 8, 4, 4, checkpointing=Checkpointing.NONE)
    case = (cases.LLAMA_7B, cases.cluster(cases.GPU_A, 8, 1, 228e9, None), cases.workload(2048), plan)
    result = estimate(case, constants=cases.textbook())
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    per_token = 3 * (2 * matrices + 2 * 2048 * 4096 * 32 + 2 * 4096 * 32000)
    assert result.tokens_per_step == 8 * 4 * 4 * 2048
    assert result.model_flop_per_step == per_token * result.tokens_per_step
    assert result.mfu == pytest.approx(result.tokens_per_second_per_gpu * per_token / 312e12)
    assert result.world_size == 8


def test_recomputation_and_parallel_degrees_leave_the_model_flops_alone() -> None:
    machine, work = cases.cluster(cases.GPU_A, 8, 1, 228e9, None), cases.workload(2048)
    flops = {
        estimate((cases.LLAMA_7B, machine, work, plan)).model_flop_per_step
        for plan in (
            cases.candidate(3, 8, 4, 4),
            cases.candidate(2, 8, 4, 4, checkpointing=Checkpointing.NONE),
            cases.candidate(1, 4, 4, 8, tp=2),
        )
    }
    assert len(flops) == 1


@pytest.mark.parametrize(
    ("model", "nodes", "stage", "offload", "reason"),
    [
        (cases.LLAMA_7B, 1, 2, Offload.NONE, "one node"),
        (cases.LLAMA_7B, 1, 3, Offload.NONE, "ZeRO-3"),
        (cases.LLAMA_7B, 2, 1, Offload.NONE, "several nodes"),
        (cases.LLAMA_7B, 1, 2, Offload.OPTIMIZER, "offload"),
        (cases.LLAMA_7B, 2, 3, Offload.NVME, "offload"),
        (cases.MIXTRAL, 1, 2, Offload.NONE, "mixture of experts"),
    ],
)
def test_every_class_of_plan_has_its_band(
    model: ModelShape, nodes: int, stage: int, offload: Offload, reason: str
) -> None:
    machine = cases.cluster(cases.GPU_A, 8, nodes, 228e9, 170e9)
    result = estimate((model, machine, cases.workload(2048), cases.candidate(stage, 8 * nodes, 1, 1, offload=offload)))
    assert result.error_class.startswith(reason)
    assert 0.1 <= result.relative_error <= 0.35


def test_deepspeed_reduces_twice_the_bytes_of_a_reduce_scatter_at_stage_two() -> None:
    case = (
        cases.LLAMA_7B,
        cases.cluster(cases.GPU_A, 8, 1, 228e9, None),
        cases.workload(2048),
        cases.candidate(2, 8, 1, 4),
    )
    at_rate = cases.with_engine(bucketed=False)  # no starts, no embedding and head, as in the textbook
    twice = seconds(estimate(case, constants=at_rate), "communication/reduce")
    assert twice == pytest.approx(2 * seconds(estimate(case, constants=cases.textbook()), "communication/reduce"))


def test_tensor_parallelism_across_nodes_is_slower_than_inside_one() -> None:
    machine, work = cases.cluster(cases.GPU_A, 8, 2, 228e9, 85e9), cases.workload(2048)
    inside = estimate((cases.LLAMA_13B, machine, work, cases.candidate(1, 2, 2, 1, tp=8)))
    across = estimate((cases.LLAMA_13B, machine, work, cases.candidate(1, 1, 2, 2, tp=16)))
    assert across.tokens_per_second < inside.tokens_per_second


def test_single_gpu_only_computes() -> None:
    machine = cases.cluster(cases.GPU_A, 1, 1, 228e9, None)
    plan = replace(cases.candidate(0, 1, 1, 1), degrees=Degrees(tp=1, dp=1))
    names = {term.name for term in estimate((cases.LLAMA_7B, machine, cases.workload(2048), plan)).terms}
    assert {name.split("/")[0] for name in names} == {"compute", "optimizer"}


def test_term_without_a_name_in_the_table_is_refused() -> None:
    with pytest.raises(KeyError):
        TermSums().add("compute/unknown", 1.0)


def test_one_estimate_takes_tens_of_microseconds() -> None:
    plan = cases.candidate(3, 4, 1, 8, offload=Offload.NVME)
    case = (cases.LLAMA_13B, cases.cluster(cases.GPU_A, 4, 1, 228e9, None), cases.workload(2048), plan)
    best = min(timeit.repeat(lambda: estimate(case), number=20, repeat=100)) / 20
    counting = min(timeit.repeat("for number in range(1000): total += number", "total = 0", number=20, repeat=50)) / 20
    assert best < 4 * counting, f"{best * 1e6:.0f} µs, a thousand additions {counting * 1e6:.0f} µs"
