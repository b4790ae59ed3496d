"""What plan 1 is said to win and to cost, on plans made by hand: 80 GiB cards, speeds and sizes in round figures."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "search"))
from made_plans import made

from planner.catalog.speed import speed_constants
from planner.explain.trade import trade_sentences, trade_text
from planner.explain.why import with_reasons
from planner.records.candidate import Offload
from planner.records.plan import Evaluation, Plan, Verdict
from planner.records.request import Objective
from planner.search.rank import best_of_each_strategy, ranked
from planner.spec.request import build_request

GIB = 2**30
REQUEST = build_request({"model": "7b", "gpus": "8xA100-80G"})  # cards of 79.15 GiB


def sentences(pool: list[Evaluation], objective: Objective = Objective.THROUGHPUT, *, top: int = 5) -> tuple[str, ...]:
    """What is said about the best of these plans."""
    order = ranked(pool, objective)
    plan = Plan(request=replace(REQUEST, objective=objective, top=top), ranked=order, rejected=(), remedies=())
    return trade_sentences(plan, best_of_each_strategy(order)[:top])


def test_a_gain_of_speed_is_said_with_its_price_in_headroom_both_ways() -> None:
    fast, roomy = made(106, 70 * GIB), made(100, 59 * GIB)
    assert trade_text(roomy, fast) == "+6 % tokens/s for 11.0 GiB less headroom"
    assert trade_text(fast, roomy) == "-6 % tokens/s for 11.0 GiB more headroom"
    assert trade_text(fast, made(None, 1)) == ""


def test_the_winner_says_what_it_costs_against_the_runner_up() -> None:
    said = sentences([made(106, 70 * GIB), made(100, 66 * GIB, tp=2)])
    assert said == ("against plan 2 (ZeRO-2 tp2 mb1): +6 % tokens/s for 4.0 GiB less headroom",)


def test_the_plan_of_the_rule_of_thumb_is_named_where_it_is_another() -> None:
    said = sentences([made(150, 70 * GIB, tp=2), made(100, 66 * GIB, micro_batch=4)])
    assert said[0] == (
        "the rule of thumb (smallest tp that fits, no recomputation, then largest micro-batch) takes ZeRO-2 mb4: "
        "-33 % tokens/s for 4.0 GiB more headroom"
    )


def test_a_tie_that_simplicity_decided_is_said() -> None:
    said = sentences([made(102, 70 * GIB, micro_batch=8), made(100, 66 * GIB, micro_batch=2)])
    assert said == (
        "predicted fastest is ZeRO-2 mb8, which the rule of thumb (smallest tp that fits, no recomputation, "
        "then largest micro-batch) takes, with +2 % tokens/s for 4.0 GiB less headroom: inside the 3 % that the speed "
        "model cannot tell apart",
    )
    said = sentences([made(102, 70 * GIB, tp=2), made(100, 66 * GIB, zero=3)])
    assert said[0] == (
        "predicted fastest is ZeRO-2 tp2 mb1 with +2 % tokens/s for 4.0 GiB less headroom: inside the 3 % that the "
        "speed model cannot tell apart"
    )


def test_a_plan_with_clearly_more_headroom_is_named_where_the_table_lacks_it() -> None:
    """A tenth of the card is 7.9 GiB."""
    pool = [made(100, 70 * GIB, micro_batch=8), made(94, 59 * GIB, micro_batch=4), made(80, 50 * GIB, micro_batch=2)]
    assert sentences(pool) == ("fastest plan with 11.0 GiB more free: ZeRO-2 mb4, -6 % tokens/s",)
    near = [pool[0], made(94, 63 * GIB, micro_batch=4)]
    assert sentences(near) == ()
    shown = [*pool, made(93, 60 * GIB, tp=2)]
    assert not any("more free" in sentence for sentence in sentences(shown))
    assert any("more free" in sentence for sentence in sentences(shown, top=1))


def test_where_memory_comes_first_the_fastest_plan_is_named() -> None:
    pool = [made(40, 20 * GIB, zero=3, checkpointing=True), made(100, 60 * GIB), made(90, 60 * GIB, micro_batch=2)]
    assert not any(sentence.startswith("fastest") for sentence in sentences(pool, Objective.MEMORY))
    assert sentences(pool, Objective.MEMORY, top=1) == (
        "fastest plan: ZeRO-2 mb1, +150 % tokens/s for 40.0 GiB less headroom",
    )


def test_ordering_by_cost_says_that_it_is_the_order_of_throughput() -> None:
    assert sentences([made(100, 70 * GIB)], Objective.COST) == (
        "one cluster has one price an hour, so the cheapest token is the fastest one: the order is that of throughput",
    )


def test_a_borderline_plan_is_called_so() -> None:
    pool = [made(100, 70 * GIB, offload=Offload.OPTIMIZER), made(90, 50 * GIB, zero=3, verdict=Verdict.BORDERLINE)]
    assert sentences(pool)[0].startswith("against plan 2 (ZeRO-3 mb1 (borderline)): +11 % tokens/s")


def test_other_plans_are_measured_against_the_first_in_their_reasons() -> None:
    order = ranked([made(100, 70 * GIB), made(50, 60 * GIB, tp=2)], Objective.THROUGHPUT)
    plan = with_reasons(Plan(request=REQUEST, ranked=order, rejected=(), remedies=()), speed_constants())
    assert "against plan 1: -50 % tokens/s for 10.0 GiB more headroom" in plan.ranked[1].reasons
