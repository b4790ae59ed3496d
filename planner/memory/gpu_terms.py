"""Which states, gradients, buffers and transients are on the GPU at which moment, by ZeRO stage.

In: `Inputs`, the numbers one candidate's memory depends on. Out: terms. The sizes come from the sibling modules, one
formula each; this module only says when each of them is alive.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.memory import buffers, gathered, states, transients
from planner.memory.optimizers import optimizer_formula, optimizer_state_bytes
from planner.memory.sizes import RankSizes
from planner.records.candidate import Candidate, Offload, ZeroStage
from planner.records.estimate import Device, Moment, Term
from planner.records.model import Precision
from planner.records.request import Optimizer

FORWARD_BACKWARD = (Moment.FORWARD_END, Moment.BACKWARD_HEAD, Moment.BACKWARD_LAYER, Moment.BACKWARD_END)
STEP = (Moment.STEP_NORM, Moment.STEP_CAST)
TRAINING = (*FORWARD_BACKWARD, *STEP, Moment.SAVE)
FROM_INIT_STATES = (Moment.INIT_STATES, *TRAINING)
FROM_INIT = (Moment.INIT_WEIGHTS, *FROM_INIT_STATES)
REDUCTION = (Moment.BACKWARD_LAYER, Moment.BACKWARD_END)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the memory of one candidate depends on, besides activations."""

    candidate: Candidate
    sizes: RankSizes  # what is trained, on the fullest tensor-parallel rank
    whole: RankSizes  # all parameters of that rank; the same as `sizes` when everything is trained
    frozen_weight_bytes: int  # of one whole copy of what is not trained, on that rank
    model_elements: int  # the whole model
    precision: Precision
    optimizer: Optimizer
    capacity_bytes: int  # of the GPU
    ranks_per_node: int

    @property
    def element_bytes(self) -> int:
        """Bytes of one weight and of one gradient."""
        return self.precision.bytes


def gpu_terms(given: Inputs) -> list[Term]:
    """Every term on the GPU but activations and logits."""
    stage = given.candidate.zero
    if stage is ZeroStage.PARAMETERS:
        return [*_stage_three(given), *_frozen(given)]
    if stage is ZeroStage.DISABLED:
        return [*_stage_zero(given), *_frozen(given)]
    return [*_stages_one_two(given), *_frozen(given)]


def _frozen(given: Inputs) -> list[Term]:
    """Weights that are not trained: whole on every rank, shared out at stage 3."""
    c = given.candidate
    if not given.frozen_weight_bytes or c.offload.param_device != "none":
        return []
    if c.zero is ZeroStage.PARAMETERS:
        share = states.frozen_share_bytes(given.frozen_weight_bytes, c.degrees.dp)
        return [term("states/frozen_weights", (Moment.LOAD, *FROM_INIT), share, "bytes of frozen weights / N", STAGE3)]
    return [term("states/frozen_weights", FROM_INIT, given.frozen_weight_bytes, "bytes of frozen weights",
                 f"{STAGE12}: only parameters that require gradients are flattened")]  # fmt: skip


def term(name: str, moments: tuple[Moment, ...], size_bytes: int, formula: str, source: str) -> Term:
    """A term on the GPU."""
    return Term(name=name, device=Device.GPU, moments=moments, size_bytes=size_bytes, formula=formula, source=source)


STAGE12 = "deepspeed/runtime/zero/stage_1_and_2.py (0.19.8)"
STAGE3 = "deepspeed/runtime/zero/stage3.py (0.19.8)"
ZERO_PAPER = "arXiv:1910.02054"


