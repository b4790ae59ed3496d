"""TrainingArguments by themselves, compared with the installed class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.check import check, check_text
from planner.check.given import context_of
from planner.check.mending.fix import fix_paths
from planner.check.one_file.training_names import KINDS, NAMES, RENAMED

HEAD = {"output_dir": "out", "per_device_train_batch_size": 2, "max_steps": 5}


def found(fields: dict[str, Any], name: str = "args.json") -> list[tuple[str, str, str]]:
    problems = check_text(name, json.dumps({**HEAD, **fields}))[1]
    return [(problem.rule, problem.path, problem.severity.value) for problem in problems]


@pytest.mark.parametrize(
    ("more", "rules"),
    [("", ["DS004"]), ("finetuning_type: lora\n", []), ("base_model: x\n", [])],
)
def test_a_number_with_an_exponent_is_one_finding_and_none_where_the_reader_converts(
    more: str, rules: list[str]
) -> None:
    text = f"per_device_train_batch_size: 2\nlearning_rate: 1e-5\noutput_dir: x\n{more}"
    assert [problem.rule for problem in check_text("args.yaml", text)[1]] == rules


@pytest.mark.parametrize(
    ("fields", "rule", "severity"),
    [
        ({"evaluation_strategy": "steps"}, "DS320", "warning"),
        ({"warmup_ratio": 0.1}, "DS320", "warning"),
        ({"gradient_acumulation_steps": 4}, "DS321", "error"),
        ({"max_grad_norms": 1.0}, "DS321", "error"),
        ({"learning_rate": "5e-5"}, "DS322", "error"),
        ({"gradient_accumulation_steps": 2.5}, "DS322", "error"),
        ({"bf16": "false"}, "DS322", "error"),
        ({"bf16": "true"}, "DS322", "warning"),
    ],
)
def test_each_fault_is_found_at_its_argument(fields: dict[str, Any], rule: str, severity: str) -> None:
    (name,) = fields
    assert found(fields) == [(rule, f"$.{name}", severity)]


@pytest.mark.parametrize(
    "fields",
    [{}, {"learning_rate": 5e-5, "bf16": True, "warmup_steps": 0.1}, {"model_name_or_path": "m", "max_seq_length": 2},
     {"lora_r": 8, "dataset_text_field": "text", "stage": "sft"}, {"eval_steps": None, "report_to": ["none"]}],
)  # fmt: skip
def test_right_arguments_and_those_of_other_programs_are_left_alone(fields: dict[str, Any]) -> None:
    assert found(fields) == []


def test_a_text_in_yaml_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "output_dir: o\nmax_steps: 5\nper_device_train_batch_size: 1\nlearning_rate: 5e-5\n"
    )
    result = check(tmp_path / "a.yaml")
    assert [(p.rule, p.severity.value) for p in result.findings] == [("DS004", "warning")]
    fixed = fix_paths([str(tmp_path / "a.yaml")], context_of())
    assert fixed.result.findings == ()


def test_old_names_are_mended_where_the_new_one_means_the_same(tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text(json.dumps({**HEAD, "evaluation_strategy": "steps", "no_cuda": False}))
    fixed = fix_paths([str(path)], context_of())
    assert json.loads(fixed.texts[str(path)]) == {**HEAD, "eval_strategy": "steps", "use_cpu": False}
    assert set(RENAMED.values()) <= set(KINDS)


@pytest.mark.transformers
def test_the_installed_class_refuses_every_old_name_and_converts_nothing(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    old = sorted(NAMES - set(KINDS))
    for name in old:
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, **{name: None})
    assert len(old) >= 25
    made = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, learning_rate="5e-5", bf16="false")
    assert made.learning_rate == "5e-5"
    assert made.bf16 == "false"
