"""Which bytes are in host memory and on local disk at which moment, per node.

In: the same `Inputs` as for the GPU. Out: terms. Every rank of a node adds its own; pinned blocks are rounded one by
one.
"""

from __future__ import annotations

from planner.memory import host, states, transients
from planner.memory.gpu_terms import FROM_INIT, FROM_INIT_STATES, TRAINING, Inputs
from planner.memory.optimizers import optimizer_formula, optimizer_state_bytes
from planner.records.candidate import Offload, ZeroStage
from planner.records.estimate import Device, Moment, Term

EVERY_MOMENT = tuple(Moment)
PINNING = (
    "deepspeed 0.19.8 offload buffers, pinned by default; rounded in torch/include/ATen/core/CachingHostAllocator.h"
)
PAGEABLE = "deepspeed/ops/adam/cpu_adam.py: states made at the first step, pageable"


def host_terms(given: Inputs) -> list[Term]:
    """Every term in host memory and on disk."""
    c, e, ranks = given.candidate, given.element_bytes, given.ranks_per_node
    sharded_load = c.zero is ZeroStage.PARAMETERS
    readers = 1 if sharded_load else ranks
    load_moments = (Moment.LOAD,) if sharded_load else (Moment.LOAD, Moment.INIT_WEIGHTS)
    terms = [
        _term("host/process", EVERY_MOMENT, ranks * host.process_bytes(),
              "4 GiB per rank", "base per node seen in ZeRO-3 offload logs"),
        _term("load/copy", load_moments, readers * host.load_copy_bytes(given.model_elements, e),
              "e * parameters on rank 0 at stage 3, on every rank below", "transformers 5.24 from_pretrained"),
        _term("save/copy", (Moment.SAVE,), readers * host.save_copy_bytes(given.model_elements, e),
              "e * parameters on rank 0 at stage 3, on every rank below", "accelerate 1.15 get_state_dict"),
        _term("init/flatten", (Moment.INIT_WEIGHTS,), ranks * _flatten_through_host_bytes(given),
              "2 * e * P per rank, when the GPU cannot hold both copies",
              "deepspeed/runtime/zero/stage_1_and_2.py flatten_on_accelerator"),
    ]  # fmt: skip
    if c.offload is Offload.NONE:
        return terms
    if c.offload is Offload.NVME:
        return [*terms, *_nvme(given)]
    if c.zero is ZeroStage.PARAMETERS:
        return [*terms, *_offloaded_stage_three(given)]
    return [*terms, *_offloaded_one_two(given)]


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


def _share(given: Inputs) -> int:
    """Elements of one rank's share."""
    degrees = given.candidate.degrees
    if given.candidate.zero is ZeroStage.PARAMETERS:
        return states.sharded_parameter_elements(given.sizes.total, given.sizes.divided, degrees)
    return states.gradient_partition_bytes(given.sizes.total, degrees, 1)


def _optimizer(given: Inputs, share: int) -> Term:
    """Optimizer states in host memory."""
    size = given.ranks_per_node * optimizer_state_bytes(share, given.optimizer, given.precision)
    per_element = optimizer_formula(given.optimizer, given.precision)
    return _term("states/optimizer", TRAINING, size, f"ranks * {per_element} * P / N", PAGEABLE)


def _group(given: Inputs) -> int:
    """Elements of the largest stage-3 sub-group."""
    c = given.candidate
    return transients.sub_group_elements(given.sizes, c.degrees, c.settings.sub_group_elements)