def _stage_zero(given: Inputs) -> list[Term]:
    """Nothing is shared out; the 16-bit optimizer wrapper creates Adam's states at initialisation."""
    c, p, e = given.candidate, given.sizes.total, given.element_bytes
    stage, degrees = c.zero, c.degrees
    source = "deepspeed/runtime/fp16/fused_optimizer.py (0.19.8)"
    until_boundary = (Moment.BACKWARD_END,) if c.accumulation == 1 else FORWARD_BACKWARD
    wrapped = given.precision is not Precision.FP32
    terms = [
        term("states/weights", FROM_INIT, states.weight_bytes(p, stage, degrees, e), "e * P", ZERO_PAPER),
        term("states/gradients", (*until_boundary, Moment.STEP_CAST), states.full_gradient_bytes(p, e), "e * P",
             ZERO_PAPER),
        term("buffers/reduce_copy", (Moment.BACKWARD_END,), buffers.allreduce_copy_bytes(p, e),
             "e * min(P, 5e8)", "deepspeed/runtime/engine.py MEMORY_OPT_ALLREDUCE_SIZE"),
        term("gradients/head", (Moment.BACKWARD_LAYER,), e * given.sizes.head if c.accumulation == 1 else 0,
             "e * V * h", "autograd order: the head's gradient comes first"),
    ]  # fmt: skip
    if wrapped:
        master = states.master_bytes(p, stage, degrees, given.precision)
        terms += [
            term("states/master", FROM_INIT_STATES, master, "4 * P", source),
            term("init/empty_step_gradient", (Moment.INIT_STATES,), master, "4 * P", source),
            term("step/gradient_cast", (Moment.STEP_CAST,), 2 * master, "4 * P cast + 4 * P flattened", source),
            term("step/norm", (Moment.STEP_NORM,), transients.unsharded_norm_bytes(p, tp=degrees.tp),
                 "4 * P, and 9 * P for the mask of replicated parameters with tensor parallelism",
                 "deepspeed/runtime/utils.py get_flattened_grad_norm (0.19.8)"),
        ]  # fmt: skip
    optimizer_from = FROM_INIT_STATES if wrapped else TRAINING
    optimizer = states.optimizer_bytes(p, stage, degrees, given.optimizer, given.precision)
    terms.append(term("states/optimizer", optimizer_from, optimizer, f"{_per_element(given)} * P", source))
    return terms


def _per_element(given: Inputs) -> str:
    """The optimizer's bytes per element, as text."""
    return optimizer_formula(given.optimizer, given.precision)


def _stages_one_two(given: Inputs) -> list[Term]:
    """Flat weights on every rank; optimizer states, and at stage 2 gradients, shared out."""
    c, sizes, e = given.candidate, given.sizes, given.element_bytes
    p, stage, degrees, settings = sizes.total, c.zero, c.degrees, c.settings
    offloaded = c.offload is not Offload.NONE
    share = states.gradient_partition_bytes(p, degrees, 1)
    slice_elements = min(sizes.largest_tensor, share)
    weights = states.weight_bytes(p, stage, degrees, e)
    copy = transients.flatten_copy_bytes(p, e, given.capacity_bytes)
    kept_bucket = stage is ZeroStage.OPTIMIZER and c.accumulation > 1
    bucket_moments = FORWARD_BACKWARD if kept_bucket else REDUCTION
    terms = [
        term("states/weights", FROM_INIT, weights, "e * P", ZERO_PAPER),
        term("init/flat_copy", (Moment.INIT_WEIGHTS,), copy, "e * P; 0 where it goes through the host", STAGE12),
        term("buffers/reduce_bucket", bucket_moments,
             buffers.reduce_bucket_bytes(settings.reduce_bucket_elements, e, overlap_comm=settings.overlap_comm),
             "e * reduce_bucket_size * (2 with overlap_comm)", f"{STAGE12} setup_buckets"),
        term("buffers/reduce_copy", REDUCTION, buffers.reduce_copy_bytes(settings.reduce_bucket_elements, p, e),
             "e * min(reduce_bucket_size, P)", f"{STAGE12} allreduce_bucket"),
        term("gradients/oversize", REDUCTION if stage is ZeroStage.GRADIENTS else (Moment.BACKWARD_LAYER,),
             buffers.oversize_gradient_bytes(sizes.largest_tensor, settings.reduce_bucket_elements, e),
             "e * largest tensor, where it exceeds the bucket", f"{STAGE12} extra_large_param_to_reduce"),
        *_full_gradients(given),
    ]  # fmt: skip
    if offloaded:
        return [*terms, *_offloaded_one_two(given, slice_elements)]
    master = states.master_bytes(p, stage, degrees, given.precision)
    gradient_bytes = states.FP32_BYTES if settings.fp32_gradient_accumulation else e
    partition = states.gradient_partition_bytes(p, degrees, gradient_bytes)
    as_they_come = stage is ZeroStage.GRADIENTS or settings.overlap_comm
    partition_from = REDUCTION if as_they_come else (Moment.BACKWARD_END,)
    terms += [
        term("states/master", FROM_INIT_STATES, master, "4 * P / N", f"{STAGE12} single_partition_of_fp32_groups"),
        term("init/zero_gradient", (Moment.INIT_STATES,), transients.zero_gradient_bytes(p, degrees.dp),
             "4 * P / N", f"{STAGE12} initialize_optimizer_states"),
        term("states/optimizer", TRAINING,
             states.optimizer_bytes(p, stage, degrees, given.optimizer, given.precision),
             f"{_per_element(given)} * P / N", ZERO_PAPER),
        term("gradients/partition", (*partition_from, *STEP), partition, "e * P / N", f"{STAGE12} grads_in_partition"),
        term("step/norm", (Moment.STEP_NORM,), transients.norm_slice_bytes(slice_elements),
             "8 * largest slice", "deepspeed/runtime/utils.py get_norm_dtype"),
        term("step/gradient_cast", (Moment.STEP_CAST,), transients.gradient_cast_bytes(share, gradient_bytes),
             "e * P / N flattened + 4 * P / N cast", f"{STAGE12} step"),
    ]  # fmt: skip
    if stage is ZeroStage.GRADIENTS and c.accumulation > 1:
        terms.append(term("gradients/accumulated", FORWARD_BACKWARD, partition, "e * P / N",
                          f"{STAGE12} all_grad_tensors"))  # fmt: skip
    return terms


