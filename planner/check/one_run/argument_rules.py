"""TrainingArguments against the DeepSpeed file and the Accelerate file.

In: the files and the context. Out: Problems. Answers: which numbers are written in two places and differ, and which
argument is not used? Source: transformers 5.24 integrations/deepspeed.py `fill_match`, seen by running: an explicit
number in the file has to equal the argument, also one that is left at its default, else one ValueError lists them all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.check.context import Context, Reader
from planner.check.one_file.deepspeed_rules import section
from planner.check.one_run.run_facts import (
    argument,
    argument_is_on,
    argument_is_told,
    deepspeed_yaml,
    launch_flag,
    lone_yaml,
    named_file,
    number,
    ranks_of,
    reader_of,
    whole,
    yaml_of,
)
from planner.check.rules import finding
from planner.check.together import File, Together
from planner.records.problem import Edit, EditKind, Problem, Severity

DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_grad_norm": 1.0,
    "learning_rate": 5e-5,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "warmup_steps": 0,
    "max_steps": -1,
}
"""Source: transformers 5.24, TrainingArguments; a test compares them with the installed class."""
OLD_NAMES = {"per_device_train_batch_size": ("per_gpu_train_batch_size",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the arguments say for one key of the DeepSpeed file; `by` names the arguments."""

    value: Any
    by: str


def argument_value(together: Together, name: str) -> Any:
    """A number among the arguments, its default where it is not given; None where it cannot be told."""
    for spelling in (name, *OLD_NAMES.get(name, ())):
        given = argument(together, spelling)
        if given is not None:
            return number(given)
    return DEFAULTS[name] if argument_is_told(together, name) else None


def wanted_values(together: Together, context: Context) -> Iterator[tuple[str, Wanted]]:
    """Each key that the Trainer compares, as a JSON path, with what the arguments say."""
    simple = {
        "$.train_micro_batch_size_per_gpu": "per_device_train_batch_size",
        "$.gradient_accumulation_steps": "gradient_accumulation_steps",
        "$.gradient_clipping": "max_grad_norm",
        "$.optimizer.params.lr": "learning_rate",
        "$.optimizer.params.eps": "adam_epsilon",
        "$.optimizer.params.weight_decay": "weight_decay",
        "$.scheduler.params.warmup_max_lr": "learning_rate",
    }
    finds_batch = argument_is_on(together, "auto_find_batch_size")
    for path, name in simple.items():
        value = argument_value(together, name)
        if value is not None and not (finds_batch and name == "per_device_train_batch_size"):
            yield path, Wanted(value=value, by=_named(together, name))
    betas = [argument_value(together, name) for name in ("adam_beta1", "adam_beta2")]
    if None not in betas:
        yield "$.optimizer.params.betas", Wanted(value=betas, by="`adam_beta1` and `adam_beta2`")
    total = _total(together, ranks_of(together, context))
    if total is not None and not finds_batch:
        yield "$.train_batch_size", Wanted(value=total, by="ranks x `per_device_train_batch_size` x accumulation =")
    for half in ("fp16", "bf16"):
        if not argument_is_told(together, half, f"{half}_full_eval"):
            continue
        on = argument_is_on(together, half, f"{half}_full_eval")
        yield f"$.{half}.enabled", Wanted(value=on, by=_named(together, half))
    steps = argument_value(together, "max_steps")
    if steps is not None and steps > 0:
        yield "$.scheduler.params.total_num_steps", Wanted(value=steps, by="`max_steps`")
    warmup = _warmup(together, steps)
    if warmup is not None:
        yield "$.scheduler.params.warmup_num_steps", Wanted(value=warmup, by="warm-up steps")


def _named(together: Together, name: str) -> str:
    return f"`{name}`" + ("" if argument(together, name) is not None else " (not given: the default)")


def _total(together: Together, ranks: int | None) -> int | None:
    micro, accumulation = (
        whole(argument_value(together, name)) for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
    )
    return ranks * micro * accumulation if ranks and micro and accumulation else None


def _warmup(together: Together, max_steps: float | None) -> int | None:
    """Warm-up steps as the Trainer counts them, at least 1; a share of the steps needs `max_steps`."""
    given = argument_value(together, "warmup_steps")
    ratio = number(argument(together, "warmup_ratio", 0)) if argument_is_told(together, "warmup_ratio") else None
    if ratio is None:
        return None
    share = ratio if ratio and not given else given
    if share is None or share < 0:
        return None
    if share >= 1 or share == 0:
        return max(1, int(share))
    return max(1, math.ceil(max_steps * share)) if max_steps and max_steps > 0 else None


def file_equals_arguments(together: Together, context: Context) -> Iterator[Problem]:
    file = together.deepspeed
    if file is None or together.training is None or reader_of(together, context) is not Reader.TRAINER:
        return
    for path, wanted in wanted_values(together, context):
        there, given = _value_at(file, path)
        if not there or given is None or given == "auto" or _equal(given, wanted.value):
            continue
        message = (
            f"`{_text(given)}` here, {wanted.by} {_text(wanted.value)} in the arguments: the Trainer refuses the pair"
        )
        edits = (Edit(kind=EditKind.SET, path=path, value="auto"),)
        yield finding("DS301", path, message, fix='write "auto", or the same value', file=file.name, edits=edits)


def _value_at(file: File, path: str) -> tuple[bool, Any]:
    *sections, key = path.removeprefix("$.").split(".")
    values = section(file.fields, *sections)
    return key in values, values.get(key)


