"""Stage 0: everything whole on every GPU, and the wrapper that keeps fp32 weights beside 16-bit ones.

In: `Inputs`. Out: terms. Question: what does training without ZeRO hold at which moment?
"""

from __future__ import annotations

from planner.memory import buffers, optimizers, states, transients
from planner.memory.gpu_stages_one_two import gathering_gradients
from planner.memory.inputs import (
    FORWARD_BACKWARD,
    FROM_INIT,
    FROM_INIT_STATES,
    STEP,
    TRAINING,
    ZERO_PAPER,
    Inputs,
    term,
)
from planner.records.estimate import Moment, Term
from planner.records.model import Precision
from planner.records.request import Optimizer


def stage_zero_terms(given: Inputs) -> list[Term]:
    """Nothing is shared out. A wrapper keeps fp32 weights of 16-bit runs, flat under AdamW, else tensor by tensor; both
    create the optimizer's states at initialisation by an empty step."""
    c, p, e = given.candidate, given.sizes.total, given.element_bytes
    stage, degrees = c.zero, c.degrees
    wrapped, flat = given.precision is not Precision.FP32, given.optimizer is Optimizer.ADAMW
    source = f"deepspeed/runtime/fp16/{'fused' if flat else 'unfused'}_optimizer.py (0.19.8)"
    until_update = (Moment.STEP_CAST,) if wrapped and flat else (*STEP, Moment.STEP_UPDATE)
    terms = [
        term("states/weights", FROM_INIT, states.weight_bytes(p, stage, degrees, e), "e * P", ZERO_PAPER),
        *_backward_gradients(given),
        term("gradients/until_update", until_update, states.full_gradient_bytes(p, e), "e * P", ZERO_PAPER),
        term("buffers/reduce_copy", (Moment.BACKWARD_END,), buffers.allreduce_copy_bytes(p, e),
             "e * min(P, 5e8)", "deepspeed/runtime/engine.py MEMORY_OPT_ALLREDUCE_SIZE"),
        term("gradients/head_made", (Moment.BACKWARD_HEAD_WEIGHT,), e * given.sizes.head, "e * V * h",
             "autograd: the head's gradient comes first"),
        _whole_tensor_states(given, FROM_INIT_STATES if wrapped else TRAINING),
        _whole_tensor_update(given, wrapped=wrapped),
    ]  # fmt: skip
    if wrapped:
        master = states.master_bytes(p, stage, degrees, given.precision)
        terms.append(term("states/master", FROM_INIT_STATES, master, "4 * P", source))
        terms += _flat_wrapper(given, master, source) if flat else _tensor_wrapper(given, master, source)
    return terms


def _backward_gradients(given: Inputs) -> list[Term]:
    """Whole gradients: as backward makes them, or all the time where earlier micro-batches have made them."""
    if given.candidate.accumulation == 1:
        return gathering_gradients(given, ZERO_PAPER)
    full = states.full_gradient_bytes(given.sizes.total, given.element_bytes)
    return [term("gradients/full", FORWARD_BACKWARD, full, "e * P", ZERO_PAPER)]


def _flat_wrapper(given: Inputs, master: int, source: str) -> list[Term]:
    """What the 16-bit wrapper of AdamW makes and drops."""
    norm = transients.unsharded_norm_bytes(given.sizes.total, tp=given.candidate.degrees.tp)
    return [
        term("init/empty_step_gradient", (Moment.INIT_STATES,), master, "4 * P", source),
        term("step/gradient_cast", (Moment.STEP_CAST,), 2 * master, "4 * P cast + 4 * P flattened", source),
        term("step/gradients", (Moment.STEP_UPDATE,), master, "4 * P", source),
        term("step/norm", (Moment.STEP_NORM,), norm,
             "4 * P, and 9 * P for the mask of replicated parameters with tensor parallelism",
             "deepspeed/runtime/utils.py get_flattened_grad_norm (0.19.8)"),
    ]  # fmt: skip


def _tensor_wrapper(given: Inputs, master: int, source: str) -> list[Term]:
    """What the 16-bit wrapper of every other optimizer makes and drops."""
    gradients = states.full_gradient_bytes(given.sizes.total, given.element_bytes)
    return [
        term("init/empty_step_gradient", (Moment.INIT_STATES,), gradients + master, "e * P + 4 * P", source),
        term("step/gradient_cast", (Moment.STEP_CAST, Moment.STEP_UPDATE), master, "4 * P", source),
        term("step/norm", (Moment.STEP_NORM,), transients.norm_slice_bytes(given.sizes.largest_tensor),
             "8 * largest tensor", "deepspeed/runtime/utils.py get_weight_norm (0.19.8)"),
    ]  # fmt: skip


def _whole_tensor_states(given: Inputs, moments: tuple[Moment, ...]) -> Term:
    """Optimizer states of stage 0."""
    sizes = given.sizes
    size = optimizers.whole_tensor_state_bytes(
        sizes.tensors, sizes.factored, sizes.muon, given.optimizer, given.precision
    )
    formula = optimizers.whole_tensor_state_formula(given.optimizer, given.precision)
    return term("states/optimizer", moments, size, formula, optimizers.state_source(given.optimizer))


def _whole_tensor_update(given: Inputs, *, wrapped: bool) -> Term:
    """What the optimizer makes and drops at stage 0; in the empty step, Muon before Adam's states exist."""
    sizes, optimizer = given.sizes, given.optimizer
    size = optimizers.whole_tensor_update_bytes(
        sizes.largest_tensor, sizes.layer_largest_tensor, sizes.muon_workspace_bytes, optimizer, given.precision
    )
    at_init = (Moment.INIT_STATES,) if wrapped and optimizer is not Optimizer.MUON else ()
    return term("step/update", (*at_init, Moment.STEP_UPDATE), size,
                optimizers.update_formula(optimizer, given.precision), optimizers.state_source(optimizer))  # fmt: skip
