"""`parallelism_config` and `fsdp_config` of an Accelerate file: sizes that do not go together, keys without effect.

In: the document. Out: Problems. Source: accelerate 1.15 parallelism_config.py (`_validate_accelerator`),
accelerator.py (`_prepare_deepspeed`), utils/dataclasses.py; deepspeed 0.19.8 runtime/sequence_parallel/ulysses_sp.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from planner.check.one_file.deepspeed_rules import section
from planner.check.rules import finding
from planner.records.problem import Edit, EditKind, Problem, Severity

PREFIX = "parallelism_config_"
HERE = "$.parallelism_config"
SIZES = ("dp_replicate", "dp_shard", "tp", "cp", "sp")
BUILT_IN_ATTENTION = ("flash_attention_2", "flash_attention_3", "sdpa")
# FSDP 2 has no use for these: it warns and goes on, or does not look at them.
OBSOLETE_IN_FSDP2 = {
    "fsdp_sharding_strategy": "`fsdp_reshard_after_forward` takes its place",
    "fsdp_backward_prefetch": "FSDP 2 has none",
    "fsdp_forward_prefetch": "FSDP 2 has none",
    "fsdp_use_orig_params": "FSDP 2 always uses the original parameters",
}


def parallel_problems(config: Mapping[str, Any]) -> list[Problem]:
    """Every rule of this module over one document."""
    return [problem for rule in RULES for problem in rule(config)]


def _size(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _sizes(config: Mapping[str, Any]) -> dict[str, int]:
    block = section(config, "parallelism_config")
    return {name: _size(block.get(f"{PREFIX}{name}_size", 1)) or 1 for name in SIZES}


def product_is_the_ranks(config: Mapping[str, Any]) -> Iterator[Problem]:
    """All degrees together are all processes; with DeepSpeed's sequence parallelism accelerate does not check it."""
    sizes, ranks = _sizes(config), _size(config.get("num_processes"))
    total = prod(sizes.values())
    if ranks is None or total in (1, ranks):
        return
    largest = max(SIZES, key=lambda name: sizes[name])
    path = f"{HERE}.{PREFIX}{largest}_size"
    shown = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
    if sizes["sp"] == 1:
        message = f"{shown} = {total} is not the {ranks} processes: accelerate refuses it"
        yield finding("DS128", path, message, fix="change a size, or `num_processes`", bites="engine init")
    elif ranks % sizes["sp"]:
        message = f"{sizes['sp']} does not divide {ranks} processes"
        yield finding("DS128", f"{HERE}.{PREFIX}sp_size", message, fix=f"a divisor of {ranks}", bites="engine init")
    elif config.get("distributed_type") == "DEEPSPEED":
        data = ranks // sizes["sp"]
        message = (
            f"{shown} = {total}, not {ranks}: accelerate computes the total batch from the data-parallel sizes, and "
            f"DeepSpeed expects {data} of them"
        )
        path = f"{HERE}.{PREFIX}dp_replicate_size"
        edits = (Edit(kind=EditKind.SET, path=path, value=data),) if sizes["dp_shard"] == 1 else ()
        fix = f"write `{PREFIX}dp_replicate_size: {data}`"
        yield finding("DS128", path, message, fix=fix, severity=Severity.WARNING, bites="engine init", edits=edits)


def sequence_parallel_keys(config: Mapping[str, Any]) -> Iterator[Problem]:
    block, sizes = section(config, "parallelism_config"), _sizes(config)
    if sizes["sp"] == 1:
        return
    kind = config.get("distributed_type")
    if kind not in ("DEEPSPEED", None):
        message = f"sequence parallelism is DeepSpeed's, and the run is `{kind}`: nothing divides the sequence"
        fix = "write `distributed_type: DEEPSPEED`, or use `cp_size` with FSDP 2"
        yield finding("DS129", f"{HERE}.{PREFIX}sp_size", message, fix=fix, bites="silently")
    variable = block.get(f"{PREFIX}sp_seq_length_is_variable", True)
    length = block.get(f"{PREFIX}sp_seq_length")
    is_fixed = variable in (False, "false", "False", "no")
    path = f"{HERE}.{PREFIX}sp_seq_length"
    if is_fixed and length is None:
        message = "sequences of one length need that length"
        yield finding("DS129", path, message, fix=f"add `{PREFIX}sp_seq_length`", bites="engine init")
    tokens = _size(length)
    if tokens is not None and tokens % sizes["sp"]:
        message = f"{tokens} tokens are not divisible by {sizes['sp']}"
        fix = f"write a multiple of {sizes['sp']}"
        severity = None if is_fixed else Severity.WARNING
        yield finding("DS129", path, message, fix=fix, severity=severity, bites="first step")
    attention = block.get(f"{PREFIX}sp_attn_implementation")
    allowed = attention in (None, *BUILT_IN_ATTENTION) or "flash-attn" in str(attention)
    if not allowed:
        path = f"{HERE}.{PREFIX}sp_attn_implementation"
        message = f"`{attention}` does not go with sequence parallelism: ValueError"
        fix = f"one of {', '.join(BUILT_IN_ATTENTION)}"
        yield finding("DS129", path, message, fix=fix, bites="engine init")


