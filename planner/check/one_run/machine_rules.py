"""The files against the machine: arithmetic of the GPU, number of ranks, size of a node.

In: the files and the context. Out: Problems. Answers: does this GPU compute in that precision, and do batch sizes and
degrees go with the ranks there are? Sources are in CONTRACT order of the fact: deepspeed/runtime/config.py (batch
identity), deepspeed/utils/groups.py (hpz), deepspeed/runtime/tensor_parallel (ranks), accelerator/cuda_accelerator.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.check.context import Context
from planner.check.one_file.deepspeed_rules import section
from planner.check.one_run.cards import BF16_FROM, FP8_FROM, FP16_FROM, capability_of
from planner.check.one_run.run_facts import (
    Said,
    argument_is_on,
    half_precision,
    node_size_of,
    offload_device,
    ranks_of,
    tensor_parallel,
    whole,
    yaml_of,
    zero_stage,
)
from planner.check.rules import finding
from planner.check.together import Together
from planner.records.problem import Edit, EditKind, Problem, Severity

ZERO = "$.zero_optimization"
SMALL_CARD_BYTES = 17 * 10**9
"""Cards of 16 GB and less; drivers report up to 16.9e9 bytes for them."""
DEFAULT_BUCKET = 500_000_000
MUCH_STAGING_GIB = 4


def has_bf16(context: Context) -> bool | None:
    """Whether the GPU has bf16 units; None: not known."""
    if context.cluster is not None:
        return context.cluster.gpu.has_bf16
    capability = capability_of(context.gpu_name or "")
    return None if capability is None else capability >= BF16_FROM


def has_fp16(context: Context) -> bool | None:
    """Whether DeepSpeed takes fp16 on the GPU; None: not known, as for cards of other makers."""
    capability = _capability(context)
    return None if capability is None else capability >= FP16_FROM


def gpu_computes_in_precision(together: Together, context: Context) -> Iterator[Problem]:
    half = half_precision(together)
    if half is None:
        return
    card = _card(context)
    if half.value == "bf16" and has_bf16(context) is False:
        instead = "fp16 with `loss_scale` 0" if has_fp16(context) else "fp32"
        message = f"`{card}` has no bf16: DeepSpeed refuses it, or torch emulates it many times slower"
        yield finding("DS401", half.path, message, fix=f"use {instead}", file=half.file)
    if half.value == "fp16" and has_fp16(context) is False:
        message = f"DeepSpeed refuses fp16 on `{card}`, which is below compute capability 7.0"
        yield finding("DS401", half.path, message, fix="use fp32: switch `fp16` off", file=half.file)


def gpu_has_tf32(together: Together, context: Context) -> Iterator[Problem]:
    """TF32 came with Ampere, as bf16 did."""
    training = together.training
    if training is not None and argument_is_on(together, "tf32") and has_bf16(context) is False:
        card = _card(context)
        message = f"`{card}` has no TF32: TrainingArguments raises ValueError"
        edits = (Edit(kind=EditKind.REMOVE, path="$.tf32"),)
        yield finding("DS401", "$.tf32", message, fix="leave it out", bites="config", file=training.name, edits=edits)


def gpu_has_fp8(together: Together, context: Context) -> Iterator[Problem]:
    """FP8 came with Ada and Hopper."""
    yaml, capability = yaml_of(together), _capability(context)
    if yaml is not None and yaml.fields.get("mixed_precision") == "fp8" and capability and capability < FP8_FROM:
        card = _card(context)
        message = f"`{card}` has no fp8: accelerate warns and trains in fp16"
        warning = Severity.WARNING
        yield finding(
            "DS401", "$.mixed_precision", message, fix="write bf16", severity=warning, bites="silently", file=yaml.name
        )


def gpu_has_flash_attention(together: Together, context: Context) -> Iterator[Problem]:
    """FlashAttention 2 came with Ampere."""
    yaml, key = yaml_of(together), "parallelism_config_sp_attn_implementation"
    if yaml is None or has_bf16(context) is not False:
        return
    if section(yaml.fields, "parallelism_config").get(key) in ("flash_attention_2", "flash_attention_3"):
        card = _card(context)
        message = f"`{card}` cannot run FlashAttention 2: it needs Ampere or newer"
        path = f"$.parallelism_config.{key}"
        edits = (Edit(kind=EditKind.SET, path=path, value="sdpa"),)
        yield finding("DS401", path, message, fix="write sdpa", bites="first step", file=yaml.name, edits=edits)


def _capability(context: Context) -> tuple[int, int] | None:
    return capability_of(_card(context))


def _card(context: Context) -> str:
    return context.gpu_name or (context.cluster.gpu.name if context.cluster else "the GPU")


def batch_identity(together: Together, context: Context) -> Iterator[Problem]:
    """The total is checked against all ranks, tensor-parallel ones too; sequence-parallel ones are divided out."""
    file, ranks = together.deepspeed, ranks_of(together, context)
    if file is None or ranks is None or together.training is not None:
        return
    config = file.fields
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    total, micro, accumulation = (whole(config.get(name)) for name in names)
    if total is None or "auto" in (config.get(names[1]), config.get(names[2])):
        return
    sequence = whole(config.get("sequence_parallel_size")) or 1
    replicas = ranks // sequence if ranks % sequence == 0 else ranks
    remove = (Edit(kind=EditKind.REMOVE, path="$.train_batch_size"),)
    fix = "leave `train_batch_size` out"
    if micro is None:
        if total % (replicas * (accumulation or 1)):
            parts = f"{replicas} ranks x accumulation {accumulation or 1}"
            message = f"`{total}` is no multiple of {parts}"
            yield finding("DS021", "$.train_batch_size", message, fix="write a multiple", file=file.name)
        return
    product = micro * (accumulation or 1) * replicas
    if accumulation is None and total % (micro * replicas) == 0 and total >= micro * replicas:
        return
    if total != product:
        tp = tensor_parallel(together)
        note = ""
        if tp > 1 and total * tp == product:
            note = "; DeepSpeed counts tensor-parallel ranks too"
        formula = f"micro-batch x accumulation x ranks = {micro} x {accumulation or 1} x {replicas} = {product}"
        message = f"`{total}` is not {formula}{note}"
        yield finding("DS021", "$.train_batch_size", message, fix=fix, file=file.name, edits=remove)


def tensor_parallel_ranks(together: Together, context: Context) -> Iterator[Problem]:
    file, tp = together.deepspeed, tensor_parallel(together)
    ranks, node = ranks_of(together, context), node_size_of(together, context)
    if file is None or tp == 1 or ranks is None:
        return
    path = "$.tensor_parallel.autotp_size"
    if ranks % tp:
        message = f"`autotp_size` {tp} does not divide {ranks} processes: AssertionError without a word"
        yield finding("DS051", path, message, fix=f"write a divisor of {ranks}", file=file.name)
    elif node is not None and node % tp and ranks > node:
        message = f"groups of {tp} ranks do not fit into nodes of {node}: every layer waits for the network"
        yield finding("DS403", path, message, fix=f"write a divisor of {node}", file=file.name)


def hpz_divides_ranks(together: Together, context: Context) -> Iterator[Problem]:
    file, stage = together.deepspeed, zero_stage(together)
    ranks, node = ranks_of(together, context), node_size_of(together, context)
    if file is None or stage is None or stage.value != 3:
        return
    size = whole(section(file.fields, "zero_optimization").get("zero_hpz_partition_size")) or 1
    path = f"{ZERO}.zero_hpz_partition_size"
    if size == 1:
        return
    if ranks is not None and ranks % min(size, ranks):
        message = f"{size} does not divide {ranks} ranks"
        yield finding("DS404", path, message, fix=f"write a divisor of {ranks}", file=file.name)
    else:
        message = "each group of ranks holds a second copy of all 16-bit weights"
        fix = "leave it out unless the network between nodes decides the speed"
        if node is not None and size != node:
            where = "gathering still crosses the network" if size > node else "a node holds several copies"
            message, fix = f"{size} is not the {node} ranks of a node: {where}", f"write {node}, or leave it out"
        warning = Severity.WARNING
        yield finding("DS404", path, message, fix=fix, severity=warning, bites="silently", file=file.name)


def buckets_fit_the_card(together: Together, context: Context) -> Iterator[Problem]:
    """Buffers of reduce_bucket_size elements at every stage, at 1 and 2 twice with overlap_comm."""
    file, stage = together.deepspeed, zero_stage(together)
    if file is None or stage is None or stage.value == 0 or context.cluster is None:
        return
    if context.cluster.gpu.memory_bytes > SMALL_CARD_BYTES:
        return
    zero = section(file.fields, "zero_optimization")
    keys = ("reduce_bucket_size", "allgather_bucket_size") if stage.value < 3 else ("reduce_bucket_size",)
    for key in keys:
        size = whole(zero.get(key, DEFAULT_BUCKET))
        if size is not None and size >= DEFAULT_BUCKET:
            gigabytes = 2 * size / 1e9
            message = f"{size:g} elements are {gigabytes:g} GB in 16 bits, much on `{context.cluster.gpu.name}`"
            edits = (Edit(kind=EditKind.SET, path=f"{ZERO}.{key}", value=50_000_000),)
            fix = "write 50000000, which costs little speed"
            yield finding("DS405", f"{ZERO}.{key}", message, fix=fix, file=file.name, edits=edits)


def sequence_parallel_ranks(together: Together, context: Context) -> Iterator[Problem]:
    file, ranks = together.deepspeed, ranks_of(together, context)
    if file is None or ranks is None:
        return
    size = whole(file.fields.get("sequence_parallel_size")) or 1
    if size > 1 and ranks % size:
        message = f"{size} does not divide {ranks} ranks"
        yield finding("DS406", "$.sequence_parallel_size", message, fix=f"write a divisor of {ranks}", file=file.name)


def offload_on_many_ranks(together: Together, context: Context) -> Iterator[Problem]:
    """NVMe staging buffers are locked memory of the host, for every rank."""
    device: Said | None = offload_device(together, "offload_param")
    file = together.deepspeed
    if device is None or file is None or device.value == "none":
        return
    block = section(file.fields, "zero_optimization", "offload_param")
    count, size = whole(block.get("buffer_count", 5)), whole(block.get("buffer_size", 100_000_000))
    if count and size and block.get("pin_memory", True) is not False and device.value == "nvme":
        gib = 2 * count * size / 2**30
        node = node_size_of(together, context) or 1
        share = gib * node / context.host_ram_gib if context.host_ram_gib else 0.0
        if gib >= MUCH_STAGING_GIB or share > 0.1:
            message = f"{count} buffers of {size} elements are {gib:.1f} GiB of locked memory for each of {node} ranks"
            path = f"{ZERO}.offload_param.buffer_size"
            yield finding("DS407", path, message, fix="take smaller or fewer buffers", file=file.name)


RULES = (
    gpu_computes_in_precision,
    gpu_has_tf32,
    gpu_has_fp8,
    gpu_has_flash_attention,
    batch_identity,
    tensor_parallel_ranks,
    hpz_divides_ranks,
    buckets_fit_the_card,
    sequence_parallel_ranks,
    offload_on_many_ranks,
)
