"""Rare sections: what the rules say, and what the validation functions of the installed packages say."""

from __future__ import annotations

import inspect
import json
import random
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from documents import GOOD

from planner.check import check_text
from planner.check.one_file.rare_sections import ADAM_BUFFERS, TORCH_SCHEDULERS, rare_problems
from planner.check.one_run.rare_rules import FOUND_BY_AUTOEP
from planner.records.problem import Problem, Severity

ZERO, ZENFLOW = "$.zero_optimization", "$.zero_optimization.zenflow"
STEPS = {"select_strategy": "step", "select_interval": 4, "update_interval": 4}
CPU = {"device": "cpu"}


def found(change: dict[str, Any]) -> list[Problem]:
    return check_text("ds.json", json.dumps({**GOOD, **change}, indent=1))[1]


def zen(stage: int, off: Any = CPU, top: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    zero = {"stage": stage, "zenflow": {**STEPS, **keys}, **({"offload_optimizer": off} if off else {})}
    return {"zero_optimization": zero, **(top or {})}


def compiled(stage: int = 3, zero: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **(zero or {})}, "compile": {"deepcompile": True, **keys}}


def experts(**keys: Any) -> dict[str, Any]:
    return {"expert_parallel": {"enabled": True, "autoep_size": 4, **keys}}


def scheduled(kind: str, **params: Any) -> dict[str, Any]:
    scheduler = {"type": kind, "params": params}
    return {"scheduler": scheduler, "zero_optimization": {"stage": 0}, "bf16": {"enabled": False}}


NVME = {"device": "nvme", "nvme_path": "/nvme"}
TP = {"tensor_parallel": {"autotp_size": 2}}
E = "$.expert_parallel"
CASES: tuple[tuple[dict[str, Any], str, str, dict[str, Any]], ...] = (
    ({"expert_parallel": {"autoep_size": 4}}, "DS077", f"{E}.enabled", {"expert_parallel": {"autoep_size": 1}}),
    (experts(comm_backend="deepep"), "DS077", f"{E}.comm_max_tokens_per_rank", experts()),
    (experts(expert_tensor_parallel_size=2), "DS077", f"{E}.expert_tensor_parallel_size", experts()),
    (experts(row_weighting_impl="fused"), "DS077", f"{E}.row_weighting_impl", experts(row_weighting_impl="eager")),
    (
        experts(gate_up_impl="fused", use_grouped_mm=False),
        "DS077",
        f"{E}.gate_up_impl",
        experts(gate_up_impl="fused"),
    ),
    (
        {**experts(combine_impl="fused_weighted_sum"), **TP},
        "DS077",
        f"{E}.combine_impl",
        experts(combine_impl="fused_weighted_sum"),
    ),
    (
        experts(num_expert_groups=2, num_limited_groups=4),
        "DS077",
        f"{E}.num_limited_groups",
        experts(num_expert_groups=4, num_limited_groups=2),
    ),
    ({**experts(), **TP, **zen(2)}, "DS077", f"{E}.enabled", {**experts(), **TP}),
    ({**experts(autoep_size=1), **TP}, "DS077", f"{E}.autoep_size", experts(autoep_size=1)),
    (zen(0, off=None), "DS078", ZENFLOW, zen(1)),
    (zen(2, off={"device": "none"}), "DS078", f"{ZERO}.offload_optimizer", zen(2)),
    (zen(2, offload=True), "DS078", f"{ZENFLOW}.offload", zen(3, offload=True)),
    (zen(2, select_interval="auto"), "DS078", f"{ZENFLOW}.select_interval", zen(2)),
    (zen(2, select_strategy="auto"), "DS078", f"{ZENFLOW}.select_interval", zen(2, select_strategy="epoch")),
    (zen(2, select_interval=2), "DS078", f"{ZENFLOW}.select_interval", zen(2, select_interval=8)),
    (
        zen(2, top={"gradient_accumulation_steps": 2}),
        "DS078",
        "$.gradient_accumulation_steps",
        zen(2, top={"gradient_accumulation_steps": 4}),
    ),
    (
        zen(2, top={"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}),
        "DS078",
        "$.optimizer.params.torch_adam",
        zen(2),
    ),
    (
        compiled(offload_opt_states=True, zero={"offload_optimizer": CPU}),
        "DS079",
        "$.compile.offload_opt_states",
        compiled(offload_opt_states=True),
    ),
    (
        compiled(offload_activation=True, offload_parameters=True),
        "DS079",
        "$.compile.offload_activation",
        compiled(offload_activation=True, stage=2, offload_parameters=True),
    ),
    (
        {"compile": {"autoep_non_moe": True, "deepcompile": True}},
        "DS079",
        "$.compile.autoep_non_moe",
        {"compile": {"autoep_non_moe": True}},
    ),
    (
        {"zero_optimization": {"stage": 3, "offload_optimizer": {**NVME, "buffer_count": 3}}},
        "DS079",
        f"{ZERO}.offload_optimizer.buffer_count",
        {"zero_optimization": {"stage": 3, "offload_optimizer": {**NVME, "buffer_count": 4}}},
    ),
    (
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95, 0.99]}}},
        "DS079",
        "$.optimizer.params.betas",
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95]}}},
    ),
    (
        {"optimizer": {"type": "RMSprop", "params": {"alpa": 0.9}}, "zero_allow_untested_optimizer": True},
        "DS062",
        "$.optimizer.params.alpa",
        {"optimizer": {"type": "RMSprop", "params": {"alpha": 0.9}}, "zero_allow_untested_optimizer": True},
    ),
    (scheduled("CosineAnnealingLR"), "DS063", "$.scheduler.params.T_max", scheduled("CosineAnnealingLR", T_max=9)),
    (
        scheduled("StepLR", step_size=3, gama=0.5),
        "DS063",
        "$.scheduler.params.gama",
        scheduled("StepLR", step_size=3, gamma=0.5),
    ),
    ({"scheduler": {"type": "StepLR", "params": {"step_size": 3}}}, "DS063", "$.scheduler.type", {"scheduler": {}}),
)


