"""The optimizer's part of ds_config.json: one block for each optimizer, read back as what was asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from handmade_plans import make_plan

from planner.catalog.optimizers import optimizer_rows
from planner.errors import PlannerError
from planner.records.model import Adapter, Method, Precision
from planner.records.request import Integration, Optimizer
from planner.render.deepspeed_json import deepspeed_config
from planner.render.optimizer_block import optimizer_keys
from planner.spec import ds_config


def rendered(*, zero: int = 2, **choices: Any) -> dict[str, Any]:
    plan = make_plan(zero=zero, **choices)
    return deepspeed_config(plan.request, plan.ranked[0].candidate)


def read_back(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    file = folder / "ds_config.json"
    file.write_text(json.dumps(config))
    return dict(ds_config.read(file, world_size=4, hidden=4096).fields)


@pytest.mark.parametrize("optimizer", Optimizer)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_rendered_file_is_read_as_the_same_optimizer(optimizer: Optimizer, zero: int, tmp_path: Path) -> None:
    fields = read_back(rendered(zero=zero, optimizer=optimizer), tmp_path)
    assert fields.get("optimizer") == (None if optimizer is Optimizer.ADAMW_8BIT else optimizer.value)
    assert fields["precision"] == "bf16"


def test_pure_bf16_switches_master_weights_and_states_over(tmp_path: Path) -> None:
    config = rendered(precision=Precision.PURE_BF16)
    assert config["bf16"] == {
        "enabled": True,
        "bf16_master_weights_and_grads": True,
        "bf16_optimizer_states": True,
    }
    assert read_back(config, tmp_path)["precision"] == "pure-bf16"


def test_only_what_deepspeed_has_not_tested_is_allowed_by_name() -> None:
    allowed = {o for o in Optimizer if "zero_allow_untested_optimizer" in rendered(optimizer=o)}
    assert allowed == {Optimizer.SGD, Optimizer.ADAFACTOR, Optimizer.ADAMW_8BIT}


def test_muon_at_stage_three_reduces_without_scattering() -> None:
    scattered = {
        (optimizer, zero): rendered(zero=zero, optimizer=optimizer)["zero_optimization"]["reduce_scatter"]
        for optimizer in Optimizer
        for zero in range(4)
    }
    assert [key for key, on in scattered.items() if not on] == [(Optimizer.MUON, 3)]


def test_learning_rates_follow_adamw() -> None:
    full = make_plan().request
    adapter = Adapter(method=Method.LORA, rank=16, targets=("all-linear",))
    rates = {}
    for optimizer in (Optimizer.ADAMW, Optimizer.LION, Optimizer.MUON):
        for trained in (None, adapter):
            workload = replace(full.workload, optimizer=optimizer, adapter=trained)
            request = replace(full, workload=workload, integration=Integration.DEEPSPEED)
            params = optimizer_keys(request)["optimizer"]["params"]
            rates[optimizer, trained is None] = (params["lr"], params.get("muon_lr"))
    assert rates == {
        (Optimizer.ADAMW, True): (1e-5, None),
        (Optimizer.ADAMW, False): (2e-4, None),
        (Optimizer.LION, True): (1e-6, None),
        (Optimizer.LION, False): (2e-5, None),
        (Optimizer.MUON, True): (1e-5, 1e-4),
        (Optimizer.MUON, False): (2e-4, 2e-3),
    }


def test_every_row_has_a_source_of_its_own() -> None:
    sources = [row.source for row in optimizer_rows().values()]
    assert len(set(sources)) == len(Optimizer)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"optimizer": {"type": "Lamb"}}, "`Lamb` @ $.optimizer.type is not modelled"),
        ({"bf16": {"enabled": True, "bf16_optimizer_states": True}}, "needs `bf16_master_weights_and_grads`"),
        ({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}, "with fp32 optimizer states"),
        ({"bf16": {}, "fp16": {"enabled": True, "fp16_master_weights_and_grads": True}}, "fp16 master weights"),
        ({"optimizer": {"type": "Muon"}, "zero_optimization": {"stage": 3}}, "refuses it with Muon at stage 3"),
    ],
)
def test_what_a_file_asks_and_dsplan_does_not_model_is_refused(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(PlannerError) as caught:
        read_back({**rendered(), **change}, tmp_path)
    assert said in str(caught.value)


def test_sgd_without_momentum_is_planned_with_one_and_says_so(tmp_path: Path) -> None:
    config = rendered(optimizer=Optimizer.SGD)
    file = tmp_path / "ds_config.json"
    del config["optimizer"]["params"]["momentum"]
    file.write_text(json.dumps(config))
    notes = ds_config.read(file, world_size=4, hidden=4096).notes
    assert any("keeps no momentum" in note for note in notes)
