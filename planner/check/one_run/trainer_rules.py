"""TrainingArguments that the Trainer refuses for what runs beside them: FSDP, the schedule, the optimizer.

In: the files and the context. Out: Problems (DS308). Answers: does the Trainer take what the arguments and the
Accelerate file say together, and can the schedule be built? Source: transformers 5.24 trainer.py
`create_accelerator_and_postprocess`, optimization.py and trainer_optimizer.py; accelerate 1.15 utils/launch.py
`prepare_multi_gpu_env` and FullyShardedDataParallelPlugin; a test asks them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.check.context import Context, Reader
from planner.check.one_file.deepspeed_rules import section
from planner.check.one_file.trainer_facts import is_known, severity_of
from planner.check.one_file.trainer_rules import word_of
from planner.check.one_run.run_facts import (
    argument,
    argument_is_on,
    argument_is_told,
    deepspeed_yaml,
    fsdp_is_argued,
    launch_flag,
    number,
    reader_of,
    yaml_of,
)
from planner.check.reading.arguments import is_told
from planner.check.rules import finding, write
from planner.check.together import Together
from planner.records.problem import Problem

TRUE = ("y", "yes", "t", "true", "on", "1")
SHARDED = ("SHARDED_STATE_DICT", "3")
MIN_LR = ("num_cycles", "min_lr", "min_lr_rate")
SCHEDULES: Mapping[str, tuple[str, ...]] = {
    "linear": (),
    "cosine": ("num_cycles",),
    "cosine_with_restarts": ("num_cycles",),
    "polynomial": ("lr_end", "power"),
    "inverse_sqrt": ("timescale",),
    "cosine_with_min_lr": MIN_LR,
    "cosine_warmup_with_min_lr": (*MIN_LR, "warmup_lr_rate"),
    "warmup_stable_decay": (
        *("num_decay_steps", "num_stable_steps", "warmup_type", "decay_type", "min_lr_ratio", "num_cycles"),
    ),
}
"""What `lr_scheduler_kwargs` may name; a test compares the table with the installed functions. The constant schedules
look at none."""
LOW_RANK = ("galore_", "apollo_")


def fsdp_goes_with_arguments(together: Together, context: Context) -> Iterator[Problem]:
    """Checkpointing twice, and saves that hold no whole model."""
    training = together.training
    if training is None or reader_of(together, context) is not Reader.TRAINER or not _fsdp_is_on(together):
        return
    new = argument(together, "activation_checkpointing") is not None
    name = "activation_checkpointing" if new else "gradient_checkpointing"
    if _checkpoints(together) and argument_is_on(together, name):
        message = f"FSDP checkpoints activations already: the Trainer refuses `{name}` beside it"
        edits = write(f"$.{name}", value=False)
        yield finding("DS308", f"$.{name}", message, fix="write false here", file=training.name, edits=edits)
    if not argument_is_on(together, "save_only_model"):
        return
    if argument_is_on(together, "load_best_model_at_end"):
        message = "the Trainer refuses `save_only_model` with `load_best_model_at_end` under FSDP"
        yield finding("DS308", "$.save_only_model", message, fix="leave one of them out", file=training.name)
    elif str(_state_dict_type(together)).upper() in SHARDED:
        message = "FSDP saves sharded states: the Trainer refuses `save_only_model` with them"
        fix = "set `fsdp_state_dict_type` to FULL_STATE_DICT in the file that sets FSDP up"
        yield finding("DS308", "$.save_only_model", message, fix=fix, file=training.name)


def _launched_fsdp(together: Together) -> bool:
    """Whether accelerate starts FSDP."""
    yaml = yaml_of(together)
    flag = launch_flag(together, "use_fsdp")
    return flag is True or (yaml is not None and yaml.fields.get("distributed_type") == "FSDP")


def _fsdp_is_on(together: Together) -> bool:
    if argument(together, "deepspeed") or deepspeed_yaml(together) is not None:
        return False  # DS304
    return fsdp_is_argued(together) or _launched_fsdp(together)


def _own_setting(together: Together, name: str) -> Any:
    """A key of `fsdp_config`; None where it is not given or stands in a file of its own."""
    config = argument(together, "fsdp_config")
    config = _mapping(config) if isinstance(config, str) else config
    if not isinstance(config, Mapping):
        return None
    return config.get(f"fsdp_{name}", config.get(name))


def _launched_setting(together: Together, name: str) -> Any:
    """A flag of `accelerate launch`, or the key of its file."""
    flag, yaml = launch_flag(together, f"fsdp_{name}"), yaml_of(together)
    if flag is not None or yaml is None:
        return flag
    return section(yaml.fields, "fsdp_config").get(f"fsdp_{name}")


def _checkpoints(together: Together) -> bool:
    """FSDP's own checkpointing: what the arguments leave open comes from the launcher."""
    own = _own_setting(together, "activation_checkpointing") if fsdp_is_argued(together) else None
    if own is None and _launched_fsdp(together):
        own = _launched_setting(together, "activation_checkpointing")
    return str(own).lower() in TRUE


