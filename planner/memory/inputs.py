"""What the memory of one candidate depends on, and the moments that its terms live in.

In: nothing. Out: the record and the words that every module of terms shares.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.memory.quantized import QuantizedBase
from planner.memory.sizes import RankSizes
from planner.records.candidate import Candidate
from planner.records.estimate import Device, Moment, Term
from planner.records.model import Precision
from planner.records.request import Optimizer

FORWARD_TO_HEAD = (Moment.FORWARD_LAYER, Moment.FORWARD_END, Moment.BACKWARD_HEAD, Moment.BACKWARD_HEAD_WEIGHT)
LAYER = (Moment.BACKWARD_LAYER, Moment.BACKWARD_LAYER_REDUCED)  # the last one
LATE = (Moment.BACKWARD_LATE, Moment.BACKWARD_LATE_REDUCED)
REDUCTION = (Moment.BACKWARD_HEAD_REDUCED, *LAYER, *LATE, Moment.BACKWARD_END)
FORWARD_BACKWARD = (*FORWARD_TO_HEAD, *REDUCTION)
STEP = (Moment.STEP_NORM, Moment.STEP_CAST)  # until the gradients are cast for the update
TRAINING = (*FORWARD_BACKWARD, *STEP, Moment.STEP_UPDATE, Moment.SAVE)
FROM_INIT_STATES = (Moment.INIT_STATES, *TRAINING)
FROM_INIT = (Moment.INIT_WEIGHTS, *FROM_INIT_STATES)
STAGE12 = "deepspeed/runtime/zero/stage_1_and_2.py (0.19.8)"
STAGE3 = "deepspeed/runtime/zero/stage3.py (0.19.8)"
ZERO_PAPER = "arXiv:1910.02054"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the memory of one candidate depends on, besides activations."""

    candidate: Candidate
    sizes: RankSizes  # what is trained, on the fullest tensor-parallel rank
    whole: RankSizes  # all parameters of that rank; the same as `sizes` when everything is trained
    undivided: RankSizes  # the base model before tensor parallelism divides it, as zero.Init builds it
    frozen_weight_bytes: int  # of one whole copy of what is not trained, on that rank
    quantized: QuantizedBase | None = None  # where what is not trained is in 4 bits
    model_elements: int  # the whole model
    precision: Precision
    optimizer: Optimizer
    capacity_bytes: int  # of the GPU
    ranks_per_node: int

    @property
    def element_bytes(self) -> int:
        """Bytes of one weight and of one gradient."""
        return self.precision.bytes


def term(name: str, moments: tuple[Moment, ...], size_bytes: int, formula: str, source: str) -> Term:
    """A term on the GPU."""
    return Term(name=name, device=Device.GPU, moments=moments, size_bytes=size_bytes, formula=formula, source=source)
