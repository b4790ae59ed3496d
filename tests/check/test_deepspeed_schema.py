"""The DeepSpeed schema knows exactly the fields of the installed DeepSpeed, and agrees with it on values."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from planner.check.schema import load_schema
from planner.check.violations import violations

SECTIONS = {
    "DeepSpeedZeroConfig": "deepspeed.runtime.zero.config.DeepSpeedZeroConfig",
    "DeepSpeedZeroLeafModuleConfig": "deepspeed.runtime.zero.leaf_module_config.DeepSpeedZeroLeafModuleConfig",
    "DeepSpeedZeroOffloadOptimizerConfig": "deepspeed.runtime.zero.offload_config.DeepSpeedZeroOffloadOptimizerConfig",
    "DeepSpeedZeroOffloadParamConfig": "deepspeed.runtime.zero.offload_config.DeepSpeedZeroOffloadParamConfig",
    "TPConfig": "deepspeed.runtime.tensor_parallel.config.TPConfig",
    "ZenFlowConfig": "deepspeed.runtime.zenflow.zenflow_config.ZenFlowConfig",
    "bf16": "deepspeed.runtime.precision_config.DeepSpeedBF16Config",
    "comet": "deepspeed.monitor.config.CometConfig",
    "comms_logger": "deepspeed.comm.config.CommsLoggerConfig",
    "compile": "deepspeed.compile.config.CompileConfig",
    "csv_monitor": "deepspeed.monitor.config.CSVConfig",
    "fp16": "deepspeed.runtime.precision_config.DeepSpeedFP16Config",
    "hybrid_engine": "deepspeed.runtime.config.HybridEngineConfig",
    "tensor_parallel": "deepspeed.runtime.tensor_parallel.config.TPTrainingConfig",
    "tensorboard": "deepspeed.monitor.config.TensorBoardConfig",
    "throughput_timer": "deepspeed.utils.config.DeepSpeedThroughputTimerConfig",
    "wandb": "deepspeed.monitor.config.WandbConfig",
}
NOT_JSON = {"tensor_parallel": {"dtype"}}  # a torch.dtype object: no JSON value is ever accepted
VALUES: tuple[tuple[str, Any], ...] = (
    *(("stage", value) for value in (0, 3, 4, -1)),
    *(("reduce_bucket_size", value) for value in (0, 1, 5e8, 1.5, -3)),
    *(("allgather_bucket_size", value) for value in (0, -1)),
    *(("sub_group_size", value) for value in (0, 10**9, -1)),
    *(("overlap_comm", value) for value in (None, True, False)),
    *(("offload_optimizer", {"device": value}) for value in ("cpu", "nvme", "none", "gpu", "CPU")),
    *(("offload_optimizer", {"device": "cpu", "ratio": value}) for value in (0.5, 0, 1, 1.1, -0.1)),
    *(("offload_param", {"device": "cpu", key: 1}) for key in ("buffer_count", "buffer_size", "max_in_cpu", "ratio")),
    *(("made_up", value) for value in (1,)),
    *(("stage3_prefetch_bucket_size", value) for value in (0, -1)),
)


def model(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.slow
@pytest.mark.deepspeed
def test_typed_sections_have_the_fields_of_the_installed_deepspeed() -> None:
    pytest.importorskip("deepspeed")
    definitions = load_schema("deepspeed")["$defs"]
    for name, path in SECTIONS.items():
        fields = model(path).model_fields
        names = set(fields) | {field.alias for field in fields.values() if field.alias}
        assert set(definitions[name]["properties"]) == names - NOT_JSON.get(name, set()), name
    assert set(definitions) - set(SECTIONS) == {"optimizer", "optimizer_params", "scheduler"}


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize(("key", "value"), VALUES)
def test_values_are_accepted_exactly_where_deepspeed_accepts_them(key: str, value: Any) -> None:
    pytest.importorskip("deepspeed")
    section = {"stage": 3, key: value}
    try:
        model(SECTIONS["DeepSpeedZeroConfig"])(**section)
        accepted = True
    except ValueError:
        accepted = False
    found = list(violations(load_schema("deepspeed"), {"zero_optimization": section}))
    assert (not found) is accepted, found
