"""Which strategies are legal, whatever memory says: one named rule each.

In: a request and a candidate. Out: a `Breach` (rule name, sentence, needed, available) or None. Enums keep each rule
said once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.geometry.flops import model_work
from planner.memory.transients import largest_flat_elements
from planner.records.candidate import Candidate, Offload, ZeroStage
from planner.records.model import AutoTP, Method, Precision
from planner.records.request import Loss, Optimizer, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A broken rule: what it needed and what there is, in the rule's own unit."""

    rule: str
    detail: str
    needed: int
    available: int


def tp_divides_world(request: Request, candidate: Candidate) -> Breach | None:
    """Every rank belongs to one tensor-parallel group."""
    tp, world = candidate.degrees.tp, request.cluster.world_size
    if world % tp == 0:
        return None
    return Breach(rule="tp-divides-world", detail=f"tp {tp} does not divide {world} GPUs", needed=tp, available=world)


def tp_within_node(request: Request, candidate: Candidate) -> Breach | None:
    """A tensor-parallel group of neighbouring ranks must not straddle two nodes unevenly."""
    tp, per_node = candidate.degrees.tp, request.cluster.gpus_per_node
    if tp <= per_node and per_node % tp == 0:
        return None
    return Breach(
        rule="tp-within-node",
        detail=f"tp {tp} does not fit evenly into a node of {per_node} GPUs",
        needed=tp,
        available=per_node,
    )


def tp_divides_heads(request: Request, candidate: Candidate) -> Breach | None:
    """DeepSpeed accepts uneven shards, but then one rank decides memory and time."""
    tp, model = candidate.degrees.tp, request.model
    if model.heads % tp == 0 and model.kv_heads % tp == 0:
        return None
    heads, what = (model.heads, "heads") if model.heads % tp else (model.kv_heads, "key-value heads")
    return Breach(rule="tp-divides-heads", detail=f"tp {tp} does not divide {heads} {what}", needed=tp, available=heads)


def tp_supported(request: Request, candidate: Candidate) -> Breach | None:
    """AutoTP converts only some architectures."""
    if candidate.degrees.tp == 1 or request.model.autotp is not AutoTP.REFUSED:
        return None
    detail = f"DeepSpeed's AutoTP does not convert `{request.model.model_type}` models"
    return Breach(rule="tp-architecture", detail=detail, needed=candidate.degrees.tp, available=1)


def tp_trains_adapters(request: Request, candidate: Candidate) -> Breach | None:
    """AutoTP takes peft's module for the linear layer inside it and puts its own in its place, without the adapter.

    Source: deepspeed/module_inject/auto_tp.py `_replace_module` (0.19.8): any child with a matrix called `weight`.
    """
    if candidate.degrees.tp == 1 or request.workload.adapter is None:
        return None
    detail = "DeepSpeed's AutoTP replaces the modules that carry adapters, and with them the adapters"
    return Breach(rule="tp-adapters", detail=detail, needed=1, available=candidate.degrees.tp)


def fused_loss_exists(request: Request, candidate: Candidate) -> Breach | None:
    """Liger leaves the types it does not know as they are, and their logits whole."""
    if request.workload.loss is not Loss.FUSED or request.model.trait("fused_loss"):
        return None
    detail = f"Liger Kernel has no fused loss for `{request.model.model_type}` models: it would leave the logits whole"
    return Breach(rule="fused-loss-type", detail=detail, needed=1, available=0)


def fused_loss_reads_whole_head(request: Request, candidate: Candidate) -> Breach | None:
    """Liger multiplies by `lm_head.weight` itself: of a head that AutoTP divides, the rank's own rows alone.

    Source: Liger Kernel, transformers/model/llama.py `lce_forward` (`lm_head_weight=self.lm_head.weight`).
    """
    tp = candidate.degrees.tp
    if tp == 1 or request.workload.loss is not Loss.FUSED or not model_work(request.model).head_divided:
        return None
    detail = "the fused loss reads the output head's weight directly, of which tensor parallelism leaves a rank a part"
    return Breach(rule="tp-fused-loss", detail=detail, needed=1, available=tp)


