"""The order of plans, on plans made by hand: the predicted numbers are free, so every law can be tried."""

from __future__ import annotations

import random
import sys
import time
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from made_plans import USUAL, made

from planner.records.candidate import Offload
from planner.records.plan import Evaluation, Verdict
from planner.records.request import Objective
from planner.search.pareto import fastest_with_headroom, pareto_front
from planner.search.rank import baseline, best_of_each_strategy, ranked, strategy_key

TIE = 0.03  # plans predicted within 3 % are ties


@st.composite
def pools(draw: st.DrawFn) -> list[Evaluation]:
    """Different candidates whose speeds and sizes lie close enough to tie often."""
    names = st.tuples(
        st.integers(0, 3), st.sampled_from((1, 2, 4)), st.booleans(), st.sampled_from(list(Offload)),
        st.sampled_from((1, 2, 4, 8)), st.booleans(),
    )  # fmt: skip
    found = []
    for zero, tp, checkpointing, offload, micro, changed in draw(st.lists(names, max_size=40, unique=True)):
        found.append(
            made(
                draw(st.integers(100, 125)),
                draw(st.integers(40, 60)),
                zero=zero,
                tp=tp,
                checkpointing=checkpointing,
                offload=offload,
                micro_batch=micro,
                accumulation=8 // micro,
                chosen=replace(USUAL, overlap_comm=False) if changed else USUAL,
                verdict=draw(st.sampled_from((Verdict.FITS, Verdict.FITS, Verdict.BORDERLINE))),
            )
        )
    return found


def plainly_simpler(evaluation: Evaluation, *, fixed_batch: bool) -> tuple[object, ...]:
    """The order of simplicity as the issue words it."""
    c = evaluation.candidate
    return (
        c.zero.value,
        c.degrees.tp,
        ["none", "optimizer", "optimizer+param", "nvme"].index(c.offload.value),
        c.checkpointing.value == "full",
        c.settings != USUAL,
        -c.micro_batch if fixed_batch else c.micro_batch,
    )


def plainly_ranked(pool: list[Evaluation], objective: Objective, *, fixed_batch: bool) -> list[Evaluation]:
    """The same order word by word: quadratic, with a list that shrinks."""
    order: list[Evaluation] = []
    for verdict in (Verdict.FITS, Verdict.BORDERLINE):
        left = [e for e in pool if e.verdict is verdict]
        thumb = baseline(left) if objective is not Objective.MEMORY else None
        while left:
            if objective is Objective.MEMORY:
                least = min(e.memory.gpu_total_bytes for e in left)
                tied = [e for e in left if e.memory.gpu_total_bytes <= least * (1 + TIE)]
            else:
                best = max(e.time.tokens_per_second for e in left)
                tied = [e for e in left if e.time.tokens_per_second >= best - best * TIE]
            if thumb in tied:
                tied = [e for e in tied if strategy_key(e.candidate) == strategy_key(thumb.candidate)]
            thumb = None
            order.append(min(tied, key=lambda e: plainly_simpler(e, fixed_batch=fixed_batch)))
            left.remove(order[-1])
    return order


@settings(max_examples=300, deadline=None)
@given(pools(), st.sampled_from(list(Objective)), st.booleans(), st.randoms(use_true_random=False))
def test_the_order_is_that_of_the_words_whatever_came_in_first(
    pool: list[Evaluation], objective: Objective, fixed_batch: bool, shuffler: random.Random
) -> None:
    order = ranked(pool, objective, fixed_batch=fixed_batch, usual=lambda candidate: USUAL)
    assert list(order) == plainly_ranked(pool, objective, fixed_batch=fixed_batch)
    shuffled = list(pool)
    shuffler.shuffle(shuffled)
    assert ranked(shuffled, objective, fixed_batch=fixed_batch, usual=lambda candidate: USUAL) == order


@settings(max_examples=100, deadline=None)
@given(pools())
def test_cost_ranks_as_throughput_does(pool: list[Evaluation]) -> None:
    assert ranked(pool, Objective.COST) == ranked(pool, Objective.THROUGHPUT)


@settings(max_examples=200, deadline=None)
@given(pools(), st.booleans())
def test_the_first_plan_is_within_a_tie_of_the_fastest_and_left_for_the_rule_unless_the_gain_is_larger(
    pool: list[Evaluation], fixed_batch: bool
) -> None:
    fitting = [e for e in pool if e.verdict is Verdict.FITS]
    if not fitting:
        return
    first = ranked(pool, Objective.THROUGHPUT, fixed_batch=fixed_batch)[0]
    fastest = max(e.time.tokens_per_second for e in fitting)
    assert first.time.tokens_per_second >= fastest * (1 - TIE) * (1 - 1e-12)
    thumb = baseline(pool)
    followed = strategy_key(first.candidate) == strategy_key(thumb.candidate)
    assert followed or thumb.time.tokens_per_second < fastest * (1 - TIE) * (1 + 1e-12)


