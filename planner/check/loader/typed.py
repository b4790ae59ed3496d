"""Typed sections of a DeepSpeed configuration: which keys and values their models refuse.

In: a part of the schema, the section's value and path. Out: places with reasons. Unknown keys are refused, values are
converted by pydantic's rules, and the text "auto" counts as absent. Source: deepspeed/runtime/config_utils.py
(DeepSpeedConfigModel), zero/config.py, precision_config.py and monitor/config.py of DeepSpeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from planner.check.loader.lax import Refused, as_field

Refusals = Iterator[tuple[str, str]]

TYPED = ("compile", "hybrid_engine", "comms_logger", "tensor_parallel", "fp16")
MONITORS = ("tensorboard", "wandb", "csv_monitor", "comet")
NEW_NAMES = {
    "cpu_offload": "offload_optimizer",
    "cpu_offload_param": "offload_param",
    "stage3_gather_fp16_weights_on_model_save": "gather_16bit_weights_on_model_save",
}
QUANTISATION = {
    "enabled": {"type": "boolean"},
    "num_bits": {"type": "integer"},
    "q_type": {"enum": ["asymmetric", "symmetric"]},
    "q_groups": {"type": "integer"},
    "quantized_initialization": {"type": "object"},
    "post_init_quant": {"type": "object"},
}
# Where the loader takes more, or less, than the schema recommends. `words`: digits in quotes stay text there.
OTHER_TYPES: Mapping[str, Mapping[str, Any]] = {
    "$.zero_optimization.zenflow": {
        "select_interval": {"type": "integer", "words": ()},
        "update_interval": {"type": "integer", "words": (), "minimum": 1},
    },
    "$.fp16": {"loss_scale_window": {"type": "integer"}, "min_loss_scale": {"type": "integer"}},
}
A_SECTION, ITS_TYPE = "a section is needed", "its type does not allow it"


def typed_refusals(config: Mapping[str, Any], schema: Mapping[str, Any]) -> Refusals:
    """Everything in the typed sections, and what the loader checks between them."""
    yield from _zero(config, schema)
    yield from _sections(config, schema)
    yield from _precision(config)


def _sections(config: Mapping[str, Any], schema: Mapping[str, Any]) -> Refusals:
    for name in TYPED:
        if name in config:
            yield from typed(schema, section_of(schema, name), config[name], f"$.{name}")
    for name in MONITORS:
        if name in config and config[name] != "auto":
            yield from typed(schema, section_of(schema, name), config[name], f"$.{name}")
    name = "bf16" if config.get("bf16") is not None else "bfloat16"
    if name in config:
        yield from typed(schema, section_of(schema, name), config[name], f"$.{name}")
    if "weight_quantization" in config:
        part = {"properties": QUANTISATION}
        yield from typed(schema, part, config["weight_quantization"], "$.weight_quantization")
    timers = config.get("timers", {})
    if not isinstance(timers, (Mapping, list, str)):
        yield "$.timers", A_SECTION
    elif "throughput" in timers:
        if isinstance(timers, Mapping):
            throughput = resolved(schema, section_of(schema, "timers")["properties"]["throughput"])
            yield from typed(schema, throughput, timers["throughput"], "$.timers.throughput")
        else:
            yield "$.timers", A_SECTION


def typed(schema: Mapping[str, Any], part: Mapping[str, Any], value: Any, path: str) -> Refusals:
    """A section whose keys and types are declared: unknown keys are refused, the text "auto" counts as absent."""
    part = resolved(schema, part)
    if not isinstance(value, Mapping):
        yield path, A_SECTION
        return
    fields = {**part["properties"], **OTHER_TYPES.get(path, {})}
    given = {key: item for key, item in value.items() if item != "auto"}
    for key, item in given.items():
        place = f"{path}.{key}"
        if key not in fields:
            yield place, "no such key"
            continue
        section = inner(schema, fields[key], item)
        if section is not None:
            yield from typed(schema, section, item, place)
            continue
        try:
            as_field(resolved(schema, fields[key]), item)
        except Refused:
            yield place, ITS_TYPE
    for rule in part.get("allOf", ()):
        twice = rule.get("not", {}).get("required", ())
        if twice and all(key in given for key in twice):
            yield f"{path}.{twice[0]}", "the same field twice"


def resolved(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of the schema, its references followed."""
    while "$ref" in part:
        part = schema["$defs"][part["$ref"].removeprefix("#/$defs/")]
    if "anyOf" in part:
        return {**part, "anyOf": [resolved(schema, option) for option in part["anyOf"]]}
    return part


def inner(schema: Mapping[str, Any], part: Mapping[str, Any], value: Any) -> Mapping[str, Any] | None:
    """The section that a field holds, if the value is meant to be one."""
    options = [resolved(schema, option) for option in part.get("anyOf", (part,))]
    sections = [option for option in options if "properties" in option]
    nullable = any(option.get("type") == "null" for option in options)
    return sections[0] if sections and not (value is None and nullable) else None


