"""Stages 1 and 2: flat weights on every rank; optimizer states, and at stage 2 gradients, shared out.

In: `Inputs`. Out: terms. Question: which states, gradients and buffers are on the GPU at which moment?
"""

from __future__ import annotations

from planner.geometry.sharding import touched_elements
from planner.memory import buffers, states, transients
from planner.memory.backward import holds_foreign, late_layers, reduces_at_once
from planner.memory.gpu_updates import stages_one_two_update
from planner.memory.inputs import (
    FORWARD_BACKWARD,
    FORWARD_TO_HEAD,
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
from planner.memory.reduction import Reduction, first_fill_elements, oversize_elements, reduction
from planner.records.candidate import Offload, ZeroStage
from planner.records.estimate import Moment, Term
from planner.records.model import Precision

END = (Moment.BACKWARD_END,)


def stages_one_two_terms(given: Inputs) -> list[Term]:
    """Every term of stages 1 and 2 but frozen weights."""
    c, p, e = given.candidate, given.sizes.total, given.element_bytes
    share = _share(given)
    terms = [
        term("states/weights", FROM_INIT, states.weight_bytes(p, c.zero, c.degrees, e), "e * P", ZERO_PAPER),
        term("init/flat_copy", (Moment.INIT_WEIGHTS,), transients.flatten_copy_bytes(p, e, given.capacity_bytes),
             "e * P; 0 where it goes through the host", STAGE12),
    ]  # fmt: skip
    if bf16_optimizer_runs(given):
        return [*terms, *_bf16_optimizer(given, share)]
    terms += [*_bucket(given), *_gradients(given, share)]
    if c.offload is not Offload.NONE:
        return [*terms, *_offloaded(given, share)]
    settings, width = c.settings, given.precision.state_bytes
    gradient_bytes = states.FP32_BYTES if settings.fp32_gradient_accumulation else e
    return [
        *terms,
        *_partition(given, share),
        term("states/master", FROM_INIT_STATES, states.master_bytes(p, c.zero, c.degrees, given.precision),
             f"{width} * P / N", f"{STAGE12} single_partition_of_fp32_groups"),
        term("init/zero_gradient", (Moment.INIT_STATES,), transients.zero_gradient_bytes(p, c.degrees.dp, width),
             f"{width} * P / N", f"{STAGE12} initialize_optimizer_states"),
        term("step/norm", (Moment.STEP_NORM,),
             transients.norm_slice_bytes(min(given.sizes.largest_tensor, share)),
             "8 * largest slice", "deepspeed/runtime/utils.py get_norm_dtype"),
        *stages_one_two_update(
            given, share, gradient_bytes,
            in_reduction=sum(t.size_bytes for t in terms if t.name == "gradients/last_in_reduction"),
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


def _share(given: Inputs) -> int:
    """Elements of one partition."""
    return states.gradient_partition_bytes(given.sizes.total, given.candidate.degrees, 1)


def _walk(given: Inputs, share: int) -> Reduction:
    return reduction(given.sizes.order, given.candidate.settings.reduce_bucket_elements, share)


def _since_first_flush(walk: Reduction, depth: int) -> tuple[Moment, ...]:
    """The moments of backward at which the rank of the last tensors has its partition."""
    if walk.first_flush > depth:
        return REDUCTION
    if walk.first_flush == depth:
        return REDUCTION[1:]
    return (*LATE, *END) if walk.first_flush else END


def _bucket(given: Inputs) -> list[Term]:
    """The contiguous bucket, and what flows past it."""
    c, e, order = given.candidate, given.element_bytes, given.sizes.order
    kept = c.zero is ZeroStage.OPTIMIZER and c.accumulation > 1
    size = buffers.reduce_bucket_bytes(c.settings.reduce_bucket_elements, e, overlap_comm=c.settings.overlap_comm)
    terms = [
        term("buffers/reduce_bucket", FORWARD_BACKWARD if kept else REDUCTION, size,
             "e * reduce_bucket_size * (2 with overlap_comm)", f"{STAGE12} setup_buckets"),
        term("gradients/head_made", (Moment.BACKWARD_HEAD_WEIGHT,), e * given.sizes.head, "e * V * h",
             "autograd: the head's gradient comes first"),
    ]  # fmt: skip
    if not reduces_at_once(given):
        return terms
    walk, source = _walk(given, _share(given)), f"{STAGE12} reduce_independent_p_g_buckets_and_remove_grads"
    if kept:  # gradients of earlier micro-batches are there already, a new one is added to its own
        fresh = e * given.sizes.layer_largest_tensor
        return [*terms, term("gradients/fresh", (*LAYER, *LATE), fresh, "e * largest tensor of a layer", source)]
    tied = e * given.sizes.head if order.tied else 0
    last = e * walk.end + 2 * tied  # the head's gradient, the embedding's and their sum
    late = e * walk.from_layer(late_layers(given))
    formula = "e * (a gradient + the one in reduction where it exceeds the bucket)"
    return [
        *terms,
        term("gradients/head_in_reduction", REDUCTION[:1], e * walk.head, formula, source),
        term("gradients/tied_head", REDUCTION[:-1], tied, "e * V * h, until the embedding's gradient is added",
             "torch autograd, InputBuffer of a shared parameter"),
        term("gradients/first_of_layer", (LAYER[0], LATE[0]), e * order.last_matrix, "e * last matrix of a layer",
             "autograd: last used, first differentiated"),
        term("gradients/layer_in_reduction", LAYER[1:], e * walk.last_layer, formula, source),
        term("gradients/late_in_reduction", LATE[1:], late, formula, source),
        term("gradients/last_in_reduction", END, last, formula, source),
    ]  # fmt: skip


def _partition(given: Inputs, share: int) -> list[Term]:
    """The rank's own reduced gradients."""
    c, e, order = given.candidate, given.element_bytes, given.sizes.order
    since: tuple[Moment, ...] = END
    if reduces_at_once(given):
        since = _since_first_flush(_walk(given, share), len(order.layers))
    if c.settings.fp32_gradient_accumulation and given.precision is not Precision.FP32:
        return _fp32_partition(given, share, since)
    first, last = (touched_elements(order.flat, share, part) for part in (0, c.degrees.dp - 1))
    fullest = max(first, last, touched_elements(order.flat, share, c.degrees.dp // 2))
    formula, source = "e * tensors that lie in the rank's part", f"{STAGE12} grads_in_partition"
    on_first = (*LATE, *END) if holds_foreign(given) else END  # which rank decides then
    early = tuple(moment for moment in since if moment not in on_first)
    terms = [term("gradients/last_partition", early, e * last, formula, source)]
    if reduces_at_once(given):
        terms.append(term("gradients/partition", (*on_first, *STEP), e * fullest, formula, source))
    else:  # the first gradients have moved into the bucket by then
        moved = first_fill_elements(order.flat, c.settings.reduce_bucket_elements)
        terms += [
            term(
                "gradients/partition", END, e * max(0, fullest - moved), f"{formula}, less what the bucket took", source
            ),
            term("gradients/partition", STEP, e * fullest, formula, source),
        ]
    if c.accumulation > 1 and c.zero is ZeroStage.GRADIENTS:
        source = f"{STAGE12} all_grad_tensors"
        terms += [
            term("gradients/accumulated", (*FORWARD_TO_HEAD, *END), e * fullest, formula, source),
            term("gradients/last_accumulated", REDUCTION[:-1], e * last, formula, source),
        ]
    if c.zero is ZeroStage.OPTIMIZER and c.accumulation == 1 and reduces_at_once(given):
        terms += _foreign(given, share)
    return terms


def _foreign(given: Inputs, share: int) -> list[Term]:
    """Stage 1 with overlap_comm: gradients too large for the bucket stay whole on the ranks that do not own them.

    They weigh most on the first rank when its own begin, and on either end when backward is over.
    """
    e, (of_first, of_last) = given.element_bytes, _foreign_elements(given, share)
    source, formula = f"{STAGE12} reduce_ipg_grads", "e * tensors above the bucket of other ranks"
    return [
        term("gradients/foreign", LATE, e * of_first, formula, source),
        term("gradients/foreign_last", END, e * max(of_first, of_last), formula, source),
    ]


def _foreign_elements(given: Inputs, share: int) -> tuple[int, int]:
    """Elements above the bucket that the first and the last rank do not own, without embeddings."""
    c, order = given.candidate, given.sizes.order
    bucket, total = c.settings.reduce_bucket_elements, sum(order.flat)
    after_first = _last(order.flat, total - touched_elements(order.flat, share, 0))
    own_of_last = _last(order.flat, touched_elements(order.flat, share, c.degrees.dp - 1))
    layers_on = oversize_elements(order.flat[len(order.before) :], bucket)
    return oversize_elements(after_first, bucket), layers_on - oversize_elements(own_of_last, bucket)


def _last(tensors: tuple[int, ...], elements: int) -> tuple[int, ...]:
    """The last tensors that hold so many elements."""
    start = len(tensors)
    while start and elements >= tensors[start - 1]:
        start -= 1
        elements -= tensors[start]
    return tensors[start:]


def _fp32_partition(given: Inputs, share: int, since: tuple[Moment, ...]) -> list[Term]:
    """Stage 2 with fp32 accumulation: one compact partition for all micro-batches, to which slices are added after a
    cast; the rank's own 16-bit gradients above the bucket are not let go before backward ends."""
    c, e, order = given.candidate, given.element_bytes, given.sizes.order
    source = f"{STAGE12} _get_compact_grad_partition_slice, _add_to_grad_partition_buffer"
    alive = since if c.accumulation == 1 else FORWARD_BACKWARD
    own = oversize_elements(order.flat[: len(order.flat) - len(_last(order.flat, sum(order.flat) - share))],
                            c.settings.reduce_bucket_elements)  # fmt: skip
    in_reduction = oversize_elements(order.before[:1], c.settings.reduce_bucket_elements)
    return [
        term("gradients/partition", (*alive, *STEP), states.FP32_BYTES * share, "4 * P / N", source),
        term("gradients/head_cast", REDUCTION[:1], states.FP32_BYTES * min(given.sizes.head, share),
             "4 * slice of the head", source),
        term("gradients/cast", (LAYER[1], LATE[1]), states.FP32_BYTES * min(given.sizes.layer_largest_tensor, share),
             "4 * largest slice of a layer", source),
        term("gradients/last_cast", END, states.FP32_BYTES * min(given.sizes.embedding, share),
             "4 * slice of the embedding", source),
        term("gradients/own_whole", END, e * (own - in_reduction), "e * own tensors above the bucket",
             f"{STAGE12} copy_grads_in_partition"),
    ]  # fmt: skip


def _gradients(given: Inputs, share: int) -> list[Term]:
    """Stage 1 holds unreduced gradients: until the end of backward, or through the next micro-batch."""
    c, e, sizes = given.candidate, given.element_bytes, given.sizes
    if c.zero is not ZeroStage.OPTIMIZER or (c.accumulation == 1 and reduces_at_once(given)):
        return []
    full, source = states.full_gradient_bytes(sizes.total, e), f"{STAGE12} reduce_gradients"
    if c.accumulation == 1:
        return gathering_gradients(given, source)
    if not reduces_at_once(given):
        return [
            term("gradients/full", FORWARD_BACKWARD, full, "e * P", source),
            term("gradients/fresh", (*LAYER, *LATE), e * sizes.layer_largest_tensor, "e * largest tensor of a layer",
                 source),
        ]  # fmt: skip
    order, bucket = sizes.order, c.settings.reduce_bucket_elements
    walk = _walk(given, share)
    reduced = sum(order.after) if walk.first_flush > len(order.layers) else 0
    foreign = _last(order.flat, sum(order.flat) - touched_elements(order.flat, share, 0))
    moved = sum(foreign) - oversize_elements(foreign, bucket)
    return [
        term("gradients/full", (*FORWARD_TO_HEAD, Moment.BACKWARD_HEAD_REDUCED), full, "e * P", source),
        term("gradients/unreduced", LAYER, full - e * reduced, "e * (P - head)", source),
        term("gradients/unreduced_late", LATE, full - e * moved, "e * (P - what went through the bucket)", source),
        term("gradients/unreduced_last", END, e * (max(_foreign_elements(given, share)) + walk.end),
             "e * (tensors above the bucket of other ranks + embedding)", source),
    ]  # fmt: skip


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
    c, sizes, e = given.candidate, given.sizes, given.element_bytes
    terms = [
        term("buffers/offload_gradient", FROM_INIT_STATES, e * sizes.largest_tensor, "e * largest tensor",
             f"{STAGE12} temp_grad_buffer_for_gpu_offload"),
        *_offload_norms(given, share),
    ]  # fmt: skip
    if c.zero is ZeroStage.OPTIMIZER and c.accumulation == 1 and reduces_at_once(given):
        terms += _foreign(given, share)
    return terms


def _offload_norms(given: Inputs, share: int) -> list[Term]:
    """The fp64 copy of each slice while its norm is taken, on its way to the host."""
    sizes, source = given.sizes, f"{STAGE12} set_norm_for_param_grad_in_gpu"
    return [
        term(f"gradients/{name}", moments, transients.norm_slice_bytes(min(numel, share)), "8 * slice", source)
        for name, moments, numel in (
            ("head_norm", REDUCTION[:1], sizes.head),
            ("norm", (LAYER[1], LATE[1]), sizes.layer_largest_tensor),
            ("last_norm", END, sizes.embedding or sizes.layer_largest_tensor),
        )
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
