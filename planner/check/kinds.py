"""What a JSON or YAML file is.

In: the file's name and document, or its text where it cannot be read. Out: a Kind. Answers: is this a configuration of
DeepSpeed, of accelerate or of the Trainer, a file of a plan, or another program's? Told by the keys, since names vary;
by the name where no key tells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from planner.check.one_file.keys import A_FEW, letters_apart
from planner.check.one_file.training_names import NAMES
from planner.check.reading.read import Notation, notation_of
from planner.check.together import Kind

PLAN_KEYS = {"dsplan_version", "plans"}
SMOKE_KEYS = {"passed", "checks"}
LOOP_KEYS = {"epochs", "warmup_share"}  # loop_args.json of a plan, which only its train.py reads
# Keys that only one kind of file has at its top level.
ACCELERATE_KEYS = frozenset(
    (
        *("compute_environment", "distributed_type", "deepspeed_config", "mixed_precision", "num_machines"),
        *("num_processes", "machine_rank", "main_process_ip", "main_process_port", "main_training_function"),
        *("rdzv_backend", "same_network", "gpu_ids", "downcast_bf16", "dynamo_config", "megatron_lm_config"),
        *("tpu_use_cluster", "tpu_use_sudo", "tpu_env", "enable_cpu_affinity", "mpirun_config", "fp8_config"),
    )
)
DEEPSPEED_KEYS = frozenset(
    (
        *("train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization", "gradient_clipping"),
        *("steps_per_print", "wall_clock_breakdown", "zero_allow_untested_optimizer", "activation_checkpointing"),
        *("optimizer", "scheduler", "tensor_parallel", "flops_profiler", "aio", "communication_data_type"),
        *("amp", "elasticity", "autotuning", "data_types", "comms_logger", "checkpoint", "prescale_gradients"),
    )
)
GENERIC = frozenset(
    (
        *("optimizer", "scheduler", "checkpoint", "gradient_clipping", "train_batch_size", "activation_checkpointing"),
        *("amp", "tensor_parallel", "mixed_precision", "num_processes", "num_machines"),
    )
)
"""Keys that other programs have too."""
LONG = 12
SAYS_DEEPSPEED = re.compile(r"(^|[^a-z])(ds|deepspeed|zero[123]?)([^a-z]|$)")
SAYS_ACCELERATE = re.compile(r"(^|[^a-z])(acc|accelerate)([^a-z]|$)")
SECTIONS = frozenset(("fp16", "bf16", "optimizer", "scheduler", "zero_optimization"))


def kind_of(name: str, document: Any) -> Kind:
    """What a JSON or YAML file is: told by its keys, since names vary; by the name where no key tells."""
    yaml = notation_of(name, "") is Notation.YAML and name.lower().endswith((".yaml", ".yml"))
    keys = set(document) if isinstance(document, Mapping) else set()
    if keys & PLAN_KEYS == PLAN_KEYS:
        return Kind.PLAN
    if keys & SMOKE_KEYS == SMOKE_KEYS:
        return Kind.SMOKE
    if goes_with_a_plan(document):
        return Kind.TEXT
    called = PurePath(name).name.lower()
    sections = {key for key in keys & SECTIONS if isinstance(document[key], Mapping)}
    of_deepspeed, by_name = keys & DEEPSPEED_KEYS | sections, SAYS_DEEPSPEED.search(called) is not None
    of_accelerate, or_that = keys & ACCELERATE_KEYS, SAYS_ACCELERATE.search(called) is not None
    signs = (
        (_signs(of_accelerate, document, sure=or_that), yaml, Kind.ACCELERATE),
        (_signs(of_deepspeed, document, sure=by_name) + len(sections - GENERIC), not yaml, Kind.DEEPSPEED),
        (len(keys & NAMES) - 2 * len(sections), False, Kind.TRAINING),
    )
    most, _, kind = max(signs, key=lambda sign: sign[:2])
    if most > 0:
        return kind
    if "training_args" in name.lower() or "training_arguments" in name.lower():
        return Kind.TRAINING
    if document and not (by_name or or_that or _has_a_slip(keys)):
        return Kind.TEXT
    return Kind.ACCELERATE if yaml or notation_of(name, "") is Notation.YAML else Kind.DEEPSPEED


def _signs(keys: set[str], document: Any, *, sure: bool) -> int:
    """How many keys speak for a kind; keys of many programs count beside one that is no other's, or beside two."""
    own = {key for key in keys if key not in GENERIC or _has_deepspeeds_form(document[key])}
    if isinstance(document, Mapping) and isinstance(document.get("deepspeed_config"), str):
        own -= {"deepspeed_config"}  # a program's own way to name a file
        keys = keys - {"deepspeed_config"}
    return len(keys) if own or sure or len(keys) > 2 else 0


def _has_deepspeeds_form(value: Any) -> bool:
    """An optimizer or scheduler as DeepSpeed wants it."""
    return isinstance(value, Mapping) and {"type", "params"} <= set(value)


def _has_a_slip(keys: set[Any]) -> bool:
    """Whether a long key differs by a few letters from one that only DeepSpeed or accelerate has."""
    known = [key for key in DEEPSPEED_KEYS | SECTIONS | ACCELERATE_KEYS if len(key) >= LONG]
    return any(0 < letters_apart(str(key), one) <= A_FEW for key in keys for one in known if len(str(key)) >= LONG)


def likely_kind(name: str, text: str) -> Kind:
    """What a text that cannot be read was meant to be: the keys that occur in it tell."""
    deepspeed, accelerate = (sum(key in text for key in keys) for keys in (DEEPSPEED_KEYS, ACCELERATE_KEYS))
    if deepspeed != accelerate:
        return Kind.DEEPSPEED if deepspeed > accelerate else Kind.ACCELERATE
    return Kind.ACCELERATE if notation_of(name, text) is Notation.YAML else Kind.DEEPSPEED


def goes_with_a_plan(document: Any) -> bool:
    """Whether it is a file that dsplan writes beside the configurations: loop_args.json, a JSON Schema."""
    keys = set(document) if isinstance(document, Mapping) else set()
    return keys >= LOOP_KEYS or "json-schema.org" in str(document.get("$schema") if keys else "")


def is_deepspeed(document: Any) -> bool:
    """Whether a value inside another document is a DeepSpeed configuration."""
    return isinstance(document, Mapping) and bool(set(document) & (DEEPSPEED_KEYS | SECTIONS) - GENERIC)
