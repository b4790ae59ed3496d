"""Settings to try for a strategy: a short ladder from dsplan's usual ones, each a few settings away.

In: a request and a strategy. Out: `ZeroSettings`, the usual ones first. The ladder depends on the strategy alone, never
on the micro-batch. Settings that `--config` gives are the only ones.

What each step is for:

* large pieces: fewer collectives and launches, for a few GiB; only between nodes, where their starts cost something;
* small pieces without `overlap_comm`: the least memory; between nodes, where overlap hides most, also with it;
* stage 3, parameters kept from forward to backward (`stage3_max_reuse_distance`): a quarter of the model, or all of it,
  which saves their second gather; on one node, where gathers are quick, all of it or nothing;
* stage 3 on several nodes, hpZ: a second copy of the weights in each node, so that backward gathers stay there;
* stage 3 with the optimizer in host memory, `ratio` (Twin-Flow): a share of the updates goes back to the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from planner.memory import host
from planner.memory.sizes import rank_sizes
from planner.records.candidate import Candidate, Checkpointing, Offload, ZeroSettings, ZeroStage
from planner.records.request import Optimizer, Request

SMALL_BUCKET = 50_000_000
LARGE_BUCKET = 500_000_000
"""DeepSpeed's own default (runtime/zero/config.py, 0.19.8)."""

SMALL_LIVE = 100_000_000
SMALL_SUB_GROUP = 25_000_000
LARGE_SUB_GROUP = 1_000_000_000
"""DeepSpeed's own default (runtime/zero/config.py, 0.19.8)."""

KEPT_SHARES = (0.25, 1.0)
RATIOS = (0.75, 0.5, 0.25)
RATIOS_ON_ONE_NODE = (0.5, 0.25)
"""Fewer where an answer is due in half a second."""

PASSES = {Checkpointing.NONE: 2, Checkpointing.FULL: 3}
"""How often a layer is traversed from its forward to its own backward (memory/gathered.py `reused_elements`)."""


class Variants(NamedTuple):
    """The ladder. A step is never faster with a frugal rung than with the usual settings, nor than with a frugal rung
    before it: pieces are smaller, less is kept, nothing overlaps (tests/search/test_settings_search.py)."""

    quick: tuple[ZeroSettings, ...]  # the usual ones first
    frugal: tuple[ZeroSettings, ...]


def settings_variants(request: Request, strategy: Candidate) -> Variants:
    """The ladder of one strategy, without repetitions; the usual settings first."""
    usual = strategy.settings
    if request.axes.settings is not None or strategy.zero is ZeroStage.DISABLED or strategy.degrees.dp == 1:
        return Variants((usual,), ())
    if strategy.zero is ZeroStage.PARAMETERS:
        quick, small = _stage_three(request, strategy), _small_pieces(usual, strategy.offload)
    else:
        quick, small = _stages_one_two(request, usual), _small_buckets(usual)
    distinct = tuple(dict.fromkeys((usual, *quick)))
    apart = replace(small, overlap_comm=False)
    frugal = dict.fromkeys((small, apart) if request.cluster.nodes > 1 else (apart,))
    return Variants(distinct, tuple(settings for settings in frugal if settings not in distinct))


def _stages_one_two(request: Request, usual: ZeroSettings) -> Iterator[ZeroSettings]:
    """Large buckets save starts of collectives, which cost something between nodes."""
    if request.workload.adapter is None and request.cluster.nodes > 1:
        yield replace(usual, reduce_bucket_elements=LARGE_BUCKET, allgather_bucket_elements=LARGE_BUCKET)


def _small_buckets(usual: ZeroSettings) -> ZeroSettings:
    """What stages 1 and 2 can do without."""
    bucket = min(usual.reduce_bucket_elements, SMALL_BUCKET)
    return replace(usual, reduce_bucket_elements=bucket, allgather_bucket_elements=bucket)


