"""Training arguments that do not reach DeepSpeed, because the file has no place for them.

In: the files and the context. Out: Problems. Answers: which argument does the Trainer not hand on, and what counts
instead? Source: transformers 5.24 integrations/deepspeed.py `fill_match`, seen by running: "auto" is filled, a key that
is absent is not added; then the constructor of DeepSpeed's optimizer or scheduler has its own default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.check.context import Context, Reader
from planner.check.one_file.deepspeed_rules import section
from planner.check.one_file.training_rules import constructor_of
from planner.check.one_run.argument_rules import wanted_values
from planner.check.one_run.run_facts import argument, argument_is_told, launch_flag, reader_of
from planner.check.rules import finding, write
from planner.check.together import Together
from planner.records.problem import Problem, Severity

ADAM_DEFAULTS: Mapping[str, Any] = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
"""Of FusedAdam and DeepSpeedCPUAdam (deepspeed/ops/adam, 0.19.8)."""
DEEPSPEEDS_ADAM = ("FusedAdam", "DeepSpeedCPUAdam")
GIVEN_BY = {
    "lr": ("learning_rate",),
    "betas": ("adam_beta1", "adam_beta2"),
    "eps": ("adam_epsilon",),
    "weight_decay": ("weight_decay",),
    "warmup_num_steps": ("warmup_steps", "warmup_ratio"),
}
SETS_THE_RATE = ("warmup_max_lr", "cycle_max_lr", "lr_range_test_min_lr")
WARM_UP_BY_DEFAULT = 1000
"""deepspeed/runtime/lr_schedules.py (0.19.8), WarmupLR, WarmupDecayLR and WarmupCosineLR."""
SCHEDULES = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")


def optimizer_gets_the_arguments(together: Together, context: Context) -> Iterator[Problem]:
    file = together.deepspeed
    if file is None or reader_of(together, context) is not Reader.TRAINER:
        return
    if constructor_of(file.fields) not in DEEPSPEEDS_ADAM:
        return
    params, schedule = section(file.fields, "optimizer", "params"), section(file.fields, "scheduler", "params")
    for key, default in ADAM_DEFAULTS.items():
        if key not in params and not (key == "lr" and any(name in schedule for name in SETS_THE_RATE)):
            yield from _left_out(together, context, f"$.optimizer.params.{key}", default, file.name)


def schedule_gets_the_warm_up(together: Together, context: Context) -> Iterator[Problem]:
    file = together.deepspeed
    if file is None or reader_of(together, context) is not Reader.TRAINER:
        return
    given = section(file.fields, "scheduler", "params")
    if section(file.fields, "scheduler").get("type") in SCHEDULES and "warmup_num_steps" not in given:
        yield from _left_out(together, context, "$.scheduler.params.warmup_num_steps", WARM_UP_BY_DEFAULT, file.name)


def _left_out(together: Together, context: Context, path: str, default: Any, file: str) -> Iterator[Problem]:
    """A key that is absent: an error where an argument says another number, a warning for one left at its default."""
    wanted = dict(wanted_values(together, context)).get(path)
    if wanted is None or wanted.value == default:
        return
    names = GIVEN_BY[path.rpartition(".")[2]]
    given = [name for name in names if argument(together, name) is not None]
    message = f"{wanted.by} {wanted.value} is not used: the key is absent, and DeepSpeed takes {default}"
    severity = None if given else Severity.WARNING
    yield finding("DS302", path, message, fix='add "auto"', severity=severity, file=file, edits=write(path, "auto"))


def deepspeed_file_is_named(together: Together, context: Context) -> Iterator[Problem]:
    """Without a word of the file the Trainer starts plain data parallelism."""
    training, launch = together.training, together.launch
    if together.deepspeed is None or training is None or together.accelerate:
        return
    told = argument(together, "deepspeed") is not None or not argument_is_told(together, "deepspeed")
    by_flag = any(launch_flag(together, name) is not None for name in ("deepspeed_config_file", "config_file"))
    if told or by_flag or (launch is not None and "deepspeed" in section(launch.fields, "script_flags")):
        return
    message = "no argument names the DeepSpeed file: where the script does not either, the run is without it"
    fix = "set `deepspeed` to its path"
    yield finding("DS323", "$.deepspeed", message, fix=fix, file=training.name)


def accumulation_of_the_file(together: Together, context: Context) -> Iterator[Problem]:
    """accelerate adds the key with 1, and the file counts before `Accelerator(gradient_accumulation_steps=...)`."""
    file = together.deepspeed
    if file is None or reader_of(together, context) is not Reader.ACCELERATE:
        return
    if file.fields and "gradient_accumulation_steps" not in file.fields:
        path = "$.gradient_accumulation_steps"
        message = "not given: accelerate writes 1, and does not look at `Accelerator(gradient_accumulation_steps=...)`"
        fix = 'write the number, or "auto"'
        yield finding("DS133", path, message, fix=fix, file=file.name, edits=write(path, "auto"))


RULES = (
    optimizer_gets_the_arguments,
    schedule_gets_the_warm_up,
    deepspeed_file_is_named,
    accumulation_of_the_file,
)
