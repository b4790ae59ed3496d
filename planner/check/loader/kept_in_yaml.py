"""A wrong value of an Accelerate file that accelerate lets through: what becomes of it?

In: the document, the place and the value. Out: an Outcome. Answers: is it converted, unused, or kept until the launcher
of torch or the worker trips over it? Sources: accelerate 1.15, commands/launch.py, utils/launch.py and
utils/dataclasses.py; torch/distributed/run.py for the counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.check.loader.kept import Outcome
from planner.check.loader.lax import TRUE_WORDS
from planner.check.loader.typed import parses
from planner.records.problem import Severity

SECTIONS = ("deepspeed_config", "fsdp_config", "megatron_lm_config", "parallelism_config")
COUNTS = ("$.num_processes", "$.num_machines", "$.main_process_port")


def outcome_in_yaml(config: Mapping[str, Any], path: str, value: Any) -> Outcome:
    """What accelerate makes of a value that does not suit the schema."""
    machines = config.get("num_machines", 1)
    several = isinstance(machines, (int, float)) and machines > 1
    if path == "$.distributed_type" and value is False and not any(config.get(name) for name in SECTIONS):
        return _warning("; it starts the script plainly, as 'NO' does")
    if path == "$.distributed_type":
        return _error("silently", "; accelerate then starts the script plainly, without DeepSpeed or FSDP")
    if path.endswith(".zero3_save_16bit_model") and str(value).lower() != "true":
        meant = str(value).lower() in TRUE_WORDS
        return _error("silently", "; only true counts here") if meant else _warning("; accelerate reads it as false")
    if path == "$.num_processes" and value == "auto" and not several and config.get("distributed_type") != "DEEPSPEED":
        return _warning("; torchrun then counts the GPUs itself")
    if path in COUNTS and not (isinstance(value, (str, bool, float)) and parses(int, value)):
        return _error("launch", "")
    if path.endswith(".deepspeed_multinode_launcher") and several:
        return _error("launch", "; DeepSpeed's launcher knows no such word")
    if path == "$.machine_rank" and several and not parses(int, value):
        return _error("launch", "")
    return _warning("; accelerate converts it, or does not use it")


def _error(bites: str, note: str) -> Outcome:
    return Outcome(severity=Severity.ERROR, bites=bites, note=note)


def _warning(note: str) -> Outcome:
    return Outcome(severity=Severity.WARNING, bites="silently", note=note)
