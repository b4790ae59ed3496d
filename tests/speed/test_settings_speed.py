"""How time follows ZeRO's settings: laws over drawn plans, counts worked out by hand, and published offload steps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import speed_cases as cases
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.catalog.speed import speed_constants
from planner.records.candidate import Candidate, Checkpointing, Offload, ZeroSettings, ZeroStage
from planner.records.estimate import TimeEstimate
from planner.records.machine import Cluster
from planner.records.model import ModelShape, Precision
from planner.records.request import Loss
from planner.spec.cluster import parse_cluster
from planner.spec.model import resolve_model
from planner.speed.estimate import time_estimate
from planner.speed.zero_traffic import collected, filled, zero_traffic

CONSTANTS = speed_constants()
MODELS = (cases.LLAMA_7B, cases.LLAMA_8B, cases.LLAMA_70B, cases.MIXTRAL)
SLOWER = 1 + 1e-9  # rounding

Plan = tuple[ModelShape, Cluster, Candidate]


@st.composite
def plans(draw: st.DrawFn, stages: tuple[int, ...] = (1, 2, 3)) -> Plan:
    """A plan of one to four nodes, with drawn ZeRO sizes."""
    nodes, tp = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2, 4)))
    elements = st.integers(0, 2_000_000_000)
    sizes = replace(
        cases.settings(overlap_comm=draw(st.booleans())),
        reduce_bucket_elements=draw(st.integers(1, 1_000_000_000)),
        prefetch_bucket_elements=draw(elements),
        param_persistence_threshold=draw(st.integers(0, 20_000_000)),
        max_live_parameters=draw(elements),
        max_reuse_distance=draw(elements),
        sub_group_elements=draw(st.integers(1_000_000, 1_000_000_000)),
    )
    plan = cases.candidate(
        draw(st.sampled_from(stages)),
        8 * nodes // tp,
        draw(st.integers(1, 8)),
        draw(st.integers(1, 8)),
        tp=tp,
        checkpointing=draw(st.sampled_from(Checkpointing)),
        settings=sizes,
    )
    machine = cases.cluster(
        cases.GPU_A,
        8,
        nodes,
        229e9,
        draw(st.floats(1e9, 400e9)),
        nvme_read_bytes_per_s=10e9,
        nvme_write_bytes_per_s=5e9,
    )
    return draw(st.sampled_from(MODELS)), machine, plan


def estimate(plan: Plan, **changes: Any) -> TimeEstimate:
    model, machine, candidate = plan
    changed = replace(candidate, settings=replace(candidate.settings, **changes)) if changes else candidate
    return time_estimate(model, machine, cases.workload(2048), changed, constants=CONSTANTS)


def step_s(plan: Plan, **changes: Any) -> float:
    return estimate(plan, **changes).step_seconds


def with_offload(plan: Plan, offload: Offload) -> Plan:
    model, machine, candidate = plan
    return model, machine, replace(candidate, offload=offload)


@given(plan=plans(), times=st.integers(2, 50))
def test_a_larger_reduce_bucket_is_never_slower(plan: Plan, times: int) -> None:
    bucket = plan[2].settings.reduce_bucket_elements
    assert step_s(plan, reduce_bucket_elements=bucket * times) <= step_s(plan) * SLOWER


@given(plan=plans(stages=(3,)), more=st.integers(1, 2_000_000_000))
@pytest.mark.parametrize("size", ["prefetch_bucket_elements", "max_live_parameters", "max_reuse_distance"])
def test_a_larger_stage_three_size_is_never_slower(size: str, plan: Plan, more: int) -> None:
    grown = {size: getattr(plan[2].settings, size) + more}
    assert step_s(plan, **grown) <= step_s(plan) * SLOWER


@given(plan=plans())
def test_the_allgather_bucket_changes_nothing(plan: Plan) -> None:
    """deepspeed/runtime/utils.py `all_gather_dp_groups` returns before it reads it (0.19.8)."""
    assert step_s(plan, allgather_bucket_elements=1_000_000) == step_s(plan)


@given(plan=plans(stages=(3,)), times=st.integers(2, 100))
def test_a_larger_sub_group_is_never_slower_on_the_gpu(plan: Plan, times: int) -> None:
    elements = plan[2].settings.sub_group_elements
    assert step_s(plan, sub_group_elements=elements * times) <= step_s(plan) * SLOWER


@given(plan=plans(stages=(3,)))
def test_a_second_copy_of_the_weights_never_pays_on_one_node_and_never_costs_time_on_several(plan: Plan) -> None:
    _, machine, candidate = plan
    in_node = 8 // candidate.degrees.tp
    assume(in_node > 1)
    shared, alone = step_s(plan, hpz_partition_size=in_node), step_s(plan)
    if machine.nodes == 1:
        assert shared == alone
    else:
        assert shared <= alone * SLOWER


def test_a_second_copy_pays_on_a_slow_network() -> None:
    machine = cases.cluster(cases.GPU_A, 8, 4, 229e9, 10e9)
    plan = (cases.LLAMA_7B, machine, cases.candidate(3, 32, 1, 4))
    gathers = [
        next(t.seconds for t in estimate(plan, hpz_partition_size=size).terms if t.name == "communication/gather")
        for size in (1, 8)
    ]
    # Of four micro-batches with two gathers each, only the first gather of the step still crosses the network.
    assert gathers[1] < 0.25 * gathers[0]


@given(plan=plans(stages=(3,)), ratios=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_the_less_the_cpu_steps_the_faster_down_to_copies_alone(plan: Plan, ratios: tuple[float, float]) -> None:
    plan = with_offload(plan, Offload.OPTIMIZER)
    low, high = sorted(ratios)
    times = [step_s(plan, optimizer_offload_ratio=ratio) for ratio in (0.0, low, high, 1.0)]
    assert all(faster <= slower * SLOWER for faster, slower in pairwise(times))


@given(plan=plans(stages=(3,)), ratio=st.floats(0, 0.99))
def test_without_offload_to_the_host_a_ratio_says_nothing(plan: Plan, ratio: float) -> None:
    for offload in (Offload.NONE, Offload.NVME):
        chosen = with_offload(plan, offload)
        assert step_s(chosen, optimizer_offload_ratio=ratio) == step_s(chosen)


@given(plan=plans())
@settings(max_examples=60)
def test_micro_batches_after_the_third_all_take_the_same_time(plan: Plan) -> None:
    """More accumulation changes the rate only by what happens once per step. At stage 1 the first micro-batch has no
    gradient to add to, which the model spreads over all of them: an error of at most one such addition."""
    for offload in (Offload.NONE, Offload.OPTIMIZER):
        model, machine, candidate = with_offload(plan, offload)
        counts = {count: (model, machine, replace(candidate, accumulation=count)) for count in (3, 4, 5, 9)}
        steps = {count: step_s(counted) for count, counted in counts.items()}
        addition = 0.0
        if candidate.zero is ZeroStage.OPTIMIZER:
            terms = [{term.name: term.seconds for term in estimate(counts[count]).terms} for count in (3, 4)]
            addition = terms[1]["compute/gradients"] - terms[0]["compute/gradients"]
        one = steps[4] - steps[3]
        assert steps[5] - steps[4] == pytest.approx(one, rel=1e-9, abs=addition)
        assert steps[9] - steps[5] == pytest.approx(4 * one, rel=1e-9, abs=addition)


@given(plan=plans(), times=st.floats(1.1, 10))
@settings(max_examples=60)
def test_faster_links_and_drives_are_never_slower(plan: Plan, times: float) -> None:
    model, machine, candidate = plan
    offloads = Offload if candidate.zero is ZeroStage.PARAMETERS else (Offload.NONE, Offload.OPTIMIZER)
    gpu = replace(machine.gpu, host_link_bytes_per_s=machine.gpu.host_link_bytes_per_s * times)
    bus = tuple((ranks, rate * times) for ranks, rate in machine.intra_node.bus_bytes_per_s)
    assert machine.network_bytes_per_s
    better = (
        replace(machine, gpu=gpu),
        replace(machine, intra_node=replace(machine.intra_node, bus_bytes_per_s=bus)),
        replace(machine, intra_node=replace(machine.intra_node, switch_bytes_per_s=bus)),
        replace(machine, network_bytes_per_s=machine.network_bytes_per_s * times),
        replace(machine, nvme_read_bytes_per_s=10e9 * times),
        replace(machine, nvme_write_bytes_per_s=5e9 * times),
    )
    for offload in offloads:
        chosen = replace(candidate, offload=offload)
        before = step_s((model, machine, chosen))
        for faster in better:
            assert step_s((model, faster, chosen)) <= before * SLOWER


def test_groups_close_with_the_tensor_that_fills_them_or_before_the_one_that_would_not_fit() -> None:
    tensors = (5, 5, 5, 20, 1)
    assert [collected(tensors, limit) for limit in (1, 6, 10, 16, 100)] == [5, 3, 3, 2, 1]
    assert [filled(tensors, limit) for limit in (1, 5, 10, 15, 21, 100)] == [5, 5, 4, 3, 2, 1]


def traffic(stage: int, checkpointing: Checkpointing = Checkpointing.FULL, **changes: Any) -> Any:
    sizes: ZeroSettings = replace(cases.settings(), **changes)
    return zero_traffic(cases.LLAMA_7B, None, 1, ZeroStage(stage), sizes, checkpointing)


LAYER = 4 * 4096**2 + 3 * 4096 * 11008
NORMS = 2 * 4096


def test_a_layer_of_llama_7b_is_gathered_and_reduced_in_as_many_collectives_as_its_sizes_make() -> None:
    """Matrices of 16.8 M (four) and 45.1 M elements (three); norms are below the threshold."""
    assert traffic(3, prefetch_bucket_elements=0, max_live_parameters=10**9).gathers == 7
    assert traffic(3, prefetch_bucket_elements=1).gathers == 7
    assert traffic(3, prefetch_bucket_elements=10**12).gathers == pytest.approx(1 / 32)
    assert traffic(3, reduce_bucket_elements=1, param_persistence_threshold=0).reduces == 9
    assert traffic(2, reduce_bucket_elements=10**12).reduces == pytest.approx(1 / 32)
    assert traffic(2, reduce_bucket_elements=500_000_000).reduces == pytest.approx(32 * LAYER / 5e8 / 32, rel=0.2)


def test_persistent_tensors_are_gathered_once_per_step() -> None:
    small = traffic(3, param_persistence_threshold=10_000)
    assert small.persistent_elements == 65 * 4096
    assert small.persistent_tensors == 65
    assert small.forward_share == pytest.approx(LAYER / (LAYER + NORMS))
    attention_too = traffic(3, param_persistence_threshold=20_000_000)
    assert attention_too.persistent_tensors == 65 + 4 * 32
    assert attention_too.forward_share == pytest.approx(3 * 4096 * 11008 / (LAYER + NORMS))


def test_what_lies_within_the_reuse_distance_is_not_gathered_again() -> None:
    """Without recomputation everything behind is traversed twice: 1e9 elements keep (1e9 - 2 * head) / 2 of the layers;
    a distance of zero keeps nothing, and with recomputation gathers each layer a third time."""
    head, total = 32000 * 4096, 32 * (LAYER + NORMS)
    nothing: dict[str, Any] = {"prefetch_bucket_elements": 0, "param_persistence_threshold": 0}
    none = Checkpointing.NONE
    assert traffic(3, none, max_reuse_distance=0, **nothing).backward_share == pytest.approx(1.0)
    kept = traffic(3, none, max_reuse_distance=10**9, **nothing)
    assert kept.backward_share == pytest.approx(1 - (10**9 - 2 * head) / 2 / total, rel=1e-3)
    assert traffic(3, max_reuse_distance=0, **nothing).backward_share == pytest.approx(2.0)
    assert traffic(3, max_reuse_distance=10**12, **nothing).backward_share == 0.0


def test_without_prefetching_every_gather_is_waited_for() -> None:
    plan = (cases.LLAMA_7B, cases.cluster(cases.GPU_A, 8, 1, 229e9, None), cases.candidate(3, 8, 4, 1))
    for changes in ({"prefetch_bucket_elements": 0}, {"max_live_parameters": 0}, {"overlap_comm": False}):
        (gather,) = (t for t in estimate(plan, **changes).terms if t.name == "communication/gather")
        assert gather.hidden_seconds == 0.0
    (gather,) = (t for t in estimate(plan).terms if t.name == "communication/gather")
    assert gather.hidden_seconds > 0.0


def offloaded_copies_s(stage: int, accumulation: int, **changes: Any) -> float:
    """Seconds of gradient copies of 7B on four GPUs with 24 GB/s each, hidden or not."""
    machine, sizes = cases.cluster(cases.GPU_A, 4, 1, 229e9, None), replace(cases.settings(), **changes)
    plan = cases.candidate(stage, 4, 1, accumulation, offload=Offload.OPTIMIZER, settings=sizes)
    terms = estimate((cases.LLAMA_7B, machine, plan)).terms
    return next(t.seconds for t in terms if t.name == "offload/gradients")


@pytest.mark.parametrize(
    ("stage", "accumulation", "bytes_per_parameter"),
    [
        (3, 1, (2 + 2 + 4) / 4),  # a quarter each: down, up again, and down in fp32
        (3, 4, (4 * (2 + 2) + 4) / 4),
        (2, 1, 4),  # owner after owner, in fp32
        (2, 2, 2 + (2 + 2 + 4)),
        (2, 4, 2 + 2 * (2 + 2) + (2 + 2 + 4)),
        (1, 1, 4),
        (1, 4, 2 + 2 + 4),
    ],
)
def test_gradients_cross_to_the_host_as_the_code_of_each_stage_has_it(
    stage: int, accumulation: int, bytes_per_parameter: float
) -> None:
    """stage3.py `partition_grads`; stage_1_and_2.py `copy_grads_in_partition` (0.19.8); matrices of 7B: 6.74e9."""
    parameters = 32 * LAYER + 2 * 32000 * 4096
    assert offloaded_copies_s(stage, accumulation) == pytest.approx(bytes_per_parameter * parameters / 24e9, rel=1e-3)


def test_gradients_accumulated_in_fp32_stay_on_the_gpu_below_stage_three_and_cross_in_fp32_there() -> None:
    """`_use_compact_grad_partition_buffer`: the GPU keeps its partition; `grad_partitions_flat_buffer` is fp32 then."""
    parameters = 32 * LAYER + 2 * 32000 * 4096
    for stage, bytes_per_parameter in ((1, 4), (2, 4), (3, (4 * (4 + 4) + 4) / 4)):
        found = offloaded_copies_s(stage, 4, fp32_gradient_accumulation=True)
        assert found == pytest.approx(bytes_per_parameter * parameters / 24e9, rel=1e-3)


def test_half_of_the_sub_groups_on_the_gpu_halve_the_cpu_step_and_the_copies_of_its_results() -> None:
    """7B on four GPUs in sub-groups of 1e8: int(0.5 * 17) = 8 of 17, of 101 M elements each, lie on the GPU."""
    machine = cases.cluster(cases.GPU_A, 4, 1, 229e9, None)
    plan = (cases.LLAMA_7B, machine, cases.candidate(3, 4, 1, 1, offload=Offload.OPTIMIZER))
    whole, part = (
        {t.name: t.seconds - t.hidden_seconds for t in estimate(plan, sub_group_elements=10**8, **changes).terms}
        for changes in ({}, {"optimizer_offload_ratio": 0.5})
    )
    for name in ("optimizer/step", "offload/weights"):
        assert part[name] / whole[name] == pytest.approx(1 - 8 * 101.2e6 / (6.738e9 / 4), rel=0.01)


@pytest.mark.parametrize(
    ("name", "gpus", "added_s"),
    [("qwen2.5-1.5b", "2xA100-40G", 1.365 - 0.240), ("llama-2-7b", "4xA100-80G", 7.0 - 0.5)],
)
def test_a_cpu_step_adds_what_the_zenflow_blog_reports(name: str, gpus: str, added_s: float) -> None:
    """DeepSpeed's ZenFlow blog: 240 to 1,365 ms with two A100, 0.5 to more than 7 s with four; lengths not stated."""
    machine = parse_cluster(gpus)
    plan = cases.candidate(2, machine.gpus_per_node, 4, 1, checkpointing=Checkpointing.NONE)
    model = resolve_model(name)
    without, offloaded = (
        time_estimate(model, machine, cases.workload(512), replace(plan, offload=offload), constants=CONSTANTS)
        for offload in (Offload.NONE, Offload.OPTIMIZER)
    )
    assert offloaded.step_seconds - without.step_seconds == pytest.approx(added_s, rel=0.27)


