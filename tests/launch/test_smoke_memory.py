"""Predicted and measured bytes in the answer of a dry run: compared, refused, or said to be missing, without an engine.

The launch here is a shell script that reports what a test tells it to; `test_smoke.py` runs the real engine.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from test_smoke_input import PLAN, folder_with

from planner.check.one_file.schema import load_schema
from planner.check.one_file.violations import violations
from planner.cli.main import run
from planner.errors import PlannerError
from planner.launch import counting_allocator, smoke
from planner.launch.memory_check import PHASES, predicted_bytes
from planner.launch.result import DryRunFailed, smoke_text
from planner.launch.small_plan import SmallPlan, small_plan
from planner.launch.smoke import run_smoke
from planner.records.estimate import Phase

ENGINE = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2, "overlap_comm": True}}
REPORT = """
import json, os
task = json.load(open(os.environ["DSPLAN_SMOKE_TASK"]))
answer = {{"checks": [], "losses": [], "finished": True, "memory": {memory} if task["counting_library"] else {{}}}}
json.dump(answer, open(task["report"], "w"))
"""


@pytest.fixture(autouse=True)
def _with_packages(monkeypatch):
    monkeypatch.setattr(smoke, "PACKAGES", ())


@pytest.fixture
def _counted(monkeypatch):
    """As if a compiler had built the allocator, which no real engine loads here."""
    monkeypatch.setattr(smoke, "build", lambda folder: folder / "counting_allocator.so")


def small(folder: Path, **fields) -> SmallPlan:
    document = json.loads(json.dumps(PLAN))
    document["plans"][0].update(fields)
    return small_plan(document, folder / "ds_config.json", ranks=2)


def folder_that_reports(tmp_path: Path, *, factors: dict[str, float], **fields) -> Path:
    """A plan whose launch counts the predicted bytes times a factor."""
    document = json.loads(json.dumps(PLAN))
    document["plans"][0].update(fields)
    folder = folder_with(tmp_path, **{"ds_config.json": json.dumps(ENGINE), "plan.json": json.dumps(document)})
    plan = small(folder, **fields)
    predicted = predicted_bytes(plan.shape, plan.workload, plan.candidate)
    memory = {phase.value: round(size * factors.get(phase.value, 1)) for phase, size in predicted.items()}
    program = shlex.quote(REPORT.format(memory=memory))
    (folder / "launch.sh").write_text(f"{shlex.quote(sys.executable)} -c {program}\n", encoding="utf-8")
    return folder


@pytest.mark.usefixtures("_counted")
def test_a_phase_that_holds_more_than_predicted_fails_with_exit_code_5(tmp_path, capsys):
    folder = folder_that_reports(tmp_path, factors={"step": 1.04})
    with pytest.raises(DryRunFailed, match=r"`step` holds [\d,]+ bytes of tensors, [\d,]+ were predicted \(-3\.85 %"):
        run_smoke(folder)
    document = json.loads((folder / "smoke.json").read_text("utf-8"))
    assert [p["phase"] for p in document["memory"]["phases"] if not p["within_limit"]] == ["step"]
    assert list(violations(load_schema("smoke"), document | {"launcher": "accelerate"})) == []
    assert run(["smoke", str(folder)]) == 5
    said = capsys.readouterr()
    assert "BAD  step" in said.out
    assert "ok   backward" in said.out
    assert "error: the memory model is wrong here" in said.err


@pytest.mark.usefixtures("_counted")
@pytest.mark.parametrize("factor", [0.98, 1.0, 1.025])
def test_a_difference_below_the_limit_passes_and_is_shown_beside_both_values(tmp_path, factor):
    result = run_smoke(folder_that_reports(tmp_path, factors={"backward": factor}))
    assert result.passed
    assert [phase.phase for phase in result.memory.phases] == [phase.value for phase in PHASES]
    backward = result.memory.phases[3]
    assert backward.measured_bytes == round(backward.predicted_bytes * factor)
    assert backward.difference_percent == pytest.approx(100 / factor - 100, abs=0.01)
    rows = [line for line in smoke_text(result).splitlines() if line.count("MiB") == 2]
    assert len(rows) == 5


@pytest.mark.usefixtures("_counted")
def test_an_offloaded_plan_may_be_five_percent_off(tmp_path):
    result = run_smoke(folder_that_reports(tmp_path, factors={"step": 1.04}, offload="optimizer"))
    assert result.passed
    assert result.memory.limit_percent == 5.0


@pytest.mark.usefixtures("_counted")
def test_states_on_a_drive_are_not_compared_and_the_answer_says_why(tmp_path):
    result = run_smoke(folder_that_reports(tmp_path, factors={"step": 2.0}, zero_stage=3, offload="nvme"))
    assert result.passed
    assert result.memory.phases == ()
    assert "states on a drive are no tensors" in smoke_text(result)


def test_without_a_compiler_the_plan_is_still_tried_and_the_answer_says_what_is_missing(tmp_path, monkeypatch, capsys):
    folder = folder_that_reports(tmp_path, factors={})
    monkeypatch.setattr(counting_allocator.shutil, "which", lambda name: "/bin/bash" if name == "bash" else None)
    assert run(["smoke", str(folder)]) == 0
    said = "predicted and measured bytes were not compared: there is no C++ compiler; install g++"
    assert said in capsys.readouterr().out
    memory = json.loads((folder / "smoke.json").read_text("utf-8"))["memory"]
    assert memory["skipped"].startswith("there is no C++ compiler")
    assert memory["phases"] == []


def test_a_compiler_that_fails_is_quoted(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    broken = tmp_path / "broken-c++"
    broken.write_text("#!/bin/sh\necho 'x.cpp:3: fatal error: no such header' >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(PlannerError, match="fatal error: no such header"):
        counting_allocator.build(tmp_path)


@pytest.mark.usefixtures("_counted")
def test_a_launch_that_ends_early_says_that_nothing_was_counted(tmp_path):
    folder = folder_that_reports(tmp_path, factors={})
    (folder / "launch.sh").write_text("exit 3\n", encoding="utf-8")
    with pytest.raises(DryRunFailed, match="exit code 3") as failure:
        run_smoke(folder)
    assert failure.value.result.memory.skipped == "the launch ended before three optimizer steps were counted"


def test_every_rank_builds_the_whole_model_below_stage_three_only(tmp_path):
    folder = folder_with(tmp_path, **{"ds_config.json": json.dumps(ENGINE)})
    for stage in (0, 1, 2, 3):
        plan = small(folder, zero_stage=stage)
        load = predicted_bytes(plan.shape, plan.workload, plan.candidate)[Phase.LOAD]
        whole = 2 * sum(t.numel * t.count for t in _tensors(plan))
        assert load == whole if stage < 3 else load < whole


def _tensors(plan: SmallPlan):
    from planner.geometry.params import parameter_tensors

    return parameter_tensors(plan.shape)
