"""Seconds that low-rank adapters and 4-bit weights add to one layer's pass.

In: sizes and rates as plain numbers. Out: seconds. Symbols: `planner.geometry.legend`; r the rank.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.geometry.adapters import linear_tensors
from planner.geometry.flops import AdapterWork, adapter_work, linear_flop, model_work
from planner.records.model import Adapter, Method, ModelShape
from planner.speed.compute import gemm_s
from planner.speed.constants import SpeedConstants

PACKED_BYTES = 0.5
"""Of one 4-bit weight."""


class Frozen(NamedTuple):
    """A frozen base model with adapters, as plain numbers; per layer means on average over the layers."""

    work: AdapterWork
    trained: int  # parameters of the adapters
    packed_elements: float  # 4-bit weights of a layer, 0 without quantisation
    stored_bytes: float  # of one weight of a layer, as a gather moves it


def frozen_base(model: ModelShape, adapter: Adapter, weight_bytes: int) -> Frozen:
    """What the speed of a model with adapters depends on."""
    work = adapter_work(model, adapter)
    held = sum(kind.layers * kind.held_elements for kind in model_work(model).kinds)
    packed = 0
    if adapter.method is Method.QLORA:
        packed = sum(t.numel * t.count for t in linear_tensors(model) if t.name.startswith("layer/"))
    return Frozen(
        work=work,
        trained=round(work.elements * model.layers),
        packed_elements=packed / model.layers,
        stored_bytes=weight_bytes - (weight_bytes - PACKED_BYTES) * packed / held,
    )


def adapter_s(
    work: AdapterWork,
    tokens: int,
    *,
    weight_bytes: int,
    flop_per_s: float,
    hbm_bytes_per_s: float,
    constants: SpeedConstants,
) -> float:
    """Seconds of a layer's adapters in one forward pass; backward takes twice that.

    Formula: gemm_s of (T, r, inputs) and (T, outputs, r) for each target.
    Source: peft 0.21, tuners/lora/layer.py `Linear.forward`: base output + scaled adapter output.
    Leaves out: that products this narrow reach less of the peak; scaling and sums, which are element-wise work.
    """
    return gemm_s(
        linear_flop(round(work.elements), tokens),
        weight_bytes * (tokens * work.widths + work.elements),
        work.gemms,
        flop_per_s=flop_per_s,
        hbm_bytes_per_s=hbm_bytes_per_s,
        constants=constants,
    )


def unpack_s(packed_elements: float, unpacking_bytes: float, hbm_bytes_per_s: float) -> float:
    """Seconds to write a layer's 4-bit weights out in 16 bits, in every pass.

    Formula: 2.5 * packed elements / W.
    Source: bitsandbytes 0.50, autograd/_functions.py `MatMul4Bit`: forward and backward unpack the whole matrix.
    Leaves out: kernels that multiply packed weights directly, which pay for few tokens only.
    """
    return unpacking_bytes * packed_elements / hbm_bytes_per_s
