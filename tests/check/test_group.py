"""Which files belong to one run: those that name each other, and those that leave no choice."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from planner.check import check
from planner.check.group import runs
from planner.check.run_all import collect
from planner.check.single import Looked, look_at
from planner.check.together import Together
from planner.errors import PlannerError

CORPUS = Path(__file__).parents[2].parent / "shared" / "corpus"
DS = json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}})
ARGS = json.dumps({"output_dir": "o", "per_device_train_batch_size": 1, "learning_rate": 1e-5})


def yaml_text(file: str | None = None, rank: int = 0, machines: int = 1) -> str:
    text = (
        f"distributed_type: DEEPSPEED\nnum_processes: {8 * machines}\nnum_machines: {machines}\nmachine_rank: {rank}\n"
    )
    section = {"deepspeed_config_file": file} if file else {"zero_stage": 2}
    return text + f"deepspeed_config: {json.dumps(section)}\n"


def look(files: dict[str, str]) -> list[Looked]:
    return [look_at(name, text) for name, text in files.items()]


def shape(run: Together) -> tuple[Any, ...]:
    def name(file: Any) -> str | None:
        return file.name if file else None

    return name(run.deepspeed), tuple(file.name for file in run.accelerate), name(run.training), name(run.launch)


def shapes(files: dict[str, str]) -> set[tuple[Any, ...]]:
    return {shape(run) for run in runs(look(files))}


def test_single_files_of_different_kinds_belong_together_unnamed() -> None:
    files = {"ds.json": DS, "acc.yaml": yaml_text(), "training_args": ARGS}
    assert shapes(files) == {("ds.json", ("acc.yaml",), "training_args", None)}
    assert shapes({"ds.json": DS, "args.json": ARGS}) == {("ds.json", (), "args.json", None)}


def test_files_that_name_each_other_belong_together() -> None:
    files = {
        "c/ds2.json": DS, "c/ds3.json": DS, "c/a2.yaml": yaml_text("ds2.json"), "a3.yaml": yaml_text("./c/ds3.json"),
        "args3.json": json.dumps({**json.loads(ARGS), "deepspeed": "c/ds3.json"}), "other.json": DS,
    }  # fmt: skip
    assert shapes(files) == {
        ("c/ds2.json", ("c/a2.yaml",), None, None),
        ("c/ds3.json", ("a3.yaml",), None, None),
        ("c/ds3.json", (), "args3.json", None),
        ("other.json", (), None, None),
    }


def test_a_launch_script_links_what_it_names() -> None:
    script = (
        "accelerate launch --config_file cfg/acc.yaml train.py --deepspeed cfg/ds.json --per_device_train_batch_size 1"
    )
    files = {"run/launch.sh": script, "cfg/acc.yaml": yaml_text(), "cfg/ds.json": DS, "cfg/ds_other.json": DS}
    assert shapes(files) == {
        ("cfg/ds.json", ("cfg/acc.yaml",), "run/launch.sh", "run/launch.sh"),
        ("cfg/ds_other.json", (), None, None),
    }


def test_a_script_that_names_a_file_of_arguments() -> None:
    files = {
        "launch.sh": "torchrun --nproc_per_node 8 train.py args.json",
        "args.json": ARGS,
        "x.json": DS,
        "y.json": DS,
    }
    assert (None, (), "args.json", "launch.sh") in shapes(files)


@pytest.mark.parametrize("second", ["accelerate.node1.yaml", "accelerate_rank1.yaml", "other.yaml"])
def test_the_files_of_two_machines_are_one_run(second: str) -> None:
    files = {
        "ds.json": DS,
        "accelerate.yaml": yaml_text("ds.json", 0, 2),
        second: yaml_text("ds.json", 1, 2),
    }
    assert shapes(files) == {("ds.json", ("accelerate.yaml", second), None, None)}


def test_two_machines_with_one_rank_are_still_one_run() -> None:
    files = {"accelerate.yaml": yaml_text(None, 0, 2), "accelerate.node1.yaml": yaml_text(None, 0, 2), "ds.json": DS}
    assert shapes(files) == {("ds.json", ("accelerate.yaml", "accelerate.node1.yaml"), None, None)}


def test_unrelated_files_stay_alone() -> None:
    files = {f"d{n}/ds.json": DS for n in range(200)} | {f"d{n}/acc.yaml": yaml_text() for n in range(200)}
    found = runs(look(files))
    assert len(found) == 400
    assert all(sum(bool(part) for part in shape(run)) == 1 for run in found)


def test_one_deepspeed_file_may_serve_several_runs() -> None:
    files = {"ds.json": DS, "a.yaml": yaml_text("ds.json"), "sub/b.yaml": yaml_text("../ds.json")}
    assert shapes(files) == {("ds.json", ("a.yaml",), None, None), ("ds.json", ("sub/b.yaml",), None, None)}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def test_a_named_file_that_lies_there_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"cfg/acc.yaml": yaml_text("cfg/ds.json"), "cfg/ds.json": DS, "near/acc.yaml": yaml_text("ds.json"),
                     "near/ds.json": DS})  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for given, named in (("cfg/acc.yaml", "cfg/ds.json"), ("near/acc.yaml", os.path.join("near", "ds.json"))):
        result = check(given)
        assert [name for name, _ in result.files] == [given, named]
        assert not [problem for problem in result.findings if problem.rule == "DS121"]


def test_a_named_file_that_is_nowhere_is_a_warning(tmp_path: Path) -> None:
    write(tmp_path, {"acc.yaml": yaml_text("nowhere.json")})
    found = [p for p in check(tmp_path / "acc.yaml").findings if p.rule == "DS121"]
    assert [(p.severity.value, p.path, p.line) for p in found] == [
        ("warning", "$.deepspeed_config.deepspeed_config_file", 5)
    ]


def test_patterns_and_folders_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a/ds.json": DS, "a/b/c/ds.json": DS, "a/package.json": '{"name": "x"}', "a/acc.yml": yaml_text(),
                     "a/run.sh": "torchrun --nproc_per_node 2 t.py", "a/.git/ds.json": DS})  # fmt: skip
    monkeypatch.chdir(tmp_path)
    deep, here = os.path.join("a", "b", "c", "ds.json"), os.path.join("a", "ds.json")
    assert [one.name for one in collect(["a/**/ds.json"]).loose] == [deep, here]
    assert [one.name for one in collect(["a/*.json", "a/ds.json"]).loose] == [here]
    assert [one.name for one in collect(["a/pack*.json"]).loose] == [os.path.join("a", "package.json")]
    names = {one.name for one in collect(["a"]).loose}
    assert names == {deep, here, os.path.join("a", "acc.yml"), os.path.join("a", "run.sh")}
    for wrong in ("b/*.json", "nothing.json", "a/.git/../.git2"):
        with pytest.raises(PlannerError) as caught:
            collect([wrong])
        assert caught.value.hint


def test_a_file_given_twice_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"ds.json": DS})
    monkeypatch.chdir(tmp_path)
    assert check("ds.json", "./ds.json", str(tmp_path / "ds.json")).files == (("ds.json", "deepspeed"),)


@pytest.mark.parametrize(
    ("data", "rule", "place"),
    [
        (b'{"a":\n "\xe9"}', "DS001", (2, 3)),
        ('{"a": 1}'.encode("utf-16"), "DS001", (1, 1)),
    ],
)
def test_another_encoding_is_a_finding_with_a_place(tmp_path: Path, data: bytes, rule: str, place: Any) -> None:
    (tmp_path / "ds.json").write_bytes(data)
    found = check(tmp_path / "ds.json").findings
    assert [(p.rule, (p.line, p.column)) for p in found] == [(rule, place)]


def test_kinds_are_told_by_content_not_by_name() -> None:
    shapes_by_name = {
        "deepspeed.txt": (DS, "deepspeed"), "x": (ARGS, "training-arguments"), "y.json": (yaml_text(), "accelerate"),
        "z.txt": (yaml_text(), "accelerate"), "sft.yaml": ("learning_rate: 1.0e-5\nper_device_train_batch_size: 1\n"
        "deepspeed: ds.json\n", "training-arguments"), "a.cfg": ("deepspeed t.py --x 1", "launch"),
        "b.json": (json.dumps({"distributed_type": "NO", "num_processes": 1}), "accelerate"),
        "c.json": (json.dumps({"fp16": True, "learning_rate": 1, "output_dir": "x"}), "training-arguments"),
        "d.json": (json.dumps({"fp16": {"enabled": True}, "optimizer": {"type": "Adam"}}), "deepspeed"),
    }  # fmt: skip
    for name, (text, kind) in shapes_by_name.items():
        assert look_at(name, text).kind.value == kind, name


LAX = '{"train_micro_batch_size_per_gpu": 1, /* note */ "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}'


@pytest.mark.parametrize(
    ("beside", "trainer", "severity"),
    [
        ({}, None, "warning"),
        ({}, "deepspeed", "info"),
        ({}, "trainer", "error"),
        ({"args.json": ARGS}, None, "error"),
        ({"acc.yaml": yaml_text("ds.json")}, None, "error"),
    ],
)
def test_a_json_that_only_deepspeed_reads_is_judged_by_its_reader(
    tmp_path: Path, beside: dict[str, str], trainer: str | None, severity: str
) -> None:
    write(tmp_path, {"ds.json": LAX, **beside})
    found = check(tmp_path / "ds.json", *(tmp_path / name for name in beside), trainer=trainer).findings
    assert [problem.severity.value for problem in found if problem.rule == "DS002"] == [severity]


def test_other_json_is_read_strictly_by_everybody(tmp_path: Path) -> None:
    write(tmp_path, {"acc.json": '{"distributed_type": "NO", "num_processes": 1, "num_processes": 2,}'})
    found = check(tmp_path / "acc.json").findings
    assert [(p.rule, p.severity.value, p.bites) for p in found] == [
        ("DS003", "error", "silently"),
        ("DS002", "error", "config"),
    ]


def test_a_flag_of_a_launch_line_is_its_path(tmp_path: Path) -> None:
    script = "accelerate launch --config_file acc.yaml --zero_stage 3 train.py\n"
    write(tmp_path, {"ds.json": DS, "acc.yaml": yaml_text("ds.json"), "launch.sh": script})
    found = check(tmp_path / "launch.sh").findings
    (overruled,) = [problem for problem in found if problem.rule == "DS310" and problem.file.endswith("launch.sh")]
    assert (Path(overruled.file).name, overruled.path, overruled.line, overruled.column) == (
        "launch.sh", "$.zero_stage", 1, 42,
    )  # fmt: skip


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the collected configurations are not beside the checkout")
@pytest.mark.parametrize("name", ["", "file", "config.txt"])
def test_public_files_are_what_they_are_under_any_name(name: str) -> None:
    with (CORPUS / "manifest.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for row in rows:
        text = (CORPUS / row["file"]).read_bytes().decode("utf-8")
        assert look_at(name or row["file"], text).kind.value == row["kind"], row["file"]
    assert len(rows) == 346
