"""Which states, gradients, buffers and transients are on the GPU at which moment, by ZeRO stage.

In: `Inputs`, the numbers one candidate's memory depends on. Out: terms. The sizes come from the sibling modules, one
formula each; this module only says when each of them is alive.
"""

from __future__ import annotations

from planner.memory import gpu_reduction, quantized, states
from planner.memory.backward import PARTS, Late, reduces_at_once
from planner.memory.gpu_stage_three import late_layers, stage_three_terms
from planner.memory.gpu_stage_zero import stage_zero_terms
from planner.memory.gpu_stages_one_two import bf16_optimizer_runs, stages_one_two_terms
from planner.memory.inputs import (
    FROM_INIT,
    STAGE3,
    STAGE12,
    Inputs,
    term,
)
from planner.memory.quantized import QuantizedBase
from planner.records.candidate import ZeroStage
from planner.records.estimate import Moment, Term


def gpu_terms(given: Inputs) -> list[Term]:
    """Every term on the GPU but activations and logits."""
    stage = given.candidate.zero
    if stage is ZeroStage.PARAMETERS:
        return [*stage_three_terms(given), *_frozen(given)]
    if stage is ZeroStage.DISABLED:
        return [*stage_zero_terms(given), *_frozen(given)]
    return [*stages_one_two_terms(given), *_frozen(given)]


def late_instants(given: Inputs) -> tuple[tuple[Late, ...], tuple[Late, ...]]:
    """The instants that can be the fullest of each moment of LATE, with the layers that keep activations then."""
    c = given.candidate
    if c.zero is ZeroStage.PARAMETERS:
        left = late_layers(given)
    elif c.zero is ZeroStage.DISABLED or bf16_optimizer_runs(given) or not reduces_at_once(given):
        left = 1  # gradients pile up to the end
    else:
        return gpu_reduction.late_instants(given)
    whole_layer = (Late(PARTS * min(left, len(given.sizes.order.layers)), (), 0),)
    return whole_layer, whole_layer


def _frozen(given: Inputs) -> list[Term]:
    """Weights that are not trained: whole on every rank, shared out at stage 3."""
    c = given.candidate
    if not given.frozen_weight_bytes:
        return []
    if given.quantized is not None:
        return _frozen_quantized(given, given.quantized)
    if c.offload.param_device != "none":
        return []
    if c.zero is ZeroStage.PARAMETERS:
        share = states.frozen_share_bytes(given.frozen_weight_bytes, c.degrees.dp)
        return [term("states/frozen_weights", (Moment.LOAD, *FROM_INIT), share, "bytes of frozen weights / N", STAGE3)]
    return [term("states/frozen_weights", FROM_INIT, given.frozen_weight_bytes, "bytes of frozen weights",
                 f"{STAGE12}: only parameters that require gradients are flattened")]  # fmt: skip


def _frozen_quantized(given: Inputs, base: QuantizedBase) -> list[Term]:
    """Packed weights, loaded whole by every rank and divided at stage 3 afterwards; their scales are never divided."""
    c, packed = given.candidate, given.frozen_weight_bytes
    since_load = (Moment.LOAD, *FROM_INIT)
    terms = [
        term("load/tensor", (Moment.LOAD,), base.tensor_bytes, "e * largest tensor, before it is packed",
             "transformers 5.24 quantizers/quantizer_bnb_4bit.py"),
        term("states/quantization_scales", since_load, base.scales_bytes, "(1 / 64 + 4 / 16384) * packed parameters",
             quantized.SOURCE),
        term("quantized/unpacked_matrix", (Moment.BACKWARD_LAYER,), base.matrix_bytes, "e * largest packed matrix",
             "bitsandbytes 0.50 autograd/_functions.py MatMul4Bit"),
    ]  # fmt: skip
    formula = "packed parameters / 2 + e * the others"
    if c.zero is not ZeroStage.PARAMETERS:
        return [*terms, term("states/frozen_weights", since_load, packed, formula, quantized.SOURCE)]
    source = "transformers 5.24 modeling_utils.py get_init_context: no zero.Init for quantised models"
    terms.append(term("load/whole_model", (Moment.LOAD,), packed, formula, source))
    if c.offload.param_device == "none":
        share = states.frozen_share_bytes(packed, c.degrees.dp)
        terms.append(term("states/frozen_weights", FROM_INIT, share, f"({formula}) / N", STAGE3))
    return terms
