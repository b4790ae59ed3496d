"""What `planner` offers to programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import planner
from planner import check, estimate, plan


def test_the_public_names_are_functions_whatever_was_imported_before() -> None:
    program = (
        "import planner.check.folder\n"
        "from planner import check, estimate, plan\n"
        "assert all(map(callable, (check, estimate, plan)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert sorted(planner.__all__) == ["Answer", "check", "estimate", "plan"]


def test_a_plan_written_through_python_passes_check(tmp_path: Path) -> None:
    from planner.render.folder import write_folder

    write_folder(tmp_path / "plan", plan(model="7b", gpus="8xA100-80G").files(), force=False)
    result = check(tmp_path / "plan")
    assert not result.findings
    assert len(result.files) >= 3


def test_estimate_returns_exactly_one_plan() -> None:
    answer = estimate(model="7b", gpus="8xA100-80G", zero=2)
    assert len(answer.plan.ranked) == 1
    assert len(answer.to_dict()["plans"]) == 1
