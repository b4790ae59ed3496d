"""What initialisation and the optimizer step hold for a moment.

In: element counts. Out: bytes that exist beside the states and are gone right after.
"""

from __future__ import annotations

from planner.geometry.sharding import padded_share
from planner.memory.sizes import RankSizes
from planner.records.candidate import Degrees
from planner.units import ceil_div

FP32_BYTES = 4
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


def flatten_copy_bytes(rank_elements: int, element_bytes: int, capacity_bytes: int) -> int:
    """The flat buffer of stages 1 and 2 beside the weights it replaces.

    Formula: e * P where the device has room for both, else 0: the group then goes through the host.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `flatten_on_accelerator` (0.19.8).
    Leaves out: what other processes hold.
    """
    copy = element_bytes * rank_elements
    return copy if 2 * copy <= capacity_bytes else 0


def zero_gradient_bytes(rank_elements: int, dp: int) -> int:
    """The fp32 gradient that `initialize_optimizer_states` makes and drops.

    Formula: 4 * P / N.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `initialize_optimizer_states` (0.19.8).
    Leaves out: nothing.
    """
    return FP32_BYTES * padded_share(rank_elements, dp)


def master_clone_bytes(sub_group: int) -> int:
    """Stage 3 casts a sub-group to fp32 and clones the result.

    Formula: 4 * S.
    Source: deepspeed/runtime/zero/stage3.py `_create_fp32_partitions` (0.19.8).
    Leaves out: nothing known.
    """
    return FP32_BYTES * sub_group


def gradient_cast_bytes(elements: int, element_bytes: int) -> int:
    """Gradients flattened, then cast to fp32 for the update.

    Formula: (e + 4) * elements; 4 * elements for fp32 runs, where the cast makes no copy.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `step`; stage3.py `_prepare_sub_group` (0.19.8).
    Leaves out: DeepCompile's pre-flattened gradients.
    """
    return FP32_BYTES * elements if element_bytes == FP32_BYTES else (element_bytes + FP32_BYTES) * elements


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
