"""What initialisation and the optimizer step hold for a moment.

In: element counts. Out: bytes that exist beside the states and are gone right after.
"""

from __future__ import annotations

from planner.geometry.sharding import padded_share
from planner.memory.sizes import RankSizes, adapter_sizes, rank_sizes
from planner.records.candidate import Candidate, Degrees, ZeroStage
from planner.records.model import Adapter, ModelShape
from planner.units import ceil_div

NORM_BYTES = 8  # gradient norms are taken in fp64


def sub_group_elements(sizes: RankSizes, degrees: Degrees, limit: int) -> int:
    """The largest stage-3 sub-group: parameters are collected in order until their shards reach the limit.

    Formula: min(P / N, max(limit + largest tensor of a layer / N, largest tensor / N)); with tensor parallelism the
    divided and the whole parameters form groups of their own, so P is the divided ones.
    Source: deepspeed/runtime/zero/stage3.py `_create_fp16_sub_groups` (0.19.8): a sub-group is closed once it
    reaches the limit.
    Leaves out: the split into weight-decay groups, which makes sub-groups smaller.
    """
    dp, elements = degrees.dp, sizes.total if degrees.tp == 1 else sizes.divided
    closed = max(limit + ceil_div(sizes.layer_largest_tensor, dp), ceil_div(sizes.largest_tensor, dp))
    return min(ceil_div(elements, dp), closed)


def largest_flat_elements(model: ModelShape, adapter: Adapter | None, candidate: Candidate) -> int:
    """Elements of the largest tensor that the optimizer updates as one.

    Formula: the largest tensor at stage 0, P / N at stages 1 and 2, the largest sub-group at stage 3.
    Source: deepspeed/runtime/fp16/unfused_optimizer.py, zero/stage_1_and_2.py, zero/stage3.py (0.19.8).
    Leaves out: the flat parameters of stage 0 under AdamW.
    """
    degrees = candidate.degrees
    sizes = rank_sizes(model, degrees.tp) if adapter is None else adapter_sizes(model, adapter)
    if candidate.zero is ZeroStage.DISABLED:
        return sizes.largest_tensor
    if candidate.zero is ZeroStage.PARAMETERS:
        return sub_group_elements(sizes, degrees, candidate.settings.sub_group_elements)
    return padded_share(sizes.total, degrees.dp)


def flatten_copy_bytes(rank_elements: int, element_bytes: int, capacity_bytes: int) -> int:
    """The flat buffer of stages 1 and 2 beside the weights it replaces.

    Formula: e * P where the device has room for both, else 0: the group then goes through the host.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `flatten_on_accelerator` (0.19.8).
    Leaves out: what other processes hold.
    """
    copy = element_bytes * rank_elements
    return copy if 2 * copy <= capacity_bytes else 0


def zero_gradient_bytes(rank_elements: int, dp: int, state_bytes: int) -> int:
    """The gradient that `initialize_optimizer_states` makes and drops, in the dtype of the master weights.

    Formula: 4 * P / N, 2 * P / N in pure bf16.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `initialize_optimizer_states` (0.19.8).
    Leaves out: nothing.
    """
    return state_bytes * padded_share(rank_elements, dp)


def master_clone_bytes(sub_group: int, state_bytes: int) -> int:
    """Stage 3 casts a sub-group to fp32 and clones the result; then it makes a gradient of the same size.

    Formula: 4 * S, 2 * S in pure bf16.
    Source: deepspeed/runtime/zero/stage3.py `_create_fp32_partitions`, `initialize_optimizer_states` (0.19.8).
    Leaves out: nothing known.
    """
    return state_bytes * sub_group


def gradient_cast_bytes(elements: int, gradient_bytes: int, state_bytes: int) -> int:
    """Gradients flattened, then cast for the update to the dtype of the master weights.

    Formula: (e + 4) * elements; e * elements where both have one dtype, so that the cast makes no copy.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `step`; stage3.py `_prepare_sub_group` (0.19.8).
    Leaves out: DeepCompile's pre-flattened gradients.
    """
    return (gradient_bytes + (0 if gradient_bytes == state_bytes else state_bytes)) * elements


def unsharded_norm_bytes(rank_elements: int, *, tp: int) -> int:
    """The gradient norm of stage 0, over flat fp32 gradients.

    Formula: 4 * P; 13 * P with tensor parallelism, where a mask is summed up in fp32 (4 + 4) and turned to bool (1).
    Source: deepspeed/runtime/utils.py `get_flattened_grad_norm` (0.19.8); measured on the engine at tp 2.
    Leaves out: nothing known.
    """
    return (13 if tp > 1 else 4) * rank_elements


def norm_slice_bytes(largest_elements: int) -> int:
    """The fp64 copy of the largest gradient slice while its norm is taken.

    Formula: 8 * elements of the slice.
    Source: deepspeed/runtime/utils.py `get_norm_dtype` (0.19.8).
    Leaves out: nothing.
    """
    return NORM_BYTES * largest_elements
