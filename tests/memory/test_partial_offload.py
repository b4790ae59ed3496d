"""Partial offload of the optimizer (`offload_optimizer.ratio`): bytes on both sides against DeepSpeed's own arithmetic.

deepspeed/runtime/zero/stage3.py (0.19.8): `_create_fp16_sub_groups` closes a group with the share that reaches the
limit; `_create_fp32_partitions` puts the first int((1 - ratio) * groups) on the GPU; there master weight, gradient and
two moments take 4 bytes each. Everything below is worked out from those two rules, tensor by tensor.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import planner
from planner.errors import PlannerError
from planner.memory import host
from planner.memory.estimate import estimate_memory
from planner.memory.sizes import rank_sizes
from planner.records.candidate import Candidate, Checkpointing, Degrees, Offload, ZeroStage
from planner.records.estimate import Device, MemoryEstimate, Moment
from planner.records.model import Precision
from planner.records.request import Attention, Loss, Workload
from planner.render.deepspeed_json import offload_optimizer_section
from planner.search.settings import default_settings
from planner.spec import ds_config
from planner.spec.cluster import parse_cluster
from planner.spec.model import resolve_model

RANKS = 8
LAYER = (*(4096 * 4096,) * 4, *(4096 * 11008,) * 3, 4096, 4096)
LLAMA_7B = (32000 * 4096, *LAYER * 32, 4096, 32000 * 4096)  # every tensor, in the order of the model
WORKLOAD = Workload(
    seq_len=512,
    global_batch=None,
    accumulation=None,
    precision=Precision.BF16,
    attention=Attention.SDPA,
    loss=Loss.STANDARD,
    tokens=None,
)


def groups_of(limit: int) -> list[int]:
    """Sub-groups of one of eight ranks, by the first rule."""
    shares, groups, filled = [numel // RANKS for numel in LLAMA_7B], [], 0
    for share in shares:
        filled += share
        if filled >= limit:
            groups.append(filled)
            filled = 0
    return groups + ([filled] if filled else [])


def candidate(ratio: float, limit: int, *, offload: Offload = Offload.OPTIMIZER, pin: bool = False) -> Candidate:
    sizes = default_settings(ZeroStage.PARAMETERS, 4096, 80 * 2**30)
    return Candidate(
        zero=ZeroStage.PARAMETERS,
        degrees=Degrees(tp=1, dp=RANKS),
        checkpointing=Checkpointing.FULL,
        offload=offload,
        micro_batch=1,
        accumulation=1,
        settings=replace(sizes, sub_group_elements=limit, optimizer_offload_ratio=ratio, pin_memory=pin),
    )


def memory(plan: Candidate) -> MemoryEstimate:
    return estimate_memory(resolve_model("llama-2-7b"), parse_cluster("8xA100-80G"), WORKLOAD, plan)


def held(estimate: MemoryEstimate, device: Device, *names: str) -> int:
    """Bytes of these terms while the optimizer steps."""
    return sum(
        t.size_bytes
        for t in estimate.terms
        if t.device is device and t.name in names and Moment.STEP_UPDATE in t.moments
    )


NORMS = 16 * 2 * 4096 // RANKS  # the order of a layer's norms is left out: two of them may fall into the next group
STATES = ("states/master", "states/optimizer", "gradients/update")
CASES = [
    (limit, ratio, on_gpu)
    for limit, by_ratio in (
        (100_000_000, {1.0: 0, 0.9: 0, 0.75: 2, 0.5: 4, 0.25: 6, 0.0: 9}),
        (400_000_000, {1.0: 0, 0.7: 0, 0.6: 1, 0.5: 1, 0.0: 3}),
        (1_000_000_000, {1.0: 0, 0.5: 0, 0.01: 0, 0.0: 1}),
    )
    for ratio, on_gpu in by_ratio.items()
]


def test_the_cases_have_the_groups_that_they_say() -> None:
    assert [len(groups_of(limit)) for limit in (100_000_000, 400_000_000, 1_000_000_000)] == [9, 3, 1]
    assert len(CASES) == 15


@pytest.mark.parametrize(("limit", "ratio", "on_gpu"), CASES)
def test_both_sides_hold_what_deepspeed_puts_there(limit: int, ratio: float, on_gpu: int) -> None:
    groups, estimate = groups_of(limit), memory(candidate(ratio, limit))
    gpu, host = sum(groups[:on_gpu]), sum(groups[on_gpu:])
    assert held(estimate, Device.GPU, *STATES) == pytest.approx(16 * gpu, abs=NORMS)
    assert held(estimate, Device.HOST, *STATES) == pytest.approx(RANKS * 16 * host, abs=RANKS * NORMS)
    foreach = 4 * max(groups[:on_gpu], default=0)  # torch's AdamW takes the root of a whole sub-group
    assert held(estimate, Device.GPU, "step/update") == pytest.approx(foreach, abs=NORMS)


def test_reduced_gradients_wait_in_host_memory_at_every_ratio() -> None:
    """`grad_partitions_flat_buffer` is made on `self.device`, which is the CPU as soon as anything is offloaded."""
    whole = RANKS * 2 * sum(groups_of(10**9))
    for ratio in (1.0, 0.5, 0.0):
        found = held(memory(candidate(ratio, 100_000_000)), Device.HOST, "gradients/partition")
        assert found == pytest.approx(whole, abs=64 * RANKS)


def test_page_locked_gradients_are_rounded_one_by_one_and_one_block_is_left_behind() -> None:
    """Eight groups take 512 MiB each and the last 128; torch keeps the block of those that moved to the GPU."""
    groups = [4 * group for group in groups_of(100_000_000)]
    assert all(2**28 < size <= 2**29 for size in groups[:-1])
    assert 2**26 < groups[-1] <= 2**27
    for ratio, blocks in ((1.0, 8 * 512 + 128), (0.5, 4 * 512 + 128), (0.0, 512)):
        found = held(memory(candidate(ratio, 100_000_000, pin=True)), Device.HOST, "gradients/update")
        assert found == RANKS * blocks * 2**20


def test_the_engine_divides_as_the_rules_say() -> None:
    """Measured: DeepSpeed 0.19.8 on CPU, its device named apart; Llama of 64 wide, 6 layers, sub-groups of 60,000,
    ratio 0.4: groups of these sizes, the first three stepped by torch's AdamW, the last two by DeepSpeedCPUAdam."""
    measured, on_gpu = (63488, 63744, 67712, 61696, 59584), 3
    shape = replace(
        resolve_model("llama-2-7b"), hidden=64, layers=6, heads=4, kv_heads=4, head_dim=16, ffn_hidden=160, vocab=256
    )
    groups = host.sub_group_elements(rank_sizes(shape, 1).tensors, 1, 60_000)
    assert groups == pytest.approx(measured, abs=2 * 64)  # the order of a layer's norms is left out
    assert host.groups_left_on_gpu(len(groups), 0.4) == on_gpu


