"""Known failures and correct sets: each fault is found at its place, its fix ends it, no set has a false error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.check import CheckResult, check
from planner.records.problem import Severity

DATA = Path(__file__).parents[2].parent / "shared" / "data"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the collected failures are not beside the checkout")
LAUNCHERS = {"Ray": "ray", "mpirun": "mpirun"}


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def write(folder: Path, files: dict[str, Any]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    return [folder / name for name in files]


def flags_of(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The context of a row as keywords of `check`."""
    context = row["context"]
    flags: dict[str, Any] = {}
    nodes, world, gpu = context.get("nodes", 1), context.get("world_size"), context.get("gpu")
    if gpu and world:
        flags["gpus"] = f"{nodes}x{world // nodes}x{gpu}" if nodes > 1 else f"{world}x{gpu}"
    elif world:
        flags["gpus"] = str(world)
    if "model_config" in context:
        config = folder / "model" / "config.json"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps(context["model_config"]))
        flags["model"] = str(config)
    elif "model" in context:
        flags["model"] = context["model"]
    if "host_ram_gib" in context:
        flags["host_ram"] = context["host_ram_gib"]
    if "consumer" in context:
        flags["trainer"] = context["consumer"]
    if "launcher" in context:
        flags["launcher"] = LAUNCHERS.get(context["launcher"], context["launcher"])
    return flags


def findings(result: CheckResult) -> set[tuple[str, str]]:
    return {
        (f"{Path(problem.file).name}#{problem.path}".removeprefix("ds_config.json#"), problem.severity.value)
        for problem in result.findings
    }


def is_found(row: dict[str, Any], result: CheckResult) -> bool:
    return any((place, row["severity"]) in findings(result) for place in row["where"])


def test_lintable_failures_are_found_with_their_context(tmp_path: Path) -> None:
    rows = [row for row in rows_of("config_failures.jsonl") if row["lintable"]]
    missed = []
    for row in rows:
        folder = tmp_path / row["id"]
        result = check(*write(folder, row["files"]), **flags_of(row, folder))
        if not is_found(row, result):
            missed.append(row["id"])
    assert len(rows) == 58
    assert missed == []


def test_the_fix_takes_the_finding_away(tmp_path: Path) -> None:
    rows = [row for row in rows_of("config_failures.jsonl") if row["lintable"] and row["fix"].get("files")]
    kept = []
    for row in rows:
        folder = tmp_path / row["id"]
        files = {**row["files"], **row["fix"]["files"]}
        result = check(*write(folder, files), **flags_of(row, folder))
        errors = [problem for problem in result.findings if problem.severity is Severity.ERROR]
        if is_found(row, result) or errors:
            kept.append((row["id"], [(problem.rule, problem.path, problem.message) for problem in errors]))
    assert len(rows) == 57
    assert kept == []


def test_correct_sets_have_no_errors_with_their_context(tmp_path: Path) -> None:
    rows = rows_of("config_clean.jsonl")
    wrong = []
    for row in rows:
        folder = tmp_path / row["id"]
        result = check(*write(folder, row["files"]), **flags_of(row, folder))
        errors = [problem for problem in result.findings if problem.severity is Severity.ERROR]
        wrong += [(row["id"], problem.rule, problem.path, problem.message) for problem in errors]
    assert len(rows) == 11
    assert wrong == []