def packed_weights_stay_on_gpu(request: Request, candidate: Candidate) -> Breach | None:
    """Packed weights in host memory leave their scales on the GPU; no run of it is known, so none is proposed."""
    offloaded = candidate.offload.param_device != "none"
    if not offloaded or request.workload.method is not Method.QLORA:
        return None
    detail = "4-bit weights in host memory are untried; they are small enough to stay on the GPU"
    return Breach(rule="qlora-param-offload", detail=detail, needed=0, available=1)


def offload_needs_zero(request: Request, candidate: Candidate) -> Breach | None:
    """Optimizer offload exists from stage 1, parameter and NVMe offload at stage 3."""
    needed = NEEDED_STAGE[candidate.offload]
    if candidate.zero >= needed:
        return None
    detail = f"offload {candidate.offload.value} needs ZeRO stage {int(needed)}, not {int(candidate.zero)}"
    return Breach(rule="offload-needs-stage", detail=detail, needed=int(needed), available=int(candidate.zero))


NEEDED_STAGE = {
    Offload.NONE: ZeroStage.DISABLED,
    Offload.OPTIMIZER: ZeroStage.OPTIMIZER,
    Offload.OPTIMIZER_AND_PARAMS: ZeroStage.PARAMETERS,
    Offload.NVME: ZeroStage.PARAMETERS,
}


def pure_bf16_needs_zero(request: Request, candidate: Candidate) -> Breach | None:
    """Without ZeRO, DeepSpeed's bf16 optimizer always makes fp32 master weights."""
    if request.workload.precision is not Precision.PURE_BF16 or candidate.zero is not ZeroStage.DISABLED:
        return None
    detail = "DeepSpeed keeps bf16 master weights and states from ZeRO stage 1 on only: use a stage, or `bf16`"
    return Breach(rule="pure-bf16-needs-stage", detail=detail, needed=1, available=0)


def optimizer_can_be_offloaded(request: Request, candidate: Candidate) -> Breach | None:
    """DeepSpeed steps AdamW and Lion in host memory by itself, SGD and Adafactor with torch's code."""
    if candidate.offload is Offload.NONE:
        return None
    optimizer, precision = request.workload.optimizer, request.workload.precision
    reason = NOT_OFFLOADED.get(optimizer)
    if precision is Precision.PURE_BF16 and optimizer is not Optimizer.ADAMW:
        reason = "DeepSpeed offloads bf16 master weights with its CPU Adam only; use `adamw`, or `bf16`"
    if candidate.offload is Offload.NVME and optimizer is not Optimizer.ADAMW:
        reason = reason or f"NVMe offload is known for AdamW's states only; use `adamw` instead of `{optimizer.value}`"
    return None if reason is None else Breach(rule="optimizer-offload", detail=reason, needed=0, available=1)


NOT_OFFLOADED = {
    Optimizer.ADAMW_8BIT: "offload replaces 8-bit AdamW by DeepSpeed's 32-bit CPU Adam; use `adamw` with offload",
    Optimizer.MUON: "Muon diverges with offload (https://github.com/deepspeedai/DeepSpeed/issues/8463); use `adamw`",
}
"""Sources: accelerate 1.15 `map_pytorch_optim_to_deepspeed`; the issue named."""


def eight_bit_partition(request: Request, candidate: Candidate) -> Breach | None:
    """bitsandbytes' kernels count the elements of a tensor in 32 bits, and a ZeRO partition is one tensor.

    Source: bitsandbytes 0.50 backends/cuda/ops.py `_optimizer_update_8bit_blockwise_impl` (`c_int32(g.numel())`).
    """
    if request.workload.optimizer is not Optimizer.ADAMW_8BIT:
        return None
    elements = largest_flat_elements(request.model, request.workload.adapter, candidate)
    if elements < 2**31:
        return None
    detail = (
        f"a partition of {elements:,} elements is too large for bitsandbytes, which counts in 32 bits; use ZeRO-3, "
        "whose sub-groups are smaller, or `adamw`"
    )
    return Breach(rule="8bit-partition", detail=detail, needed=elements, available=2**31 - 1)