def _equal(given: Any, wanted: Any) -> bool:
    """As Python compares them: "8" is not 8, true is 1."""
    return bool(given == wanted)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def fixed_total_of_steps(together: Together, context: Context) -> Iterator[Problem]:
    """A number of steps that the Trainer will count for itself."""
    file = together.deepspeed
    if file is None or together.training is None or reader_of(together, context) is not Reader.TRAINER:
        return
    known = dict(wanted_values(together, context))
    for key, counted in (
        ("total_num_steps", "epochs and data"),
        ("warmup_num_steps", "a share of all steps"),
    ):
        path = f"$.scheduler.params.{key}"
        there, given = _value_at(file, path)
        if there and given not in (None, "auto") and path not in known:
            message = f"the Trainer computes the number from {counted} and refuses any other"
            edits = (Edit(kind=EditKind.SET, path=path, value="auto"),)
            fix = 'write "auto"'
            yield finding("DS301", path, message, fix=fix, severity=Severity.WARNING, file=file.name, edits=edits)


def total_is_a_multiple(together: Together, context: Context) -> Iterator[Problem]:
    """Without the number of ranks a total can still be impossible."""
    file = together.deepspeed
    if file is None or together.training is None or ranks_of(together, context) is not None:
        return
    if reader_of(together, context) is not Reader.TRAINER or argument_is_on(together, "auto_find_batch_size"):
        return
    total, part = whole(file.fields.get("train_batch_size")), _total(together, 1)
    if total and part and total % part:
        message = f"`{total}` is no multiple of `per_device_train_batch_size` x accumulation = {part}"
        edits = (Edit(kind=EditKind.SET, path="$.train_batch_size", value="auto"),)
        yield finding("DS301", "$.train_batch_size", message, fix='write "auto"', file=file.name, edits=edits)


def clipping_reaches_deepspeed(together: Together, context: Context) -> Iterator[Problem]:
    """The Trainer fills "auto", and never adds a key: what is absent is DeepSpeed's default."""
    file = together.deepspeed
    if file is None or together.training is None or reader_of(together, context) is not Reader.TRAINER:
        return
    norm = argument_value(together, "max_grad_norm")
    default = 1.0 if context.release >= (0, 19, 3) else 0.0
    if "gradient_clipping" not in file.fields and norm is not None and norm != default:
        does = f"clips at {default}" if default else "does not clip"
        message = f"`max_grad_norm` {_text(norm)} is not used: the key is absent, and DeepSpeed {does}"
        edits = (Edit(kind=EditKind.SET, path="$.gradient_clipping", value="auto"),)
        fix = 'add `"gradient_clipping": "auto"`'
        yield finding("DS302", "$.gradient_clipping", message, fix=fix, file=file.name, edits=edits)


def yaml_equals_arguments(together: Together, context: Context) -> Iterator[Problem]:
    """The plugin that accelerate makes of the YAML is compared with the arguments like a file."""
    yaml = lone_yaml(together)
    if yaml is None or together.training is None or reader_of(together, context) is not Reader.TRAINER:
        return
    if argument(together, "deepspeed"):
        return
    block = section(yaml.fields, "deepspeed_config")
    for key, name in (
        ("gradient_accumulation_steps", "gradient_accumulation_steps"),
        ("gradient_clipping", "max_grad_norm"),
    ):
        given, wanted = block.get(key), argument_value(together, name)
        if number(given) is None or wanted is None or number(given) == wanted or (key, given) == _no_clipping:
            continue
        path = f"$.deepspeed_config.{key}"
        message = f"`{given}` here, {_named(together, name)} {_text(wanted)} in the arguments: the Trainer refuses it"
        edits = (Edit(kind=EditKind.REMOVE, path=path),)
        yield finding("DS303", path, message, fix="leave it out here", file=yaml.name, edits=edits)
    mixed = yaml.fields.get("mixed_precision")
    on = [half for half in ("bf16", "fp16") if argument_is_on(together, half, f"{half}_full_eval")]
    told = argument_is_told(together, "bf16", "bf16_full_eval", "fp16", "fp16_full_eval")
    if mixed in ("bf16", "fp16") and told and not on:
        message = f"`{mixed}` here, and `{mixed}` is not set in the arguments: the Trainer refuses the pair"
        fix = f"set `{mixed}` to true in the arguments"
        edits = (Edit(kind=EditKind.SET, path=f"$.{mixed}", value=True, file=together.training.name),)
        yield finding("DS303", "$.mixed_precision", message, fix=fix, file=yaml.name, edits=edits)


_no_clipping = ("gradient_clipping", 0)


def precision_of_the_yaml(together: Together, context: Context) -> Iterator[Problem]:
    """The Trainer hands accelerate the arguments' own precision, whatever the launcher was told, without a word."""
    yaml = yaml_of(together)
    if yaml is None or together.training is None or reader_of(together, context) is not Reader.TRAINER:
        return
    if named_file(yaml.fields) is not None or launch_flag(together, "mixed_precision") is not None:
        return
    if argument(together, "deepspeed") and deepspeed_yaml(together) is not None:
        return  # refused: DS120
    mixed = yaml.fields.get("mixed_precision")
    other = {"bf16": "fp16", "fp16": "bf16"}.get(mixed) if isinstance(mixed, str) else None
    if other and argument_is_on(together, other) and not argument_is_on(together, str(mixed)):
        message = f"`{mixed}` here, and the arguments switch `{other}` on: the run is in {other}"
        edits = (Edit(kind=EditKind.SET, path="$.mixed_precision", value=other),)
        fix = f"write {other} here, or set `{mixed}` in the arguments"
        path, name = "$.mixed_precision", yaml.name
        yield finding("DS303", path, message, fix=fix, bites="silently", file=name, edits=edits)


RULES = (
    file_equals_arguments,
    fixed_total_of_steps,
    total_is_a_multiple,
    clipping_reaches_deepspeed,
    yaml_equals_arguments,
    precision_of_the_yaml,
)
