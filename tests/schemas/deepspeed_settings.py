"""What the tests of the DeepSpeed schema ask from the installed DeepSpeed and from the schema."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from planner.check.one_file.schema import load_schema

MODELS = {
    "zero_optimization": "deepspeed.runtime.zero.config.DeepSpeedZeroConfig",
    "leaf_module": "deepspeed.runtime.zero.leaf_module_config.DeepSpeedZeroLeafModuleConfig",
    "offload_optimizer": "deepspeed.runtime.zero.offload_config.DeepSpeedZeroOffloadOptimizerConfig",
    "offload_param": "deepspeed.runtime.zero.offload_config.DeepSpeedZeroOffloadParamConfig",
    "zenflow": "deepspeed.runtime.zenflow.zenflow_config.ZenFlowConfig",
    "tensor_parallel": "deepspeed.runtime.tensor_parallel.config.TPTrainingConfig",
    "tp": "deepspeed.runtime.tensor_parallel.config.TPConfig",
    "fp16": "deepspeed.runtime.precision_config.DeepSpeedFP16Config",
    "bf16": "deepspeed.runtime.precision_config.DeepSpeedBF16Config",
    "bfloat16": "deepspeed.runtime.precision_config.DeepSpeedBF16Config",
    "comet": "deepspeed.monitor.config.CometConfig",
    "csv_monitor": "deepspeed.monitor.config.CSVConfig",
    "tensorboard": "deepspeed.monitor.config.TensorBoardConfig",
    "wandb": "deepspeed.monitor.config.WandbConfig",
    "comms_logger": "deepspeed.comm.config.CommsLoggerConfig",
    "compile": "deepspeed.compile.config.CompileConfig",
    "hybrid_engine": "deepspeed.runtime.config.HybridEngineConfig",
    "throughput_timer": "deepspeed.utils.config.DeepSpeedThroughputTimerConfig",
    "weight_quantization": "deepspeed.inference.config.WeightQuantConfig",
}
NOT_JSON = {("tensor_parallel", "dtype")}  # a torch.dtype object: no JSON value is ever accepted


def named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def sections() -> dict[str, Any]:
    schema = load_schema("deepspeed")
    return {"document": schema, **schema["$defs"]}


def model_fields() -> Iterator[tuple[str, str, Any]]:
    """Section, name and field of every typed setting."""
    for section, path in MODELS.items():
        for name, field in named(path).model_fields.items():
            if (section, name) not in NOT_JSON:
                yield section, name, field


def paths_of_sections() -> Iterator[tuple[str, str]]:
    """`$.a.b` of each section and its name in the schema."""
    known = sections()

    def walk(name: str, path: str) -> Iterator[tuple[str, str]]:
        yield path, name
        for key, schema in known[name]["properties"].items():
            for part in (schema, *schema.get("anyOf", ())):
                inner = part.get("$ref", "").removeprefix("#/$defs/")
                if "properties" in known.get(inner, {}):
                    yield from walk(inner, f"{path}.{key}")

    yield from walk("document", "$")
