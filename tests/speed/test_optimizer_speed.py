"""The update by optimizer: its traffic in proportion to its states, Muon's arithmetic as torch counts it."""

from __future__ import annotations

from typing import Any

import pytest
import speed_cases as cases

from planner.catalog.speed import speed_constants
from planner.records.model import Precision
from planner.records.request import Optimizer
from planner.speed.update import cpu_step_s, gpu_step_s, orthogonalisation_flop

CONSTANTS = speed_constants()


def seconds(optimizer: Optimizer, precision: Precision = Precision.BF16) -> float:
    return gpu_step_s(1e9, 2e12, CONSTANTS, optimizer=optimizer, precision=precision)


def test_an_update_takes_as_long_as_the_bytes_it_moves() -> None:
    """Gradient and master weight are read, the master weight is written, states are read and written; all fp32."""
    adamw = seconds(Optimizer.ADAMW)
    assert seconds(Optimizer.LION) == pytest.approx(adamw * (3 * 4 + 2 * 4) / (3 * 4 + 4 * 4))
    assert seconds(Optimizer.SGD) == seconds(Optimizer.LION)
    assert seconds(Optimizer.ADAMW_8BIT) < seconds(Optimizer.LION)
    assert seconds(Optimizer.ADAFACTOR) > adamw
    assert seconds(Optimizer.ADAMW, Precision.PURE_BF16) == pytest.approx(adamw / 2)


def test_no_update_in_host_memory_is_faster_than_adams() -> None:
    node = cases.cluster(cases.GPU_A, 8, 4, 228e9, 85e9)
    adamw = cpu_step_s(1e9, node, CONSTANTS)
    assert cpu_step_s(1e9, node, CONSTANTS, optimizer=Optimizer.LION) == adamw
    assert cpu_step_s(1e9, node, CONSTANTS, optimizer=Optimizer.ADAFACTOR) > adamw


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (64, 176), (176, 64)])
def test_orthogonalising_costs_what_torch_counts(rows: int, columns: int) -> None:
    torch: Any = pytest.importorskip("torch")
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.zero.muon.original_muon import zeropower_via_gram_newtonschulz
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counted, torch.compiler.set_stance("force_eager"):
        zeropower_via_gram_newtonschulz(torch.randn(rows, columns), steps=5)
    assert orthogonalisation_flop(rows, columns) == counted.get_total_flops()