def test_an_offload_to_nvme_and_no_offload_know_no_ratio() -> None:
    for offload in (Offload.NVME, Offload.NONE):
        halved, whole = (memory(candidate(r, 100_000_000, offload=offload)) for r in (0.5, 1.0))
        assert halved.terms == whole.terms


def test_the_ratio_is_written_only_where_it_says_something() -> None:
    assert offload_optimizer_section(candidate(0.4, 10**8))["ratio"] == 0.4
    assert "ratio" not in offload_optimizer_section(candidate(1.0, 10**8))


def read(tmp_path: Path, stage: int, block: dict[str, object]) -> float:
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps({"zero_optimization": {"stage": stage, "offload_optimizer": block}}))
    return ds_config.read(file, world_size=8, hidden=4096).settings.optimizer_offload_ratio


def test_a_users_ratio_is_taken_as_given_where_deepspeed_takes_it(tmp_path: Path) -> None:
    assert read(tmp_path, 3, {"device": "cpu", "ratio": 0.3}) == 0.3
    assert read(tmp_path, 3, {"device": "cpu"}) == 1.0
    assert read(tmp_path, 2, {"device": "cpu", "ratio": 1}) == 1.0
    assert read(tmp_path, 3, {"device": "none", "ratio": 0.3}) == 1.0
    for stage, block in ((2, {"device": "cpu", "ratio": 0.3}), (3, {"device": "cpu", "ratio": 1.5})):
        with pytest.raises(PlannerError, match=r"offload_optimizer\.ratio"):
            read(tmp_path, stage, block)


def test_a_users_ratio_reaches_the_written_file(tmp_path: Path) -> None:
    zero = {"stage": 3, "sub_group_size": 1e8, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": zero}))
    answer = planner.plan(model="7b", gpus="8xA100-80G", config=str(file), host_ram=2000)
    assert answer.fits
    written = json.loads(answer.files()["ds_config.json"])["zero_optimization"]["offload_optimizer"]
    assert (written["device"], written["ratio"]) == ("cpu", 0.5)
