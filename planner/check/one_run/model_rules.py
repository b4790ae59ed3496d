"""The files against the model: heads, experts, tensor-parallel plan, precision, sizes that are computed from its width.

In: the files and the context. Out: Problems. Answers: can this model be divided and trained as the files say?
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.check.context import Context, Reader
from planner.check.one_file.deepspeed_rules import section
from planner.check.one_run.known_models import (
    BUILT_IN_LEAVES,
    bf16_source,
    blocks_of,
    has_experts,
    heads_of,
    parameters_of,
    type_of,
    width_is_found,
)
from planner.check.one_run.machine_rules import has_bf16
from planner.check.one_run.reader_rules import BUCKETS
from planner.check.one_run.run_facts import (
    Said,
    deepspeed_yaml,
    half_precision,
    lone_yaml,
    offload_device,
    ranks_of,
    reader_of,
    tensor_parallel,
    whole,
    yaml_of,
    zero_stage,
)
from planner.check.rules import finding
from planner.check.together import Together
from planner.records.problem import Edit, EditKind, Problem

ZERO = "$.zero_optimization"
AUTOTP = "$.tensor_parallel.autotp_size"
AUTOTP_PLANS_FROM = (0, 19, 4)
"""Earlier releases know no plan of the model, only names of layers. Source: catalog/data/versions.toml, sdists read."""


def width_for_auto_sizes(together: Together, context: Context) -> Iterator[Problem]:
    """Three sizes are filled from hidden_size; the Trainer looks into text_config too, accelerate does not."""
    file, reader = together.deepspeed, reader_of(together, context)
    if file is None or reader is Reader.DEEPSPEED:
        return
    if width_is_found(context, in_text_config=reader is not Reader.ACCELERATE) is not False:
        return
    zero = section(file.fields, "zero_optimization")
    for path in BUCKETS:
        key = path.rpartition(".")[2]
        if zero.get(key) == "auto":
            message = (
                '`"auto"` is computed from `hidden_size`, which the config of this model does not have: ValueError'
            )
            edits = (Edit(kind=EditKind.REMOVE, path=path),)
            fix = "write a number, or leave the key out"
            yield finding("DS413", path, message, fix=fix, bites="engine init", file=file.name, edits=edits)


def heads_and_tensor_parallelism(together: Together, context: Context) -> Iterator[Problem]:
    file, tp, heads = together.deepspeed, tensor_parallel(together), heads_of(context)
    if file is None or tp == 1 or heads is None:
        return
    query, shared = heads
    if shared < tp:
        message = f"{shared} key-value heads for {tp} ranks: some ranks hold no attention weights"
        yield finding("DS410", AUTOTP, message, fix=f"write at most {shared}", file=file.name)
    elif query % tp or shared % tp:
        message = f"{query} heads and {shared} key-value heads do not divide by {tp}: the ranks hold uneven shards"
        yield finding("DS410", AUTOTP, message, fix="write a divisor of both", file=file.name)


def tensor_parallel_plan(together: Together, context: Context) -> Iterator[Problem]:
    """AutoTP refuses whole families: one style that it does not know refuses the plan."""
    file, model_type = together.deepspeed, type_of(context)
    if file is None or tensor_parallel(together) == 1 or model_type is None or context.release < AUTOTP_PLANS_FROM:
        return
    block = section(file.fields, "tensor_parallel")
    if block.get("partition_config") or (model_type == "bloom" and block.get("preset_model") == "bloom"):
        return
    from planner.catalog.models import autotp_row

    row = autotp_row(model_type)
    experts = bool(blocks_of(model_type)) or has_experts(context)
    if row.outcome != "refused" or (row.reason == "never tried" and not experts):
        return
    reason = row.reason if row.reason != "never tried" else "its plan has styles for experts, which AutoTP refuses"
    message = f"AutoTP does not train `{model_type}` models: {reason}"
    yield finding("DS411", AUTOTP, message, fix="use ZeRO without tensor parallelism", file=file.name)


def sequence_parallel_of(together: Together) -> Said | None:
    """The degree of Ulysses sequence parallelism."""
    yaml = yaml_of(together)
    if yaml is not None:
        key = "parallelism_config_sp_size"
        size = whole(section(yaml.fields, "parallelism_config").get(key))
        if size is not None and size > 1:
            return Said(value=size, file=yaml.name, path=f"$.parallelism_config.{key}")
    file = together.deepspeed
    size = whole(file.fields.get("sequence_parallel_size")) if file is not None else None
    if file is not None and size is not None and size > 1:
        return Said(value=size, file=file.name, path="$.sequence_parallel_size")
    return None


def sequence_is_divided(together: Together, context: Context) -> Iterator[Problem]:
    """The key of the DeepSpeed file makes groups of ranks; models of transformers are divided by Ulysses only."""
    file, yaml = together.deepspeed, yaml_of(together)
    hugging_face = type_of(context) is not None or reader_of(together, context) in (Reader.TRAINER, Reader.ACCELERATE)
    size = whole(file.fields.get("sequence_parallel_size")) if file is not None else None
    if file is None or size in (None, 1) or not hugging_face:
        return
    if yaml is not None and whole(section(yaml.fields, "parallelism_config").get("parallelism_config_sp_size")) == size:
        return
    message = f"{size} ranks get one sample, and nothing divides its sequence among them: {size} times the work"
    fix = "set `parallelism_config_sp_size` in the Accelerate file, or leave it out"
    edits = (Edit(kind=EditKind.REMOVE, path="$.sequence_parallel_size"),)
    yield finding("DS076", "$.sequence_parallel_size", message, fix=fix, file=file.name, edits=edits)


def heads_and_sequence_parallelism(together: Together, context: Context) -> Iterator[Problem]:
    degree, heads = sequence_parallel_of(together), heads_of(context)
    if degree is None:
        return
    sp = degree.value
    if heads is not None and heads[0] % sp:
        good = max(n for n in range(1, sp) if heads[0] % n == 0 and (heads[1] % n == 0 or n % heads[1] == 0))
        message = (
            f"{heads[0]} attention heads are not divisible by {sp}: ValueError, or wrong numbers in hand-made code"
        )
        yield finding("DS417", degree.path, message, fix=f"{good} goes", file=degree.file)
    elif heads is not None and heads[1] % sp and sp % heads[1]:
        message = f"neither {heads[1]} key-value heads by {sp} nor {sp} by {heads[1]}: ValueError"
        yield finding("DS417", degree.path, message, fix="choose a degree that goes with both", file=degree.file)
    if context.seq_len is not None and context.seq_len % sp:
        message = f"{context.seq_len} tokens are not divisible by {sp}: ValueError at the first batch"
        fix = f"pad to a multiple of {sp}"
        yield finding("DS417", degree.path, message, fix=fix, bites="first step", file=degree.file)


def experts_are_leaves(together: Together, context: Context) -> Iterator[Problem]:
    """Under ZeRO-3 ranks that choose different experts wait for each other's parameters."""
    stage, model_type = zero_stage(together), type_of(context)
    if stage is None or stage.value != 3 or (context.release < (0, 14, 0)):
        return
    blocks = blocks_of(model_type or "")
    if not blocks and not has_experts(context):
        return
    yaml = deepspeed_yaml(together)
    if yaml is not None and section(yaml.fields, "deepspeed_config").get("deepspeed_moe_layer_cls_names"):
        return
    file, lone = together.deepspeed, lone_yaml(together)
    leaves = section(file.fields, "zero_optimization", "leaf_module") if file is not None else {}
    named = leaves.get("classes", BUILT_IN_LEAVES)
    names = {str(one).rpartition(".")[2] for one in ([named] if isinstance(named, str) else named or ())}
    if leaves.get("names") or leaves.get("name_suffixes"):
        return
    missing = [block for block in blocks if block.rpartition(".")[2] not in names]
    if blocks and not missing:
        return
    short = missing[0].rpartition(".")[2] if missing else "the class of its block"
    message = f"`{short}` is no leaf: ranks that choose different experts wait for each other, and the run hangs"
    if file is not None:
        value = list(missing)
        edits = (Edit(kind=EditKind.SET, path=f"{ZERO}.leaf_module", value={"classes": value}),) if missing else ()
        fix = f'add `"leaf_module": {{"classes": ["{missing[0] if missing else "..."}"]}}`'
        yield finding("DS414", f"{ZERO}.leaf_module", message, fix=fix, file=file.name, edits=edits)
    elif lone is not None:
        path = "$.deepspeed_config.deepspeed_moe_layer_cls_names"
        edits = (Edit(kind=EditKind.SET, path=path, value=short),) if missing else ()
        fix = f"add `deepspeed_moe_layer_cls_names: {short}`" if missing else "name the class of its block"
        yield finding("DS414", path, message, fix=fix, file=lone.name, edits=edits)