def _full_gradients(given: Inputs) -> list[Term]:
    """Stage 1 holds unreduced gradients: until the end of backward, or through the next micro-batch.

    With overlap_comm each gradient moves into the bucket as it comes, so only accumulation keeps the full set;
    gradients
    too large for the bucket stay on the ranks that do not own them.
    """
    c, e = given.candidate, given.element_bytes
    if c.zero is not ZeroStage.OPTIMIZER:
        return []
    if c.accumulation == 1 and c.settings.overlap_comm:
        foreign = given.sizes.total - states.gradient_partition_bytes(given.sizes.total, c.degrees, 1)
        kept = buffers.kept_oversize_bytes(given.sizes.tensors, c.settings.reduce_bucket_elements, foreign, e)
        return [term("gradients/kept_oversize", (Moment.BACKWARD_END,), kept,
                     "e * min(tensors larger than the bucket, P - P / N)", f"{STAGE12} reduce_ipg_grads")]  # fmt: skip
    moments = FORWARD_BACKWARD if c.accumulation > 1 else (Moment.BACKWARD_END,)
    full = states.full_gradient_bytes(given.sizes.total, e)
    terms = [term("gradients/full", moments, full, "e * P", f"{STAGE12} reduce_gradients")]
    if c.accumulation == 1:
        terms.append(term("gradients/head", (Moment.BACKWARD_LAYER,), e * given.sizes.head, "e * V * h",
                          "autograd order: the head's gradient comes first"))  # fmt: skip
    return terms


def _offloaded_one_two(given: Inputs, slice_elements: int) -> list[Term]:
    """What stays on the GPU when optimizer states are in host memory."""
    sizes, e = given.sizes, given.element_bytes
    return [
        term("buffers/offload_gradient", FROM_INIT_STATES, e * sizes.largest_tensor, "e * largest tensor",
             f"{STAGE12} temp_grad_buffer_for_gpu_offload"),
        term("gradients/offload_norm", REDUCTION, transients.norm_slice_bytes(slice_elements), "8 * largest slice",
             f"{STAGE12} set_norm_for_param_grad_in_gpu"),
    ]  # fmt: skip