def section_of(schema: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What the schema says about the keys of a top-level section."""
    part = schema["properties"][name]
    options = [resolved(schema, option) for option in part.get("anyOf", (part,))]
    return next(option for option in options if "properties" in option)


def _zero(config: Mapping[str, Any], schema: Mapping[str, Any]) -> Refusals:
    path = "$.zero_optimization"
    zero: Any = config.get("zero_optimization", False)
    section = section_of(schema, "zero_optimization")
    if isinstance(zero, bool):
        old_size = {"allgather_bucket_size": config.get("allgather_size", "auto")} if zero else {}
        if any(typed(schema, section, old_size, path)):
            yield "$.allgather_size", ITS_TYPE
        return
    zero = _with_lists(zero)
    wrong = list(typed(schema, section, zero, path))
    yield from wrong
    if wrong:  # the checks below run on valid fields only
        return
    fields = section["properties"]
    given = {key: value for key, value in zero.items() if value != "auto"}
    zero_stage = as_field(fields["stage"], given.get("stage", 0))
    if as_field(fields["compute_grad_norm"], given.get("compute_grad_norm", True)) is False and zero_stage not in (
        1,
        2,
    ):
        yield f"{path}.compute_grad_norm", "false is for stages 1 and 2"
    offload = given.get("offload_optimizer")
    ratio = offload.get("ratio", 1) if isinstance(offload, Mapping) else 1
    if ratio != "auto" and as_field({"type": "number"}, ratio) < 1 and zero_stage != 3:
        yield f"{path}.offload_optimizer.ratio", "below 1 is for stage 3"
    for old, new in NEW_NAMES.items():
        if old in given and (new in given or f"stage3_{new}" in given):
            yield f"{path}.{old}", f"the old name beside `{new}`"


def _with_lists(zero: Any) -> Any:
    """`leaf_module` takes one word for a list of one, and null for nothing."""
    if not isinstance(zero, Mapping) or "leaf_module" not in zero:
        return zero
    leaf = zero["leaf_module"]
    if leaf is None:
        return {**zero, "leaf_module": {}}
    if isinstance(leaf, Mapping):
        return {**zero, "leaf_module": {k: [v] if isinstance(v, str) and v != "auto" else v for k, v in leaf.items()}}
    return zero


def _precision(config: Mapping[str, Any]) -> Refusals:
    """What the typed sections check beyond types, and what the loader checks between sections."""
    fp16 = config.get("fp16")
    fp16 = {key: value for key, value in fp16.items() if value != "auto"} if isinstance(fp16, Mapping) else {}
    for key in ("loss_scale", "loss_scale_window", "min_loss_scale"):
        value = fp16.get(key, 1)
        if isinstance(value, bool) or not parses(float if key == "loss_scale" else int, value):
            yield f"$.fp16.{key}", "a number is needed, and no true or false"
    if "loss_scale" in fp16 and parses(float, fp16["loss_scale"]) and float(fp16["loss_scale"]) == float("inf"):
        yield "$.fp16.loss_scale", "infinite"
    on = {name: flag(config, name, "enabled") for name in ("fp16", "bf16", "bfloat16")}
    bf16 = "bf16" if config.get("bf16") is not None else "bfloat16"
    if on["fp16"] and on[bf16]:
        yield "$.fp16.enabled", f"`{bf16}` is on too"
    if on["fp16"] and parses(float, fp16.get("loss_scale", 0)) and float(fp16.get("loss_scale", 0)) == 0:
        for key in ("loss_scale_window", "min_loss_scale"):
            if parses(int, fp16.get(key, 1)) and int(fp16.get(key, 1)) <= 0:
                yield f"$.fp16.{key}", "dynamic loss scaling needs 1 or more"
    zero_stage = stage(config)
    for name, key in (("fp16", "fp16_master_weights_and_grads"), (bf16, "bf16_master_weights_and_grads")):
        if zero_stage == 0 and flag(config, name, key):
            yield f"$.{name}.{key}", "only with ZeRO"
    if flag(config, bf16, "bf16_optimizer_states"):
        if zero_stage == 0:
            yield f"$.{bf16}.bf16_optimizer_states", "only with ZeRO"
        if not flag(config, bf16, "bf16_master_weights_and_grads"):
            yield f"$.{bf16}.bf16_optimizer_states", "only with `bf16_master_weights_and_grads`"


def flag(config: Mapping[str, Any], section: str, key: str) -> bool:
    """A switch of a typed section as its model holds it; off where it is refused."""
    values = config.get(section)
    try:
        return bool(as_field({"type": "boolean"}, values.get(key, False) if isinstance(values, Mapping) else False))
    except Refused:
        return False


def stage(config: Mapping[str, Any]) -> int:
    """The ZeRO stage as the model holds it; 0 where it is refused."""
    zero = config.get("zero_optimization", {})
    if isinstance(zero, bool):
        return int(zero)
    value = zero.get("stage", 0) if isinstance(zero, Mapping) else 0
    try:
        return int(as_field({"enum": [0, 1, 2, 3]}, value))
    except Refused:
        return 0


def parses(kind: Callable[[Any], Any], value: Any) -> bool:
    """Whether `int(value)` or `float(value)` works."""
    try:
        kind(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