def half_precision_of_the_family(together: Together, context: Context) -> Iterator[Problem]:
    half, source = half_precision(together), bf16_source(context)
    if half is None or half.value != "fp16" or source is None or has_bf16(context) is False:
        return  # a card without bf16 leaves no better choice but fp32
    message = (
        f"the weights of `{type_of(context)}` models come from bf16 ({source}): fp16 overflows, the loss scale falls"
    )
    yield finding("DS412", half.path, message, fix="use bf16", file=half.file)


def swap_buffers_hold_a_parameter(together: Together, context: Context) -> Iterator[Problem]:
    """The share of the largest parameter that one rank swaps has to fit into a buffer of offload_param.

    Source: deepspeed/runtime/swap_tensor/partitioned_param_swapper.py `get_buffer` (0.19.8).
    """
    device, file, ranks = offload_device(together, "offload_param"), together.deepspeed, ranks_of(together, context)
    if device is None or file is None or device.value != "nvme" or context.model is None or ranks is None:
        return
    from planner.geometry.params import largest_tensor_numel

    size = whole(section(file.fields, "zero_optimization", "offload_param").get("buffer_size", 100_000_000))
    largest = largest_tensor_numel(context.model, tensor_parallel(together))
    share = -(-largest // ranks)
    path = f"{ZERO}.offload_param.buffer_size"
    if size is not None and share > size:
        message = f"a rank's share of the largest parameter has {share} elements, a buffer {size}: AssertionError"
        edits = (Edit(kind=EditKind.SET, path=path, value=share),)
        yield finding("DS418", path, message, fix=f"write at least {share}", file=file.name, edits=edits)


def host_memory_for_offload(together: Together, context: Context) -> Iterator[Problem]:
    """A rule of thumb where dsplan cannot estimate the model; see memory_rules for the others."""
    device, parameters = offload_device(together, "offload_optimizer"), parameters_of(context)
    if device is None or device.value != "cpu" or parameters is None or context.host_ram_gib is None:
        return
    if context.model is not None and context.cluster is not None:
        return
    nodes = context.cluster.nodes if context.cluster is not None else 1
    needed = HOST_BYTES_PER_PARAMETER * parameters / nodes / 2**30
    if needed > context.host_ram_gib:
        message = (
            f"optimizer states, pinned copies and the copies made while loading want about {needed:.0f} GiB a node, "
            f"it has {context.host_ram_gib:g}: the kernel kills the run without a message"
        )
        fix = "more nodes or memory, fewer ranks on a node, or no offload"
        yield finding("DS415", device.path, message, fix=fix, file=device.file)


HOST_BYTES_PER_PARAMETER = 24
"""fp32 weights, gradients and two moments are 16, pinned rounding and the copies of loading the rest; rule of thumb of
https://github.com/THUDM/ChatGLM-6B/issues and of the DeepSpeed estimators (`additional_buffer_factor` 1.5)."""

RULES = (
    width_for_auto_sizes,
    heads_and_tensor_parallelism,
    tensor_parallel_plan,
    sequence_is_divided,
    heads_and_sequence_parallelism,
    experts_are_leaves,
    half_precision_of_the_family,
    swap_buffers_hold_a_parameter,
    host_memory_for_offload,
)
