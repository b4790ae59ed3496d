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


def live_bytes(sizes: RankSizes, settings: ZeroSettings, checkpointing: Checkpointing, element_bytes: int) -> int:
    """Gathered parameters at the turn from forward to backward.

    Formula: e * max(reused, head, largest tensor of a layer).
    Source: as `reused_elements`; a module's own parameters are gathered while it runs.
    Leaves out: the hand-over of one module to the next.
    """
    in_use = max(sizes.head, sizes.layer_largest_tensor)
    return element_bytes * max(reused_elements(sizes, settings, checkpointing), in_use)


def end_of_backward_bytes(sizes: RankSizes, element_bytes: int) -> int:
    """Gathered parameters when the first layer and the embedding finish their backward.

    Formula: e * max(layer, embedding).
    Source: as `live_bytes`.
    Leaves out: nothing known.
    """
    return element_bytes * max(sizes.layer, sizes.embedding)


def prefetch_bytes(sizes: RankSizes, settings: ZeroSettings, checkpointing: Checkpointing, element_bytes: int) -> int:
    """Parameters fetched ahead, from the third iteration on, with the copy a coalesced gather makes.

    Formula: 2 * e * min(bucket + largest tensor of a layer, max_live - reused, P - reused).
    Source: partitioned_param_coordinator.py `_fetch_sub_module_impl`; partition_parameters.py `_all_gather_dtype` (0.19.8).
    Leaves out: gathers still in flight on another stream.
    """
    reused = reused_elements(sizes, settings, checkpointing)
    if settings.prefetch_bucket_elements == 0:
        return 0
    ahead = settings.prefetch_bucket_elements + sizes.layer_largest_tensor
    room = max(0, min(settings.max_live_parameters - reused, sizes.total - reused))
    return 2 * element_bytes * min(ahead, room)


def persistent_bytes(sizes: RankSizes, settings: ZeroSettings, element_bytes: int) -> int:
    """Small parameters that are never partitioned away.

    Formula: e * elements of tensors with at most `param_persistence_threshold` elements.
    Source: deepspeed/runtime/zero/parameter_offload.py `mark_persistent_parameters` (0.19.8).
    Leaves out: nothing known.
    """
    return element_bytes * sizes.persistent(settings.param_persistence_threshold)