@pytest.mark.parametrize(("wrong", "rule", "path", "right"), CASES)
def test_the_fault_is_found_and_the_right_case_is_left_alone(
    wrong: dict[str, Any], rule: str, path: str, right: dict[str, Any]
) -> None:
    assert {p.path for p in found(wrong) if p.rule == rule and p.path == path} == {path}
    assert [p for p in found(right) if p.rule == rule] == []


@pytest.mark.parametrize("odd", [None, 3, "auto", [], True, {"enabled": "auto", "autoep_size": "auto"}])
def test_odd_values_are_borne(odd: Any) -> None:
    names = ("expert_parallel", "compile", "scheduler", "optimizer", "zero_optimization")
    for name in names:
        assert [p for p in rare_problems({name: odd}) if p.severity is Severity.ERROR and p.rule != "DS063"] == []
    assert rare_problems({"zero_optimization": {"stage": 3, "zenflow": odd, "offload_optimizer": odd}}) is not None


CHOICES: dict[str, tuple[Any, ...]] = {
    "autoep_size": (1, 2, 4, 8),
    "expert_tensor_parallel_size": (1, 1, 2),
    "comm_backend": ("comm", "deepep"),
    "comm_max_tokens_per_rank": (0, 4096),
    "row_weighting_impl": ("auto", "eager", "fused"),
    "gate_up_impl": ("separate", "fused"),
    "use_grouped_mm": (True, False),
    "combine_impl": ("auto", "weighted_sum", "fused_weighted_sum"),
    "num_expert_groups": (2, 4),
    "num_limited_groups": (2, 4),
    "async_split_plan": (True, False),
    "preset_model": ("mixtral", "qwen3_moe"),
    "enabled": (True, True, False),
}


@pytest.mark.deepspeed
def test_expert_parallelism_is_refused_exactly_where_deepspeed_refuses_it() -> None:
    module = pytest.importorskip("deepspeed.module_inject.auto_ep_config")
    chance, tries, refused = random.Random(3), 1500, 0
    for _ in range(tries):
        block = {key: chance.choice(values) for key, values in CHOICES.items() if chance.random() < 0.3}
        block["enabled"] = block.get("enabled", True)
        tp, offload, deepcompile = chance.choice((0, 0, 2)), chance.random() < 0.2, chance.random() < 0.2
        preset = chance.choice((None, None, "mixtral"))
        tensor_parallel = {"autotp_size": tp, **({"preset_model": preset} if preset else {})}
        config = {"expert_parallel": block, "tensor_parallel": tensor_parallel, "compile": {"deepcompile": deepcompile}}
        config["zero_optimization"] = {"stage": 2, **({"offload_optimizer": CPU} if offload else {})}
        try:
            module.validate_autoep_config(
                module.parse_autoep_config(block),
                16,
                1,
                tp,
                1,
                deepcompile_enabled=deepcompile,
                tp_preset_model=preset,
                zero_offload_optimizer=offload,
            )
            raised = ""
        except ValueError as error:
            raised = str(error)
        errors = [p for p in rare_problems(config) if p.rule == "DS077"]
        assert bool(errors) == bool(raised), (config, raised, errors)
        refused += bool(raised)
    assert tries / 4 < refused < tries


@pytest.mark.deepspeed
def test_ranks_that_the_expert_groups_do_not_divide_are_refused() -> None:
    folding = pytest.importorskip("deepspeed.module_inject.auto_ep_folding")
    for ranks in (1, 2, 6, 8):
        for size in (1, 2, 3, 4, 16):
            allowed = False
            with suppress(ValueError):
                folding.build_folding_spec(world_size=ranks, pp_size=1, tp_size=1, ep_size=size)
                allowed = True
            assert allowed == (ranks % size == 0)


@pytest.mark.deepspeed
def test_the_model_types_have_presets() -> None:
    registry = pytest.importorskip("deepspeed.module_inject.auto_ep_presets.registry")
    known = {name for preset in registry.PRESET_MODELS.values() for name in preset.hf_model_types}
    assert set(FOUND_BY_AUTOEP) <= known


