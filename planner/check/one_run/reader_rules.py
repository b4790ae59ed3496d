"""`"auto"`, judged by the program that hands the DeepSpeed file to the engine.

In: the files and the context. Out: Problems. Answers: which "auto" does this reader fill, which does it refuse, and
which reaches DeepSpeed? Source: transformers 5.24 integrations/deepspeed.py (`trainer_config_process`, `_finalize`),
accelerate 1.15 accelerator.py (`_prepare_deepspeed`) and utils/dataclasses.py (DeepSpeedPlugin), seen by running.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.check.context import Context, Reader
from planner.check.one_file.deepspeed_rules import section, stage_of
from planner.check.one_run.run_facts import deepspeed_yaml, launch_flag, named_file, reader_of
from planner.check.rules import finding
from planner.check.together import Together
from planner.records.problem import Edit, EditKind, Problem, Severity

ZERO = "$.zero_optimization"
BATCH = ("$.train_batch_size", "$.train_micro_batch_size_per_gpu", "$.gradient_accumulation_steps")
BUCKETS = tuple(
    f"{ZERO}.{key}"
    for key in ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
)
SCHEDULE = tuple(
    f"$.scheduler.params.{key}" for key in ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")
)
# Filled by accelerate, and so by the Trainer too, which hands its file to accelerate.
BY_ACCELERATE = {
    *BATCH,
    *BUCKETS,
    *SCHEDULE,
    "$.gradient_clipping",
    "$.steps_per_print",
    "$.fp16.enabled",
    "$.bf16.enabled",
    f"{ZERO}.stage",
    f"{ZERO}.stage3_gather_16bit_weights_on_model_save",
    *(f"{ZERO}.offload_{part}.{key}" for part in ("optimizer", "param") for key in ("device", "nvme_path")),
    "$.optimizer.params.lr",
    "$.optimizer.params.weight_decay",
}
UNCHOSEN = {
    f"{ZERO}.stage": "accelerate writes its own default, stage 2, whatever was meant",
    **dict.fromkeys(
        (f"{ZERO}.offload_{part}.device" for part in ("optimizer", "param")),
        "accelerate writes `none`: nothing is offloaded",
    ),
}
"""Filled with a default of accelerate's that nobody chose: the YAML may not say it beside a file."""
BY_TRAINER = {*BY_ACCELERATE, "$.optimizer.params.betas", "$.optimizer.params.eps"}
FILLED = {Reader.TRAINER: BY_TRAINER, Reader.ACCELERATE: BY_ACCELERATE}
DEEPSPEEDS_OWN = (
    *(f"{ZERO}.zenflow.{key}" for key in ("select_strategy", "select_interval", "update_interval")),
    *("$.pipeline.stages", "$.data_types.keep_in_fp32_modules"),
    *(f"$.expert_parallel.{key}" for key in ("score_apply", "combine_impl", "row_weighting_impl", "score_func")),
    *(f"$.expert_parallel.{key}" for key in ("top_k", "routed_scaling_factor")),
)
"""Here "auto" is a value of DeepSpeed itself, its default; accelerate refuses it all the same."""
WHEN_PLAIN = {
    **dict.fromkeys(BATCH, "config"),
    **dict.fromkeys(("$.gradient_clipping", "$.steps_per_print"), "first step"),
}


def autos(value: Any, path: str = "$") -> Iterator[str]:
    """The paths of every "auto" in sections of a document; lists are not looked into, no reader does."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from autos(inner, f"{path}.{key}")
    elif value == "auto":
        yield path


def auto_by_reader(together: Together, context: Context) -> Iterator[Problem]:
    file, reader = together.deepspeed, reader_of(together, context)
    if file is None or reader is None:
        return
    for path in autos(file.fields):
        if reader is Reader.DEEPSPEED:
            if path not in DEEPSPEEDS_OWN:
                yield _plain(path, file.name)
        elif path in UNCHOSEN:
            yield finding("DS014", path, UNCHOSEN[path], fix="write what is meant", file=file.name)
        elif path not in FILLED[reader]:
            who = "the Trainer" if reader is Reader.TRAINER else "accelerate"
            message = f'{who} does not fill `"auto"` here, and accelerate refuses what is left in `prepare`'
            edits = (Edit(kind=EditKind.REMOVE, path=path),) if _may_go(path) else ()
            yield finding(
                "DS014",
                path,
                message,
                fix="write a value, or leave the key out",
                bites="engine init",
                file=file.name,
                edits=edits,
            )


def _plain(path: str, file: str) -> Problem:
    if path in BATCH:
        message = 'nothing fills `"auto"` when the script calls deepspeed.initialize: TypeError when the file is read'
    elif path == "$.gradient_clipping":
        message = 'nothing fills `"auto"`: the comparison with the gradient norm raises TypeError'
    elif path == "$.steps_per_print":
        message = 'nothing fills `"auto"`: the steps are divided by it, TypeError'
    elif path.startswith(("$.optimizer", "$.scheduler")):
        message = 'nothing fills `"auto"`: the text goes to the constructor, which refuses it'
    elif path.endswith(".enabled"):
        what = path.removeprefix("$.").removesuffix(".enabled")
        message = f'DeepSpeed drops `"auto"`: `{what}` stays off, and the run is fp32 unless another precision is on'
    else:
        message = 'DeepSpeed drops `"auto"` and takes its own default'
    silent = path not in WHEN_PLAIN and not path.startswith(("$.optimizer", "$.scheduler"))
    bites = WHEN_PLAIN.get(path, "silently" if silent else "engine init")
    edits = (Edit(kind=EditKind.REMOVE, path=path),) if _may_go(path) else ()
    return finding("DS014", path, message, fix="write a value", bites=bites, file=file, edits=edits)


def _may_go(path: str) -> bool:
    """Whether the key can be left out and DeepSpeed's default is as good: sizes of ZeRO."""
    return path.startswith(f"{ZERO}.") and not path.endswith((".stage", ".device", ".nvme_path"))


