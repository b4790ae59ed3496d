"""What ZeRO's sizes make of one micro-batch: which share of a layer is gathered and in how many collectives.

In: the model, the stage and its settings. Out: `ZeroTraffic`, means over the layers. Kept, because a search asks for
the same settings many times.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from planner.memory.gathered import prefetched_elements, reused_elements
from planner.memory.sizes import RankSizes, adapter_sizes, rank_sizes
from planner.memory.tensor_order import TensorOrder
from planner.records.candidate import Checkpointing, ZeroSettings, ZeroStage
from planner.records.model import Adapter, ModelShape


class ZeroTraffic(NamedTuple):
    """Per layer and micro-batch, and what lies outside the layers; on one tensor-parallel rank."""

    forward_share: float = 0.0  # of a layer's weights, gathered in forward
    backward_share: float = 0.0  # gathered again in backward
    gathers: float = 0.0  # collectives that bring one whole layer
    reduces: float = 0.0  # collectives that reduce the gradients of one layer
    prefetched: bool = True  # gathers run ahead of the layer that needs them
    ends_gathered: int = 0  # weights of embedding and head, all their gathers in one micro-batch together
    ends_reduced: int = 0  # gradients of embedding and head
    ends_collectives: int = 0  # gathers of them
    persistent_elements: int = 0  # gathered once per step
    persistent_tensors: int = 0


def whole_layers(backward_gathers: int) -> ZeroTraffic:
    """An engine without buckets: each layer one unit at the rate of the link, embedding and head for nothing."""
    return ZeroTraffic(forward_share=1.0, backward_share=backward_gathers)


@lru_cache(maxsize=2048)
def zero_traffic(
    model: ModelShape,
    adapter: Adapter | None,
    tp: int,
    stage: ZeroStage,
    settings: ZeroSettings,
    checkpointing: Checkpointing,
) -> ZeroTraffic:
    """Shares and counts of a stage from 1 on.

    Formula: reductions: gradients in the order they come, in groups of at most `reduce_bucket_size` or one tensor;
        gathers, stage 3: see `stage_three_traffic`.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `reduce_independent_p_g_buckets_and_remove_grads`, stage3.py, same
        function (0.19.8). `allgather_bucket_size` is read by `all_gather_dp_groups` only where torch lacks
        all_gather_into_tensor: the weights of stages 1 and 2 come back in one gather, whatever it says.
    Leaves out: the two weight-decay groups.
    """
    sizes = rank_sizes(model, tp)
    trained = sizes if adapter is None else adapter_sizes(model, adapter)
    reduces = layer_reductions(trained.order, settings.reduce_bucket_elements) / len(trained.order.layers)
    ends = trained.embedding + (0 if trained.tied else trained.head)
    if stage is not ZeroStage.PARAMETERS:
        return ZeroTraffic(reduces=reduces, ends_reduced=ends)
    return stage_three_traffic(sizes, settings, checkpointing)._replace(reduces=reduces, ends_reduced=ends)


def stage_three_traffic(sizes: RankSizes, settings: ZeroSettings, checkpointing: Checkpointing) -> ZeroTraffic:
    """Gathers of stage 3.

    Formula: forward: all tensors above the persistence threshold. Backward: those less what is kept at the turn, the
        larger of what lies within `max_reuse_distance` and what `max_live_parameters` lets prefetching hold; with
        recomputation also max(0, layer - max_reuse_distance / 2), released between its two uses. Collectives: tensors
        are collected until they reach the prefetch bucket, one by one without prefetching. Embedding: once in forward,
        once in backward; head: once, twice if nothing is kept.
    Source: deepspeed/runtime/zero/partitioned_param_coordinator.py `_fetch_sub_module_impl`, `__params_to_release`;
        memory/gathered.py for what is kept; stage3.py `_post_step` for persistent parameters (0.19.8).
    Leaves out: that a full `max_live_parameters` makes prefetches smaller than their bucket; vectors that are gathered
        together with the matrix beside them.
    """
    threshold, bucket = settings.param_persistence_threshold, settings.prefetch_bucket_elements
    layers = sizes.order.layers
    ahead = bucket > 0 and settings.max_live_parameters > sizes.layer_largest_tensor
    total, partitioned, collectives = layer_gathers(sizes.order, threshold, bucket if ahead else 0)
    in_use = sizes.head if sizes.head > threshold else 0
    kept = max(reused_elements(sizes, settings, checkpointing), prefetched_elements(sizes, settings, in_use=in_use))
    again = max(0.0, partitioned - max(0, kept - in_use))
    if checkpointing is Checkpointing.FULL:
        mean = partitioned / len(layers)
        again += max(0.0, mean - settings.max_reuse_distance / 2) * len(layers)
    embedding = sum(n for n in sizes.order.before if n > threshold)
    head_gathers = in_use and (1 if kept else 2)
    persistent = sizes.persistent(threshold)
    return ZeroTraffic(
        forward_share=partitioned / total,
        backward_share=again / total,
        gathers=collectives / len(layers),
        prefetched=ahead,
        ends_gathered=2 * embedding + head_gathers * sizes.head,
        ends_collectives=(2 if embedding else 0) + head_gathers,
        persistent_elements=persistent,
        persistent_tensors=sum(count for numel, count in sizes.tensors if numel <= threshold),
    )


@lru_cache(maxsize=512)
def layer_reductions(order: TensorOrder, bucket: int) -> int:
    """Reductions of the gradients of all layers, kept because most settings share the bucket.

    Formula: see `filled`; gradients come in the reverse of the order.
    Source: see that.
    Leaves out: see that.
    """
    return filled((n for layer in reversed(order.layers) for n in reversed(layer)), bucket)


@lru_cache(maxsize=512)
def layer_gathers(order: TensorOrder, threshold: int, bucket: int) -> tuple[int, int, int]:
    """Elements of all layers, those above the persistence threshold, and the collectives that bring these.

    Formula: see `collected`; one by one with a bucket of 0, for each reaches it.
    Source: see that.
    Leaves out: see that.
    """
    elements = [n for layer in order.layers for n in layer]
    gathered = [n for n in elements if n > threshold]
    return sum(elements), sum(gathered), collected(gathered, bucket)


def collected(tensors: Iterable[int], limit: int) -> int:
    """Groups that tensors make, each closed by the one with which it reaches the limit.

    Formula: greedy, in order.
    Source: partitioned_param_coordinator.py `_fetch_sub_module_impl` (0.19.8): prefetches until the bucket is full.
    Leaves out: nothing.
    """
    groups, filling = 0, 0
    for numel in tensors:
        filling += numel
        if filling >= limit:
            groups, filling = groups + 1, 0
    return groups + (1 if filling else 0)


def filled(tensors: Iterable[int], limit: int) -> int:
    """Groups that tensors make, each closed before the one that would exceed the limit.

    Formula: greedy, in order; a tensor above the limit is a group of its own.
    Source: stage3.py and stage_1_and_2.py `reduce_independent_p_g_buckets_and_remove_grads` (0.19.8).
    Leaves out: nothing.
    """
    groups, filling = 0, 0
    for numel in tensors:
        if filling and filling + numel > limit:
            groups, filling = groups + 1, 0
        filling += numel
    return groups + (1 if filling else 0)
