"""Which bytes are in host memory and on local disk at which moment, per node.

In: the same `Inputs` as for the GPU. Out: terms. Every rank of a node adds its own; pinned blocks are rounded one by
one.
"""

from __future__ import annotations

from planner.memory import host, optimizers, quantized, states, transients
from planner.memory.inputs import FROM_INIT, FROM_INIT_STATES, TRAINING, Inputs
from planner.memory.sub_groups import groups_on_gpu, rank_groups, rank_share
from planner.records.candidate import Offload, ZeroStage
from planner.records.estimate import Device, Moment, Term
from planner.records.model import Precision
from planner.records.request import Optimizer
from planner.units import ceil_div

EVERY_MOMENT = tuple(Moment)
BESIDE_THE_ENGINE = ("host/process", "host/workers", "load/copy", "init/defragment", "save/copy")
"""What is no tensor of the engine, or gone when those are at their fullest: left out where tensors are counted."""

PINNING = (
    "deepspeed 0.19.8 offload buffers, pinned by default; rounded in torch/include/ATen/core/CachingHostAllocator.h"
)
LOCKED = "deepspeed/ops/csrc/pin_memory/deepspeed_pin_tensor.cpp (0.19.8): mlock of the exact size"
CPU_OPTIMIZERS = {
    Optimizer.ADAMW: "deepspeed/ops/adam/cpu_adam.py (0.19.8)",
    Optimizer.LION: "deepspeed/ops/lion/cpu_lion.py (0.19.8)",
}
"""What DeepSpeed steps in host memory by itself; the others run torch's code there."""


def host_terms(given: Inputs) -> list[Term]:
    """Every term in host memory and on disk."""
    c, ranks = given.candidate, given.ranks_per_node
    terms = [
        _term("host/process", EVERY_MOMENT, ranks * host.process_bytes(),
              "ranks * 3 GiB", "peft README and https://github.com/pytorch/pytorch/issues/113326"),
        _term("host/workers", TRAINING, ranks * host.workers_bytes(),
              "ranks * (320 MiB + 2 workers * 12 MiB)", "measured: the heap that forked data-loader processes share"),
        *_load_and_init(given),
        _term("save/copy", (Moment.SAVE,), _save_bytes(given),
              "e * parameters on rank 0 at stage 3, on every rank below; at least one fp32 partition a rank",
              "accelerate 1.15 get_state_dict; torch.save, which brings one storage at a time to the host"),
        checkpoint_term(given),
    ]  # fmt: skip
    if c.offload is Offload.NONE:
        return terms
    if c.offload is Offload.NVME:
        return [*terms, *_nvme(given)]
    if c.zero is ZeroStage.PARAMETERS:
        return [*terms, *_offloaded_stage_three(given)]
    return [*terms, *_offloaded_one_two(given)]


def _load_and_init(given: Inputs) -> list[Term]:
    """What a rank holds in host memory before its shards are where they belong."""
    c, e, ranks = given.candidate, given.element_bytes, given.ranks_per_node
    if given.quantized is not None:
        return [_term("load/copy", (Moment.LOAD,), ranks * quantized.loading_bytes(given.quantized),
                      "ranks * 4 threads * e * largest tensor", "transformers 5.24 core_model_loading.py")]  # fmt: skip
    if c.zero is not ZeroStage.PARAMETERS:
        return [
            _term("load/copy", (Moment.LOAD,), ranks * host.load_copy_bytes(given.model_elements, e),
                  "ranks * e * parameters, for random weights or a checkpoint in another dtype",
                  "transformers 5.24 from_config, from_pretrained"),
            _term("init/flatten", (Moment.INIT_WEIGHTS,), ranks * _flatten_through_host_bytes(given),
                  "ranks * 2 * e * P, when the GPU cannot hold both copies",
                  "deepspeed/runtime/zero/stage_1_and_2.py flatten_on_accelerator"),
        ]  # fmt: skip
    defragmented = 0 if c.offload is not Offload.NONE else ranks * e * rank_share(given)
    passing = _term("init/defragment", (Moment.INIT_WEIGHTS,), defragmented, "ranks * e * P / N",
                    "deepspeed/runtime/zero/utils.py defragment: shards pass through the host (0.19.8)")  # fmt: skip
    return [passing]


