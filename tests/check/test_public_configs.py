"""Public configurations and known failures: what the loaders said about each is the oracle."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from planner.check import CheckResult, check
from planner.records.problem import Severity

SHARED = Path(__file__).parents[2].parent / "shared"
pytestmark = pytest.mark.skipif(
    not (SHARED / "corpus").is_dir(), reason="the collected configurations are not beside the checkout"
)
# Faults that only show with the training arguments, the model, the GPU or another number of ranks.
NEED_CONTEXT = {
    *(
        "F005",
        "F006",
        "F017",
        "F020",
        "F021",
        "F023",
        "F046-1",
        "F046-2",
        "F047",
        "F048",
        "F056",
        "F093",
        "F095",
        "X34",
    ),
}


def errors(result: CheckResult) -> list[Any]:
    return [problem for problem in result.findings if problem.severity is Severity.ERROR]


def manifest(kind: str) -> list[dict[str, str]]:
    with (SHARED / "corpus" / "manifest.tsv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file, delimiter="\t") if row["kind"] == kind]


def test_every_file_that_deepspeed_refuses_has_an_error() -> None:
    refused = [row for row in manifest("deepspeed") if row["structural"] != "ok"]
    passed = [row["file"] for row in refused if not errors(check(SHARED / "corpus" / row["file"]))]
    assert len(refused) == 40
    assert passed == []


def test_schema_errors_are_rare_on_files_that_load() -> None:
    """Type and unknown-key errors in typed sections contradict the loader; only strings in batch keys remain."""
    loaded = [row for row in manifest("deepspeed") if row["auto_resolved"] == "ok"]
    wrong = [
        (row["file"], problem)
        for row in loaded
        for problem in errors(check(SHARED / "corpus" / row["file"]))
        if problem.rule in ("DS001", "DS010", "DS012", "DS013", "DS030")
    ]
    assert len(loaded) == 183
    assert wrong == []


def test_every_ignored_key_is_mentioned() -> None:
    rows = [row for row in manifest("deepspeed") if row["ignored_keys"].strip() and row["structural"] == "ok"]
    for row in rows:
        paths = {problem.path for problem in check(SHARED / "corpus" / row["file"]).findings}
        for key in row["ignored_keys"].strip().split(","):
            assert f"$.{key}" in paths or key in ("comment", "_comment"), (row["file"], key)
    assert len(rows) == 15


def test_accelerate_files_have_unknown_keys_exactly_where_accelerate_says_so() -> None:
    rows, refused = manifest("accelerate"), 0
    for row in rows:
        found = errors(check(SHARED / "corpus" / row["file"]))
        if "unknown keys" in row["error"]:  # a compute_environment of its own leads to the same complaint
            assert {problem.rule for problem in found} & {"DS110", "DS112"}, row["file"]
            refused += 1
        else:
            assert not [problem for problem in found if problem.rule == "DS110"], row["file"]
    assert (len(rows), refused) == (119, 3)


def write(folder: Path, files: dict[str, Any]) -> list[Path]:
    paths = []
    for name, content in files.items():
        if name.endswith((".json", ".yaml")):
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
            paths.append(folder / name)
    return paths


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SHARED / "data" / name).read_text(encoding="utf-8").splitlines()]


def test_known_failures_are_found_at_their_place(tmp_path: Path) -> None:
    rows = [row for row in rows_of("config_failures.jsonl") if row["lintable"] and row["id"] not in NEED_CONTEXT]
    missed = []
    for row in rows:
        folder = tmp_path / row["id"]
        folder.mkdir()
        found = {
            (f"{Path(problem.file).name}#{problem.path}".removeprefix("ds_config.json#"), problem.severity.value)
            for problem in check(*write(folder, row["files"])).findings
        }
        if not any((place, row["severity"]) in found for place in row["where"]):
            missed.append(row["id"])
    assert len(rows) == 44
    assert missed == []


def test_correct_sets_have_no_errors(tmp_path: Path) -> None:
    rows = rows_of("config_clean.jsonl")
    for row in rows:
        folder = tmp_path / row["id"]
        folder.mkdir()
        assert errors(check(*write(folder, row["files"]))) == [], row["id"]
    assert len(rows) == 11