def _offloaded_one_two(given: Inputs) -> list[Term]:
    c, e, ranks, share = given.candidate, given.element_bytes, given.ranks_per_node, _share(given)
    before_pinning = ranks * 4 * share if c.settings.pin_memory else 0
    terms = [
        _pinned("states/master", FROM_INIT_STATES, given, 4 * share, "ranks * p2(4 * P / N)"),
        _pinned("gradients/fp32", FROM_INIT_STATES, given, 4 * share, "ranks * p2(4 * P / N)"),
        _pinned("buffers/weights_staging", FROM_INIT_STATES, given, e * share, "ranks * p2(e * P / N)"),
        _pinned("buffers/largest_gradient", FROM_INIT_STATES, given, e * given.sizes.largest_tensor,
                "ranks * p2(e * largest tensor)"),
        _optimizer(given, share),
        _term("init/before_pinning", (Moment.INIT_STATES,), before_pinning, "ranks * 4 * P / N", PINNING),
    ]  # fmt: skip
    if c.accumulation > 1:
        terms.append(_pinned("gradients/accumulated", TRAINING, given, e * share, "ranks * p2(e * P / N)"))
    return terms


def _offloaded_stage_three(given: Inputs) -> list[Term]:
    c, e, ranks, share, group = given.candidate, given.element_bytes, given.ranks_per_node, _share(given), _group(given)
    full_groups, rest = divmod(share, group)
    pin = c.settings.pin_memory
    gradient = full_groups * host.pinned_bytes(4 * group, pin_memory=pin) + host.pinned_bytes(4 * rest, pin_memory=pin)
    fp32_gradients = Term(
        name="gradients/fp32", device=Device.HOST, moments=FROM_INIT, size_bytes=ranks * gradient,
        formula="ranks * sum over sub-groups of p2(4 * S)", source=PINNING, pinned=pin,
    )  # fmt: skip
    terms = [
        fp32_gradients,
        _term("states/master", FROM_INIT, ranks * 4 * share, "ranks * 4 * P / N",
              "deepspeed/runtime/zero/stage3.py _create_fp32_partitions, pageable"),
        _optimizer(given, share),
        _pinned("gradients/partition", FROM_INIT_STATES, given, e * share, "ranks * p2(e * P / N)"),
        _term("init/gradient_buffer", (Moment.INIT_WEIGHTS,), ranks * 4 * group, "ranks * 4 * S",
              "deepspeed/runtime/zero/stage3.py initialize_optimizer_states"),
    ]  # fmt: skip
    if c.offload is Offload.OPTIMIZER_AND_PARAMS:
        since_load = (Moment.LOAD, *FROM_INIT)
        terms.append(_pinned("states/weights", since_load, given, e * share, "ranks * p2(e * P / N)"))
        frozen = states.frozen_share_bytes(given.frozen_weight_bytes, c.degrees.dp)
        terms.append(_pinned("states/frozen_weights", since_load, given, frozen, "ranks * p2(frozen bytes / N)"))
    return terms


def _nvme(given: Inputs) -> list[Term]:
    e, share, group = given.element_bytes, _share(given), _group(given)
    largest_shard = -(-given.sizes.largest_tensor // given.candidate.degrees.dp)
    parameter_buffer = max(host.NVME_PARAM_BUFFER_ELEMENTS, largest_shard)
    on_disk = Term(
        name="states/nvme", device=Device.DISK, moments=FROM_INIT_STATES,
        size_bytes=given.ranks_per_node * (16 + e) * share,
        formula="ranks * (16 + e) * P / N: fp32 weights, momentum, variance, gradients; 16-bit weights",
        source="deepspeed/runtime/swap_tensor/partitioned_optimizer_swapper.py (0.19.8)",
    )  # fmt: skip
    return [
        on_disk,
        _pinned("gradients/partition", FROM_INIT_STATES, given, e * share, "ranks * p2(e * P / N)"),
        _pinned("buffers/nvme_parameters", FROM_INIT_STATES, given, host.NVME_PARAM_BUFFERS * e * parameter_buffer,
                "ranks * p2(buffer_count * buffer_size * e)"),
        _pinned("buffers/nvme_optimizer", FROM_INIT_STATES, given, host.NVME_OPTIMIZER_BUFFERS * 4 * group,
                "ranks * p2(buffer_count * 4 * S)"),
    ]  # fmt: skip
