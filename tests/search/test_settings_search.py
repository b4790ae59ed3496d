"""The settings that a search chooses: what a plain walk over the whole space chooses, and laws of the ladder."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from dataclasses import fields as fields_of
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))
from strategies import requests

from planner.catalog.speed import speed_constants
from planner.memory.estimate import estimate_memory, job_inputs, job_of
from planner.memory.host_terms import host_terms
from planner.records.candidate import Candidate, Degrees, Offload, ZeroSettings, ZeroStage
from planner.records.estimate import Device
from planner.records.plan import Evaluation, Rejection, Verdict
from planner.records.request import Objective, Request
from planner.search.evaluate import evaluate
from planner.search.rank import ranked_for
from planner.search.rules import RULES, first_breach
from planner.search.search import search
from planner.search.space import strategies, usual_settings
from planner.search.variants import settings_variants
from planner.spec.request import build_request
from planner.speed.estimate import step_seconds

CONSTANTS = speed_constants()
HIGHEST = 12
"""Micro-batches of the plain walk: 1 to 12, or the divisors among them."""

Outcome = Evaluation | Rejection


@st.composite
def small_spaces(draw: st.DrawFn) -> Request:
    """A request with random axes, objective, depth and host memory; long samples, so that few micro-batches fit."""
    fields = draw(requests())
    fields["seq_len"] = draw(st.sampled_from((512, 2048, 8192)))
    if fields["model"] in ("gpt2", "opt-1.3b"):
        fields["seq_len"] = 512
    if "global_batch" in fields:
        fields["global_batch"] = draw(st.sampled_from((32, 48, 96)))
    fields["objective"] = draw(st.sampled_from([objective.value for objective in Objective]))
    fields["optimizer"] = draw(st.sampled_from(("adamw", "adamw", "adamw-8bit", "lion")))
    request = build_request(fields)
    axes, model = request.axes, request.model
    tp = draw(st.lists(st.sampled_from(axes.tp), min_size=1, max_size=2, unique=True))
    zero = draw(st.lists(st.sampled_from(axes.zero), min_size=1, max_size=2, unique=True))
    offload = draw(st.lists(st.sampled_from(axes.offload), min_size=1, max_size=2, unique=True))
    if model.layers % 4 == 0 and not model.experts and draw(st.booleans()):
        model = replace(model, layers=model.layers // 4 * draw(st.integers(1, 8)))
    return replace(request, model=model, axes=replace(axes, tp=tuple(tp), zero=tuple(zero), offload=tuple(offload)))


def every_outcome(request: Request) -> dict[tuple[object, ...], dict[int, list[Outcome]]]:
    """The whole product: strategies, then micro-batches, then settings, each evaluated by itself."""
    axes, workload, world = request.axes, request.workload, request.cluster.world_size
    found: dict[tuple[object, ...], dict[int, list[Outcome]]] = {}
    for zero, tp, checkpointing, offload in itertools.product(axes.zero, axes.tp, axes.checkpointing, axes.offload):
        degrees = Degrees(tp=tp, dp=max(1, world // tp))
        strategy = Candidate(
            zero=zero,
            degrees=degrees,
            checkpointing=checkpointing,
            offload=offload,
            micro_batch=1,
            accumulation=1,
            settings=usual_settings(request, zero, degrees, offload),
        )
        by_micro: dict[int, list[Outcome]] = {}
        for micro in range(1, HIGHEST + 1):
            accumulation = 1
            if workload.global_batch is not None:
                share, rest = divmod(workload.global_batch, degrees.dp)
                if (share % micro and not rest) or (rest and micro > 1):
                    continue
                accumulation = max(1, workload.global_batch // (micro * degrees.dp))
            by_micro[micro] = [
                evaluate(
                    request,
                    replace(strategy, micro_batch=micro, accumulation=accumulation, settings=variant),
                    CONSTANTS,
                )
                for variant in itertools.chain(*settings_variants(request, strategy))
            ]
        found[zero, tp, checkpointing, offload] = by_micro
    return found


def chosen(request: Request, outcomes: list[Outcome]) -> Outcome:
    """What the space promises: best by the objective among those that fit, else the least miss; the first of equals."""
    for verdict in (Verdict.FITS, Verdict.BORDERLINE):
        fitting = [o for o in outcomes if isinstance(o, Evaluation) and o.verdict is verdict]
        if fitting and request.objective is Objective.MEMORY:
            least = min(o.memory.gpu_total_bytes for o in fitting)
            return next(o for o in fitting if o.memory.gpu_total_bytes == least)
        if fitting:
            fastest = min(o.time.step_seconds for o in fitting if o.time)
            return next(o for o in fitting if o.time and o.time.step_seconds <= fastest * 1.02)
    misses = [o for o in outcomes if isinstance(o, Rejection)]
    by_memory = [o for o in misses if o.memory is not None]
    return min(by_memory, key=lambda o: o.needed / max(1, o.available)) if by_memory else misses[0]


def plain_search(request: Request) -> tuple[list[Evaluation], list[Rejection]]:
    """Powers of two and the largest micro-batch that fits, and the first that does not; all divisors of a fixed global
    batch."""
    kept: list[Evaluation] = []
    rejected: list[Rejection] = []
    for by_micro in every_outcome(request).values():
        best = {micro: chosen(request, outcomes) for micro, outcomes in by_micro.items()}
        wanted = set(best)
        if request.workload.global_batch is None:
            fitting = [micro for micro, outcome in best.items() if isinstance(outcome, Evaluation)]
            largest = max(fitting, default=0)
            powers = {1, 2, 4, 8}
            wanted = {micro for micro in fitting if micro in powers}
            if largest < max(powers):
                wanted |= {largest, largest + 1} & set(best)
        for micro in sorted(wanted):
            outcome = best[micro]
            if isinstance(outcome, Evaluation):
                kept.append(outcome)
            else:
                rejected.append(outcome)
    return kept, rejected


COUNTED: Counter[str] = Counter()


@settings(max_examples=30, deadline=None)
@given(small_spaces())
def test_the_search_is_the_plain_walk(request: Request) -> None:
    with (
        patch("planner.search.search.LARGEST_MICRO_BATCH", 8),
        patch("planner.search.space.LARGEST_MICRO_BATCH", HIGHEST),
    ):
        plan = search(request, CONSTANTS)
    kept, rejected = plain_search(request)
    assert plan.ranked == ranked_for(request, kept)
    assert sorted(plan.rejected, key=repr) == sorted(rejected, key=repr)
    COUNTED["plans"] += len(kept)
    COUNTED["misses"] += len(rejected)


def test_the_plain_walk_has_seen_every_kind_of_outcome() -> None:
    if not COUNTED:
        pytest.skip("the walk above did not run")
    assert COUNTED["plans"] >= 20
    assert COUNTED["misses"] >= 20


CHOSEN = (
    ({"model": "13b", "gpus": "4x4xV100-32G", "seq_len": 512}, "hpz_partition_size"),
    ({"model": "13b", "gpus": "4x4xV100-32G", "seq_len": 512}, "optimizer_offload_ratio"),
    ({"model": "70b", "gpus": "4x8xA100-80G"}, "optimizer_offload_ratio"),
    ({"model": "7b", "gpus": "2xRTX-3090", "host_ram": 256, "seq_len": 1024}, "overlap_comm"),
    ({"model": "7b", "gpus": "2xRTX-3090", "host_ram": 256, "seq_len": 1024}, "max_reuse_distance"),
)


@pytest.mark.parametrize(("fields", "setting"), CHOSEN, ids=lambda value: str(value))
def test_every_kind_of_setting_is_changed_somewhere(fields: dict[str, object], setting: str) -> None:
    request = build_request(fields)
    changed = {
        name for e in search(request, CONSTANTS).ranked for name in changes(e.candidate, usual_of(request, e.candidate))
    }
    assert setting in changed
    assert changed <= SEARCHED


SEARCHED = {
    "overlap_comm",
    "reduce_bucket_elements",
    "allgather_bucket_elements",
    "prefetch_bucket_elements",
    "max_live_parameters",
    "max_reuse_distance",
    "sub_group_elements",
    "hpz_partition_size",
    "optimizer_offload_ratio",
}


def usual_of(request: Request, candidate: Candidate) -> ZeroSettings:
    return usual_settings(request, candidate.zero, candidate.degrees, candidate.offload)


def changes(candidate: Candidate, usual: ZeroSettings) -> set[str]:
    return {f.name for f in fields_of(usual) if getattr(candidate.settings, f.name) != getattr(usual, f.name)}


@settings(max_examples=40, deadline=None)
@given(requests(), st.integers(1, 8), st.sampled_from((1, 4)))
def test_frugal_settings_are_never_faster(fields: dict[str, object], micro_batch: int, accumulation: int) -> None:
    """What the search relies on: not than the usual settings, nor than a frugal rung before."""
    request = build_request(fields)
    for strategy in strategies(request):
        if first_breach(request, strategy, RULES[:-4]) is not None:
            continue
        quick, frugal = settings_variants(request, strategy)
        rungs = [
            replace(strategy, micro_batch=micro_batch, accumulation=accumulation, settings=variant)
            for variant in (quick[0], *frugal)
        ]
        seconds = step_seconds(request.model, request.cluster, request.workload, rungs, constants=CONSTANTS)
        for earlier, later in itertools.pairwise(seconds):
            assert earlier <= later * (1 + 1e-12)


@settings(max_examples=20, deadline=None)
@given(requests())
def test_settings_of_a_file_are_the_only_ones(fields: dict[str, object]) -> None:
    request = build_request(fields)
    given_settings = usual_settings(request, ZeroStage.GRADIENTS, Degrees(tp=1, dp=1), Offload.NONE)
    pinned = replace(request, axes=replace(request.axes, settings=given_settings))
    found = 0
    for strategy in strategies(pinned):
        assert settings_variants(pinned, strategy) == ((given_settings,), ())
        found += 1
    assert found
    assert all(e.candidate.settings == given_settings for e in search(pinned, CONSTANTS).ranked)


@settings(max_examples=15, deadline=None)
@given(requests(), st.booleans())
def test_the_host_depends_on_no_other_setting(fields: dict[str, object], fp32: bool) -> None:
    """The search keeps host terms by the settings that they read; here they are made from all settings."""
    request = build_request(fields)
    model, cluster, workload = request.model, request.cluster, request.workload
    found = 0
    for strategy in strategies(request):
        if first_breach(request, strategy, RULES[:-4]) is not None:
            continue
        for variant in itertools.chain(*settings_variants(request, strategy)):
            chosen = replace(strategy, settings=replace(variant, fp32_gradient_accumulation=fp32))
            given_all = job_inputs(job_of(model, cluster, workload, chosen))
            terms = [t for t in estimate_memory(model, cluster, workload, chosen).terms if t.device is not Device.GPU]
            assert terms == [t for t in host_terms(given_all) if t.size_bytes]
            found += 1
    assert found or not any(request.axes.zero)


def test_rungs_are_few_and_distinct() -> None:
    request = build_request({"model": "70b", "gpus": "16x8xH100-80G", "offload": "none,optimizer,optimizer+param"})
    longest = 0
    for strategy in strategies(request):
        rungs = list(itertools.chain(*settings_variants(request, strategy)))
        assert len(set(rungs)) == len(rungs) <= 12
        assert rungs[0] == strategy.settings
        longest = max(longest, len(rungs))
    assert longest >= 8
