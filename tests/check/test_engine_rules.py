"""What the engine refuses when it is built: compared with the constructors of the installed DeepSpeed."""

from __future__ import annotations

import inspect
import random
from typing import Any

import pytest
from documents import GOOD

from planner.check import check_text
from planner.check.one_file.training_rules import PARAMETERS
from planner.records.problem import Problem, Severity

ZERO, DATA = "$.zero_optimization", "$.data_types"
PARTITION = "$.tensor_parallel.partition_config"


def found(change: dict[str, Any]) -> list[Problem]:
    import json

    document = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    return check_text("ds.json", json.dumps(document, indent=1))[1]


def tp(partition: dict[str, Any]) -> dict[str, Any]:
    gather = {"stage": 1, "stage3_gather_16bit_weights_on_model_save": True}
    return {"zero_optimization": gather, "tensor_parallel": {"autotp_size": 2, "partition_config": partition}}


SPEC = {"patterns": ["o_proj"], "partition_type": "row"}
CASES: tuple[tuple[dict[str, Any], str, str, dict[str, Any]], ...] = (
    ({"data_types": {"param_dtype": "fp16"}}, "DS034", f"{DATA}.param_dtype", {"data_types": {"param_dtype": "bf16"}}),
    (
        {"data_types": {"grad_accum_dtype": "fp16"}, "zero_optimization": {"stage": 0}},
        "DS034",
        f"{DATA}.grad_accum_dtype",
        {"data_types": {"grad_accum_dtype": "fp16"}},
    ),
    (
        {"zero_optimization": {"stage": 3, "round_robin_gradients": True}},
        "DS046",
        f"{ZERO}.round_robin_gradients",
        {"zero_optimization": {"stage": 2, "round_robin_gradients": True}},
    ),
    (tp({"layer_spec": [SPEC]}), "DS052", f"{PARTITION}.layer_spec", tp({"layer_specs": [SPEC]})),
    (
        tp({"layer_specs": [{**SPEC, "partition_type": "rows"}]}),
        "DS052",
        f"{PARTITION}.layer_specs[0].partition_type",
        tp({"layer_specs": [{**SPEC, "partition_type": "ROW"}]}),
    ),
    (tp({"layer_specs": [{"pattern": ["x"]}]}), "DS052", f"{PARTITION}.layer_specs[0].pattern", tp({})),
    (
        {"tensor_parallel": {"autotp_size": 2, "preset_model": "phi3"}},
        "DS052",
        "$.tensor_parallel.preset_model",
        {"tensor_parallel": {"autotp_size": 2, "preset_model": "llama"}},
    ),
    (tp({"use_default_specs": False}), "DS052", f"{PARTITION}.layer_specs", tp({"use_default_specs": True})),
    (
        {"zero_optimization": {"stage": 2, "compute_grad_norm": False, "offload_optimizer": {"device": "cpu"}}},
        "DS061",
        f"{ZERO}.compute_grad_norm",
        {"zero_optimization": {"stage": 2, "compute_grad_norm": False}, "gradient_clipping": 0},
    ),
    ({"scheduler": {"params": {"warmup_num_steps": 9}}}, "DS063", "$.scheduler.type", {"scheduler": {}}),
    ({"optimizer": {"params": {"lr": 1}}}, "DS066", "$.optimizer.type", {}),
    (
        {"managed_gradient_accumulation": False, "zero_optimization": {"stage": 1, "overlap_comm": True}},
        "DS064",
        "$.managed_gradient_accumulation",
        {"managed_gradient_accumulation": False, "zero_optimization": {"stage": 2, "overlap_comm": True}},
    ),
    (
        {"zero_optimization": {"stage": 1, "legacy_stage1": True}},
        "DS015",
        f"{ZERO}.legacy_stage1",
        {"zero_optimization": {"stage": 1, "legacy_stage1": False}},
    ),
    (
        {"optimizer": {"type": "Adam", "params": {"lr": 1e-5, "weight_decay": 0.1}}},
        "DS073",
        "$.optimizer.type",
        {"optimizer": {"type": "Adam", "params": {"lr": 1e-5, "weight_decay": 0.1, "adam_w_mode": True}}},
    ),
    (
        {"activation_checkpointing": {"contiguous_memory_optimization": True}},
        "DS074",
        "$.activation_checkpointing.contiguous_memory_optimization",
        {"activation_checkpointing": {"partition_activations": True}},
    ),
    (
        {"compile": {"deepcompile": True, "passes": ["autotp", "z1"]}},
        "DS075",
        "$.compile.passes",
        {"compile": {"deepcompile": True, "passes": ["z1"]}},
    ),
    (
        {"compile": {"deepcompile": True, "passes": ["autosp"]}},
        "DS075",
        "$.compile.passes",
        {"compile": {"deepcompile": True, "passes": ["autosp"]}, "zero_optimization": {"stage": 1}},
    ),
)


