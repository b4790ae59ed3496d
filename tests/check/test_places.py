"""Line and column of a finding: at the key, at the value where that is wrong, at the section of what is missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.check import check, check_text
from planner.records.problem import Problem

SHARED = Path(__file__).parents[2].parent / "shared"
needs_corpus = pytest.mark.skipif(
    not (SHARED / "corpus").is_dir(), reason="the collected configurations are not beside the checkout"
)


def rest_of_line(text: str, problem: Problem) -> str:
    line = re.split(r"\r\n|\n|\r", text)[problem.line - 1]
    assert 1 <= problem.column <= len(line) + 1, problem
    return line[problem.column - 1 :]


def keys_of(path: str) -> list[str]:
    return [key for key in re.split(r"\.|\[\d+\]", path.removeprefix("$")) if key]


def names_its_place(text: str, problem: Problem, document: Any) -> bool:
    """Whether the place starts with the key, an outer key of the path, or the value."""
    rest = rest_of_line(text, problem)
    keys = keys_of(problem.path)
    if any(re.match(rf"[\"']?{re.escape(key)}[\"']?\s*:", rest) for key in keys):
        return True
    value = document
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    if (problem.line, problem.column) == (1, 1) or (value is None and not rest.strip()):
        return True
    if isinstance(value, (dict, list)):
        return rest[:1] in "{[-"
    written = re.match(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s,}\]#]+", rest)
    return written is not None and yaml.safe_load(written.group()) in (value, str(value), str(value).rstrip(","))


@needs_corpus
def test_every_finding_of_the_public_files_points_at_its_path() -> None:
    files = sorted([*(SHARED / "corpus").rglob("*.json"), *(SHARED / "corpus").rglob("*.yaml")])
    looked_at, at_the_start = 0, 0
    for path in files:
        text = path.read_bytes().decode("utf-8")
        document = check_text(path.name, text)[0]
        for problem in check(path).findings:
            looked_at += 1
            if problem.path == "$":
                rest_of_line(text, problem)
                continue
            assert names_its_place(text, problem, document), (path.name, problem)
            at_the_start += (problem.line, problem.column) == (1, 1)
    assert len(files) == 346
    assert looked_at >= 600
    assert at_the_start <= looked_at / 4  # keys that are missing from the top level


def test_lists_duplicates_and_sections_on_several_lines() -> None:
    text = (
        '{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,\n'
        ' "optimizer": {"type": "AdamW",\n'
        '   "params": {"lr": 1e-5, "betas": [0.9,\n      0.95], "learning_rate": 1}},\n'
        ' "bf16":\n   {"enabled":\n      "maybe"},\n'
        ' "zero_optimization": {"stage": 2, "stage":\n 5},\n'
        ' "flops_profiler": {"enabled": false}, "fp16": {"enabled": false,\n'
        '   "hysteresis": [1,\n 2]}}'
    )
    found = {(p.rule, p.path): (p.line, p.column) for p in check_text("ds.json", text)[1]}
    assert found[("DS062", "$.optimizer.params.learning_rate")] == (4, 14)
    assert found[("DS013", "$.bf16.enabled")] == (7, 7)
    assert found[("DS003", "$.zero_optimization.stage")] == (8, 36)
    assert found[("DS013", "$.zero_optimization.stage")] == (9, 2)
    assert found[("DS013", "$.fp16.hysteresis")] == (11, 18)


def test_tabs_carriage_returns_and_wide_letters_count_as_one_column() -> None:
    text = '{\r\n\t"é": "x",\r"train_micro_batch_size_per_gpu": 1,\n\t"zero_optimisation": {}}'
    (stray,) = [p for p in check_text("ds.json", text)[1] if p.path == "$.zero_optimisation"]
    assert (stray.line, stray.column) == (4, 2)
    (other,) = [p for p in check_text("ds.json", text)[1] if p.path == "$.é"]
    assert (other.line, other.column) == (2, 2)


def test_a_missing_key_points_at_its_section() -> None:
    text = json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}, indent=2)
    (gather,) = [p for p in check_text("ds.json", text)[1] if p.rule == "DS045"]
    assert (gather.line, gather.column) == (3, 3)
