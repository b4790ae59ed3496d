"""What the engine refuses or leaves aside when it is built, although the file loads.

In: the document. Out: Problems. Answers: do dtypes, scheduler parameters, the AutoTP partition and the compile passes
go together? Source: deepspeed 0.19.8 runtime/engine.py (`_do_sanity_check`, `_do_optimizer_sanity_check`,
`_configure_zero_optimizer`), runtime/lr_schedules.py, runtime/zero/stage_1_and_2.py, module_inject/autotp_config.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.check.loader.lax import FALSE_WORDS
from planner.check.one_file.deepspeed_rules import ZERO, device_of, is_on, section, stage_of, tp_of
from planner.check.rules import finding
from planner.errors import nearest
from planner.records.problem import Edit, EditKind, Problem, Severity

DTYPES = {
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
    **dict.fromkeys(("fp32", "float32", "float", "torch.float32"), "fp32"),
    **dict.fromkeys(("int8", "torch.int8"), "int8"),
}
WARMUP = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "last_batch_iteration")
SCHEDULER_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "WarmupLR": WARMUP,
    "WarmupDecayLR": ("total_num_steps", *WARMUP),
    "LRRangeTest": (
        *("lr_range_test_min_lr", "lr_range_test_step_size", "lr_range_test_step_rate", "lr_range_test_staircase"),
        "last_batch_iteration",
    ),
    "OneCycle": (
        *("cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "cycle_first_step_size", "cycle_second_step_size"),
        *("cycle_first_stair_count", "cycle_second_stair_count", "decay_step_size", "cycle_momentum", "cycle_min_mom"),
        *("cycle_max_mom", "decay_mom_rate", "last_batch_iteration"),
    ),
}
"""WarmupCosineLR has a rule of its own beside `total_num_steps`."""
NEEDED = {"OneCycle": ("cycle_min_lr", "cycle_max_lr")}
TEXTS = ("warmup_type",)
SWITCHES = ("cycle_momentum", "lr_range_test_staircase")
NULL_IS_FINE = (
    "cycle_second_step_size",
    "cycle_second_stair_count",
    "warmup_max_lr",
    "warmup_num_steps",
    "warmup_type",
)
"""Of these the constructor takes null for "not given", or a rule of its own speaks."""
USELESS_PRESETS = {
    "phi3": ("the preset fails on the models it is for", Severity.ERROR),
    "mixtral": ("the preset leaves the experts whole on every rank", Severity.WARNING),
}
"""Seen by running 0.19.8."""
PARTITION_KEYS = (
    *("layer_specs", "use_default_specs", "strict_mode", "tp_size", "embedding_partition_dim", "lm_head_patterns"),
)
SPEC_KEYS = (
    *("patterns", "partition_type", "shape", "partition_dim", "model_types", "gather_output", "grad_allreduce"),
)


def half_of(config: Mapping[str, Any]) -> str:
    """The dtype of the weights."""
    if is_on(config, "fp16"):
        return "fp16"
    return "bf16" if is_on(config, "bf16" if "bf16" in config else "bfloat16") else "fp32"


def dtypes_agree(config: Mapping[str, Any]) -> Iterator[Problem]:
    types = section(config, "data_types")
    for name in ("bf16", "bfloat16", "fp16"):
        if section(config, name).get("enabled") == "auto":
            return  # the reader decides
    half = half_of(config)
    weights = DTYPES.get(str(types.get("param_dtype")))
    if weights is not None and weights != half:
        message = f"`{types['param_dtype']}` is not the `{half}` that the precision sections switch on"
        path = "$.data_types.param_dtype"
        edits = (Edit(kind=EditKind.REMOVE, path=path),)
        yield finding("DS034", path, message, fix="leave it out", edits=edits)
    accumulation = DTYPES.get(str(types.get("grad_accum_dtype")))
    reported = accumulation == "fp32" and half != "fp32"  # rule DS032
    if accumulation is not None and accumulation != half and stage_of(config) == 0 and not reported:
        path = "$.data_types.grad_accum_dtype"
        message = f"without ZeRO gradients of `{half}` weights are not accumulated in `{accumulation}`"
        edits = (Edit(kind=EditKind.REMOVE, path=path),)
        yield finding("DS034", path, message, fix="leave it out", edits=edits)


def scheduler_parameters(config: Mapping[str, Any]) -> Iterator[Problem]:
    scheduler, params = section(config, "scheduler"), section(config, "scheduler", "params")
    kind, path = scheduler.get("type"), "$.scheduler.params"
    if params and kind is None:
        yield finding(
            "DS063", "$.scheduler.type", "without `type` there is no scheduler", fix="add it", bites="silently"
        )
    known = SCHEDULER_PARAMETERS.get(str(kind))
    if known is not None:
        for key in params:
            if key not in known:
                near = nearest(key, known, limit=1)
                fix = f"did you mean `{near[0]}`?" if near else "take it out"
                edits = (Edit(kind=EditKind.RENAME, path=f"{path}.{key}", to=near[0]),) if near else ()
                yield finding("DS063", f"{path}.{key}", f"`{kind}` has no parameter `{key}`", fix=fix, edits=edits)
        for key in NEEDED.get(str(kind), ()):
            if key not in params:
                yield finding("DS063", f"{path}.{key}", f"`{kind}` needs `{key}`", fix="add it")
    if known is None and kind != "WarmupCosineLR":
        return
    for key, value in params.items():
        if key in SWITCHES:
            if isinstance(value, str) and value != "auto" and value.lower() in FALSE_WORDS:
                message = f'"{value}" is text, and any text counts as true'
                yield finding("DS063", f"{path}.{key}", message, fix="write false without quotes", bites="silently")
        elif isinstance(value, str) and value != "auto" and key not in TEXTS:
            message = f'"{value}" is text: the constructor computes with it and fails'
            yield finding("DS063", f"{path}.{key}", message, fix="write a number")
        elif isinstance(value, Mapping) or (value is None and key not in NULL_IS_FINE):
            what = "null" if value is None else "a section"
            message = f"{what} is no number: the schedule computes with it and fails"
            yield finding("DS063", f"{path}.{key}", message, fix="write a number")
    size = params.get("lr_range_test_step_size", 1)
    if kind == "LRRangeTest" and not isinstance(size, str) and (not isinstance(size, int) or size <= 0):
        message = f"`{size}` is not a positive whole number of steps"
        yield finding("DS063", f"{path}.lr_range_test_step_size", message, fix="write 1 or more")
    total, warmup = params.get("total_num_steps"), params.get("warmup_num_steps", 1000)
    if isinstance(total, int) and isinstance(warmup, int) and total < warmup:
        message = f"the warm-up of {warmup} steps is longer than the {total} steps of the schedule"
        fix = "write fewer warm-up steps"
        yield finding(
            "DS063",
            f"{path}.{'warmup_num_steps' if 'warmup_num_steps' in params else 'total_num_steps'}",
            message,
            fix=fix,
            severity=Severity.WARNING,
            bites="silently",
        )
    if params.get("warmup_type", "log") not in ("log", "linear", "auto"):
        message = f"`{params['warmup_type']}` is not known, and DeepSpeed takes log"
        yield finding(
            "DS063",
            f"{path}.warmup_type",
            message,
            fix='write "log" or "linear"',
            severity=Severity.WARNING,
            bites="silently",
        )


def optimizer_has_a_type(config: Mapping[str, Any]) -> Iterator[Problem]:
    optimizer = section(config, "optimizer")
    if optimizer and optimizer.get("type") is None:
        message = "without `type` the section makes no optimizer"
        yield finding("DS066", "$.optimizer.type", message, fix='add it: "AdamW"')
    kind, params = str(optimizer.get("type")).lower(), section(optimizer, "params")
    decay = params.get("weight_decay")
    if kind == "adam" and "adam_w_mode" not in params and isinstance(decay, (int, float)) and decay > 0:
        message = "`Adam` decays weights as AdamW does, unless `adam_w_mode` is false"
        fix = "write AdamW, or add `adam_w_mode`"
        yield finding("DS073", "$.optimizer.type", message, fix=fix)
    scale = section(config, "fp16").get("loss_scale", 0)
    if kind == "lamb" and is_on(config, "fp16") and isinstance(scale, (int, float)) and scale:
        message = "LAMB needs dynamic loss scaling"
        edits = (Edit(kind=EditKind.SET, path="$.fp16.loss_scale", value=0),)
        yield finding("DS066", "$.fp16.loss_scale", message, fix="write 0", edits=edits)


def gradient_norm(config: Mapping[str, Any]) -> Iterator[Problem]:
    zero, stage = section(config, "zero_optimization"), stage_of(config)
    if zero.get("compute_grad_norm") is not False or stage not in (1, 2):
        return
    path = f"{ZERO}.compute_grad_norm"
    accumulation = DTYPES.get(str(section(config, "data_types").get("grad_accum_dtype")))
    if device_of(config, "offload_optimizer") != "none":
        yield finding("DS061", path, "not with optimizer offload", fix="leave it out")
    elif zero.get("zenflow") is not None:
        yield finding("DS061", path, "not with ZenFlow", fix="leave it out")
    elif stage == 1 and half_of(config) == "bf16" and accumulation == "fp32":
        yield finding("DS061", path, "not at stage 1 with bf16 weights and fp32 accumulation", fix="leave it out")


def old_stage_one(config: Mapping[str, Any]) -> Iterator[Problem]:
    if section(config, "zero_optimization").get("legacy_stage1") is True and stage_of(config) > 0:
        path = f"{ZERO}.legacy_stage1"
        edits = (Edit(kind=EditKind.REMOVE, path=path),)
        message = "the old ZeRO-1 is gone since 0.5.9: the engine raises"
        severity, bites = Severity.ERROR, "engine init"
        yield finding("DS015", path, message, fix="take it out", severity=severity, bites=bites, edits=edits)


def without_effect_at_stage_three(config: Mapping[str, Any]) -> Iterator[Problem]:
    if stage_of(config) == 3 and section(config, "zero_optimization").get("round_robin_gradients") is True:
        path = f"{ZERO}.round_robin_gradients"
        edits = (Edit(kind=EditKind.REMOVE, path=path),)
        yield finding("DS046", path, "stage 3 does not look at it", fix="take it out", edits=edits)


def caller_owns_accumulation(config: Mapping[str, Any]) -> Iterator[Problem]:
    if config.get("managed_gradient_accumulation", True) is not False:
        return
    path = "$.managed_gradient_accumulation"
    if stage_of(config) < 2 and section(config, "zero_optimization").get("overlap_comm") is True:
        message = "false goes with `overlap_comm` from stage 2 on only"
        yield finding("DS064", path, message, fix="leave it out, or set `overlap_comm` to false")
    if section(config, "compile").get("deepcompile") is True:
        yield finding("DS064", path, "false does not go with DeepCompile", fix="leave one of them out")


def checkpointed_memory_is_one_piece(config: Mapping[str, Any]) -> Iterator[Problem]:
    block = section(config, "activation_checkpointing")
    if block.get("contiguous_memory_optimization") is True:
        missing = [key for key in ("partition_activations", "number_checkpoints") if not block.get(key)]
        if missing:
            path = "$.activation_checkpointing.contiguous_memory_optimization"
            message = f"it needs {' and '.join(f'`{key}`' for key in missing)} too"
            yield finding("DS074", path, message, fix="add what is missing, or leave it out")


def partition_is_understood(config: Mapping[str, Any]) -> Iterator[Problem]:
    """A plain dict: a misspelt key divides nothing, and tensor-parallel ranks repeat the work."""
    partition = section(config, "tensor_parallel", "partition_config")
    path = "$.tensor_parallel.partition_config"
    if tp_of(config) == 1:
        return
    yield from _unknown(partition, PARTITION_KEYS, path)
    specs = partition.get("layer_specs")
    if partition and not specs and partition.get("use_default_specs", True) is False:
        message = "no `layer_specs` and no default ones: nothing is divided, and the ranks repeat the work"
        yield finding("DS052", f"{path}.layer_specs", message, fix="add them", bites="silently")
    for index, spec in enumerate(specs if isinstance(specs, list) else []):
        if not isinstance(spec, Mapping):
            continue
        place = f"{path}.layer_specs[{index}]"
        yield from _unknown(spec, SPEC_KEYS, place)
        if not spec.get("patterns"):
            message = "without `patterns` it matches nothing"
            yield finding("DS052", f"{place}.patterns", message, fix="add them", bites="silently")
        kind = spec.get("partition_type", "column")
        if isinstance(kind, str) and kind.lower() not in ("column", "row", "skip"):
            near = nearest(kind.lower(), ("column", "row", "skip"), limit=1)
            fix = f"did you mean `{near[0]}`?" if near else "write column, row or skip"
            edits = (Edit(kind=EditKind.SET, path=f"{place}.partition_type", value=near[0]),) if near else ()
            yield finding("DS052", f"{place}.partition_type", f"`{kind}` is no partition", fix=fix, edits=edits)


def _unknown(values: Mapping[str, Any], known: tuple[str, ...], path: str) -> Iterator[Problem]:
    for key in values:
        if key not in known:
            near = nearest(str(key), known, limit=1)
            fix = f"did you mean `{near[0]}`?" if near else "take it out"
            edits = (Edit(kind=EditKind.RENAME, path=f"{path}.{key}", to=near[0]),) if near else ()
            message = f"nothing reads `{key}` here"
            yield finding("DS052", f"{path}.{key}", message, fix=fix, bites="silently", edits=edits)


def preset_divides(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Two presets that DeepSpeed has and that do not serve."""
    preset = str(section(config, "tensor_parallel").get("preset_model", "")).lower()
    path = "$.tensor_parallel.preset_model"
    if tp_of(config) > 1 and preset in USELESS_PRESETS:
        message, severity = USELESS_PRESETS[preset]
        bites = "engine init" if severity is Severity.ERROR else "silently"
        fix = "use ZeRO without tensor parallelism"
        yield finding("DS052", path, message, fix=fix, severity=severity, bites=bites)


def compile_passes_compose(config: Mapping[str, Any]) -> Iterator[Problem]:
    block = section(config, "compile")
    passes = block.get("passes")
    if not isinstance(passes, list):
        return
    path = "$.compile.passes"
    if "autotp" in passes and len(set(map(str, passes))) > 1:
        message = "`autotp` goes with no other pass: NotImplementedError when the engine compiles"
        yield finding("DS075", path, message, fix="run `autotp` alone", bites="first step")
    if "autosp" in passes and stage_of(config) > 1:
        message = f"`autosp` goes with stage 0 and 1, not {stage_of(config)}"
        yield finding("DS075", path, message, fix="use stage 0 or 1", bites="first step")


RULES = (
    dtypes_agree,
    scheduler_parameters,
    optimizer_has_a_type,
    gradient_norm,
    old_stage_one,
    without_effect_at_stage_three,
    caller_owns_accumulation,
    checkpointed_memory_is_one_piece,
    partition_is_understood,
    preset_divides,
    compile_passes_compose,
)
