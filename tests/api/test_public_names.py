"""What `planner` offers to programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import planner
from planner import check, estimate, plan
from planner.errors import PlannerError


def test_the_public_names_are_functions_whatever_was_imported_before() -> None:
    program = (
        "import planner.check.folder\n"
        "from planner import check, estimate, plan\n"
        "assert all(map(callable, (check, estimate, plan)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert sorted(planner.__all__) == ["Answer", "check", "estimate", "plan"]


def test_a_plan_written_through_python_passes_check(tmp_path: Path) -> None:
    plan(model="7b", gpus="8xA100-80G", out=tmp_path / "plan")
    result = check(tmp_path / "plan")
    assert not result.findings
    assert len(result.files) >= 3


def test_nothing_is_written_when_nothing_fits(tmp_path: Path) -> None:
    answer = plan(model="70b", gpus="1xA100-80G", offload="none", out=tmp_path / "plan")
    assert not answer.fits
    assert not (tmp_path / "plan").exists()


def test_a_dry_run_needs_files(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="`smoke` needs `out`"):
        plan(model="7b", gpus="8xA100-80G", smoke=True)


def test_estimate_returns_exactly_one_plan() -> None:
    answer = estimate(model="7b", gpus="8xA100-80G", zero=2)
    assert len(answer.plan.ranked) == 1
    assert len(answer.to_dict()["plans"]) == 1
    asked = answer.to_dict()["request"]
    assert (asked["zero"], asked["tp"], asked["offload"], asked["micro_batch"]) == ([2], [1], ["none"], [1])
