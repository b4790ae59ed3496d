"""What an optimizer stores for the parameters it updates.

In: element counts of one rank's share. Out: bytes. The one place that knows an optimizer's states.
"""

from __future__ import annotations

from planner.records.model import Precision
from planner.records.request import Optimizer

STATES_PER_ELEMENT = {
    Optimizer.ADAMW: 2,
    Optimizer.ADAFACTOR: 1,
    Optimizer.LION: 1,
    Optimizer.MUON: 1,
    Optimizer.SGD: 1,
}
"""Values that an optimizer keeps for every parameter, in the dtype of the states."""

BLOCK_ELEMENTS_8BIT = 256
"""Elements that share one fp32 scale in bitsandbytes' block-wise states."""


def optimizer_state_bytes(elements: int, optimizer: Optimizer, precision: Precision) -> int:
    """The optimizer's states for so many parameters, all of them in flat partitions.

    Formula: 8 * elements for AdamW; 4 for one fp32 state; 2 + 8 / 256 in 8 bits; half of it in pure bf16.
    Source: arXiv:1910.02054, section 3.1 (K = 12 with the master weights); bitsandbytes `functional.py`
    `create_dynamic_map` and `optim/optimizer.py` (block size 256).
    Leaves out: step counters.
    """
    if optimizer is Optimizer.ADAMW_8BIT:
        return 2 * elements + 2 * 4 * -(-elements // BLOCK_ELEMENTS_8BIT)
    return STATES_PER_ELEMENT[optimizer] * precision.state_bytes * elements


def optimizer_formula(optimizer: Optimizer, precision: Precision) -> str:
    """Bytes per element as text, for the term's formula."""
    if optimizer is Optimizer.ADAMW_8BIT:
        return "(2 + 8 / 256)"
    return str(STATES_PER_ELEMENT[optimizer] * precision.state_bytes)