def test_offload_costs_most_at_few_tokens() -> None:
    """ml-engineering, Llama-3.1-8B on 8 H200, ZeRO-3 with CPU optimizer: 14, 33, 40 and 42 % MFU."""
    plan = cases.candidate(3, 8, 1, 1, offload=Offload.OPTIMIZER)
    model, machine = resolve_model("llama-3.1-8b"), parse_cluster("8xH200")
    shares = [
        time_estimate(model, machine, cases.workload(tokens, loss=Loss.FUSED), plan, constants=CONSTANTS).mfu
        for tokens in (8192, 32768, 65536, 131072)
    ]
    assert shares == sorted(shares)
    assert shares == pytest.approx([0.14, 0.33, 0.40, 0.42], rel=0.2)
    assert shares[1] / shares[0] == pytest.approx(33 / 14, rel=0.15)


def test_four_v100_order_stages_and_tensor_parallelism_as_measured() -> None:
    """1.3B GPT, one node of 4 V100: 12.9 samples/s with ZeRO-1, 10.3 ZeRO-2, 9.6 DDP, 7.6 tp 2, 6.2 tp 4."""
    model = cases.model(2048, 24, 32, 32, 8192, 50304, gated_mlp=False, tied_embeddings=True)
    machine, rates = parse_cluster("4xV100-32G"), []
    for stage, tp in ((1, 1), (2, 1), (0, 1), (0, 2), (0, 4)):
        plan = cases.candidate(stage, 4 // tp, 1, tp, tp=tp, checkpointing=Checkpointing.NONE)
        result = time_estimate(
            model, machine, cases.workload(1024, precision=Precision.FP16), plan, constants=CONSTANTS
        )
        rates.append(4 / result.step_seconds)
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == 5
