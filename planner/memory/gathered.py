"""Stage-3 parameters that are whole on a rank: persistent, kept for reuse, prefetched, or in use.

In: rank sizes and stage-3 settings. Out: bytes, by the instant they are gathered.
"""

from __future__ import annotations

from planner.memory.sizes import RankSizes
from planner.records.candidate import Checkpointing, ZeroSettings


def reused_elements(sizes: RankSizes, settings: ZeroSettings, checkpointing: Checkpointing) -> int:
    """Parameters at the end of the model that stay gathered between forward and backward.

    Formula: min(P, R / 2), and R / 3 with checkpointing, R the reuse distance: the way there and back, and once more
    for the recomputation.
    Source: deepspeed/runtime/zero/partitioned_param_coordinator.py `__params_to_release` (0.19.8).
    Leaves out: where inside a layer the limit falls.
    """
    passes = 3 if checkpointing is Checkpointing.FULL else 2
    return min(sizes.total, settings.max_reuse_distance // passes)


def live_bytes(
    sizes: RankSizes, settings: ZeroSettings, checkpointing: Checkpointing, element_bytes: int, *, tp: int
) -> int:
    """Gathered parameters at the turn from forward to backward.

    Formula: e * min(P, max(reused, head, largest tensor of a layer, max_live with prefetching)): from the third
    iteration
    on, every module call fetches ahead, so the lead grows until `stage3_max_live_parameters` stops it. AutoTP's linear
    layers save their gathered weights for backward: all divided ones without checkpointing, one layer's with it.
    Source: deepspeed/runtime/zero/partitioned_param_coordinator.py `_fetch_sub_module_impl` (0.19.8); measured on
    the engine.
    Leaves out: the one tensor by which the limit is overshot.
    """
    ahead = settings.max_live_parameters if settings.prefetch_bucket_elements else 0
    saved = 0 if tp == 1 else sizes.layer_divided if checkpointing is Checkpointing.FULL else sizes.divided
    reused = reused_elements(sizes, settings, checkpointing)
    return element_bytes * min(sizes.total, max(reused, sizes.head, sizes.layer_largest_tensor, ahead, saved))


def end_of_backward_bytes(sizes: RankSizes, element_bytes: int) -> int:
    """Gathered parameters when the first layer and the embedding finish their backward.

    Formula: e * max(layer, embedding).
    Source: as `live_bytes`.
    Leaves out: nothing known.
    """
    return element_bytes * max(sizes.layer, sizes.embedding)


def embedding_and_head_bytes(sizes: RankSizes, element_bytes: int) -> int:
    """The largest two tensors of the model are whole once while the engine is set up.

    Formula: e * (embedding + head), the embedding alone where they are tied.
    Source: measured on the engine (DeepSpeed 0.19.8).
    Leaves out: why; it matters only where sub-groups are much smaller than the model.
    """
    return element_bytes * (sizes.embedding if sizes.tied else sizes.embedding + sizes.head)


def prefetch_group_elements(sizes: RankSizes, settings: ZeroSettings) -> int:
    """Parameters that one coalesced prefetch gathers; 0 when the live limit leaves no room for any.

    Formula: prefetch bucket + largest tensor of a layer, at most P: the bucket is filled until it is exceeded.
    Source: partitioned_param_coordinator.py `_fetch_sub_module_impl` (0.19.8).
    Leaves out: groups at the end of the model, which are smaller.
    """
    if not settings.prefetch_bucket_elements or settings.max_live_parameters <= sizes.head:
        return 0
    return min(sizes.total, settings.prefetch_bucket_elements + sizes.layer_largest_tensor)


def forward_copies_bytes(sizes: RankSizes, settings: ZeroSettings, element_bytes: int) -> int:
    """Flat buffers of gathers beside the parameters copied out of them, during forward.

    Formula: e * max(3 * group, 2 * largest tensor of a layer): a group's buffer lives until its last parameter is used,
    and three groups overlap.
    Source: partition_parameters.py `AllGatherCoalescedHandle` (0.19.8); the three is measured on the engine.
    Leaves out: nothing known.
    """
    return element_bytes * max(3 * prefetch_group_elements(sizes, settings), 2 * sizes.layer_largest_tensor)


def backward_copies_bytes(sizes: RankSizes, settings: ZeroSettings, element_bytes: int) -> int:
    """The same during backward.

    Formula: e * (group + largest tensor of a layer), at least 2 * e * largest tensor of a layer.
    Source: as `forward_copies_bytes`; measured on the engine.
    Leaves out: nothing known.
    """
    group = prefetch_group_elements(sizes, settings)
    return element_bytes * (max(group, sizes.layer_largest_tensor) + sizes.layer_largest_tensor)


def persistent_bytes(sizes: RankSizes, settings: ZeroSettings, element_bytes: int) -> int:
    """Small parameters that are never partitioned away.

    Formula: e * elements of tensors with at most `param_persistence_threshold` elements.
    Source: deepspeed/runtime/zero/parameter_offload.py `mark_persistent_parameters` (0.19.8).
    Leaves out: nothing known.
    """
    return element_bytes * sizes.persistent(settings.param_persistence_threshold)
