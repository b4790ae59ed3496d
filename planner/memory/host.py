"""Host memory per rank: pinned rounding, the process itself, and the copies that loading, pinning and saving make.

In: element counts and bytes of one rank. Out: bytes of one rank; the caller multiplies by the ranks of a node.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from planner.units import GIB, MIB, ceil_div, next_power_of_two

PROCESS_BYTES = 3 * GIB
HEAP_BYTES = 320 * MIB
WORKER_BYTES = 12 * MIB
WORKERS_PER_RANK = 2
"""The most `dataloader_num_workers` that a plan's train.py gets."""
NVME_PARAM_BUFFERS = 5
NVME_OPTIMIZER_BUFFERS = 4
NVME_BUFFER_ELEMENTS = 100_000_000
MAX_IN_CPU_ELEMENTS = 1_000_000_000
"""Staging of the NVMe engine, as the plan's files write it: DeepSpeed's defaults (zero/offload_config.py, 0.19.8)."""


def pinned_bytes(size_bytes: int, *, pin_memory: bool) -> int:
    """What a page-locked block really takes.

    Formula: the next power of two; the size itself when memory is not pinned.
    Source: torch/include/ATen/core/CachingHostAllocator.h `allocate` (torch 2.13); since torch 1.11
    (https://github.com/pytorch/pytorch/issues/95823: 8.1 GiB take 16 GiB). 2.25 to 4.008 GiB in
    https://github.com/vllm-project/vllm/issues/56410, 20.4 to 32 GiB in https://github.com/sgl-project/sglang/pull/36562.
    Leaves out: PYTORCH_ALLOC_CONF=pinned_max_round_threshold_mb and DS_PIN_MEMORY_BACKEND=native, which round nothing.
    """
    return next_power_of_two(size_bytes) if pin_memory else size_bytes


def pinned_tensors_bytes(tensors: tuple[tuple[int, int], ...], parts: int, element_bytes: int, *, pin: bool) -> int:
    """Tensors shared out among `parts` ranks, each share in a page-locked block of its own.

    Formula: sum over tensors of p2(e * numel / parts).
    Source: deepspeed/runtime/zero/partition_parameters.py `_partition_param`, which pins shard by shard (0.19.8).
    Leaves out: parameters that stay on the GPU because they are below the persistence threshold.
    """
    return sum(count * pinned_bytes(element_bytes * ceil_div(numel, parts), pin_memory=pin) for numel, count in tensors)


def process_bytes() -> int:
    """One training process without its tensors: interpreter, libraries, CUDA's host side.

    Formula: 3 GiB per rank.
    Source: 2.96 GB for a whole run with CUDA on one A100 (peft README, T0_3B with LoRA). Of it 0.4 GiB are python,
    torch, transformers and deepspeed (measured: torch 2.13, deepspeed 0.19.8 without CUDA) and 1.7 GiB CUDA's
    libraries (https://github.com/pytorch/pytorch/issues/113326: 2.06 GB with a CUDA context, 0.32 GB without).
    Leaves out: what the machine itself needs (search/capacity.py).
    """
    return PROCESS_BYTES


def workers_bytes() -> int:
    """The data-loader processes of one rank.

    Formula: 320 MiB + 2 * 12 MiB.
    Source: measured, torch 2.13 with deepspeed 0.19.8: workers are forked and share the 320 MiB heap of their rank, of
    which one old copy is left behind when the rank writes to its own; each owns 12 MiB after 4,000 batches.
    Leaves out: datasets that a worker reads into its own memory; the plan's train.py maps its file.
    """
    return HEAP_BYTES + WORKERS_PER_RANK * WORKER_BYTES


def load_copy_bytes(model_elements: int, element_bytes: int) -> int:
    """The whole model that a rank builds in host memory before the engine takes it.

    Formula: e * all parameters of the model.
    Source: transformers 5.24 `from_config`, and `from_pretrained` of a checkpoint in another dtype (measured: 1,122 MiB
    for a model of 1,035). A checkpoint in the run's dtype, safetensors or .bin, stays a mapped file (measured: 16 MiB).
    Leaves out: nothing at stages 0-2; under zero.Init no rank holds it.
    """
    return element_bytes * model_elements


def save_copy_bytes(model_elements: int, element_bytes: int) -> int:
    """The weights collected for saving.

    Formula: e * all parameters of the model.
    Source: accelerate 1.15 `get_state_dict` clones on every rank at stages 0-2; at stage 3 DeepSpeed collects on
    rank 0 only.
    Leaves out: the page cache of the files, which the system writes back as it fills.
    """
    return element_bytes * model_elements


@lru_cache(maxsize=256)
def sub_group_elements(tensors: tuple[tuple[int, int], ...], parts: int, limit: int) -> tuple[int, ...]:
    """Elements of every stage-3 sub-group of one rank, in the order of the model's parameters.

    Formula: shares numel / parts are collected in order; a sub-group is closed by the share with which it reaches the
    limit. One group where all shares together stay below it.
    Source: deepspeed/runtime/zero/stage3.py `_create_fp16_sub_groups` (0.19.8).
    Leaves out: the split into weight-decay groups, and the order of the norms within a layer.
    """
    shares = [ceil_div(numel, parts) for numel in _in_order(tensors)]
    if sum(shares) <= limit:
        return (sum(shares),)
    groups, filled = [], 0
    for share in shares:
        filled += share
        if filled >= limit:
            groups.append(filled)
            filled = 0
    return (*groups, filled) if filled else tuple(groups)


def groups_left_on_gpu(groups: int, ratio: float) -> int:
    """How many stage-3 sub-groups, counted from the first, a partial offload steps on the GPU.

    Formula: int((1 - ratio) * sub-groups), so that one sub-group is never divided.
    Source: deepspeed/runtime/zero/stage3.py `_create_fp32_partitions`, `subgroup_to_device` (0.19.8).
    Leaves out: nothing.
    """
    return int((1 - ratio) * groups)


@lru_cache(maxsize=64)
def _in_order(tensors: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Every single tensor: what occurs once as listed, what repeats layer by layer.

    Kept because several limits of sub-groups are tried on the same tensors.
    """
    repeated = [(numel, count) for numel, count in tensors if count > 1]
    if not repeated:
        return tuple(numel for numel, _ in tensors)
    counts = [count for _, count in repeated]
    layers = max(set(counts), key=counts.count)
    first = tensors.index(repeated[0])
    before = [numel for numel, count in tensors[:first] if count == 1]
    after = [numel for numel, count in tensors[first:] if count == 1]
    per_layer: list[int] = []
    steps = {count: _spread(count, layers) for count in set(counts)}
    for layer in range(layers):
        for numel, count in repeated:
            per_layer += [numel] * steps[count][layer]
    return (*before, *per_layer, *after)


def _spread(count: int, layers: int) -> list[int]:
    """How many of `count` occurrences fall into each layer, evenly."""
    edges = [layer * count // layers for layer in range(layers + 1)]
    return [stop - start for start, stop in pairwise(edges)]


def pinned_groups_bytes(groups: tuple[int, ...], element_bytes: int, *, pin: bool) -> int:
    """One page-locked block per sub-group.

    Formula: sum over sub-groups of p2(e * S).
    Source: deepspeed/runtime/zero/stage3.py `initialize_optimizer_states` (0.19.8).
    Leaves out: nothing.
    """
    return sum(pinned_bytes(element_bytes * group, pin_memory=pin) for group in groups)
