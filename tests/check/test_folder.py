"""A plan folder says one thing; whoever edits one file is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from handmade_plans import make_cluster, make_document, make_plan, random_plans

from planner.check import CheckResult, check, check_files
from planner.check.folder import require_valid
from planner.errors import CheckFailed, PlannerError
from planner.records.candidate import Offload
from planner.render.bundle import render_files

Edit = Callable[[dict[str, Any]], Any]


def folder_of(**changes: Any) -> dict[str, str]:
    plan = make_plan(**changes)
    return render_files(plan, make_document(plan))


def edited(files: dict[str, str], name: str, edit: Edit) -> dict[str, str]:
    document = yaml.safe_load(files[name])
    edit(document)
    return {**files, name: json.dumps(document)}


def test_what_dsplan_renders_has_no_findings() -> None:
    plans = random_plans(60, seed=23)
    for plan in plans:
        assert check_files(render_files(plan, make_document(plan))) == []
    assert len(plans) == 60


def put(section: str, key: str, value: Any) -> Edit:
    return lambda document: (document[section] if section else document).update({key: value})


@pytest.mark.parametrize(
    ("name", "edit", "rule", "path"),
    [
        ("ds_config.json", put("zero_optimization", "stage", 2), "DS202", "$.zero_optimization.stage"),
        ("ds_config.json", put("", "train_micro_batch_size_per_gpu", 3), "DS202", "$.train_micro_batch_size_per_gpu"),
        ("ds_config.json", put("", "gradient_accumulation_steps", 3), "DS202", "$.gradient_accumulation_steps"),
        ("ds_config.json", put("bf16", "enabled", False), "DS202", "$.bf16.enabled"),
        ("ds_config.json", put("", "tensor_parallel", {"autotp_size": 4}), "DS202", "$.tensor_parallel.autotp_size"),
        (
            "ds_config.json",
            put("zero_optimization", "offload_param", {"device": "none"}),
            "DS202",
            "$.zero_optimization.offload_param.device",
        ),
        ("ds_config.json", put("", "gradient_clipping", "auto"), "DS014", "$.gradient_clipping"),
        ("ds_config.json", put("", "tensor_parallel", {"autotp_size": 3}), "DS051", "$.tensor_parallel.autotp_size"),
        ("accelerate.yaml", put("", "num_processes", 8), "DS203", "$.num_processes"),
        ("accelerate.yaml", put("", "num_machines", 2), "DS203", "$.num_machines"),
        ("accelerate.yaml", put("", "distributed_type", "MULTI_GPU"), "DS203", "$.distributed_type"),
        (
            "accelerate.yaml",
            put("deepspeed_config", "zero3_init_flag", False),
            "DS203",
            "$.deepspeed_config.zero3_init_flag",
        ),
        (
            "accelerate.yaml",
            put("deepspeed_config", "deepspeed_config_file", "other.json"),
            "DS121",
            "$.deepspeed_config.deepspeed_config_file",
        ),
        ("accelerate.yaml", put("deepspeed_config", "zero_stage", 3), "DS120", "$.deepspeed_config.zero_stage"),
        ("training_args.json", put("", "activation_checkpointing", False), "DS202", "$.activation_checkpointing"),
        ("plan.json", put("", "made_up", 1), "DS201", "$.made_up"),
        ("plan.json", put("", "plans", []), "DS201", "$.plans"),
    ],
)
def test_an_edited_file_is_found_out(name: str, edit: Edit, rule: str, path: str) -> None:
    files = edited(folder_of(offload=Offload.OPTIMIZER_AND_PARAMS), name, edit)
    assert (rule, path) in {(problem.rule, problem.path) for problem in check_files(files)}
    with pytest.raises(CheckFailed):
        require_valid(files)


def test_a_missing_file_is_named() -> None:
    files = folder_of()
    del files["launch.sh"]
    assert [(problem.rule, problem.file) for problem in check_files(files)] == [("DS204", "launch.sh")]


def test_require_valid_says_nothing_about_good_files_and_one_line_about_bad_ones() -> None:
    files = folder_of()
    require_valid(files)
    files["ds_config.json"] = files["ds_config.json"].replace('"stage": 3', '"stage": 9')
    with pytest.raises(CheckFailed, match=r"`ds_config\.json` is wrong: .* @ \$\.zero_optimization\.stage") as caught:
        require_valid(files)
    assert caught.value.exit_code == 4
    assert "\n" not in str(caught.value)


def write(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def test_check_reads_a_plan_folder_and_single_files(tmp_path: Path) -> None:
    write(tmp_path / "plan", folder_of(cluster=make_cluster(nodes=2)))
    result = check(tmp_path / "plan")
    assert result == CheckResult(findings=(), files=result.files)
    assert {Path(name).name: kind for name, kind in result.files} == {
        "accelerate.yaml": "accelerate",
        "ds_config.json": "deepspeed",
        "launch.sh": "launch",
        "plan.json": "plan",
        "training_args.json": "training-arguments",
    }
    single = check(tmp_path / "plan" / "plan.json", tmp_path / "plan" / "ds_config.json")
    assert [kind for _, kind in single.files] == ["plan", "deepspeed"]
    assert not single.has_errors


def test_an_accelerate_file_is_checked_with_the_deepspeed_file_given_beside_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "acc.yaml": "distributed_type: DEEPSPEED\nnum_processes: 4\n"
            "deepspeed_config: {deepspeed_config_file: ds.json}\n"
        },
    )
    write(
        tmp_path,
        {"ds.json": '{"train_micro_batch_size_per_gpu": 2,\n"train_batch_size": 12, "gradient_clipping": 1.0}'},
    )
    errors = [(p.rule, Path(p.file).name, p.line) for p in check(tmp_path / "acc.yaml", tmp_path / "ds.json").findings]
    assert ("DS021", "ds.json", 2) in errors


def test_the_json_form_has_the_keys_of_the_contract(tmp_path: Path) -> None:
    write(tmp_path, {"ds.json": '{"zero_optimisation": {"stage": 3}}'})
    document = check(tmp_path / "ds.json").to_dict()
    assert set(document) == {"findings", "files"}
    assert all(
        list(finding) == ["rule", "severity", "file", "line", "column", "path", "message", "bites", "fix"]
        for finding in document["findings"]
    )
    assert document["files"] == [{"file": str(tmp_path / "ds.json"), "kind": "deepspeed"}]
    assert json.loads(json.dumps(document)) == document


@pytest.mark.parametrize("name", ["absent.json", "empty_folder", "binary.json"])
def test_what_cannot_be_read_is_the_callers_mistake(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty_folder").mkdir()
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlannerError) as caught:
        check(tmp_path / name)
    assert name in caught.value.message
    assert caught.value.hint