def _stage_three(given: Inputs) -> list[Term]:
    """Everything shared out; parameters gathered module by module."""
    c, sizes, whole, e = given.candidate, given.sizes, given.whole, given.element_bytes
    p, degrees, settings = sizes.total, c.degrees, c.settings
    gradient_bytes = states.FP32_BYTES if settings.fp32_gradient_accumulation else e
    bucket = buffers.reduce_bucket_bytes(settings.reduce_bucket_elements, e, overlap_comm=False)
    shard = states.sharded_parameter_elements(p, sizes.divided, degrees)
    turn = (Moment.FORWARD_END, Moment.BACKWARD_HEAD, Moment.BACKWARD_LAYER)
    terms = [
        term("load/module", (Moment.LOAD,), e * whole.largest_tensor, "e * largest tensor",
             "deepspeed/runtime/zero/partition_parameters.py Init"),
        term("buffers/reduce_bucket", FROM_INIT_STATES, bucket, "e * reduce_bucket_size, for the whole run", STAGE3),
        term("buffers/reduce_copy", REDUCTION, buffers.reduce_copy_bytes(settings.reduce_bucket_elements, p, e),
             "e * min(reduce_bucket_size, P)", f"{STAGE3} __avg_scatter_contiguous_grads"),
        term("gradients/oversize", REDUCTION,
             buffers.oversize_gradient_bytes(sizes.largest_tensor, settings.reduce_bucket_elements, e),
             "e * largest tensor, where it exceeds the bucket", STAGE3),
        term("init/embeddings", (Moment.INIT_STATES,), gathered.embedding_and_head_bytes(whole, e),
             "e * (embedding + head)", "measured on the engine (0.19.8); where it gathers them was not traced"),
        term("gathered/persistent", TRAINING, gathered.persistent_bytes(whole, settings, e),
             "e * tensors up to stage3_param_persistence_threshold", "deepspeed/runtime/zero/parameter_offload.py"),
        term("gathered/live", turn, gathered.live_bytes(whole, settings, c.checkpointing, e, tp=degrees.tp),
             "e * min(P, max(max_reuse_distance / passes, max_live_parameters, head))",
             "partitioned_param_coordinator.py (0.19.8), measured"),
        term("gathered/forward_copies", (Moment.FORWARD_END,), gathered.forward_copies_bytes(whole, settings, e),
             "e * max(3 * prefetch group, 2 * largest tensor of a layer)",
             "partition_parameters.py (0.19.8), measured"),
        term("gathered/backward_copies", (Moment.BACKWARD_HEAD, Moment.BACKWARD_LAYER),
             gathered.backward_copies_bytes(whole, settings, e),
             "e * (prefetch group + largest tensor of a layer)", "partition_parameters.py (0.19.8), measured"),
        term("gathered/first_layer", (Moment.BACKWARD_END,), gathered.end_of_backward_bytes(whole, e),
             "e * max(layer, embedding)", "partitioned_param_coordinator.py (0.19.8)"),
        term("save/module", (Moment.SAVE,), e * whole.largest_tensor, "e * largest tensor",
             "deepspeed/runtime/engine.py _zero3_consolidated_16bit_state_dict"),
    ]  # fmt: skip
    if c.offload.param_device == "none":
        terms.append(term("states/weights", (Moment.LOAD, *FROM_INIT), e * shard, "e * P / N", ZERO_PAPER))
    if c.offload is not Offload.NONE:
        return terms
    group = transients.sub_group_elements(sizes, degrees, settings.sub_group_elements)
    terms += [
        term("states/master", FROM_INIT, given.precision.state_bytes * shard, "4 * P / N",
             f"{STAGE3} fp32_partitioned_groups_flat"),
        term("states/optimizer", TRAINING, optimizer_state_bytes(shard, given.optimizer, given.precision),
             f"{_per_element(given)} * P / N", ZERO_PAPER),
        term("gradients/partition", FROM_INIT_STATES, gradient_bytes * shard,
             "e * P / N, for the whole run", f"{STAGE3} grad_partitions_flat_buffer"),
        term("init/master_clone", (Moment.INIT_WEIGHTS,), transients.master_clone_bytes(group),
             "4 * S", f"{STAGE3} _create_fp32_partitions"),
        term("step/norm", (Moment.STEP_NORM,), transients.norm_slice_bytes(-(-sizes.largest_tensor // degrees.dp)),
             "8 * largest tensor / N", "deepspeed/runtime/utils.py get_norm_dtype"),
        term("step/gradient_cast", (Moment.STEP_CAST,), transients.gradient_cast_bytes(group, gradient_bytes),
             "(e + 4) * S", f"{STAGE3} _prepare_sub_group"),
    ]  # fmt: skip
    return terms