def degrees_that_exclude_each_other(config: Mapping[str, Any]) -> Iterator[Problem]:
    sizes, kind = _sizes(config), config.get("distributed_type")
    if sizes["cp"] > 1 and sizes["sp"] > 1:
        message = "context and sequence parallelism exclude each other"
        yield finding("DS128", f"{HERE}.{PREFIX}cp_size", message, fix="set one of them to 1", bites="engine init")
    if max(sizes["tp"], sizes["cp"]) > 1 and sizes["dp_replicate"] > 1 and sizes["dp_shard"] == 1:
        message = "tensor and context parallelism do not go with pure data parallelism"
        fix = f"set `{PREFIX}dp_shard_size` above 1, or `{PREFIX}dp_replicate_size` to 1"
        yield finding("DS128", f"{HERE}.{PREFIX}dp_replicate_size", message, fix=fix, bites="engine init")
    if sizes["cp"] > 1 and kind == "DEEPSPEED":
        message = "with DeepSpeed nothing divides the sequence by `cp_size`"
        fix = f"use `{PREFIX}sp_size`, or FSDP 2"
        yield finding("DS126", f"{HERE}.{PREFIX}cp_size", message, fix=fix)
    version = section(config, "fsdp_config").get("fsdp_version", 1)
    if kind == "FSDP" and prod(sizes.values()) > 1 and version in (1, "1"):
        message = "parallelism_config wants FSDP 2"
        edits = (Edit(kind=EditKind.SET, path="$.fsdp_config.fsdp_version", value=2),)
        yield finding(
            "DS128",
            "$.fsdp_config.fsdp_version",
            message,
            fix="write `fsdp_version: 2`",
            bites="engine init",
            edits=edits,
        )
    if kind == "FSDP" and version in (2, "2") and prod(sizes.values()) > 1 and sizes["dp_shard"] == sizes["cp"] == 1:
        message = "FSDP has no ranks to shard over: `dp_shard_size` and `cp_size` are 1"
        fix = f"set `{PREFIX}dp_shard_size` above 1"
        yield finding("DS128", f"{HERE}.{PREFIX}dp_shard_size", message, fix=fix, bites="engine init")


def size_wrap_policy(config: Mapping[str, Any]) -> Iterator[Problem]:
    """The least number of parameters is of one policy, which is not the default."""
    block = section(config, "fsdp_config")
    policy, least = block.get("fsdp_auto_wrap_policy"), block.get("fsdp_min_num_params")
    if config.get("distributed_type") == "FSDP" and least not in (None, 0) and policy != "SIZE_BASED_WRAP":
        path = "$.fsdp_config.fsdp_min_num_params"
        message = f"only SIZE_BASED_WRAP looks at it, not {policy or 'TRANSFORMER_BASED_WRAP, the default'}"
        fix = "set `fsdp_auto_wrap_policy: SIZE_BASED_WRAP`, or take it out"
        yield finding("DS131", path, message, fix=fix)


def obsolete_fsdp_keys(config: Mapping[str, Any]) -> Iterator[Problem]:
    block = section(config, "fsdp_config")
    if config.get("distributed_type") != "FSDP" or block.get("fsdp_version") not in (2, "2"):
        return
    for key, reason in OBSOLETE_IN_FSDP2.items():
        if block.get(key) not in (None, False, "false", "NO_PREFETCH"):
            path = f"$.fsdp_config.{key}"
            edits = (Edit(kind=EditKind.REMOVE, path=path),)
            yield finding("DS131", path, f"no effect with FSDP 2: {reason}", fix="take it out", edits=edits)


def unused_section(config: Mapping[str, Any]) -> Iterator[Problem]:
    """A section of another launcher than the one that distributed_type starts."""
    kind = config.get("distributed_type")
    for name, wanted in (("deepspeed_config", "DEEPSPEED"), ("fsdp_config", "FSDP")):
        block = config.get(name)
        if isinstance(block, Mapping) and block and kind not in (wanted, None, False):
            settings = {key for key, value in block.items() if value not in (None, False, "none", "no")}
            other = isinstance(config.get("fsdp_config" if wanted == "DEEPSPEED" else "deepspeed_config"), Mapping)
            in_use = kind in ("DEEPSPEED", "FSDP") and other
            if settings:
                message = f"`distributed_type` is `{kind}`, so nothing reads this section"
                fix = f"write `distributed_type: {wanted}`, or leave the section out"
                severity = Severity.WARNING if in_use or kind == "NO" else None  # NO is asked for, not slipped into
                yield finding("DS127", f"$.{name}", message, fix=fix, severity=severity)


RULES = (
    product_is_the_ranks,
    sequence_parallel_keys,
    degrees_that_exclude_each_other,
    obsolete_fsdp_keys,
    size_wrap_policy,
    unused_section,
)
