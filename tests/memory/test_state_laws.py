"""States against the ZeRO paper's own figures, and the laws that hold for every size and degree."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.geometry.sharding import State
from planner.memory import states
from planner.memory.host_terms import host_terms
from planner.memory.inputs import Inputs
from planner.memory.optimizers import optimizer_state_bytes
from planner.memory.sizes import RankSizes
from planner.memory.tensor_order import TensorOrder
from planner.records.candidate import Candidate, Checkpointing, Degrees, Offload, ZeroStage
from planner.records.estimate import Device, Moment
from planner.records.model import Precision
from planner.records.request import Optimizer
from planner.search.settings import default_settings

ELEMENTS = st.integers(1, 10**12)
RANKS = st.integers(1, 4096)
GB = 10**9


def state_bytes(elements: int, stage: ZeroStage, ranks: int) -> int:
    """Weights, gradients, master weights and Adam's states of one rank, in 16-bit training."""
    degrees = Degrees(tp=1, dp=ranks)
    gradients = 2 * states.share_elements(elements, stage, State.GRADIENTS, degrees)
    return (
        states.weight_bytes(elements, stage, degrees, 2)
        + gradients
        + states.master_bytes(elements, stage, degrees, Precision.BF16)
        + optimizer_state_bytes(
            states.share_elements(elements, stage, State.OPTIMIZER, degrees), Optimizer.ADAMW, Precision.BF16
        )
    )


# arXiv:1910.02054, table 1 (GB per device): parameters in billions, data-parallel ranks, P_os, P_os+g, P_os+g+p.
PAPER = (
    (7.5, 1, 120, 120, 120),
    (7.5, 4, 52.5, 41.3, 30),
    (7.5, 16, 35.6, 21.6, 7.5),
    (7.5, 64, 31.4, 16.6, 1.88),
    (7.5, 256, 30.4, 15.4, 0.47),
    (7.5, 1024, 30.1, 15.1, 0.12),
    (128, 4, 896, 704, 512),
    (128, 64, 536, 284, 32),
    (128, 1024, 513, 257, 2),
    (1000, 16, 4750, 2875, 1000),
    (1000, 64, 4187, 2218, 250),
    (1000, 1024, 4011, 2013, 15.6),
)


@pytest.mark.parametrize(("billions", "ranks", "stage1", "stage2", "stage3"), PAPER)
def test_states_are_those_of_the_zero_paper(
    billions: float, ranks: int, stage1: float, stage2: float, stage3: float
) -> None:
    elements = int(billions * GB)
    for stage, expected in zip((1, 2, 3), (stage1, stage2, stage3), strict=True):
        assert state_bytes(elements, ZeroStage(stage), ranks) / GB == pytest.approx(expected, rel=0.025)
    assert state_bytes(elements, ZeroStage.DISABLED, ranks) == 16 * elements


@given(ELEMENTS, RANKS)
def test_a_higher_stage_never_holds_more_states(elements: int, ranks: int) -> None:
    sizes = [state_bytes(elements, stage, ranks) for stage in ZeroStage]
    padding = 16 * 2 * ranks  # partitions are padded to a multiple of two elements a rank
    assert all(later <= earlier + padding for earlier, later in pairwise(sizes))


@given(ELEMENTS, RANKS)
def test_the_shares_of_all_ranks_cover_the_whole_with_little_padding(elements: int, ranks: int) -> None:
    for stage in ZeroStage:
        share = states.share_elements(elements, stage, State.OPTIMIZER, Degrees(tp=1, dp=ranks))
        together = share * (ranks if stage >= ZeroStage.OPTIMIZER else 1)
        assert elements <= together <= elements + 2 * ranks


@given(ELEMENTS)
def test_one_rank_shares_with_nobody(elements: int) -> None:
    assert len({state_bytes(elements, stage, 1) for stage in ZeroStage}) == 1


@given(ELEMENTS, st.integers(1, 2048))
def test_more_ranks_never_hold_more_each(elements: int, ranks: int) -> None:
    for stage in ZeroStage:
        assert state_bytes(elements, stage, 2 * ranks) <= state_bytes(elements, stage, ranks) + 64


# Steady host bytes of one node: what DeepSpeed's offload allocates, exact and with pinned blocks rounded by torch,
# worked out by hand from the sources named in planner/memory/host_terms.py. Billions of parameters, ranks, GB.
HOST = (
    (6.74, 8, 2, 121, 140),
    (13.02, 4, 2, 234, 276),
    (32.5, 8, 2, 585, 604),
    (70.6, 8, 2, 1271, 1939),
    (6.74, 8, 3, 135, None),
    (70.6, 8, 3, 1412, None),
)


@pytest.mark.parametrize(("billions", "ranks", "stage", "exact", "rounded"), HOST)
def test_offloaded_states_fill_the_host_as_worked_by_hand(
    billions: float, ranks: int, stage: int, exact: float, rounded: float | None
) -> None:
    elements = int(billions * GB)
    offload = Offload.OPTIMIZER if stage == 2 else Offload.OPTIMIZER_AND_PARAMS
    for pin, expected in ((False, exact), (True, rounded)):
        if expected is None:
            continue
        assert offloaded_bytes(elements, ranks, ZeroStage(stage), offload, pin=pin) / GB == pytest.approx(
            expected, rel=0.01
        )


def offloaded_bytes(elements: int, ranks: int, stage: ZeroStage, offload: Offload, *, pin: bool) -> int:
    """Host bytes of one node in a step, without processes and the buffer of the largest gradient."""
    settings = replace(default_settings(stage, 4096, 80 * 2**30), pin_memory=pin)
    candidate = Candidate(
        zero=stage,
        degrees=Degrees(tp=1, dp=ranks),
        checkpointing=Checkpointing.FULL,
        offload=offload,
        micro_batch=1,
        accumulation=1,
        settings=settings,
    )
    sizes = RankSizes(
        total=elements,
        divided=elements,
        largest_tensor=1,
        layer=1,
        layer_divided=1,
        layer_largest_tensor=1,
        embedding=1,
        head=1,
        tied=False,
        tensors=((elements // 1000, 1000),),
        muon_matrices=(),
        muon_by_shape=(),
        muon_workspace_bytes=0,
        factored=0,
        order=TensorOrder(before=(), layers=((elements // 1000,),) * 1000, after=()),
    )
    given = Inputs(
        candidate=candidate,
        sizes=sizes,
        model_elements=elements,
        whole=sizes,
        undivided=sizes,
        frozen_weight_bytes=0,
        precision=Precision.BF16,
        optimizer=Optimizer.ADAMW,
        capacity_bytes=80 * 2**30,
        ranks_per_node=ranks,
    )
    return sum(
        term.size_bytes
        for term in host_terms(given)
        if term.device is Device.HOST and Moment.STEP_CAST in term.moments and not term.name.startswith("host/")
    )
