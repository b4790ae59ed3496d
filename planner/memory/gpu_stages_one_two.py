"""Stages 1 and 2: flat weights on every rank; optimizer states, and at stage 2 gradients, shared out.

In: `Inputs`. Out: terms. Question: which states, gradients and buffers are on the GPU at which moment?
"""

from __future__ import annotations

from planner.memory import buffers, states, transients
from planner.memory.backward import reduces_at_once
from planner.memory.gpu_reduction import (
    fp32_partition,
    held_bytes,
    partition_elements,
    reduced_at_once,
    share_elements,
    walk_of,
)
from planner.memory.gpu_updates import stages_one_two_update
from planner.memory.inputs import (
    FORWARD_BACKWARD,
    FROM_INIT,
    FROM_INIT_STATES,
    LATE,
    LAYER,
    REDUCTION,
    STAGE12,
    STEP,
    ZERO_PAPER,
    Inputs,
    term,
)
from planner.memory.reduction import first_fill_elements
from planner.records.candidate import Offload, ZeroStage
from planner.records.estimate import Moment, Term
from planner.records.model import Precision

END = (Moment.BACKWARD_END,)


def stages_one_two_terms(given: Inputs) -> list[Term]:
    """Every term of stages 1 and 2 but frozen weights."""
    c, p, e = given.candidate, given.sizes.total, given.element_bytes
    share = share_elements(given)
    terms = [
        term("states/weights", FROM_INIT, states.weight_bytes(p, c.zero, c.degrees, e), "e * P", ZERO_PAPER),
        term("init/flat_copy", (Moment.INIT_WEIGHTS,), transients.flatten_copy_bytes(p, e, given.capacity_bytes),
             "e * P; 0 where it goes through the host", STAGE12),
    ]  # fmt: skip
    if bf16_optimizer_runs(given):
        return [*terms, *_bf16_optimizer(given, share)]
    terms += _buckets(given)
    terms += _at_once(given, share) if reduces_at_once(given) else _in_the_end(given)
    if c.offload is not Offload.NONE:
        return [*terms, *_offloaded(given, share)]
    settings, width = c.settings, given.precision.state_bytes
    gradient_bytes = states.FP32_BYTES if settings.fp32_gradient_accumulation else e
    return [
        *terms,
        term("states/master", FROM_INIT_STATES, states.master_bytes(p, c.zero, c.degrees, given.precision),
             f"{width} * P / N", f"{STAGE12} single_partition_of_fp32_groups"),
        term("init/zero_gradient", (Moment.INIT_STATES,), transients.zero_gradient_bytes(p, c.degrees.dp, width),
             f"{width} * P / N", f"{STAGE12} initialize_optimizer_states"),
        term("step/norm", (Moment.STEP_NORM,),
             transients.norm_slice_bytes(min(given.sizes.largest_tensor, share)),
             "8 * largest slice", "deepspeed/runtime/utils.py get_norm_dtype"),
        *stages_one_two_update(
            given, share, gradient_bytes,
            in_reduction=_in_reduction_bytes(given),
        ),
    ]  # fmt: skip


def bf16_optimizer_runs(given: Inputs) -> bool:
    """Whether DeepSpeed takes its BF16_Optimizer.

    Source: deepspeed/runtime/engine.py `_do_optimizer_sanity_check` (0.19.8): bf16 with fp32 accumulation, stage 1, no
    offload.
    """
    c = given.candidate
    accumulates = c.settings.fp32_gradient_accumulation and given.precision is Precision.BF16
    return c.zero is ZeroStage.OPTIMIZER and accumulates and c.offload is Offload.NONE


def _in_reduction_bytes(given: Inputs) -> int:
    """Bytes that backward holds last before the last reduction is done, and lets go then."""
    if not reduces_at_once(given):
        return 0
    walk, e = walk_of(given), given.element_bytes
    return held_bytes(walk.end, e) - held_bytes(walk.done, e)


def _buckets(given: Inputs) -> list[Term]:
    """The contiguous buckets; at stage 1 they stay from one micro-batch to the next."""
    c, e = given.candidate, given.element_bytes
    kept = c.zero is ZeroStage.OPTIMIZER and c.accumulation > 1
    size = buffers.reduce_bucket_bytes(c.settings.reduce_bucket_elements, e, overlap_comm=c.settings.overlap_comm)
    return [
        term("buffers/reduce_bucket", FORWARD_BACKWARD if kept else REDUCTION, size,
             "e * reduce_bucket_size * (2 with overlap_comm)", f"{STAGE12} setup_buckets"),
        term("gradients/head_made", (Moment.BACKWARD_HEAD_WEIGHT,), e * given.sizes.head, "e * V * h",
             "autograd: the head's gradient comes first"),
    ]  # fmt: skip


def _at_once(given: Inputs, share: int) -> list[Term]:
    """Gradients that are reduced as they come."""
    terms = reduced_at_once(given, walk_of(given))
    return [*terms, *_fp32_partition(given, share)] if fp32_partition(given) else terms


def _fp32_partition(given: Inputs, share: int) -> list[Term]:
    """Stage 2 with fp32 accumulation: one compact partition for all micro-batches."""
    c = given.candidate
    source = f"{STAGE12} _get_compact_grad_partition_slice, _add_to_grad_partition_buffer"
    alive = STEP if c.accumulation == 1 else (*FORWARD_BACKWARD, *STEP)
    return [term("gradients/partition", alive, states.FP32_BYTES * share, "4 * P / N", source)]


