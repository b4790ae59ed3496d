"""The dry run loads the plan's own files, changed only where the model is small and the machine has no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import planner
from planner.errors import PlannerError
from planner.launch.folder import read_folder
from planner.launch.small_folder import small_files
from planner.launch.small_plan import small_plan


def written(folder: Path, **fields: object) -> Path:
    pinned = {"tp": "1", "zero": "3", "micro_batch": "1", "gpus": "p4d.24xlarge", "offload": "none", **fields}
    for name, text in planner.plan(model="qwen2.5-0.5b", **pinned).files().items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def made_small(path: Path) -> dict[str, str]:
    folder = read_folder(path)
    return small_files(folder, small_plan(folder.document, path / "ds_config.json", ranks=2), nvme_path=Path("/tmp/x"))


@pytest.mark.parametrize("integration", ["trainer", "accelerate", "deepspeed"])
def test_scripts_are_untouched_and_arguments_lose_workers_and_pinning(tmp_path: Path, integration: str) -> None:
    path = written(tmp_path, integration=integration)
    files = made_small(path)
    scripts = {name for name in files if name.endswith(".py")}
    assert scripts == {file.name for file in path.glob("*.py")}
    assert all(files[name] == (path / name).read_text(encoding="utf-8") for name in scripts)
    (arguments,) = files.keys() & {"training_args.json", "loop_args.json"}
    before, after = json.loads((path / arguments).read_text(encoding="utf-8")), json.loads(files[arguments])
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"dataloader_num_workers", "dataloader_pin_memory"}
    assert set(after) == set(before)


def test_only_sizes_and_the_drive_change_in_the_engines_file(tmp_path: Path) -> None:
    path = written(tmp_path, offload="nvme")
    before = json.loads((path / "ds_config.json").read_text(encoding="utf-8"))
    after = json.loads(made_small(path)["ds_config.json"])
    assert {name for name in before if before[name] != after[name]} == {"zero_optimization"}
    zero, small = before["zero_optimization"], after["zero_optimization"]
    assert set(zero) == set(small)
    assert all(small[name] < zero[name] for name in ("sub_group_size", "stage3_max_live_parameters"))
    assert {small[block].pop("nvme_path") for block in ("offload_optimizer", "offload_param")} == {"/tmp/x"}
    assert small["stage"] == 3


def test_the_document_describes_the_small_model(tmp_path: Path) -> None:
    path = written(tmp_path, loss="fused", attention="flash")
    document = json.loads(made_small(path)["plan.json"])
    assert document["model"]["config"]["num_hidden_layers"] < 24
    assert (document["request"]["loss"], document["request"]["attention"]) == ("standard", "sdpa")
    assert json.loads(made_small(path)["training_args.json"])["use_liger_kernel"] is False


def test_arguments_that_are_no_json_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    (path / "training_args.json").write_text("{", encoding="utf-8")
    with pytest.raises(PlannerError, match=r"training_args\.json` cannot be read"):
        made_small(path)