def nvme_present(request: Request, candidate: Candidate) -> Breach | None:
    """NVMe offload needs local drives; a cluster that does not say it has any is taken to have none."""
    if candidate.offload is not Offload.NVME or request.cluster.nvme_bytes:
        return None
    return Breach(rule="nvme-unknown", detail="no local NVMe is known on this cluster", needed=1, available=0)


def global_batch_divides(request: Request, candidate: Candidate) -> Breach | None:
    """global batch = micro-batch x accumulation x dp, exactly."""
    wanted = request.workload.global_batch
    if wanted is None or candidate.global_batch == wanted:
        return None
    pinned = request.workload.accumulation
    per_step = candidate.micro_batch * candidate.degrees.dp * (pinned or 1)
    factors = "micro-batch x dp x accumulation" if pinned else "micro-batch x dp"
    detail = f"a global batch of {wanted} is not a multiple of {per_step} ({factors})"
    return Breach(rule="global-batch", detail=detail, needed=per_step, available=wanted)


def secondary_copies_divide(request: Request, candidate: Candidate) -> Breach | None:
    """hpZ's groups are neighbouring ranks, all of one size.

    Source: deepspeed/utils/groups.py `_create_zero_param_parallel_group` (0.19.8).
    """
    ranks, world = candidate.settings.hpz_partition_size, request.cluster.world_size
    if candidate.zero is not ZeroStage.PARAMETERS or ranks <= 1 or world % min(ranks, world) == 0:
        return None
    detail = f"zero_hpz_partition_size {ranks} does not divide {world} GPUs"
    return Breach(rule="hpz-divides-world", detail=detail, needed=ranks, available=world)


def partial_offload_exists(request: Request, candidate: Candidate) -> Breach | None:
    """Only stage 3 leaves some of the updates on the GPU, and only beside DeepSpeed's CPU Adam.

    Source: deepspeed/runtime/zero/config.py `offload_ratio_check`, zero/stage3.py `backup_optimizer` (0.19.8).
    """
    if candidate.offload is Offload.NONE or candidate.settings.optimizer_offload_ratio == 1:
        return None
    if candidate.zero is not ZeroStage.PARAMETERS:
        detail = f"offload_optimizer.ratio needs ZeRO stage 3, not {int(candidate.zero)}"
        return Breach(rule="offload-ratio", detail=detail, needed=3, available=int(candidate.zero))
    if request.workload.optimizer is not Optimizer.ADAMW:
        detail = f"offload_optimizer.ratio needs `adamw`, not `{request.workload.optimizer.value}`"
        return Breach(rule="offload-ratio", detail=detail, needed=1, available=0)
    return None


RULES: tuple[Callable[[Request, Candidate], Breach | None], ...] = (
    tp_divides_world,
    tp_within_node,
    tp_divides_heads,
    tp_supported,
    tp_trains_adapters,
    packed_weights_stay_on_gpu,
    fused_loss_exists,
    fused_loss_reads_whole_head,
    offload_needs_zero,
    pure_bf16_needs_zero,
    optimizer_can_be_offloaded,
    nvme_present,
    global_batch_divides,
    eight_bit_partition,
    secondary_copies_divide,
    partial_offload_exists,
)

RULES_OF_SETTINGS = (eight_bit_partition, secondary_copies_divide, partial_offload_exists)
"""Those that look at settings, and not at the micro-batch. They come last, so that a candidate which any other rule
forbids is out for the same reason whatever its settings."""

RUNNABLE = tuple(rule for rule in RULES if rule not in (tp_divides_heads, packed_weights_stay_on_gpu))
"""What DeepSpeed itself needs: it also runs uneven shards, which dsplan never proposes."""


def first_breach(
    request: Request, candidate: Candidate, rules: tuple[Callable[[Request, Candidate], Breach | None], ...] = RULES
) -> Breach | None:
    """The first rule the candidate breaks, in their order."""
    for rule in rules:
        breach = rule(request, candidate)
        if breach is not None:
            return breach
    return None
