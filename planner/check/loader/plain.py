"""Plain sections and scalars of a DeepSpeed configuration: what their readers refuse.

In: the document. Out: places with reasons. Most values are taken as they are; the few that are looked at while the
configuration is read are here. Source: deepspeed/runtime/config.py of DeepSpeed 0.19.8 and, by section,
runtime/model_checkpointing/config.py, runtime/data_pipeline/config.py, runtime/swap_tensor/aio_config.py,
autotuning/config.py, profiling/config.py and module_inject/auto_ep_config.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planner.check.loader.typed import A_SECTION, Refusals, flag, parses, stage

AUTOCAST_DTYPES = (
    *("torch.float16", "fp16", "float16", "half", "torch.float32", "fp32", "float32", "float"),
    *("torch.int8", "int8", "torch.bfloat16", "bf16", "bfloat16"),
)
COMMUNICATION_DTYPES = ("fp16", "bf16", "fp32")
REDUCTIONS = ("mean", "sum")
TAG_VALIDATION = ("WARN", "IGNORE", "FAIL")
WRITERS = {"type": ("MOCK", "PYTHON", "FAST"), "data_parallel": ("REPLICA", "SOCKET", "MACHINE")}


def plain_refusals(config: Mapping[str, Any]) -> Refusals:
    """Everything outside the typed sections and the batch sizes."""
    for part in PARTS:
        yield from part(config)


def _plain(config: Mapping[str, Any]) -> Refusals:
    """Top-level scalars: most are taken as they are."""
    for key in ("communication_data_type", "seq_parallel_communication_data_type"):
        value = config.get(key)
        if value is not None and not (isinstance(value, str) and value.lower() in COMMUNICATION_DTYPES):
            yield f"$.{key}", f"one of {', '.join(COMMUNICATION_DTYPES)}"
    operation = config.get("gradient_allreduce_op", "mean")
    if not (isinstance(operation, str) and operation.lower() in REDUCTIONS):
        yield "$.gradient_allreduce_op", "mean or sum"
    elif operation.lower() == "sum":
        zero = config.get("zero_optimization")
        if stage(config) == 3:
            yield "$.gradient_allreduce_op", "stage 3 averages"
        if isinstance(zero, Mapping) and zero.get("zenflow", "auto") not in (None, "auto"):
            yield "$.gradient_allreduce_op", "ZenFlow averages"
        if flag(config, "compile", "deepcompile"):
            yield "$.gradient_allreduce_op", "DeepCompile averages"
    vocabulary = config.get("vocabulary_size")
    if vocabulary and not isinstance(vocabulary, (int, float)):
        yield "$.vocabulary_size", "a number is needed"
    flops = config.get("flops_profiler", {})
    for path, value in (
        ("$.wall_clock_breakdown", config.get("wall_clock_breakdown", False)),
        ("$.flops_profiler.enabled", flops.get("enabled", False) if isinstance(flops, Mapping) else False),
    ):
        if not isinstance(value, int):
            yield path, "true or false is needed"


def _mappings(config: Mapping[str, Any]) -> Refusals:
    """Plain sections that have to be sections."""
    always = ("optimizer", "scheduler", "torch_autocast", "data_types", "activation_checkpointing", "pipeline")
    for name in (*always, "checkpoint", "flops_profiler", "autotuning", "data_efficiency"):
        if name in config and not isinstance(config[name], Mapping):
            yield f"$.{name}", A_SECTION
    if config.get("aio") is not None and not isinstance(config["aio"], Mapping):
        yield "$.aio", A_SECTION
    experts = config.get("expert_parallel")
    if experts and not isinstance(experts, Mapping):
        yield "$.expert_parallel", A_SECTION
    if isinstance(experts, Mapping) and experts.get("load_balance_coeff") is not None:
        yield "$.expert_parallel.load_balance_coeff", "not supported"


def _optimizer(config: Mapping[str, Any]) -> Refusals:
    optimizer = _mapping(config, "optimizer")
    kind = optimizer.get("type")
    if kind is None:
        return
    if not isinstance(kind, str):
        yield "$.optimizer.type", "text is needed"
        return
    params = optimizer.get("params")
    if params is not None and not isinstance(params, Mapping):
        yield "$.optimizer.params", A_SECTION
    elif params and "max_grad_norm" in params and not isinstance(params["max_grad_norm"], (int, float)):
        yield "$.optimizer.params.max_grad_norm", "a number is needed"


def _mapping(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name)
    return value if isinstance(value, Mapping) else {}


def _types(config: Mapping[str, Any]) -> Refusals:
    autocast = _mapping(config, "torch_autocast")
    if "dtype" in autocast and autocast["dtype"] not in AUTOCAST_DTYPES:
        yield "$.torch_autocast.dtype", "no such dtype"
    if "lower_precision_safe_modules" in autocast:
        names = autocast["lower_precision_safe_modules"]
        if not isinstance(names, (list, str, Mapping)) or not all(isinstance(name, str) for name in names):
            yield "$.torch_autocast.lower_precision_safe_modules", "a list of names is needed"
    kept = _mapping(config, "data_types").get("keep_in_fp32_modules", "auto")
    if kept != "auto" and not (isinstance(kept, list) and all(isinstance(name, str) for name in kept)):
        yield "$.data_types.keep_in_fp32_modules", 'a list of names or "auto" is needed'


def _checkpoint(config: Mapping[str, Any]) -> Refusals:
    checkpoint, path = _mapping(config, "checkpoint"), "$.checkpoint"
    tag = checkpoint.get("tag_validation", "Warn")
    if not isinstance(tag, str) or tag.upper() not in TAG_VALIDATION:
        yield f"{path}.tag_validation", "Ignore, Warn or Fail"
    write = checkpoint.get("parallel_write", {})
    if not isinstance(write, Mapping):
        yield f"{path}.parallel_write", A_SECTION
    elif write.get("pipeline_stage", False) not in (True, False):
        yield f"{path}.parallel_write.pipeline_stage", "true or false is needed"
    writer = checkpoint.get("writer")
    if writer is not None and not isinstance(writer, Mapping):
        yield f"{path}.writer", A_SECTION
    elif writer:
        for key, words in WRITERS.items():
            word = writer.get(key)
            if word is not None and not (isinstance(word, str) and word.upper() in words):
                yield f"{path}.writer.{key}", f"one of {', '.join(words).lower()}"


def _autotuning(config: Mapping[str, Any]) -> Refusals:
    autotuning = _mapping(config, "autotuning")
    for key in ("results_dir", "exps_dir"):
        if not autotuning.get(key, "there"):
            yield f"$.autotuning.{key}", "empty"
    if not isinstance(autotuning.get("model_info"), (Mapping, type(None))):
        yield "$.autotuning.model_info", A_SECTION


def _data(config: Mapping[str, Any]) -> Refusals:
    data, path = _mapping(config, "data_efficiency"), "$.data_efficiency"
    for name, inner in (
        ("data_sampling", ("curriculum_learning", "dynamic_batching")),
        ("data_routing", ("random_ltd",)),
    ):
        if name in data and not isinstance(data[name], Mapping):
            yield f"{path}.{name}", A_SECTION
        for key in inner:
            if key in _mapping(data, name) and not isinstance(data[name][key], Mapping):
                yield f"{path}.{name}.{key}", A_SECTION
    path = f"{path}.data_sampling"
    curriculum = _mapping(_mapping(data, "data_sampling"), "curriculum_learning")
    if curriculum.get("enabled") and "curriculum_metrics" not in curriculum:
        yield f"{path}.curriculum_learning.curriculum_metrics", "missing"
    batching = _mapping(_mapping(data, "data_sampling"), "dynamic_batching")
    for key in ("min_batch_size", "max_batch_size"):
        if key in batching and not parses(int, batching[key]):
            yield f"{path}.dynamic_batching.{key}", "a whole number is needed"
    if batching.get("enabled") and not parses(int, batching.get("max_tokens")):
        yield f"{path}.dynamic_batching.max_tokens", "a whole number is needed"


PARTS: tuple[Callable[[Mapping[str, Any]], Refusals], ...] = (
    *(_mappings, _plain, _optimizer, _types, _checkpoint, _autotuning, _data),
)
