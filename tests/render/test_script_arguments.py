"""training_args.json and loop_args.json: every value has one home, and those in two files are one value."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from handmade_plans import SETTINGS, make_cluster, make_plan

from planner.records.candidate import Checkpointing
from planner.records.model import Precision
from planner.records.plan import Plan
from planner.records.request import Integration, Loss, Optimizer
from planner.render.deepspeed_json import deepspeed_config
from planner.render.script_arguments import data_loader, loop_arguments, training_arguments


def arguments_of(plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """ds_config.json and training_args.json."""
    candidate = plan.ranked[0].candidate
    engine = deepspeed_config(plan.request, candidate)
    return engine, training_arguments(plan.request, candidate, engine)


@pytest.mark.parametrize("precision", Precision)
def test_what_states_the_plan_is_one_number_in_both_files(precision: Precision) -> None:
    engine, arguments = arguments_of(make_plan(precision=precision, micro_batch=3, accumulation=5))
    assert engine["train_micro_batch_size_per_gpu"] == arguments["per_device_train_batch_size"] == 3
    assert engine["gradient_accumulation_steps"] == arguments["gradient_accumulation_steps"] == 5
    assert engine["gradient_clipping"] == arguments["max_grad_norm"] == 1.0
    assert engine.get("bf16", {}).get("enabled", False) is arguments["bf16"]
    assert engine.get("fp16", {}).get("enabled", False) is arguments["fp16"]


@pytest.mark.parametrize("optimizer", Optimizer)
@pytest.mark.parametrize("integration", Integration)
def test_a_learning_rate_stands_in_exactly_one_file(optimizer: Optimizer, integration: Integration) -> None:
    plan = make_plan(optimizer=optimizer, integration=integration)
    candidate = plan.ranked[0].candidate
    engine = deepspeed_config(plan.request, candidate)
    homes = [engine.get("optimizer", {}).get("params", {}).get("lr")]
    if integration is Integration.TRAINER:
        homes.append(training_arguments(plan.request, candidate, engine)["learning_rate"])
    else:
        homes.append(loop_arguments(plan.request, candidate).get("optimizer", {}).get("lr"))
    assert sum(isinstance(home, float) for home in homes) == 1


@pytest.mark.parametrize("checkpointing", Checkpointing)
def test_checkpointing_is_switched_where_hugging_face_models_have_it(checkpointing: Checkpointing) -> None:
    """DeepSpeed's `activation_checkpointing` block does nothing for them."""
    engine, arguments = arguments_of(make_plan(checkpointing=checkpointing))
    assert "activation_checkpointing" not in engine
    assert arguments["activation_checkpointing"] is (checkpointing is Checkpointing.FULL)
    assert ("activation_checkpointing_kwargs" in arguments) is (checkpointing is Checkpointing.FULL)


def test_eight_bit_adamw_has_adamws_values() -> None:
    _, plain = arguments_of(make_plan())
    _, small = arguments_of(make_plan(optimizer=Optimizer.ADAMW_8BIT))
    assert small.pop("optim") == "adamw_bnb_8bit"
    assert small == plain
    plan = make_plan(optimizer=Optimizer.ADAMW_8BIT, integration=Integration.DEEPSPEED)
    own = loop_arguments(plan.request, plan.ranked[0].candidate)["optimizer"]
    assert (own["lr"], own["weight_decay"]) == (plain["learning_rate"], plain["weight_decay"])
    assert own["betas"] == [plain["adam_beta1"], plain["adam_beta2"]]


def test_the_fused_loss_changes_head_and_loss_only() -> None:
    _, arguments = arguments_of(make_plan(loss=Loss.FUSED))
    assert arguments["use_liger_kernel"] is True
    assert [kernel for kernel, on in arguments["liger_kernel_config"].items() if on] == ["fused_linear_cross_entropy"]
    assert "use_liger_kernel" not in arguments_of(make_plan())[1]


def test_seeds_are_given() -> None:
    _, arguments = arguments_of(make_plan())
    assert isinstance(arguments["seed"], int)
    assert arguments["data_seed"] == arguments["seed"]
    plan = make_plan(integration=Integration.DEEPSPEED)
    assert loop_arguments(plan.request, plan.ranked[0].candidate)["seed"] == arguments["seed"]


@pytest.mark.parametrize(
    ("cores", "gpus", "workers"), [(None, 8, 2), (128, 8, 2), (24, 8, 2), (16, 8, 1), (8, 8, 0), (4, 8, 0), (6, 1, 2)]
)
def test_workers_leave_each_rank_a_core(cores: int | None, gpus: int, workers: int) -> None:
    plan = make_plan(cluster=make_cluster(gpus_per_node=gpus, cpu_cores=cores))
    loader = data_loader(plan.request.cluster, plan.ranked[0].candidate)
    assert loader["dataloader_num_workers"] == workers
    if cores is not None:
        assert gpus * workers <= max(0, cores - gpus)


@pytest.mark.parametrize("pin", [True, False])
def test_batches_are_page_locked_where_the_plan_page_locks(pin: bool) -> None:
    plan = make_plan(settings=replace(SETTINGS, pin_memory=pin))
    assert data_loader(plan.request.cluster, plan.ranked[0].candidate)["dataloader_pin_memory"] is pin
