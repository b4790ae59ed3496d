"""Stage 3: everything shared out, parameters gathered module by module.

In: `Inputs`. Out: terms. Question: which shards, gathered parameters, gradients and buffers are on the GPU at which
moment?
"""

from __future__ import annotations

from planner.memory import buffers, gathered, states, transients
from planner.memory.gpu_updates import stage_three_update
from planner.memory.inputs import (
    FORWARD_BACKWARD,
    FROM_INIT,
    FROM_INIT_STATES,
    LATE,
    LAYER,
    REDUCTION,
    STAGE3,
    ZERO_PAPER,
    Inputs,
    term,
)
from planner.memory.reduction import reduction
from planner.memory.sub_groups import partial_offload_terms
from planner.records.candidate import Offload
from planner.records.estimate import Moment, Term
from planner.records.request import Optimizer
from planner.units import ceil_div

COORDINATOR = "deepspeed/runtime/zero/partitioned_param_coordinator.py (0.19.8)"
PARTITION = "deepspeed/runtime/zero/partition_parameters.py (0.19.8)"
HEAD = (Moment.FORWARD_LAYER, Moment.FORWARD_END, Moment.BACKWARD_HEAD, Moment.BACKWARD_HEAD_WEIGHT)


def stage_three_terms(given: Inputs) -> list[Term]:
    """Every term of stage 3 but frozen weights."""
    c, sizes, whole, e = given.candidate, given.sizes, given.whole, given.element_bytes
    settings = c.settings
    bucket = buffers.reduce_bucket_bytes(settings.reduce_bucket_elements, e, overlap_comm=False)
    shard = states.sharded_parameter_elements(sizes.total, sizes.divided, c.degrees)
    terms = [
        term("load/module", (Moment.LOAD,), e * gathered.building_elements(given.undivided, c.degrees.world_size),
             "e * largest tensor, or a layer's experts less the shards not made yet", f"{PARTITION} Init"),
        term("buffers/reduce_bucket", FROM_INIT_STATES, bucket, "e * reduce_bucket_size, for the whole run", STAGE3),
        term("init/hooked_tensor", (Moment.INIT_STATES,), e * max(sizes.largest_tensor, sizes.experts),
             "e * largest trained tensor or all experts of a layer, gathered to hook their gradients",
             f"{STAGE3} create_reduce_and_remove_grad_hooks"),
        *_gathered(given),
        *_gradients(given),
        term("save/module", (Moment.SAVE,), e * whole.largest_tensor, "e * largest tensor",
             "deepspeed/runtime/engine.py _zero3_consolidated_16bit_state_dict"),
    ]  # fmt: skip
    if c.offload.param_device == "none":
        since_load = FROM_INIT if given.frozen_weight_bytes else (Moment.LOAD, *FROM_INIT)  # adapters are made later
        terms.append(term("states/weights", since_load, e * shard, "e * P / N", ZERO_PAPER))
        terms += _secondary_weights(given)
    return [*terms, *(partial_offload_terms(given) if c.offload is not Offload.NONE else _states(given, shard))]


def _gathered(given: Inputs) -> list[Term]:
    """Whole parameters, and the flat buffers of the gathers that bring them."""
    c, whole, e = given.candidate, given.whole, given.element_bytes
    settings, tp = c.settings, c.degrees.tp
    if c.degrees.dp == 1 and c.offload.param_device == "none":
        return _whole_shards(given)
    turn = gathered.turn_elements(whole, settings, c.checkpointing, tp=tp)
    layer = gathered.layer_elements(whole, settings, c.checkpointing, tp=tp)
    group = gathered.group_elements(whole, settings, c.checkpointing)
    experts = max(0, 2 * whole.experts - turn)  # of the last layer, and the buffer of their gather
    head_group = max(gathered.head_group_elements(whole, settings), experts)
    norm_group = max(0, gathered.norm_group_elements(whole, settings, c.checkpointing) - group)
    return [
        term("gathered/persistent", (*FORWARD_BACKWARD, Moment.SAVE), gathered.persistent_bytes(whole, settings, e),
             "e * tensors up to stage3_param_persistence_threshold; partitioned for the step",
             f"{PARTITION} ds_persist"),
        term("gathered/turn", HEAD, e * turn,
             "e * min(P, max(head, max_reuse_distance / passes, max_live_parameters + a tensor))", COORDINATOR),
        term("gathered/head_group", HEAD[:1], e * head_group,
             "e * max(head, prefetch bucket + largest tensor of a layer, 2 * experts - what is live)",
             f"{PARTITION} AllGatherCoalescedHandle"),
        term("gathered/layer", REDUCTION[:-1], e * layer,
             "e * max(a layer's tensor, reused, max_live_parameters + a tensor); the layer with checkpointing",
             COORDINATOR),
        term("gathered/group", (HEAD[-1], *REDUCTION[:-1]), e * group,
             "e * (prefetch bucket + largest tensor of a layer)", f"{PARTITION} AllGatherCoalescedHandle"),
        term("gathered/norm_group", REDUCTION[:1], e * norm_group,
             "e * (last matrix, gathered together with the final norm, or experts)",
             f"{PARTITION} AllGatherCoalescedHandle"),
        term("gathered/first_layer", REDUCTION[-1:], gathered.end_of_backward_bytes(whole, settings, e),
             "e * max(layer's largest tensor, embedding)", COORDINATOR),
    ]  # fmt: skip


def _whole_shards(given: Inputs) -> list[Term]:
    """One rank holds whole tensors, used as they lie; what tensor parallelism replicates is shared and gathered."""
    whole = given.whole
    gathered_bytes = given.element_bytes * whole.embedding if given.candidate.degrees.tp > 1 else 0
    return [
        term("gathered/embedding", REDUCTION[-1:], gathered_bytes, "e * V * h", f"{PARTITION} _no_gather_coalesced")
    ]