@pytest.mark.parametrize(("wrong", "rule", "path", "right"), CASES)
def test_the_fault_is_found_and_the_right_case_is_left_alone(
    wrong: dict[str, Any], rule: str, path: str, right: dict[str, Any]
) -> None:
    assert {p.path for p in found(wrong) if p.rule == rule and p.path == path} == {path}
    assert [p for p in found(right) if p.rule == rule] == []


VALUES: tuple[Any, ...] = (1, 10, 0, 1e-5, 100.0, "1e-5", "log", "linear", True)
USED_LATER = ("cos_min_ratio", "warmup_min_ratio", "lr_range_test_min_lr")  # after the warm-up, or after the range
KINDS = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "LRRangeTest", "OneCycle")
NAMES = (
    *("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "total_num_steps", "warmup_min_ratio"),
    *("cos_min_ratio", "cycle_min_lr", "cycle_max_lr", "cycle_first_step_size", "lr_range_test_step_size"),
    *("lr_range_test_min_lr", "warmup_step", "lr"),
)


@pytest.mark.deepspeed
def test_schedulers_start_exactly_where_the_rule_has_no_error() -> None:
    schedules = pytest.importorskip("deepspeed.runtime.lr_schedules")
    torch = pytest.importorskip("torch")
    chance, tries, refused = random.Random(5), 1500, 0
    for _ in range(tries):
        kind = chance.choice(KINDS)
        params = {name: chance.choice(VALUES) for name in NAMES if chance.random() < 0.3}
        params = {name: value for name, value in params.items() if not isinstance(value, str) or name not in USED_LATER}
        if chance.random() < 0.8:
            params = {name: value for name, value in params.items() if _belongs(name, kind)}
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
        try:
            made = getattr(schedules, kind)(optimizer, **params)
            made.step()
            made.step()
            raised = ""
        except (TypeError, ValueError, ZeroDivisionError, AttributeError, KeyError) as error:
            raised = f"{type(error).__name__}: {error}"
        problems = found({"scheduler": {"type": kind, "params": params}})
        errors = [p for p in problems if p.severity is Severity.ERROR and p.bites != "silently"]
        assert bool(errors) == bool(raised), (kind, params, raised, errors)
        refused += bool(raised)
    assert tries / 4 < refused < tries


def _belongs(name: str, kind: str) -> bool:
    prefixes = {"OneCycle": ("cycle",), "LRRangeTest": ("lr_range",), "WarmupCosineLR": ("warmup_n", "total", "cos")}
    return name.startswith(prefixes.get(kind, ("warmup_m", "warmup_n", "warmup_t", "total")))


@pytest.mark.deepspeed
def test_the_partition_is_read_as_the_rule_says() -> None:
    module = pytest.importorskip("deepspeed.module_inject.autotp_config")
    for kind, refused in (("row", False), ("Column", False), ("skip", False), ("rows", True), ("col", True)):
        spec = {"layer_specs": [{"patterns": ["x"], "partition_type": kind}]}
        if refused:
            with pytest.raises(ValueError, match="PartitionType"):
                module.AutoTPConfig.from_dict(spec)
        else:
            module.AutoTPConfig.from_dict(spec)
        assert any(p.rule == "DS052" for p in found(tp(spec))) == refused
    assert module.AutoTPConfig.from_dict({"layer_spec": [1]}).layer_specs == []


@pytest.mark.deepspeed
@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_parameters_of_an_optimizer_are_those_of_its_constructor(name: str) -> None:
    given = {"torch_adam", "adam_w_mode", "adamw_mode", "fp32_optimizer_states"}  # the engine's to give, to Adam
    taken = set(list(inspect.signature(_class_of(name).__init__).parameters)[2:])  # after self and the parameters
    assert set(PARAMETERS[name]) == taken - (given if "Adam" in name else set())


def _class_of(name: str) -> Any:
    if name.startswith("torch."):
        import torch

        return getattr(torch.optim, name.rpartition(".")[2])
    from deepspeed.ops import adagrad, adam, lamb, lion

    return next(getattr(module, name) for module in (adagrad, adam, lamb, lion) if hasattr(module, name))