def _save_bytes(given: Inputs) -> int:
    """Weights collected in host memory, or the partition that a rank is writing, whichever is more."""
    c, ranks = given.candidate, given.ranks_per_node
    sharded = c.zero is ZeroStage.PARAMETERS
    collected = host.save_copy_bytes(given.sizes.total if sharded else given.model_elements, given.element_bytes)
    if given.quantized is not None and not sharded:
        collected = given.frozen_weight_bytes + given.quantized.scales_bytes
    on_the_host_anyway = c.offload is not Offload.NONE or c.zero is ZeroStage.DISABLED
    written = 0 if on_the_host_anyway else given.precision.state_bytes * max(rank_groups(given))
    return max(collected * (1 if sharded else ranks), ranks * written)


def _saved_state_bytes(given: Inputs) -> int:
    """Optimizer states of all data-parallel ranks together."""
    sizes, optimizer, precision = given.sizes, given.optimizer, given.precision
    if given.candidate.zero is ZeroStage.DISABLED:
        return optimizers.whole_tensor_state_bytes(sizes.tensors, sizes.factored, sizes.muon, optimizer, precision)
    if optimizer is Optimizer.MUON:
        rest = sizes.total - sizes.muon
        return optimizers.muon_state_bytes(sizes.muon, rest, precision, momentum_bytes=given.element_bytes)
    if given.candidate.offload is not Offload.NONE:
        return optimizers.host_state_bytes(sizes.total, optimizer, precision)
    return optimizers.optimizer_state_bytes(sizes.total, optimizer, precision)


def checkpoint_term(given: Inputs) -> Term:
    """One whole checkpoint of the job, all ranks together, wherever the output folder lies."""
    c, e = given.candidate, given.element_bytes
    tp, sizes, sharded = c.degrees.tp, given.sizes, c.zero is ZeroStage.PARAMETERS
    whole = sizes.total - sizes.divided  # on every tensor-parallel rank, but once in all at stage 3
    trained = tp * sizes.divided + (1 if sharded else tp) * whole
    engine_bytes = given.precision.state_bytes * trained
    if given.precision is Precision.FP32 and c.zero is ZeroStage.DISABLED:
        engine_bytes = 0
    engine_bytes += _saved_state_bytes(given) * trained // sizes.total
    engine_weights = 0 if sharded else e * trained
    consolidated = e * (sizes.total if given.frozen_weight_bytes else given.model_elements)
    return Term(
        name="checkpoint/files", device=Device.DISK, moments=(Moment.SAVE,),
        size_bytes=engine_bytes + engine_weights + consolidated,
        formula="master weights + optimizer states + weights (twice below stage 3), of the whole job",
        source="deepspeed/runtime/engine.py save_checkpoint, transformers 5.24 Trainer; measured on the engine",
    )  # fmt: skip


def _term(name: str, moments: tuple[Moment, ...], size_bytes: int, formula: str, source: str) -> Term:
    """A pageable amount on the host."""
    return Term(name=name, device=Device.HOST, moments=moments, size_bytes=size_bytes, formula=formula, source=source)


def _pinned(name: str, moments: tuple[Moment, ...], given: Inputs, size_bytes: int, formula: str) -> Term:
    """One page-locked block per rank of the node; unrounded when memory is not pinned."""
    pin = given.candidate.settings.pin_memory
    total = given.ranks_per_node * host.pinned_bytes(size_bytes, pin_memory=pin)
    return Term(
        name=name, device=Device.HOST, moments=moments, size_bytes=total, formula=formula, source=PINNING, pinned=pin
    )


def _flatten_through_host_bytes(given: Inputs) -> int:
    """Per rank: weights copied to the host and their flat buffer, when the GPU cannot hold both copies."""
    c, p, e = given.candidate, given.sizes.total, given.element_bytes
    if c.zero in (ZeroStage.DISABLED, ZeroStage.PARAMETERS):
        return 0
    return 0 if transients.flatten_copy_bytes(p, e, given.capacity_bytes) else 2 * e * p


def _optimizer(given: Inputs, share: int, updated: int) -> list[Term]:
    """Optimizer states in host memory, pageable, made at the first step; what an update makes and drops."""
    optimizer, precision, ranks = given.optimizer, given.precision, given.ranks_per_node
    source = CPU_OPTIMIZERS.get(optimizer, optimizers.state_source(optimizer))
    return [
        _term("states/optimizer", TRAINING, ranks * optimizers.host_state_bytes(share, optimizer, precision),
              f"ranks * {optimizers.host_state_formula(optimizer, precision, 'P / N')}", source),
        _term("step/update", (Moment.STEP_UPDATE,), ranks * optimizers.update_bytes(updated, optimizer, precision),
              f"ranks * {optimizers.update_formula(optimizer, precision)}", source),
    ]  # fmt: skip