def _state_dict_type(together: Together) -> Any:
    """As the plugin has it: arguments give a full one, the launcher exports only what is given."""
    if fsdp_is_argued(together):
        return _own_setting(together, "state_dict_type")
    given = _launched_setting(together, "state_dict_type")
    version = _launched_setting(together, "version")
    return "SHARDED_STATE_DICT" if given is None and version in (2, "2") else given


def schedule_can_be_built(together: Together, context: Context) -> Iterator[Problem]:
    """`lr_scheduler_kwargs` against the function of the schedule; a scheduler in the DeepSpeed file comes first."""
    training = together.training
    if training is None or reader_of(together, context) is not Reader.TRAINER:
        return
    if together.deepspeed is not None and "scheduler" in together.deepspeed.fields:
        return
    schedule = word_of(training.fields, "lr_scheduler_type")
    given = argument(together, "lr_scheduler_kwargs")
    kwargs = _mapping(given) if isinstance(given, str) and is_told(given) else given if given is not None else {}
    if schedule is None or schedule not in SCHEDULES or not isinstance(kwargs, Mapping):
        return
    path, known = "$.lr_scheduler_kwargs", SCHEDULES[schedule]
    for key in kwargs:
        if key not in (*known, "last_epoch"):
            allowed = f"it takes {', '.join(known)}" if known else "it takes none"
            message = f"`{schedule}` has no parameter `{key}`: TypeError when the training starts"
            yield finding("DS308", path, message, fix=allowed, bites="engine init", file=training.name)
            return
    lacks = _lacks(schedule, kwargs)
    if lacks and is_known(training.fields, "lr_scheduler_kwargs"):
        severity = severity_of(training.fields, "lr_scheduler_kwargs")
        place = path if given is not None else "$.lr_scheduler_type"
        message, fix = f"`{schedule}` cannot be built: {lacks}", "give it in `lr_scheduler_kwargs`"
        yield finding("DS308", place, message, fix=fix, severity=severity, bites="engine init", file=training.name)


def _lacks(schedule: str, kwargs: Mapping[str, Any]) -> str:
    """What the schedule wants and does not get; empty where nothing is amiss."""
    if schedule == "warmup_stable_decay":
        return "" if "num_decay_steps" in kwargs else "it wants `num_decay_steps`"
    if "min_lr" not in SCHEDULES[schedule]:
        return ""
    ends = [key for key in ("min_lr", "min_lr_rate") if kwargs.get(key) is not None]
    return "" if len(ends) == 1 else "it wants `min_lr` or `min_lr_rate`" + (", not both" if ends else "")


def _mapping(text: str) -> Any:
    """Text as the Trainer reads it: JSON where it starts with a brace, else the name of a file."""
    try:
        return json.loads(text) if text.startswith("{") else None
    except (ValueError, RecursionError):
        return None


def low_rank_optimizers(together: Together, context: Context) -> Iterator[Problem]:
    """GaLore and APOLLO want the layers named, and by layer they take no accumulation."""
    training = together.training
    if training is None or reader_of(together, context) is not Reader.TRAINER:
        return
    if together.deepspeed is not None and "optimizer" in together.deepspeed.fields:
        return
    optimizer = word_of(training.fields, "optim")
    if optimizer is None or not optimizer.startswith(LOW_RANK):
        return
    found = []
    if argument(together, "optim_target_modules") is None and argument_is_told(together, "optim_target_modules"):
        message = f"`{optimizer}` wants `optim_target_modules`: the Trainer refuses to build it without"
        severity = severity_of(training.fields, "optim_target_modules")
        fix = "name the layers, or write all-linear"
        found.append(finding("DS308", "$.optim", message, fix=fix, severity=severity, bites="engine init"))
    steps = number(argument(together, "gradient_accumulation_steps"))
    if optimizer.endswith("layerwise") and steps is not None and steps > 1:
        message = f"`{optimizer}` takes no gradient accumulation: the Trainer refuses it"
        path = "$.gradient_accumulation_steps"
        found.append(finding("DS308", path, message, fix="write 1, or another `optim`", bites="engine init"))
    yield from (replace(problem, file=training.name) for problem in found)


RULES = (fsdp_goes_with_arguments, schedule_can_be_built, low_rank_optimizers)
