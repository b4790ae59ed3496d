"""Which states, gradients, buffers and transients are on the GPU at which moment, by ZeRO stage.

In: `Inputs`, the numbers one candidate's memory depends on. Out: terms. The sizes come from the sibling modules, one
formula each; this module only says when each of them is alive.
"""

from __future__ import annotations

from planner.memory import buffers, gathered, quantized, states, transients
from planner.memory.gpu_stage_zero import stage_zero_terms
from planner.memory.gpu_stages_one_two import stages_one_two_terms
from planner.memory.gpu_updates import stage_three_update
from planner.memory.inputs import (
    FROM_INIT,
    FROM_INIT_STATES,
    REDUCTION,
    STAGE3,
    STAGE12,
    TRAINING,
    ZERO_PAPER,
    Inputs,
    term,
)
from planner.memory.quantized import QuantizedBase
from planner.records.candidate import Offload, ZeroStage
from planner.records.estimate import Moment, Term
from planner.records.request import Optimizer
from planner.units import ceil_div


def gpu_terms(given: Inputs) -> list[Term]:
    """Every term on the GPU but activations and logits."""
    stage = given.candidate.zero
    if stage is ZeroStage.PARAMETERS:
        return [*_stage_three(given), *_frozen(given)]
    if stage is ZeroStage.DISABLED:
        return [*stage_zero_terms(given), *_frozen(given)]
    return [*stages_one_two_terms(given), *_frozen(given)]


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
    if given.optimizer is Optimizer.MUON:  # matrices and the rest are in sub-groups of their own
        group = min(group, ceil_div(max(sizes.muon, p - sizes.muon), degrees.dp))
    terms += [
        term("states/master", FROM_INIT, given.precision.state_bytes * shard,
             f"{given.precision.state_bytes} * P / N", f"{STAGE3} fp32_partitioned_groups_flat"),
        term("gradients/partition", FROM_INIT_STATES, gradient_bytes * shard,
             "e * P / N, for the whole run", f"{STAGE3} grad_partitions_flat_buffer"),
        term("init/master_clone", (Moment.INIT_WEIGHTS,),
             transients.master_clone_bytes(group, given.precision.state_bytes),
             f"{given.precision.state_bytes} * S", f"{STAGE3} _create_fp32_partitions, initialize_optimizer_states"),
        term("step/norm", (Moment.STEP_NORM,), transients.norm_slice_bytes(-(-sizes.largest_tensor // degrees.dp)),
             "8 * largest tensor / N", "deepspeed/runtime/utils.py get_norm_dtype"),
        *stage_three_update(given, shard, group, gradient_bytes),
    ]  # fmt: skip
    return terms