def precision_left_open(together: Together, context: Context) -> Iterator[Problem]:
    """accelerate alone resolves "auto" by mixed_precision; without one it is off."""
    file, yaml = together.deepspeed, deepspeed_yaml(together)
    if file is None or yaml is None or reader_of(together, context) is not Reader.ACCELERATE:
        return
    if launch_flag(together, "mixed_precision") or yaml.fields.get("mixed_precision"):
        return
    switches = {name: section(file.fields, name).get("enabled") for name in ("bf16", "fp16")}
    for name, switch in switches.items():
        if switch == "auto" and True not in switches.values():
            message = "no `mixed_precision` is given, so accelerate switches it off: the run is fp32"
            fix, path = "write true, or start with `--mixed_precision`", f"$.{name}.enabled"
            warning = Severity.WARNING
            yield finding("DS014", path, message, fix=fix, severity=warning, bites="silently", file=file.name)


def init_flag_below_stage_three(together: Together, context: Context) -> Iterator[Problem]:
    """zero3_init_flag in the YAML, the stage in the file that it names."""
    file, yaml = together.deepspeed, deepspeed_yaml(together)
    if file is None or yaml is None or named_file(yaml.fields) is None:
        return
    flag, stage = section(yaml.fields, "deepspeed_config").get("zero3_init_flag"), stage_of(file.fields)
    if flag is True and stage < 3:
        path = "$.deepspeed_config.zero3_init_flag"
        message = f"accelerate warns at stage {stage} and switches it off"
        edits = (Edit(kind=EditKind.SET, path=path, value=False),)
        yield finding("DS132", path, message, fix="write false", file=yaml.name, edits=edits)


def divided_total(together: Together, context: Context) -> Iterator[Problem]:
    """DummyScheduler's total is divided by the processes, its warm-up is not."""
    file = together.deepspeed
    if file is None or reader_of(together, context) is not Reader.ACCELERATE:
        return
    if section(file.fields, "scheduler", "params").get("total_num_steps") == "auto":
        message = (
            "accelerate divides the total of DummyScheduler by the number of processes, the warm-up not: the learning "
            "rate reaches its end too early if the script counts optimizer steps"
        )
        fix = "write the number of optimizer steps, or leave the scheduler to the script"
        yield finding("DS068", "$.scheduler.params.total_num_steps", message, fix=fix, file=file.name)


def needs_zero_section(together: Together, context: Context) -> Iterator[Problem]:
    """accelerate, and the Trainer through it, refuse a file without zero_optimization."""
    file, reader = together.deepspeed, reader_of(together, context)
    missing = file is not None and "zero_optimization" not in file.fields
    if file is not None and reader in FILLED and isinstance(file.fields.get("zero_optimization"), bool):
        message = "accelerate looks for `stage` in it, and a bare true or false has none"
        yield finding("DS069", ZERO, message, fix='write `{"stage": 1}` for true', file=file.name)
    if file is not None and reader in FILLED and missing and file.fields:
        message = "accelerate refuses a DeepSpeed file without `zero_optimization`"
        edits = (Edit(kind=EditKind.SET, path=ZERO, value={"stage": 0}),)
        yield finding(
            "DS069", ZERO, message, fix='add `"zero_optimization": {"stage": 0}`', file=file.name, edits=edits
        )


def checkpointing_block(together: Together, context: Context) -> Iterator[Problem]:
    """transformers checkpoints by itself; DeepSpeed's block reaches code that calls deepspeed.checkpointing only."""
    file = together.deepspeed
    if file is None or reader_of(together, context) is not Reader.TRAINER:
        return
    block = section(file.fields, "activation_checkpointing")
    keys = ("partition_activations", "cpu_checkpointing", "contiguous_memory_optimization", "number_checkpoints")
    if any(block.get(key) not in (None, False, "auto") for key in keys):
        message = "Hugging Face models do not call DeepSpeed's checkpointing, so the block has no effect"
        fix = "set `gradient_checkpointing` in TrainingArguments, and leave the block out"
        path = "$.activation_checkpointing"
        edits = (Edit(kind=EditKind.REMOVE, path=path),)
        yield finding("DS070", path, message, fix=fix, file=file.name, edits=edits)


RULES = (
    auto_by_reader,
    precision_left_open,
    init_flag_below_stage_three,
    divided_total,
    needs_zero_section,
    checkpointing_block,
)