def _in_the_end(given: Inputs) -> list[Term]:
    """Stage 1 without overlap_comm: whole gradients until backward is over, or through the next micro-batch."""
    c, e, sizes = given.candidate, given.element_bytes, given.sizes
    full, source = states.full_gradient_bytes(sizes.total, e), f"{STAGE12} reduce_gradients"
    if c.accumulation == 1:
        terms = gathering_gradients(given, source)
    else:
        terms = [
            term("gradients/full", FORWARD_BACKWARD, full, "e * P", source),
            term("gradients/fresh", (*LAYER, *LATE), e * sizes.layer_largest_tensor, "e * largest tensor of a layer",
                 source),
        ]  # fmt: skip
    if c.offload is not Offload.NONE:
        return terms
    fullest = partition_elements(given)  # the first gradients have moved into the bucket when it comes to be
    moved = first_fill_elements(sizes.order.flat, c.settings.reduce_bucket_elements)
    formula, source = "e * tensors that lie in the rank's part", f"{STAGE12} grads_in_partition"
    return [
        *terms,
        term("gradients/partition", END, e * max(0, fullest - moved), f"{formula}, less what the bucket took", source),
        term("gradients/partition", STEP, e * fullest, formula, source),
    ]


def gathering_gradients(given: Inputs, source: str) -> list[Term]:
    """Gradients that pile up during one backward, none of them reduced before it is over.

    Formula: e * V * h when the head is done, and a layer more while the last layer is; all but the embeddings while the
    first layer is; e * P in the end.
    """
    sizes, e = given.sizes, given.element_bytes
    head, before = sum(sizes.order.after) or sizes.head, sum(sizes.order.before)
    return [
        term("gradients/head", (Moment.BACKWARD_HEAD_REDUCED,), e * head, "e * V * h", source),
        term("gradients/head_and_layer", LAYER, e * (head + sizes.layer), "e * (V * h + a layer)",
             source),
        term("gradients/layers", LATE, e * (sizes.total - before), "e * (P - embeddings)", source),
        term("gradients/full", END, e * sizes.total, "e * P", source),
    ]  # fmt: skip


def _offloaded(given: Inputs, share: int) -> list[Term]:
    """What stays on the GPU when optimizer states are in host memory."""
    sizes, e = given.sizes, given.element_bytes
    return [
        term("buffers/offload_gradient", FROM_INIT_STATES, e * sizes.largest_tensor, "e * largest tensor",
             f"{STAGE12} temp_grad_buffer_for_gpu_offload"),
        *_offload_norms(given, share),
    ]  # fmt: skip


def _offload_norms(given: Inputs, share: int) -> list[Term]:
    """The fp64 copy of each slice while its norm is taken, on its way to the host.

    A tied head is reduced with the embedding, at the end. Its gradient, the embedding's and their sum exist together
    before; one of the three is left by then, and none where it was added to that of earlier micro-batches: what the
    copy needs beyond them is counted.
    """
    c, e, sizes, source = given.candidate, given.element_bytes, given.sizes, f"{STAGE12} set_norm_for_param_grad_in_gpu"
    added = c.zero is ZeroStage.OPTIMIZER and c.accumulation > 1
    gone_bytes = e * sizes.embedding * (3 if added else 2) if sizes.order.tied else 0
    norms = (
        ("head_norm", REDUCTION[:1], 0 if sizes.order.tied else sizes.head, 0, "8 * slice"),
        ("norm", (LAYER[1], LATE[1]), sizes.layer_largest_tensor, 0, "8 * slice"),
        ("last_norm", END, sizes.embedding or sizes.layer_largest_tensor, gone_bytes,
         "8 * slice, less 2 * e * V * h where head and embedding are tied"),
    )  # fmt: skip
    return [
        term(f"gradients/{name}", at, max(0, transients.norm_slice_bytes(min(numel, share)) - gone), formula, source)
        for name, at, numel, gone, formula in norms
    ]


def _bf16_optimizer(given: Inputs, share: int) -> list[Term]:
    """bf16 with fp32 accumulation at stage 1: whole fp32 gradients for the whole run."""
    c, e, p = given.candidate, given.element_bytes, given.sizes.total
    source = "deepspeed/runtime/bf16_optimizer.py (0.19.8)"
    full, width = states.full_gradient_bytes(p, e), states.FP32_BYTES
    if c.accumulation == 1:
        low = gathering_gradients(given, source)
    else:
        low = [term("gradients/full", FORWARD_BACKWARD, full, "e * P", source)]
    master = states.master_bytes(p, c.zero, c.degrees, given.precision)
    return [
        *low,
        term("gradients/head_made", (Moment.BACKWARD_HEAD_WEIGHT,), e * given.sizes.head, "e * V * h",
             "autograd: the head's gradient comes first"),
        term("states/master", FROM_INIT_STATES, master, "4 * P / N", f"{source} fp32_groups_flat_partition"),
        term("gradients/fp32", FROM_INIT_STATES, width * p, "4 * P", f"{source} fp32_groups_gradients_flat"),
        term("buffers/reduce_copy", END, full, "e * P: fp32 gradients cast for the all-reduce",
             "deepspeed/runtime/engine.py allreduce_bucket"),
        term("gradients/until_update", (*STEP, Moment.STEP_UPDATE), full, "e * P", f"{source} clear_lp_grads"),
        *(t for t in stages_one_two_update(given, share, width) if not t.name.startswith("step/grad")),
    ]  # fmt: skip
