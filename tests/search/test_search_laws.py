"""Laws of the search: what it keeps fits, what it drops has a reason, and a plain walk over the space finds the
same."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))
from strategies import requests

from planner.catalog.speed import speed_constants
from planner.records.estimate import Device
from planner.records.plan import Verdict
from planner.records.request import Objective
from planner.search.capacity import available_bytes, needed_bytes
from planner.search.evaluate import evaluate
from planner.search.rank import ranked
from planner.search.search import search, with_micro_batch
from planner.search.space import strategies
from planner.spec.request import build_request

CONSTANTS = speed_constants()


@settings(max_examples=40, deadline=None)
@given(requests())
def test_every_kept_plan_fits_and_every_other_has_a_reason(fields: dict[str, object]) -> None:
    request = build_request(fields)
    plan = search(request, CONSTANTS)
    for evaluation in plan.ranked:
        assert evaluation.verdict in (Verdict.FITS, Verdict.BORDERLINE)
        assert evaluation.time is not None
        assert evaluation.time.step_seconds > 0
        for device in Device:
            available = available_bytes(request, device)
            assert available is None or needed_bytes(evaluation.memory, device) <= available
    for rejection in plan.rejected:
        assert rejection.rule
        assert rejection.detail
        if rejection.memory is not None:
            assert rejection.needed > rejection.available
    assert plan.ranked or plan.rejected


@settings(max_examples=20, deadline=None)
@given(requests(), st.randoms(use_true_random=False), st.sampled_from(list(Objective)))
def test_ranking_does_not_depend_on_the_order_of_arrival(
    fields: dict[str, object], shuffler: random.Random, objective: Objective
) -> None:
    plan = search(build_request(fields), CONSTANTS)
    shuffled = list(plan.ranked)
    shuffler.shuffle(shuffled)
    assert ranked(shuffled, objective) == ranked(plan.ranked, objective)


def test_borderline_plans_come_after_all_that_fit() -> None:
    plan = search(build_request({"model": "13b", "gpus": "4xA100-80G"}), CONSTANTS)
    verdicts = [e.verdict for e in plan.ranked]
    assert Verdict.BORDERLINE in verdicts
    assert verdicts == sorted(verdicts, key=[Verdict.FITS, Verdict.BORDERLINE].index)


@settings(max_examples=30, deadline=None)
@given(requests(), st.integers(1, 16))
def test_memory_never_falls_when_the_micro_batch_grows(fields: dict[str, object], micro: int) -> None:
    request = build_request({k: v for k, v in fields.items() if k != "global_batch"})
    for strategy in strategies(request):
        small = evaluate(request, with_micro_batch(request, strategy, micro), CONSTANTS)
        large = evaluate(request, with_micro_batch(request, strategy, micro + 1), CONSTANTS)
        if small.memory is not None and large.memory is not None:
            for device in Device:
                assert needed_bytes(small.memory, device) <= needed_bytes(large.memory, device)
