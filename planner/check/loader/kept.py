"""A wrong value that the loader lets through: what becomes of it?

In: the place, the value, and what the schema wants there. Out: an Outcome. Answers: is it converted, read as true or
false, or kept until something else trips over it, and when? Sources: deepspeed/runtime/engine.py of DeepSpeed 0.19.8
and what it calls; each `bites` that is not "config" was read there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.check.loader.lax import FALSE_WORDS, TRUE_WORDS
from planner.check.loader.plain import REDUCTIONS
from planner.records.problem import Severity

PLAIN = (
    *("optimizer", "scheduler", "torch_autocast", "data_types", "activation_checkpointing", "pipeline", "checkpoint"),
    *("aio", "flops_profiler", "autotuning", "data_efficiency", "expert_parallel", "datastates_ckpt"),
)
# When a value of a wrong kind is first used, by the start of its path; the longest start counts.
USED = {
    "$.steps_per_print": "first step",
    "$.gradient_clipping": "first step",
    "$.gradient_predivide_factor": "first step",
    "$.log_level": "engine init",
    "$.sequence_parallel_size": "engine init",
    "$.data_parallel_size": "engine init",
    "$.optimizer": "engine init",
    "$.scheduler": "engine init",
    "$.torch_autocast": "engine init",
    "$.data_types": "engine init",
    "$.aio": "engine init",
    "$.expert_parallel": "engine init",
    "$.flops_profiler": "first step",
    "$.checkpoint": "save",
}
ANY_CASE = {
    "$.communication_data_type": ("fp16", "bf16", "fp32"),
    "$.seq_parallel_communication_data_type": ("fp16", "bf16", "fp32"),
    "$.gradient_allreduce_op": REDUCTIONS,
    "$.log_level": ("debug", "info", "warning", "error", "critical"),
}
EMPTY_IS_FINE = ("$.optimizer.params", "$.bf16", "$.bfloat16", "$.expert_parallel")
BATCH = ("$.train_batch_size", "$.train_micro_batch_size_per_gpu", "$.gradient_accumulation_steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How bad it is, when it shows, and what happens in words."""

    severity: Severity
    bites: str
    note: str


def outcome_of(path: str, value: Any, schema: Mapping[str, Any]) -> Outcome | None:
    """What DeepSpeed makes of a value that does not suit the schema; None: just what was meant."""
    if isinstance(value, str) and value.lower() in ANY_CASE.get(path, ()):
        return None
    if path == "$.tensor_parallel.autotp_size" and isinstance(value, str):  # read from the plain document too
        return Outcome(severity=Severity.ERROR, bites="engine init", note="; DeepSpeed compares the text with a number")
    if is_typed(path):
        return Outcome(severity=Severity.WARNING, bites="silently", note="; DeepSpeed converts it")
    if schema.get("type") == "boolean":
        return _as_switch(value)
    if (path in EMPTY_IS_FINE and not value) or (path in BATCH and value is None):
        return Outcome(severity=Severity.WARNING, bites="silently", note="; DeepSpeed takes it as not given")
    if path in BATCH:
        whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
        severity = Severity.WARNING if whole else Severity.ERROR
        return Outcome(severity=severity, bites="silently", note="; DeepSpeed calculates with it as it is")
    if path == "$.gradient_clipping" and isinstance(value, (int, float)) and not math.isnan(value):
        note = "; below 0 nothing is clipped" if value < 0 else "; DeepSpeed converts it"
        return Outcome(severity=Severity.WARNING, bites="silently", note=note)
    if path == "$.vocabulary_size" or path.startswith(("$.pipeline.", "$.activation_checkpointing.")):
        return Outcome(severity=Severity.WARNING, bites="silently", note="; without effect on most models")
    starts = [start for start in USED if path == start or path.startswith((f"{start}.", f"{start}["))]
    return Outcome(severity=Severity.ERROR, bites=USED[max(starts, key=len)] if starts else "silently", note="")


def is_typed(path: str) -> bool:
    """Whether a model converts the value; everything else stays as it is."""
    name = path.removeprefix("$.").partition(".")[0]
    return "." in path.removeprefix("$.") and name not in PLAIN


def _as_switch(value: Any) -> Outcome:
    """A plain switch is only asked whether it is true; every word is, "false" too."""
    reading = "true" if value else "false"
    word = value.strip().lower() if isinstance(value, str) else None
    same = word in TRUE_WORDS or value in (0, 1, None)
    if word is not None and (word in FALSE_WORDS or not word):
        same = not value
    severity = Severity.WARNING if same else Severity.ERROR
    return Outcome(severity=severity, bites="silently", note=f"; DeepSpeed reads it as {reading}")
