"""What DeepSpeed's loader refuses and no other rule has named.

In: the document with the problems already found, or the files and the context. Out: Problems. Answers: is there an
error wherever `DeepSpeedConfig` would raise?
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.check.context import Context, Reader
from planner.check.loader import batch_refusals, refusals
from planner.check.loader.launching import launch_refusals
from planner.check.loader.typed import flag
from planner.check.one_file.schema import load_schema
from planner.check.one_run.argument_rules import wanted_values
from planner.check.one_run.run_facts import argument_is_on, argument_is_told, ranks_of, reader_of
from planner.check.rules import finding, rename, take_out, write
from planner.check.together import Kind, Together
from planner.errors import one_line
from planner.records.problem import Problem, Severity

RULE_OF = {
    "$.train_batch_size": "DS021",
    "$.train_micro_batch_size_per_gpu": "DS021",
    "$.gradient_allreduce_op": "DS064",
    "$.zero_optimization.compute_grad_norm": "DS061",
    "$.zero_optimization.offload_optimizer.ratio": "DS043",
}
ZERO = "$.zero_optimization"
LOOKED_INTO = (
    *(ZERO, f"{ZERO}.offload_optimizer", f"{ZERO}.offload_param", "$.optimizer", "$.optimizer.params"),
    *("$.scheduler", "$.scheduler.params", "$.fp16", "$.bf16"),
)
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")


def unreported(config: Mapping[str, Any], problems: Sequence[Problem], kind: Kind) -> list[Problem]:
    """A finding for each refused place without an error of its own."""
    named = {problem.path for problem in problems if problem.severity is Severity.ERROR}
    refused = launch_refusals(config) if kind is Kind.ACCELERATE else refusals(config, load_schema("deepspeed"))
    reader, rule = ("accelerate", "DS112") if kind is Kind.ACCELERATE else ("DeepSpeed", "DS013")
    return [_refused(config, path, reason, reader, rule) for path, reason in refused.items() if path not in named]


def batch_with_ranks(together: Together, context: Context) -> Iterator[Problem]:
    """The batch sizes against the number of ranks, exactly as DeepSpeed computes them."""
    file, ranks = together.deepspeed, ranks_of(together, context)
    reader = reader_of(together, context)
    if file is None or ranks is None or reader is Reader.TRAINER:
        return
    if isinstance(file.document, Mapping) and together.training is None:
        added = {BATCH[2]: 1} if reader is Reader.ACCELERATE else {}  # accelerate adds the key
        for path, reason in batch_refusals({**added, **file.document}, ranks):
            yield _refused(file.document, path, f"{reason}, with {ranks} ranks", file=file.name)


def after_filling(together: Together, context: Context) -> Iterator[Problem]:
    """What DeepSpeed refuses once the Trainer has put its arguments in place of each "auto"."""
    file, training = together.deepspeed, together.training
    if file is None or training is None or reader_of(together, context) is not Reader.TRAINER:
        return
    wanted = {path: one.value for path, one in wanted_values(together, context)}
    ranks, config = ranks_of(together, context), file.fields
    batch = {name: _filled(config.get(name), wanted.get(f"$.{name}")) for name in BATCH}
    if BATCH[2] not in config:
        batch[BATCH[2]] = 1  # accelerate adds the key
    if ranks is not None and "auto" not in batch.values():
        for path, reason in batch_refusals(batch, ranks):
            yield _refused(batch, path, f"{reason}, with {ranks} ranks", file=file.name)
    if not argument_is_told(together, "fp16", "bf16"):
        return
    precision = next((half for half in ("fp16", "bf16") if argument_is_on(together, half)), "no")
    on = {half: _is_on(config, wanted, half, precision) for half in ("fp16", "bf16")}
    other = {"fp16": "bf16", "bf16": "fp16"}.get(precision)
    if all(on.values()) or (other and on[other]):  # accelerate compares with the arguments' precision
        message, fix = "with these arguments `fp16` and `bf16` are both on", "switch one of them off"
        yield finding("DS030", "$.fp16.enabled", message, fix=fix, file=file.name)


def sections_looked_into(together: Together, context: Context) -> Iterator[Problem]:
    """Where the Trainer and accelerate look for keys, only a section will do, null too; null is no accumulation."""
    file = together.deepspeed
    if file is None or reader_of(together, context) not in (Reader.TRAINER, Reader.ACCELERATE):
        return
    for path in LOOKED_INTO:
        value = _value_at(file.fields, path)
        if value is not None and not isinstance(value, (Mapping, bool) if path == ZERO else Mapping):
            later = path == "$.scheduler.params" and reader_of(together, context) is Reader.ACCELERATE
            who = "the engine" if later else "accelerate"
            problem = _refused(file.fields, path, "a section is needed", who, file=file.name)
            yield replace(problem, bites="engine init") if later else problem
    if BATCH[2] in file.fields and file.fields[BATCH[2]] is None:
        message, path = "accelerate multiplies with it, and null is no number", f"$.{BATCH[2]}"
        fix = "write a number, or leave the key out"
        yield finding("DS013", path, message, fix=fix, bites="engine init", file=file.name, edits=take_out(path))


def total_without_micro_batch(together: Together, context: Context) -> Iterator[Problem]:
    """accelerate computes the total from the micro-batch of the file, or of the data loader where that is "auto"."""
    file = together.deepspeed
    if file is None or reader_of(together, context) is not Reader.ACCELERATE:
        return
    if file.fields.get(BATCH[0]) == "auto" and file.fields.get(BATCH[1]) is None:
        message = f'accelerate cannot fill `"auto"` here: `{BATCH[1]}` is not given, not even as "auto"'
        edits = write(f"$.{BATCH[1]}", "auto")
        fix = f'add `"{BATCH[1]}": "auto"`'
        yield finding("DS014", f"$.{BATCH[0]}", message, fix=fix, bites="engine init", file=file.name, edits=edits)


def old_name_of_bf16(together: Together, context: Context) -> Iterator[Problem]:
    """accelerate adds a `bf16` section of its own, and DeepSpeed then does not look at `bfloat16`."""
    file, reader = together.deepspeed, reader_of(together, context)
    if file is None or reader not in (Reader.TRAINER, Reader.ACCELERATE) or "bf16" in file.fields:
        return
    if (
        flag(file.fields, "bfloat16", "enabled")
        and not argument_is_on(together, "bf16")
        and argument_is_told(together, "bf16")
    ):
        message = "accelerate adds `bf16`, switched off, and DeepSpeed then does not read `bfloat16`: the run is fp32"
        edits = rename("$.bfloat16", "bf16")
        yield finding("DS011", "$.bfloat16", message, fix="write `bf16`", file=file.name, edits=edits)


def full_evaluation(together: Together, context: Context) -> Iterator[Problem]:
    """TrainingArguments refuses both precisions at once for the evaluation too."""
    training, names = together.training, ("fp16_full_eval", "bf16_full_eval")
    if training is not None and all(argument_is_on(together, name) for name in names):
        message = "`fp16_full_eval` and `bf16_full_eval` are both set: the Trainer refuses the pair"
        yield finding("DS306", "$.fp16_full_eval", message, fix="leave one of them out", file=training.name)


def _filled(given: Any, wanted: Any) -> Any:
    return wanted if given == "auto" and wanted is not None else given


def _is_on(config: Mapping[str, Any], wanted: Mapping[str, Any], half: str, precision: str) -> bool:
    """accelerate adds the section of the arguments' precision where the file has none."""
    section = config.get(half)
    if not isinstance(section, Mapping):
        return half == precision
    return bool(wanted[f"$.{half}.enabled"]) if section.get("enabled") == "auto" else flag(config, half, "enabled")


def _refused(
    config: Mapping[str, Any], path: str, reason: str, reader: str = "DeepSpeed", rule: str = "DS013", file: str = ""
) -> Problem:
    rule = RULE_OF.get(path, rule)
    value = one_line(json.dumps(_value_at(config, path), default=str))
    shown = value if len(value) <= 80 else value[:77] + "..."
    message = f"{reader} refuses `{shown}` here: {reason}"
    return finding(rule, path, message, fix="write what is needed, or leave the key out", bites="config", file=file)


def _value_at(config: Any, path: str) -> Any:
    for key, index in STEP.findall(path):
        try:
            config = config[int(index) if index else key]
        except (KeyError, IndexError, TypeError):
            return None
    return config


RULES = (
    batch_with_ranks,
    after_filling,
    sections_looked_into,
    total_without_micro_batch,
    old_name_of_bf16,
    full_evaluation,
)