def _secondary_weights(given: Inputs) -> list[Term]:
    """hpZ's second copy: of a parameter from its release in forward on, dropped after the step."""
    c, whole, e = given.candidate, given.whole, given.element_bytes
    ranks, source = c.settings.hpz_partition_size, f"{PARTITION} _partition_param_sec"
    live = gathered.turn_elements(whole, c.settings, c.checkpointing, tp=c.degrees.tp)
    released = gathered.partitioned_total(whole, c.settings) - live
    forward = HEAD[:2]
    others = tuple(moment for moment in (Moment.LOAD, *FROM_INIT[:-1]) if moment not in forward)
    return [
        term("states/secondary_weights", forward, states.secondary_weight_bytes(released, ranks, e),
             "e * (P - gathered) / hpz", source),
        term("states/secondary_weights", others, states.secondary_weight_bytes(whole.total, ranks, e), "e * P / hpz",
             source),
    ]  # fmt: skip


def _gradients(given: Inputs) -> list[Term]:
    """Gradients on their way to their shards."""
    c, sizes, e = given.candidate, given.sizes, given.element_bytes
    order, source = sizes.order, f"{STAGE3} __avg_scatter_grads"
    walk = reduction(order, c.settings.reduce_bucket_elements, c.degrees.dp)
    tied = sizes.head if order.tied else 0
    formula = "e * (a gradient + the one in reduction where it exceeds the bucket, or the bucket's copy)"
    return [
        term("gradients/head_made", HEAD[-1:], e * sizes.head, "e * V * h",
             "autograd: the head's gradient comes first"),
        term("gradients/head_in_reduction", REDUCTION[:1], e * walk.head, formula, source),
        term("gradients/tied_head", REDUCTION[:-1], e * tied, "e * V * h, until the embedding's gradient is added",
             "torch autograd, InputBuffer of a shared parameter"),
        term("gradients/first_of_layer", (LAYER[0], LATE[0]), e * order.last_matrix, "e * last matrix of a layer",
             "autograd: last used, first differentiated"),
        term("gradients/layer_in_reduction", LAYER[1:], e * walk.last_layer, formula, source),
        term("gradients/late_in_reduction", LATE[1:], e * walk.from_layer(late_layers(given)), formula, source),
        term("gradients/last_in_reduction", REDUCTION[-1:], e * (walk.end + tied), formula, source),
        *_shard_copies(given, source),
    ]  # fmt: skip


def late_layers(given: Inputs) -> int:
    """Layers that still keep their activations at `Moment.BACKWARD_LATE`.

    Formula: the layers left when the bucket is first copied; 1 where it never is.
    Source: deepspeed/runtime/comm/coalesced_collectives.py `reduce_scatter_coalesced` (0.19.8).
    Leaves out: the lag of one bucket.
    """
    c, order = given.candidate, given.sizes.order
    walk = reduction(order, c.settings.reduce_bucket_elements, c.degrees.dp)
    return min(len(order.layers), max(1, walk.first_copy))


def _shard_copies(given: Inputs, source: str) -> list[Term]:
    """Copies of a reduced shard: in fp32 for fp32 accumulation, in fp64 for its norm before it is offloaded."""
    c, sizes, dp = given.candidate, given.sizes, given.candidate.degrees.dp
    widens = c.settings.fp32_gradient_accumulation and given.element_bytes < states.FP32_BYTES
    name, width = ("cast", states.FP32_BYTES) if widens else ("norm", 0)
    if c.offload is not Offload.NONE:
        name, width, source = "norm", transients.NORM_BYTES, f"{STAGE3} _offload_grad_partition_at_boundary"
    return [
        term(f"gradients/{part}_{name}", moments, width * ceil_div(numel, dp), f"{width} * tensor / N", source)
        for part, moments, numel in (
            ("head", REDUCTION[:1], sizes.head),
            ("layer", (LAYER[1], LATE[1]), sizes.layer_largest_tensor),
            ("last", REDUCTION[-1:], sizes.embedding),
        )
    ]


def _states(given: Inputs, shard: int) -> list[Term]:
    """What training keeps on the GPU without offload, and the step."""
    c, sizes, e = given.candidate, given.sizes, given.element_bytes
    degrees, width = c.degrees, given.precision.state_bytes
    gradient_bytes = states.FP32_BYTES if c.settings.fp32_gradient_accumulation else e
    group = transients.sub_group_elements(sizes, degrees, c.settings.sub_group_elements)
    if given.optimizer is Optimizer.MUON:  # matrices and the rest are in sub-groups of their own
        group = min(group, ceil_div(max(sizes.muon, sizes.total - sizes.muon), degrees.dp))
    return [
        term("states/master", FROM_INIT, width * shard, f"{width} * P / N", f"{STAGE3} fp32_partitioned_groups_flat"),
        term("gradients/partition", FROM_INIT_STATES, gradient_bytes * shard,
             "e * P / N, for the whole run", f"{STAGE3} grad_partitions_flat_buffer"),
        term("init/master_clone", (Moment.INIT_WEIGHTS,), transients.master_clone_bytes(group, width),
             f"{width} * S", f"{STAGE3} _create_fp32_partitions, initialize_optimizer_states"),
        term("step/norm", (Moment.STEP_NORM,), transients.norm_slice_bytes(ceil_div(sizes.largest_tensor, degrees.dp)),
             "8 * largest tensor / N", "deepspeed/runtime/utils.py get_norm_dtype"),
        *stage_three_update(given, shard, group, gradient_bytes),
    ]  # fmt: skip
