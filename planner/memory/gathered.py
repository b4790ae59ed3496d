"""Stage-3 parameters that are whole on a rank: persistent, kept for reuse, prefetched, or in use.

In: rank sizes and stage-3 settings. Out: elements or bytes, by the instant they are gathered. A parameter counts as
live from the gather that fetches it to its release; `stage3_max_live_parameters` throttles prefetching only.
"""

from __future__ import annotations

from planner.memory.sizes import RankSizes
from planner.records.candidate import Checkpointing, ZeroSettings


def reused_elements(sizes: RankSizes, settings: ZeroSettings, checkpointing: Checkpointing) -> int:
    """Parameters at the end of the model that stay gathered between forward and backward.

    A parameter is kept where fewer than R elements, the reuse distance, are traversed until its next use: the head
    twice, and twice whatever lies between. With checkpointing that use is the recomputation: every later layer is
    traversed three times, the parameter's own only once.

    Formula: head + (R - 2 * head) / 2; head + j layers + min(layer, rest) with checkpointing, where j and rest are
    quotient and remainder of (R - 2 * head) / (3 * layer).
    Source: deepspeed/runtime/zero/partitioned_param_coordinator.py `__params_to_release` (0.19.8).
    Leaves out: the tensor in which the limit falls.
    """
    beyond = settings.max_reuse_distance - 2 * sizes.head
    if beyond <= 0:
        return 0
    if checkpointing is Checkpointing.NONE:
        return min(sizes.total, sizes.head + beyond // 2)
    layers, rest = divmod(beyond, 3 * sizes.layer)
    return min(sizes.total, sizes.head + layers * sizes.layer + min(sizes.layer, rest))


def partitioned(numel: int, settings: ZeroSettings) -> int:
    """Elements of one tensor if stage 3 partitions it, 0 if it persists.

    Source: deepspeed/runtime/zero/partition_parameters.py, `ds_persist` (0.19.8).
    """
    return numel if numel > settings.param_persistence_threshold else 0


def partitioned_total(sizes: RankSizes, settings: ZeroSettings) -> int:
    """Elements of all tensors that stage 3 partitions."""
    return sizes.total - sizes.persistent(settings.param_persistence_threshold)


def partitioned_layer(sizes: RankSizes, settings: ZeroSettings) -> int:
    """Elements of the last layer's tensors that stage 3 partitions."""
    return sum(partitioned(numel, settings) for numel in sizes.order.layers[-1])


def prefetched_elements(sizes: RankSizes, settings: ZeroSettings, *, in_use: int) -> int:
    """Live parameters that prefetching reaches from the third iteration on; 0 where what is in use leaves no room.

    Formula: max_live + largest tensor of a layer, at most P: every module fetches ahead until the limit is passed.
    Source: partitioned_param_coordinator.py `_fetch_sub_module_impl` (0.19.8).
    Leaves out: nothing known.
    """
    if not settings.prefetch_bucket_elements or settings.max_live_parameters <= in_use:
        return 0
    return settings.max_live_parameters + partitioned(sizes.layer_largest_tensor, settings)


def turn_elements(sizes: RankSizes, settings: ZeroSettings, checkpointing: Checkpointing, *, tp: int) -> int:
    """Live parameters while the head runs, at the end of forward and at the start of backward.

    Formula: min(P, max(head, reused, prefetched)), P without persistent parameters. AutoTP's linear layers save their
    gathered weights for backward: all divided ones without checkpointing, one layer's with it.
    Source: partitioned_param_coordinator.py (0.19.8), deepspeed/module_inject/layers.py; measured on the engine.
    Leaves out: nothing known.
    """
    head = partitioned(sizes.head, settings)
    saved = 0 if tp == 1 else sizes.layer_divided if checkpointing is Checkpointing.FULL else sizes.divided
    ahead = prefetched_elements(sizes, settings, in_use=head)
    live = max(head, reused_elements(sizes, settings, checkpointing), ahead, saved)
    return min(live, partitioned_total(sizes, settings))


def layer_elements(sizes: RankSizes, settings: ZeroSettings, checkpointing: Checkpointing, *, tp: int) -> int:
    """Live parameters while the last layer is differentiated.

    Formula: as at the head, but for the head itself: at least the largest tensor of a layer, or all its experts; the
    whole layer with checkpointing, whose recomputation releases nothing before its backward.
    Source: as `turn_elements`; traced on the engine.
    Leaves out: the second tensor in flight where max_live is smaller than a layer.
    """
    head = partitioned(sizes.head, settings)
    recomputed = checkpointing is Checkpointing.FULL
    module = max(partitioned(sizes.layer_largest_tensor, settings), sizes.experts)
    in_use = partitioned_layer(sizes, settings) if recomputed else module
    saved = 0 if tp == 1 else sizes.layer_divided if checkpointing is Checkpointing.FULL else sizes.divided
    reused = reused_elements(sizes, settings, checkpointing) - head
    live = max(in_use, reused, prefetched_elements(sizes, settings, in_use=in_use), saved)
    return min(live, partitioned_total(sizes, settings))


def group_elements(sizes: RankSizes, settings: ZeroSettings, checkpointing: Checkpointing) -> int:
    """The flat buffer of one coalesced gather, beside the parameters copied out of it, until the last one is used.

    Formula: prefetch bucket + largest tensor of a layer, for the bucket is filled until it is exceeded; 0 where one
    matrix exceeds it, which is gathered alone and not copied, where the whole model is reused, and where max_live
    binds, so that a group takes the place of what was released.
    Source: partition_parameters.py `_all_gather_coalesced`, `_all_gather_sequential`, `AllGatherCoalescedHandle`
    (0.19.8).
    Leaves out: groups at the end of the model, which are smaller.
    """
    largest, total = partitioned(sizes.layer_largest_tensor, settings), partitioned_total(sizes, settings)
    room = settings.prefetch_bucket_elements
    reused = reused_elements(sizes, settings, checkpointing) >= total
    if room <= largest or reused or settings.max_live_parameters < total:
        return 0
    return min(total, room + largest)


def head_group_elements(sizes: RankSizes, settings: ZeroSettings) -> int:
    """The flat buffer of the gather that brings the head.

    Formula: max(head where it shares a gather with a partitioned final norm, group), at most P; 0 where prefetching has
    no room for the head.
    Source: as `group_elements`; traced on the engine.
    Leaves out: matrices of the last layer in the head's group.
    """
    head, total = partitioned(sizes.head, settings), partitioned_total(sizes, settings)
    if not settings.prefetch_bucket_elements or settings.max_live_parameters <= head:
        return 0
    largest = partitioned(sizes.layer_largest_tensor, settings)
    bucket = min(settings.prefetch_bucket_elements, settings.max_live_parameters)
    with_norm = head if _final_norm_is_gathered(sizes, settings) else 0
    return min(total, max(with_norm, bucket + largest if bucket > largest else 0))


def norm_group_elements(sizes: RankSizes, settings: ZeroSettings, checkpointing: Checkpointing) -> int:
    """The flat buffer of the first gather in backward: final norm and last matrix of the last layer, or its experts.

    Formula: that matrix, unless the norm persists or nothing is prefetched; the experts, which one module has together;
    0 where the whole model is reused.
    Source: as `group_elements`; traced on the engine.
    Leaves out: the same within layers, where matrices beside a norm are smaller.
    """
    if reused_elements(sizes, settings, checkpointing) >= partitioned_total(sizes, settings):
        return 0
    with_norm = settings.prefetch_bucket_elements > 0 and _final_norm_is_gathered(sizes, settings)
    return max(partitioned(sizes.order.last_matrix, settings) if with_norm else 0, sizes.experts)


def _final_norm_is_gathered(sizes: RankSizes, settings: ZeroSettings) -> bool:
    """Whether there is a final norm that stage 3 partitions."""
    return bool(sizes.order.after) and partitioned(sizes.order.after[0], settings) > 0


def building_elements(sizes: RankSizes, dp: int) -> int:
    """Whole tensors while zero.Init builds the model, beside the shards of all others.

    Formula: max(largest tensor, experts - (head + experts - their largest tensor) / N): the tensors of one module are
    whole together, and neither their own shards nor the head's exist yet.
    Source: deepspeed/runtime/zero/partition_parameters.py `_post_init_method` (0.19.8).
    Leaves out: nothing known.
    """
    missing = sizes.head + sizes.experts - sizes.layer_largest_tensor
    return max(sizes.largest_tensor, sizes.experts - missing // dp)


def end_of_backward_bytes(sizes: RankSizes, settings: ZeroSettings, element_bytes: int) -> int:
    """Gathered parameters when the first layer and the embedding finish their backward.

    Formula: e * max(layer's largest tensor, embedding).
    Source: partitioned_param_coordinator.py (0.19.8).
    Leaves out: nothing known.
    """
    return element_bytes * max(partitioned(n, settings) for n in (sizes.layer_largest_tensor, sizes.embedding))


def persistent_bytes(sizes: RankSizes, settings: ZeroSettings, element_bytes: int) -> int:
    """Small parameters that are never partitioned away.

    Formula: e * elements of tensors with at most `param_persistence_threshold` elements.
    Source: deepspeed/runtime/zero/parameter_offload.py `mark_persistent_parameters` (0.19.8).
    Leaves out: nothing known.
    """
    return element_bytes * sizes.persistent(settings.param_persistence_threshold)
