"""The DeepSpeed dict says what CONFIG section 7 of the project's facts demands: explicit numbers, one home a key."""

from dataclasses import replace
from typing import Any

import pytest
from handmade_plans import MODEL, SETTINGS, make_cluster, make_plan

from planner.records.candidate import Offload
from planner.records.model import Precision
from planner.records.plan import Plan
from planner.records.request import Integration, Optimizer
from planner.render.deepspeed_json import deepspeed_config


def rendered(plan: Plan) -> dict[str, Any]:
    return deepspeed_config(plan.request, plan.ranked[0].candidate)


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [value]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_every_key_whose_default_moved_is_written(zero: int) -> None:
    config = rendered(make_plan(zero=zero, micro_batch=2, accumulation=4))
    assert config["train_micro_batch_size_per_gpu"] == 2
    assert config["gradient_accumulation_steps"] == 4
    assert "train_batch_size" not in config
    assert config["gradient_clipping"] == 1.0
    assert config["optimizer"]["type"] == "AdamW"
    assert set(config["optimizer"]["params"]) == {"lr", "betas", "eps", "weight_decay"}
    section = config["zero_optimization"]
    assert section["stage"] == zero
    assert {"overlap_comm", "reduce_bucket_size", "allgather_bucket_size"} <= set(section)
    stage_three = {key for key in section if key.startswith("stage3_")}
    assert len(stage_three) == (5 if zero == 3 else 0)
    assert ("sub_group_size" in section) is (zero == 3)


@pytest.mark.parametrize("optimizer", Optimizer)
def test_only_what_the_trainer_fills_is_auto(optimizer: Optimizer) -> None:
    """transformers 5.24, integrations/deepspeed.py `trainer_config_process`, of what no plan states."""
    read_by_trainer = rendered(make_plan(optimizer=optimizer))
    params = read_by_trainer.pop("optimizer", {"params": {}})["params"]
    left_open = {name for name, value in params.items() if value == "auto"}
    assert left_open == {"lr", "betas", "eps", "weight_decay"} & set(params)
    assert "auto" not in leaves(read_by_trainer)
    for integration in (Integration.ACCELERATE, Integration.DEEPSPEED):
        assert "auto" not in leaves(rendered(make_plan(optimizer=optimizer, integration=integration)))


def test_sizes_are_integers() -> None:
    config = rendered(make_plan(offload=Offload.NVME))
    sizes = [value for key, value in config["zero_optimization"].items() if key.endswith(("size", "threshold"))]
    assert len(sizes) == 5
    assert all(type(value) is int for value in sizes)


def test_fp16_scales_its_loss_dynamically_and_fp32_has_neither_section() -> None:
    half = rendered(make_plan(precision=Precision.FP16))
    assert half["fp16"]["enabled"] is True
    assert half["fp16"]["loss_scale"] == 0
    assert half["fp16"]["hysteresis"] == 2
    assert 0 < half["fp16"]["initial_scale_power"] < 16  # 16, the default, overflows at the start of most runs
    assert "bf16" not in half
    assert rendered(make_plan(precision=Precision.BF16))["bf16"] == {"enabled": True}
    full = rendered(make_plan(precision=Precision.FP32))
    assert "bf16" not in full
    assert "fp16" not in full


@pytest.mark.parametrize(
    ("zero", "tp", "expected"), [(1, 1, False), (2, 1, False), (1, 2, True), (0, 2, True), (3, 1, True)]
)
def test_the_gather_flag_is_set_at_stage_three_and_with_tensor_parallelism(zero: int, tp: int, expected: bool) -> None:
    config = rendered(make_plan(zero=zero, tp=tp))
    assert config["zero_optimization"].get("stage3_gather_16bit_weights_on_model_save", False) is expected
    assert config.get("tensor_parallel") == ({"autotp_size": tp} if tp > 1 else None)


@pytest.mark.parametrize(
    ("offload", "optimizer", "parameters"),
    [
        (Offload.NONE, None, None),
        (Offload.OPTIMIZER, "cpu", None),
        (Offload.OPTIMIZER_AND_PARAMS, "cpu", "cpu"),
        (Offload.NVME, "nvme", "nvme"),
    ],
)
@pytest.mark.parametrize("pin", [True, False])
def test_offload_blocks_name_device_and_pinning(
    offload: Offload, optimizer: str | None, parameters: str | None, pin: bool
) -> None:
    config = rendered(make_plan(offload=offload, settings=replace(SETTINGS, pin_memory=pin)))
    for name, device in (("offload_optimizer", optimizer), ("offload_param", parameters)):
        block = config["zero_optimization"].get(name)
        assert (block and block["device"]) == device
        assert block is None or block["pin_memory"] is pin
        assert (block is not None and "nvme_path" in block) is (device == "nvme")
    assert ("aio" in config) is (offload is Offload.NVME)


def test_an_nvme_buffer_holds_the_largest_parameter_shard() -> None:
    """DeepSpeed stops when a shard has more elements than a buffer: partitioned_param_swapper.py, `assert numel`."""
    wide = replace(MODEL, vocab=256_000, hidden=16384)
    config = rendered(make_plan(offload=Offload.NVME, model=wide, cluster=make_cluster(gpus_per_node=2)))
    assert config["zero_optimization"]["offload_param"]["buffer_size"] >= 256_000 * 16384 // 2


def test_fp32_accumulation_is_written_only_when_asked_for() -> None:
    settings = replace(SETTINGS, fp32_gradient_accumulation=True)
    assert rendered(make_plan(zero=2, settings=settings))["data_types"] == {"grad_accum_dtype": "fp32"}
    assert "data_types" not in rendered(make_plan(zero=2))
    assert "data_types" not in rendered(make_plan(zero=2, settings=settings, precision=Precision.FP32))