@pytest.mark.deepspeed
def test_zenflow_intervals_are_refused_exactly_where_deepspeed_refuses_them() -> None:
    engine = pytest.importorskip("deepspeed.runtime.zenflow.engine")
    config = pytest.importorskip("deepspeed.runtime.zenflow.zenflow_config")
    intervals: tuple[Any, ...] = ("auto", 1, 4, 8)
    for strategy in ("auto", "step", "epoch"):
        for select in intervals:
            for update in intervals:
                keys = {"select_strategy": strategy, "select_interval": select, "update_interval": update}
                made = config.ZenFlowConfig(**keys)
                fake = SimpleNamespace(
                    zenflow_config=lambda made=made: made, training_dataloader=None, _config=SimpleNamespace()
                )
                raised = ""
                try:
                    engine.configure_zenflow(fake)
                except (ValueError, Warning) as error:
                    raised = str(error)
                problems = [p for p in found(zen(2, **keys)) if p.rule == "DS078"]
                assert bool(problems) == bool(raised), (keys, raised, problems)
                if not raised and update == "auto":
                    assert fake._config.gradient_accumulation_steps == 0  # what `backward` divides by


@pytest.mark.deepspeed
def test_adam_needs_four_buffers() -> None:
    torch = pytest.importorskip("torch")
    utils = pytest.importorskip("deepspeed.runtime.swap_tensor.utils")
    states = pytest.importorskip("deepspeed.runtime.swap_tensor.optimizer_utils").OptimizerStateSwapInfo
    weight = torch.nn.Parameter(torch.zeros(8))
    weight.ds_id = 0
    info = states(weight, 8, "folder", None)
    moments = [torch.zeros(8), torch.zeros(8)]
    for number, moment in enumerate(moments, 1):
        moment.ds_id = number
    info.add_state_tensors(moments)
    manager = utils.SwapBufferManager.__new__(utils.SwapBufferManager)
    for count, enough in ((ADAM_BUFFERS - 1, False), (ADAM_BUFFERS, True)):
        manager.num_elems, manager.dtype, manager.used_buffer_index = 8, torch.float32, {}
        manager.all_buffers, manager.free_buffer_index = [torch.zeros(8) for _ in range(count)], list(range(count))
        given = manager.allocate(num_elems=8, count=info.num_tensors() + 1, dtype=torch.float32)
        assert (given is not None) == enough
        manager.all_buffers = []


@pytest.mark.deepspeed
@pytest.mark.parametrize("name", sorted(TORCH_SCHEDULERS))
def test_parameters_of_a_scheduler_of_torch_are_those_of_its_constructor(name: str) -> None:
    schedulers = pytest.importorskip("torch.optim.lr_scheduler")
    given = list(inspect.signature(getattr(schedulers, name).__init__).parameters.values())[2:]  # self, optimizer
    needed = tuple(one.name for one in given if one.default is inspect.Parameter.empty)
    others = {one.name for one in given} - set(needed) - {"last_epoch"}
    assert (needed, others) == (TORCH_SCHEDULERS[name][0], set(TORCH_SCHEDULERS[name][1]))


@pytest.mark.deepspeed
def test_torch_refuses_an_optimizer_that_wraps_one() -> None:
    torch = pytest.importorskip("torch")
    base = pytest.importorskip("deepspeed.runtime.base_optimizer")
    for kind in (base.DeepSpeedOptimizer, base.ZeROOptimizer):
        assert not issubclass(kind, torch.optim.Optimizer)
        with pytest.raises(TypeError, match="is not an Optimizer"):
            torch.optim.lr_scheduler.StepLR(kind.__new__(kind), step_size=3)


@pytest.mark.deepspeed
def test_deepcompile_offloads_one_thing() -> None:
    init_z3 = pytest.importorskip("deepspeed.compile.init_z3").init_z3
    config = pytest.importorskip("deepspeed.compile.config").CompileConfig
    for keys, offloaded in (
        ({"offload_opt_states": True}, True),
        ({"offload_activation": True, "offload_parameters": True}, False),
        ({"offload_activation": True, "offload_opt_states": True}, False),
    ):
        engine = SimpleNamespace(zero_use_cpu_optimizer=lambda offloaded=offloaded: offloaded)
        with pytest.raises(ValueError, match="cannot be combined"):
            init_z3(engine, "inductor", config(deepcompile=True, **keys), {})
        change = compiled(zero={"offload_optimizer": CPU} if offloaded else None, **keys)
        assert any(p.rule == "DS079" for p in found(change))


@pytest.mark.deepspeed
def test_accelerate_sets_the_boundary_that_deepspeed_then_refuses() -> None:
    wrapper = pytest.importorskip("accelerate.utils.deepspeed").DeepSpeedEngineWrapper
    engine_class = pytest.importorskip("deepspeed.runtime.engine").DeepSpeedEngine
    engine = SimpleNamespace(managed_gradient_accumulation=lambda: False)
    engine.set_gradient_accumulation_boundary = lambda is_boundary: engine_class.set_gradient_accumulation_boundary(
        engine, is_boundary
    )
    with pytest.raises(AssertionError, match="managed_gradient_accumulation=False"):
        wrapper(engine).backward(None)