def _many(name: str, moments: tuple[Moment, ...], given: Inputs, rank_bytes: int, formula: str) -> Term:
    """Many page-locked blocks per rank, rounded one by one already."""
    return Term(
        name=name, device=Device.HOST, moments=moments, size_bytes=given.ranks_per_node * rank_bytes, formula=formula,
        source=PINNING, pinned=given.candidate.settings.pin_memory,
    )  # fmt: skip


def _offloaded_one_two(given: Inputs) -> list[Term]:
    c, e, ranks, share = given.candidate, given.element_bytes, given.ranks_per_node, rank_share(given)
    width, pin = given.precision.state_bytes, c.settings.pin_memory
    before_pinning = ranks * (width + e) * share if pin else 0
    terms = [
        _pinned("states/master", FROM_INIT_STATES, given, width * share, f"ranks * p2({width} * P / N)"),
        _pinned("gradients/update", FROM_INIT_STATES, given, width * share, f"ranks * p2({width} * P / N)"),
        _pinned("buffers/weights_staging", FROM_INIT_STATES, given, e * share, "ranks * p2(e * P / N)"),
        _pinned("buffers/largest_gradient", FROM_INIT_STATES, given, e * given.sizes.largest_tensor,
                "ranks * p2(e * largest tensor)"),
        *_optimizer(given, share, share),
        _term("init/before_pinning", (Moment.INIT_STATES,), before_pinning,
              f"ranks * ({width} + e) * P / N: pageable copies while they are pinned", PINNING),
    ]  # fmt: skip
    adds_up_here = c.accumulation > 1 and c.zero is ZeroStage.GRADIENTS  # stage 1 adds up on the GPU
    if adds_up_here and given.precision is not Precision.PURE_BF16:  # which adds up in `gradients/update`
        whole = host.pinned_tensors_bytes(given.sizes.tensors, 1, e, pin=pin) if pin else e * given.sizes.total
        terms.append(_many("gradients/accumulated", TRAINING, given, ceil_div(whole, c.degrees.dp),
                           "ranks * (sum over tensors of p2(e * numel)) / N"))  # fmt: skip
    return terms


def _offloaded_stage_three(given: Inputs) -> list[Term]:
    c, e, ranks, share = given.candidate, given.element_bytes, given.ranks_per_node, rank_share(given)
    groups, pin, width = rank_groups(given), c.settings.pin_memory, given.precision.state_bytes
    left = groups_on_gpu(given)
    here, stepped = groups[len(left) :], max(0, share - sum(left))
    gradients = host.pinned_groups_bytes(here, width, pin=pin)
    if pin and left:  # whose gradients were page-locked before they moved, in blocks that torch keeps
        gradients = max(gradients, host.pinned_bytes(width * max(left), pin_memory=pin))
    unpinned_group = 2 if pin else 1  # the largest group's buffer, and the pageable source of a pinned one
    terms = [
        _many("gradients/update", FROM_INIT, given, gradients, f"ranks * sum over sub-groups of p2({width} * S)"),
        _term("states/master", FROM_INIT, ranks * width * stepped, f"ranks * {width} * P / N",
              "deepspeed/runtime/zero/stage3.py _create_fp32_partitions, pageable"),
        *_optimizer(given, stepped, max(here, default=0)),
        _pinned("gradients/partition", FROM_INIT_STATES, given, e * share, "ranks * p2(e * P / N)"),
        _term("init/gradient_buffer", (Moment.INIT_WEIGHTS,), ranks * unpinned_group * width * max(groups),
              f"ranks * {width} * S, twice with pinning",
              "deepspeed/runtime/zero/stage3.py initialize_optimizer_states"),
        _term("init/before_pinning", (Moment.INIT_STATES,), ranks * e * share if pin else 0,
              "ranks * e * P / N: a pageable copy while it is pinned", PINNING),
    ]  # fmt: skip
    if c.offload is Offload.OPTIMIZER_AND_PARAMS:
        terms += _offloaded_weights(given)
    return terms


