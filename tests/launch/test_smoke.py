"""The dry run on the real engine: a plan that is in force passes, one that is not fails and says why.

Each case is a launch of some twenty seconds on two idle cores; the first ones also compile the CPU optimizers.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

import planner
from planner.errors import LaunchFailed, PlannerError
from planner.geometry.params import parameter_count
from planner.launch import counting_allocator, run_smoke, verdict
from planner.launch.memory_check import predicted_bytes
from planner.launch.result import smoke_text
from planner.records.estimate import Phase

pytestmark = [pytest.mark.deepspeed, pytest.mark.accelerate, pytest.mark.transformers, pytest.mark.slow]
CASES = [
    ("accelerate", {"zero": 0, "checkpointing": "full", "micro_batch": 2, "accumulation": 2}),
    ("deepspeed", {"zero": 1, "checkpointing": "none", "precision": "fp16"}),
    ("accelerate", {"zero": 2, "checkpointing": "full", "micro_batch": 3}),
    ("torchrun", {"zero": 3, "checkpointing": "none", "micro_batch": 2, "accumulation": 2}),
    ("deepspeed", {"zero": 2, "checkpointing": "none", "offload": "optimizer", "accumulation": 2}),
    ("accelerate", {"zero": 3, "checkpointing": "full", "offload": "optimizer"}),
    ("deepspeed", {"zero": 3, "checkpointing": "none", "offload": "optimizer+param", "accumulation": 2}),
    ("accelerate", {"zero": 1, "tp": 2, "checkpointing": "full"}),
    ("deepspeed", {"zero": 3, "tp": 2, "checkpointing": "none"}),
    ("accelerate", {"zero": 3, "checkpointing": "full", "micro_batch": 2, "integration": "accelerate"}),
    ("torchrun", {"zero": 1, "tp": 2, "checkpointing": "full", "integration": "accelerate"}),
    ("deepspeed", {"zero": 2, "checkpointing": "full", "accumulation": 2, "integration": "deepspeed"}),
    ("accelerate", {"zero": 3, "tp": 2, "checkpointing": "none", "integration": "deepspeed"}),
]


@pytest.fixture(scope="module")
def _engine():
    for package in ("torch", "deepspeed", "accelerate", "transformers"):
        if importlib.util.find_spec(package) is None:  # without importing it: the dry run does not either
            pytest.skip(f"{package} is not installed")


def write_plan(folder: Path, **fields) -> Path:
    """A plan of the smallest catalogue model, pinned to one strategy, in a folder with an awkward name."""
    pinned = {"tp": 1, "offload": "none", "micro_batch": 1, "gpus": "4xA100-80G", **fields}
    folder = folder / "a plan's $(folder)"
    folder.mkdir()
    for name, text in planner.plan(model="qwen2.5-0.5b", **pinned).files().items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def survivors(folder: Path) -> list[str]:
    """Command lines of processes that work in the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "cwd").startswith(str(folder)):
                found.append((entry / "cmdline").read_text("utf-8", "replace"))
        except OSError:
            continue
    return found


def case_name(case) -> str:
    return case if isinstance(case, str) else "-".join(f"{key}={value}" for key, value in case.items())


@pytest.mark.parametrize(("launcher", "strategy"), CASES, ids=case_name)
@pytest.mark.usefixtures("_engine")
def test_a_plan_is_in_force_on_the_real_engine(tmp_path, launcher, strategy):
    folder = write_plan(tmp_path, launcher=launcher, **strategy)
    result = run_smoke(folder)
    plan = json.loads((folder / "plan.json").read_text("utf-8"))["plans"][0]
    found = {check.what: check.found for check in result.checks}
    assert result.passed
    assert len(result.checks) >= 24
    assert all(check.ok for check in result.checks)
    assert found["ZeRO stage"] == strategy["zero"] == plan["zero_stage"]
    assert found["tensor-parallel world size"] == strategy.get("tp", 1)
    assert found["data-parallel world size"] == 2
    assert found["optimizer class"] == ("DeepSpeedCPUAdam" if "offload" in strategy else "FusedAdam")
    assert len(result.losses) == result.steps == 3
    assert result.memory.skipped is None
    assert [phase.phase for phase in result.memory.phases] == ["load", "init", "forward", "backward", "step"]
    assert all(phase.within_limit for phase in result.memory.phases)
    assert result.memory.limit_percent == (5.0 if "offload" in strategy else 3.0)
    assert json.loads((folder / "smoke.json").read_text("utf-8")) == json.loads(json.dumps(result.to_dict()))
    assert survivors(folder) == []


@pytest.mark.usefixtures("_engine")
def test_a_plan_whose_json_was_edited_to_another_stage_fails(tmp_path):
    folder = write_plan(tmp_path, zero=2, launcher="accelerate", checkpointing="none")
    config = json.loads((folder / "ds_config.json").read_text("utf-8"))
    config["zero_optimization"]["stage"] = 1
    (folder / "ds_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(LaunchFailed, match="ZeRO stage should be `2` and is `1`") as failure:
        run_smoke(folder)
    assert failure.value.exit_code == 5
    assert json.loads((folder / "smoke.json").read_text("utf-8"))["passed"] is False
    assert survivors(folder) == []


@pytest.mark.usefixtures("_engine")
def test_a_memory_model_that_forgets_adams_variance_is_found_out(tmp_path, monkeypatch):
    def forgetful(model, workload, candidate):
        right = predicted_bytes(model, workload, candidate)
        variance = 4 * parameter_count(model) // candidate.degrees.dp
        training = (Phase.FORWARD, Phase.BACKWARD, Phase.STEP)
        return {phase: size - variance if phase in training else size for phase, size in right.items()}

    monkeypatch.setattr(verdict, "predicted_bytes", forgetful)
    folder = write_plan(tmp_path, zero=1, launcher="torchrun", checkpointing="none")
    with pytest.raises(LaunchFailed, match="the memory model is wrong here") as failure:
        run_smoke(folder)
    assert failure.value.exit_code == 5
    phases = json.loads((folder / "smoke.json").read_text("utf-8"))["memory"]["phases"]
    assert [phase["within_limit"] for phase in phases] == [True, True, False, False, False]


@pytest.mark.usefixtures("_engine")
def test_without_a_compiler_the_engine_is_asked_and_nothing_is_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(counting_allocator, "_compiler", missing_compiler)
    result = run_smoke(write_plan(tmp_path, zero=2, launcher="deepspeed", checkpointing="none"))
    assert result.passed
    assert len(result.checks) >= 24
    assert result.memory.phases == ()
    assert "there is no C++ compiler" in smoke_text(result)


def missing_compiler() -> str:
    raise PlannerError("there is no C++ compiler", hint="install g++")


@pytest.mark.usefixtures("_engine")
def test_the_time_limit_ends_every_rank(tmp_path):
    folder = write_plan(tmp_path, zero=2, launcher="torchrun", checkpointing="none")
    with pytest.raises(LaunchFailed, match="ended after 6 s") as failure:
        run_smoke(folder, timeout_s=6)
    assert "time limit" in failure.value.hint
    assert survivors(folder) == []


@pytest.mark.usefixtures("_engine")
def test_a_launcher_that_fails_is_reported_with_its_own_words(tmp_path):
    folder = write_plan(tmp_path, zero=2, launcher="accelerate", checkpointing="none")
    with (folder / "accelerate.yaml").open("a", encoding="utf-8") as file:
        file.write("zero_stage: 2\n")
    with pytest.raises(LaunchFailed, match="unknown keys"):
        run_smoke(folder)