def test_the_rule_of_thumb_is_the_smallest_tp_then_the_largest_micro_batch() -> None:
    plain = made(100, zero=1, tp=2, micro_batch=2)
    larger = made(90, zero=1, tp=2, micro_batch=4)
    divided = made(200, zero=1, tp=4, micro_batch=8)
    recomputed = made(300, zero=1, tp=2, micro_batch=8, checkpointing=True)
    sharded = made(400, zero=3, tp=2, micro_batch=8)
    offloaded = made(500, zero=3, tp=1, micro_batch=8, offload=Offload.OPTIMIZER)
    borderline = made(600, zero=1, tp=1, micro_batch=8, verdict=Verdict.BORDERLINE)
    pool = [borderline, offloaded, sharded, recomputed, divided, larger, plain]
    assert baseline(pool) is larger
    for worse in (larger, plain, sharded, recomputed, divided, offloaded):
        assert baseline(pool) is worse
        pool.remove(worse)
    assert baseline(pool) is borderline
    assert baseline([]) is None


def test_the_rule_of_thumb_leads_inside_three_per_cent_and_not_outside() -> None:
    thumb, model = made(97.5, zero=3, micro_batch=2), made(100, zero=2, tp=2)
    assert ranked([model, thumb], Objective.THROUGHPUT) == (thumb, model)
    thumb = made(96.5, zero=3, micro_batch=2)
    assert ranked([model, thumb], Objective.THROUGHPUT) == (model, thumb)


def test_accumulation_gives_way_at_a_fixed_batch_and_headroom_wins_without_one() -> None:
    small, large = made(100, micro_batch=1, accumulation=4), made(101, micro_batch=4, accumulation=1)
    assert ranked([small, large], Objective.THROUGHPUT, fixed_batch=True) == (large, small)
    assert ranked([small, large], Objective.THROUGHPUT) == (small, large)


def test_usual_settings_come_before_changed_ones_inside_a_tie() -> None:
    changed = replace(USUAL, reduce_bucket_elements=50_000_000)
    further = replace(changed, overlap_comm=False)
    pool = [made(102, chosen=further), made(101, chosen=changed), made(100)]
    order = ranked(pool, Objective.THROUGHPUT, usual=lambda candidate: USUAL)
    assert [e.candidate.settings for e in order] == [USUAL, changed, further]


def test_memory_puts_the_least_gpu_memory_first_beyond_a_tie() -> None:
    small, large = made(50, 70, zero=3, checkpointing=True), made(100, 80, zero=2)
    assert ranked([large, small], Objective.MEMORY) == (small, large)
    near = made(100, 72, zero=2)
    assert ranked([near, small], Objective.MEMORY) == (near, small)


def test_twenty_thousand_plans_are_ranked_in_a_moment() -> None:
    """All of them tie, which a list that shrinks takes minutes for."""
    draw = random.Random(0)
    pool = [made(draw.uniform(100, 102), micro_batch=micro) for micro in range(1, 20_001)]
    start = time.process_time()
    order = ranked(pool, Objective.THROUGHPUT)
    assert time.process_time() - start <= 5
    assert [e.candidate.micro_batch for e in order] == list(range(1, 20_001))


def beats(one: Evaluation, other: Evaluation) -> bool:
    """One is at least as good in speed and in free memory, and better in one of them."""
    speeds = one.time.tokens_per_second, other.time.tokens_per_second
    sizes = one.memory.gpu_total_bytes, other.memory.gpu_total_bytes
    return speeds[0] >= speeds[1] and sizes[0] <= sizes[1] and (speeds[0] > speeds[1] or sizes[0] < sizes[1])


@settings(max_examples=300, deadline=None)
@given(pools(), st.randoms(use_true_random=False))
def test_no_plan_of_the_front_is_beaten_and_every_other_is_beaten_by_one_of_it(
    pool: list[Evaluation], shuffler: random.Random
) -> None:
    front = pareto_front(pool)
    assert bool(front) == bool(pool)
    for evaluation in pool:
        if evaluation in front:
            assert not any(beats(other, evaluation) for other in pool)
        else:
            assert any(beats(other, evaluation) for other in front)
    shuffled = list(pool)
    shuffler.shuffle(shuffled)
    assert {e.candidate for e in pareto_front(shuffled)} == {e.candidate for e in front}
    speeds = [e.time.tokens_per_second for e in front]
    assert speeds == sorted(speeds, reverse=True)


@settings(max_examples=200, deadline=None)
@given(pools(), st.integers(35, 65))
def test_the_fastest_with_headroom_is_the_fastest_of_all_that_have_it(pool: list[Evaluation], most_bytes: int) -> None:
    found = fastest_with_headroom(pareto_front(pool), most_bytes=most_bytes)
    roomy = [e for e in pool if e.memory.gpu_total_bytes <= most_bytes]
    assert (found is None) == (not roomy)
    if found is not None:
        assert found in roomy
        assert found.time.tokens_per_second == max(e.time.tokens_per_second for e in roomy)


def test_a_plan_without_a_speed_is_on_no_front() -> None:
    assert pareto_front([made(None, 1), made(100, 50)]) == (made(100, 50),)


def test_one_plan_of_each_strategy_is_shown_the_first_in_rank() -> None:
    plans = [made(100, micro_batch=2), made(99, micro_batch=4), made(90, tp=2), made(80, tp=2, micro_batch=2)]
    assert best_of_each_strategy(plans) == (plans[0], plans[2])