def _stage_three(request: Request, strategy: Candidate) -> Iterator[ZeroSettings]:
    """Large pieces, what is kept gathered, the copy in the node, and the share of the update on the GPU."""
    usual, offload = strategy.settings, strategy.offload
    sizes = rank_sizes(request.model, strategy.degrees.tp)
    large = replace(
        usual,
        reduce_bucket_elements=max(usual.reduce_bucket_elements, min(sizes.layer, LARGE_BUCKET)),
        prefetch_bucket_elements=max(usual.prefetch_bucket_elements, min(sizes.layer, LARGE_BUCKET)),
        sub_group_elements=LARGE_SUB_GROUP if offload is Offload.NONE else usual.sub_group_elements,
    )
    several_nodes = request.cluster.nodes > 1
    if several_nodes:
        yield large
    if offload.param_device == "none":
        shares = KEPT_SHARES if offload is Offload.NONE and several_nodes else KEPT_SHARES[-1:]
        yield from _kept(usual, sizes.total, shares, PASSES[strategy.checkpointing])
    if _has_node_copies(request, strategy):
        yield replace(usual, hpz_partition_size=request.cluster.gpus_per_node)
        yield replace(large, hpz_partition_size=request.cluster.gpus_per_node)
    if _can_share_update(request, strategy):
        yield from _shared_updates(request, strategy)


def _small_pieces(usual: ZeroSettings, offload: Offload) -> ZeroSettings:
    """What stage 3 can do without. Sub-groups in host memory stay: their size is chosen for what it wastes."""
    return replace(
        usual,
        reduce_bucket_elements=min(usual.reduce_bucket_elements, SMALL_BUCKET),
        prefetch_bucket_elements=min(usual.prefetch_bucket_elements, SMALL_BUCKET),
        max_live_parameters=min(usual.max_live_parameters, SMALL_LIVE),
        max_reuse_distance=min(usual.max_reuse_distance, SMALL_LIVE),
        sub_group_elements=SMALL_SUB_GROUP if offload is Offload.NONE else usual.sub_group_elements,
    )


def _kept(usual: ZeroSettings, elements: int, shares: tuple[float, ...], passes: int) -> Iterator[ZeroSettings]:
    """Parameters at the end of the model stay gathered; prefetching keeps the room that it usually has."""
    for share in shares:
        kept = int(share * elements)
        if passes * kept > usual.max_reuse_distance:
            room = kept + usual.max_live_parameters
            yield replace(usual, max_reuse_distance=passes * kept, max_live_parameters=room)


def _has_node_copies(request: Request, strategy: Candidate) -> bool:
    """Whether hpZ has something to save: gathers over the network of weights that change.

    Its groups are neighbouring ranks of the world (deepspeed/utils/groups.py `_create_zero_param_parallel_group`,
    0.19.8): under tensor parallelism these hold different weights. Shards in host memory would be copied there.
    """
    alone = strategy.degrees.tp == 1 and request.workload.adapter is None
    on_gpu = strategy.offload.param_device == "none"
    return alone and on_gpu and request.cluster.nodes > 1 and request.cluster.gpus_per_node > 1


def _can_share_update(request: Request, strategy: Candidate) -> bool:
    """Whether some sub-groups may be updated on the GPU: DeepSpeed asks for its CPU Adam
    (deepspeed/runtime/zero/stage3.py, 0.19.8)."""
    in_host = strategy.offload in (Offload.OPTIMIZER, Offload.OPTIMIZER_AND_PARAMS)
    workload = request.workload
    return in_host and workload.adapter is None and workload.optimizer is Optimizer.ADAMW


def _shared_updates(request: Request, strategy: Candidate) -> Iterator[ZeroSettings]:
    """Ratios that leave at least one sub-group on the GPU, each another number of them."""
    settings, degrees = strategy.settings, strategy.degrees
    tensors = rank_sizes(request.model, degrees.tp).tensors
    groups = len(host.sub_group_elements(tensors, degrees.dp, settings.sub_group_elements))
    seen = {0}
    for ratio in RATIOS if request.cluster.nodes > 1 else RATIOS_ON_ONE_NODE:
        on_gpu = host.groups_left_on_gpu(groups, ratio)
        if on_gpu not in seen:
            seen.add(on_gpu)
            yield replace(settings, optimizer_offload_ratio=ratio)