def _offloaded_weights(given: Inputs) -> list[Term]:
    """Parameter shards in host memory: pinned one by one by zero.Init, then moved into one flat buffer.

    torch keeps the blocks that the move frees, and nothing later fits into them. Left out: DeepSpeed 0.19.8 locks the
    flat buffer even with `pin_memory: false` (stage3.py `_create_param_groups_fp16_flat_cpu_memory`).
    """
    c, e, share = given.candidate, given.element_bytes, rank_share(given)
    pin, dp = c.settings.pin_memory, c.degrees.dp
    shards = host.pinned_tensors_bytes(given.sizes.tensors, dp, e, pin=True) if pin else e * share
    return [
        _many("load/shards", EVERY_MOMENT if pin else (Moment.LOAD,), given, shards,
              "ranks * sum over tensors of p2(e * numel / N): zero.Init's blocks, which torch keeps"),
        _pinned("states/weights", FROM_INIT, given, e * share, "ranks * p2(e * P / N)"),
        _many("states/frozen_weights", EVERY_MOMENT, given, _frozen_shard_bytes(given),
              "ranks * sum over frozen tensors of p2(bytes / N)"),
    ]  # fmt: skip


def _frozen_shard_bytes(given: Inputs) -> int:
    """Shards of weights that are not trained, one block a tensor: they never move into a flat buffer."""
    if not given.frozen_weight_bytes:
        return 0
    c, trained = given.candidate, len(given.sizes.tensors)
    whole = states.frozen_share_bytes(given.frozen_weight_bytes, c.degrees.dp)
    if not c.settings.pin_memory:
        return whole
    frozen = given.whole.tensors[: len(given.whole.tensors) - trained]
    exact = given.element_bytes * sum(ceil_div(numel, c.degrees.dp) * count for numel, count in frozen)
    rounded = host.pinned_tensors_bytes(frozen, c.degrees.dp, given.element_bytes, pin=True)
    return ceil_div(whole * rounded, exact)


def _nvme(given: Inputs) -> list[Term]:
    e, share, ranks, largest = given.element_bytes, rank_share(given), given.ranks_per_node, max(rank_groups(given))
    largest_shard = ceil_div(given.sizes.largest_tensor, given.candidate.degrees.dp)
    width = given.precision.state_bytes
    staging = host.NVME_PARAM_BUFFERS * e * max(host.NVME_BUFFER_ELEMENTS, largest_shard)
    per_element = 2 * width + e
    states_formula = optimizers.state_formula(given.optimizer, given.precision, "P / N")
    state_bytes = optimizers.optimizer_state_bytes(share, given.optimizer, given.precision)
    return [
        Term(
            name="states/nvme", device=Device.DISK, moments=FROM_INIT_STATES,
            size_bytes=ranks * (per_element * share + state_bytes),
            formula=f"ranks * ({per_element} * P / N + {states_formula}): "
            "master weights, gradients, weights; optimizer states",
            source="deepspeed/runtime/swap_tensor/partitioned_optimizer_swapper.py (0.19.8)",
        ),
        _pinned("states/weights_in_host", FROM_INIT, given, e * min(share, host.MAX_IN_CPU_ELEMENTS),
                "ranks * p2(e * min(P / N, max_in_cpu))"),
        _pinned("gradients/partition", FROM_INIT_STATES, given, e * share, "ranks * p2(e * P / N)"),
        _term("init/gradient_buffer", (Moment.INIT_WEIGHTS,), ranks * 2 * width * largest, f"ranks * 2 * {width} * S",
              "deepspeed/runtime/zero/stage3.py _create_fp32_partitions, initialize_optimizer_states"),
        _locked("buffers/nvme_parameters", EVERY_MOMENT, ranks * staging, "ranks * buffer_count * buffer_size * e"),
        _locked("buffers/nvme_optimizer", FROM_INIT, ranks * host.NVME_OPTIMIZER_BUFFERS * width * largest,
                f"ranks * buffer_count * {width} * S"),
    ]  # fmt: skip


def _locked(name: str, moments: tuple[Moment, ...], size_bytes: int, formula: str) -> Term:
    """Staging buffers of the NVMe engine: page-locked at their exact size, whatever `pin_memory` says."""
    return Term(
        name=name, device=Device.HOST, moments=moments, size_bytes=size_bytes, formula=formula, source=LOCKED,
        pinned=True,
    )  # fmt: skip
