"""Host RAM in the verdict and in the words of an answer: known, unknown, almost too little; disk kept apart."""

from __future__ import annotations

import json

import pytest

from planner import estimate, plan
from planner.api import Answer
from planner.memory import host
from planner.memory.sizes import rank_sizes
from planner.records.estimate import Device, Moment
from planner.records.plan import Verdict
from planner.render.readme import readme
from planner.search.capacity import (
    HOST_MARGIN,
    SYSTEM_BYTES,
    available_bytes,
    checkpoint_bytes,
    needed_bytes,
    pinned_host_bytes,
)
from planner.search.settings import frugal_sub_group_elements
from planner.spec.model import resolve_model
from planner.units import GB, GIB, gib_text

ALL_ON_HOST = {"zero": 3, "offload": "optimizer+param", "checkpointing": "full", "tp": 1, "micro_batch": 1}


def host_reason(answer: Answer) -> str:
    return next(reason for reason in answer.plan.ranked[0].reasons if reason.startswith("host RAM"))


def test_unknown_ram_is_answered_with_the_need_and_the_safe_line() -> None:
    answer = estimate(model="70b", gpus="8x8xA100-80G", **ALL_ON_HOST)
    need = answer.plan.ranked[0].memory.peak_bytes(Device.HOST)
    reason = host_reason(answer)
    assert reason.startswith(f"host RAM is unknown: it needs at least {gib_text(need, digits=0)} per node")
    assert "is safe with" in reason
    parameters = answer.to_dict()["model"]["parameters"]
    line = 24 * -(-parameters // 8) + 40 * GB
    assert f"24 bytes per parameter + 40 GB = {gib_text(line, digits=0)}" in reason or need > line * (1 - HOST_MARGIN)
    assert reason in json.dumps(answer.to_dict()["plans"][0]["reasons"])


def test_the_safe_line_is_24_bytes_per_parameter_unless_the_need_is_close_to_it() -> None:
    said = {host_reason(estimate(model=m, gpus=g, zero=2, offload="optimizer", checkpointing="full", tp=1))
            for m, g in (("7b", "1xA100-80G"), ("13b", "8x8xA100-80G"), ("70b", "8xH200"))}  # fmt: skip
    assert any("24 bytes per parameter + 40 GB = " in reason for reason in said)
    assert any(f"the {HOST_MARGIN:.0%} error of the host model on top = " in reason for reason in said)


def test_plans_without_offload_are_silent_about_host_ram() -> None:
    answer = estimate(model="7b", gpus="8xA100-80G", zero=3)
    assert not any(reason.startswith("host RAM") for reason in answer.plan.ranked[0].reasons)


def test_known_ram_gives_a_verdict_with_a_stated_margin() -> None:
    need = estimate(model="13b", gpus="4xA100-80G", **ALL_ON_HOST).plan.ranked[0].memory.peak_bytes(Device.HOST)
    system = SYSTEM_BYTES / GIB
    for share, verdict in ((1.3, Verdict.FITS), (1.05, Verdict.BORDERLINE), (0.95, Verdict.DOES_NOT_FIT)):
        answer = estimate(model="13b", gpus="4xA100-80G", host_ram=share * need / GIB + system, **ALL_ON_HOST)
        evaluation = answer.plan.ranked[0]
        assert evaluation.verdict is verdict, share
        assert f"stated error {HOST_MARGIN:.0%}" in host_reason(answer)
        words = " ".join(evaluation.reasons)
        assert ("inside the 10% error of the host memory model" in words) is (verdict is Verdict.BORDERLINE)
        assert ("host-memory: does not fit" in words) is (verdict is Verdict.DOES_NOT_FIT)


def test_what_the_machine_needs_for_itself_is_no_room_for_a_plan() -> None:
    named = estimate(model="7b", gpus="1xA100-80G", host_ram=256).plan.request
    assert available_bytes(named, Device.HOST) == 256 * GIB - SYSTEM_BYTES
    instance = estimate(model="7b", gpus="p4d.24xlarge").plan.request
    assert instance.cluster.host_memory_bytes is not None
    assert available_bytes(instance, Device.HOST) == pytest.approx(
        instance.cluster.host_memory_bytes * 63 / 64 - SYSTEM_BYTES, abs=1
    )


def test_locked_memory_is_named_and_is_part_of_the_peak() -> None:
    evaluation = estimate(model="13b", gpus="4xA100-80G", **ALL_ON_HOST).plan.ranked[0]
    pinned = pinned_host_bytes(evaluation.memory)
    assert 0 < pinned < evaluation.memory.peak_bytes(Device.HOST)
    said = next(r for r in evaluation.reasons if f"{gib_text(pinned, digits=0)} of it per node are page-locked" in r)
    exact = 20 * 13.016e9 / GIB  # bytes per parameter of all offloaded states, without rounding
    without = int(said.rpartition("needs ")[2].removesuffix(" GiB"))
    assert exact < without < exact + 60 < evaluation.memory.peak_bytes(Device.HOST) / GIB  # processes, one saved copy


def test_the_search_rejects_for_host_memory_and_says_so() -> None:
    answer = plan(model="70b", gpus="8xA100-80G", offload="optimizer,optimizer+param", host_ram=1024)
    assert not answer.fits
    assert any(r.rule == "host-memory" and "a node's RAM that the system leaves" in r.detail
               for r in answer.plan.rejected)  # fmt: skip


def test_a_checkpoint_is_shown_and_compared_with_no_nvme() -> None:
    answer = plan(model="7b", gpus="1xp4d.24xlarge", zero=3, offload="nvme", top=1)
    evaluation, document = answer.plan.ranked[0], answer.to_dict()["plans"][0]
    files = next(t for t in document["memory"]["terms"] if t["name"] == "checkpoint/files")
    assert files["device"] == "disk"
    assert files["phases"] == ["save"]
    memory = evaluation.memory
    on_disk = memory.moment_bytes[Device.DISK]
    assert needed_bytes(memory, Device.DISK) == on_disk[Moment.STEP_CAST]
    assert on_disk[Moment.SAVE] == needed_bytes(memory, Device.DISK) + files["bytes"]
    assert gib_text(checkpoint_bytes(memory)) in answer.files()["README.md"]


def test_a_readme_names_the_releases_that_differ() -> None:
    text = plan(model="7b", gpus="1xA100-80G", zero=2, offload="optimizer", host_ram=256).files()["README.md"]
    assert "deepspeed before 0.18.7: every rank flattens its weights in host memory" in text
    assert "deepspeed before 0.19.4" not in text  # tensor parallelism and NVMe: not this plan
    assert readme.__doc__


# Pinned bytes per parameter of the fp32 gradients: torch's power of two of every sub-group, worked out by hand.
# llama-30b has tensors of 119,275,520 (MLP) and 44,302,336 (attention) elements, 14.9 M and 5.5 M on each of 8 ranks.
def test_the_sub_group_of_an_offloaded_plan_wastes_little_of_its_blocks() -> None:
    model, dp = resolve_model("llama-30b"), 8
    tensors = rank_sizes(model, 1).tensors
    limit = frugal_sub_group_elements(tensors, dp)
    groups = host.sub_group_elements(tensors, dp, limit)
    taken = sum(1 << (4 * group - 1).bit_length() for group in groups)
    assert taken <= 1.05 * 4 * sum(groups)
    default = host.sub_group_elements(tensors, dp, 100_000_000)
    assert sum(1 << (4 * group - 1).bit_length() for group in default) >= 1.2 * 4 * sum(default)
    planned = plan(model="llama-30b", gpus="8xA100-80G", zero=3, tp=1, offload="optimizer+param", host_ram=2000, top=1)
    assert planned.plan.ranked[0].candidate.settings.sub_group_elements == limit
    kept = plan(model="llama-30b", gpus="8xH200", zero=3, tp=1, offload="none", top=1).plan.ranked[0]
    assert kept.candidate.settings.sub_group_elements == 100_000_000
