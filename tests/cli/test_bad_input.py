"""Every mistake a user can make: one line that names the value, a hint, the right exit code, and nothing written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from planner.cli.main import run
from planner.errors import PlannerError
from planner.render import folder as folder_module
from planner.render.folder import write_folder

PLAN = ["--model", "13b", "--gpus", "4xA100-80G"]
# arguments, what the error names, what the hint says
CASES = (
    (["--model", "13b"], "`--gpus` is required", "dsplan --model 13b"),
    (["--gpus", "4xA100-80G"], "`--model` is required", "dsplan --model 13b"),
    (["--model", "13bb", "--gpus", "4xA100-80G"], "no model is called `13bb`", "`13b`"),
    (["--model", "11b", "--gpus", "4xA100-80G"], "`11b`", "nearest sizes"),
    (["--model", "", "--gpus", "4xA100-80G"], "`--model` is required", ""),
    (["--model", "13b", "--gpus", "4xA100-81G"], "`81`", "A100-80G"),
    (["--model", "13b", "--gpus", "4xQ100"], "`Q100`", "dsplan show gpus"),
    (["--model", "13b", "--gpus", "p4d.24xlargee"], "p4d.24xlargee", "p4d.24xlarge"),
    (["--model", "13b", "--gpus", "0xA100-80G"], "`0`", ""),
    (["--model", "13b", "--gpus", "-4xA100-80G"], "negative", ""),
    ([*PLAN, "--tp", "3"], "`--tp 3` does not divide 4 GPUs", "1, 2, 4"),
    ([*PLAN, "--tp", "0"], "`--tp 0`", ""),
    (["--model", "13b", "--gpus", "3xA100-80G", "--tp", "3"], "40 heads", "degrees that do"),
    ([*PLAN, "--zero", "5"], "`--zero 5` is outside 0 to 3", ""),
    ([*PLAN, "--micro-batch", "0"], "outside 1 to", ""),
    ([*PLAN, "--micro-batch", "8-1"], "runs backwards", "`1-8`"),
    ([*PLAN, "--micro-batch", "1-99999999999999999999"], "no list of whole numbers", ""),
    ([*PLAN, "--offload", "cpu"], "`--offload cpu`", "optimizer+param"),
    ([*PLAN, "--seq-len", "-5"], "must be above zero", ""),
    ([*PLAN, "--seq-len", "abc"], "is no number", ""),
    ([*PLAN, "--seq-len", "1.5"], "not a whole number", ""),
    ([*PLAN, "--seq-len", "1"], "no token to predict", ""),
    ([*PLAN, "--seq-len", "nan"], "is no number", ""),
    ([*PLAN, "--global-batch", "0"], "must be above zero", ""),
    ([*PLAN, "--host-ram", "-1"], "must be above zero", ""),
    ([*PLAN, "--margin", "0.9"], "not between 0 and 0.5", ""),
    ([*PLAN, "--precision", "bf17"], "`--precision bf17`", "bf16"),
    ([*PLAN, "--objective", "speed"], "`--objective speed`", "throughput"),
    ([*PLAN, "--launcher", "mpirun"], "`--launcher mpirun`", "torchrun"),
    ([*PLAN, "--integration", "deepsped"], "`--integration deepsped`", "did you mean `deepspeed`?"),
    ([*PLAN, "--method", "lorra"], "`--method lorra`", "did you mean `lora`?"),
    ([*PLAN, "--lora-rank", "8"], "means nothing when every parameter is trained", "--method lora"),
    ([*PLAN, "--lora-targets", "q_proj"], "means nothing when every parameter is trained", "--method lora"),
    ([*PLAN, "--method", "lora", "--lora-rank", "0"], "`--lora-rank 0` must be above zero", "default"),
    ([*PLAN, "--method", "lora", "--lora-rank", "9999"], "more than the width", "--method full"),
    ([*PLAN, "--method", "lora", "--lora-targets", "c_attn"], "`c_attn` is no linear module", "q_proj"),
    ([*PLAN, "--method", "lora", "--lora-targets", "all-linear,q_proj"], "names modules beside", "all-linear"),
    ([*PLAN, "--method", "qlora", "--precision", "fp32"], "in 4 bits", "--method lora"),
    ([*PLAN, "--optimizer", "adamww"], "`--optimizer adamww`", "did you mean `adamw`"),
    ([*PLAN, "--top", "0"], "must be above zero", ""),
    (["--model", "13b", "--gpus", "8xV100-32G", "--precision", "bf16"], "`V100-32G` has no bf16", "fp16"),
    (["--model", "gpt2", "--gpus", "1xA100-80G", "--seq-len", "4096"], "1024 positions", "--seq-len 1024"),
    (["--modl", "13b"], "No such option: --modl", "`--model`"),
    ([*PLAN, "stray"], "stray", "--help"),
    (["plann", *PLAN], "`plann` is no command", "`dsplan plan`"),
    (["measure"], "not written yet", "commands are"),
    (["accuracy", "--points", "nowhere.jsonl"], "nowhere.jsonl", ""),
    (["accuracy", "--source", "nobody"], "`nobody`", ""),
    (["estimate", *PLAN, "--zero", "1,2"], "names 2 values", "dsplan plan"),
    (["estimate", *PLAN, "--offload", "optimizer"], "needs ZeRO stage 1", "offload-needs-stage"),
    (["show", "gpu"], "no table `gpu`", "`gpus`"),
    (["show", "gpus", "A100-8G"], "no GPU is called `A100-8G`", "A100-80G"),
    (["smoke", "nowhere"], "`nowhere`", ""),
    (["check", "nowhere.json"], "nowhere.json", ""),
    (["plan", "--batch", "nowhere.jsonl"], "nowhere.jsonl", "JSONL"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("arguments", "says", "hint"), CASES, ids=[" ".join(case[0])[:60] for case in CASES])
def test_a_mistake_is_one_line_with_a_hint_and_writes_nothing(
    arguments: list[str], says: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0].startswith("error: ")
    assert says in lines[0]
    assert not lines[0].endswith(".")
    assert [line for line in lines[1:] if line] == [line for line in lines[2:] if line.startswith("hint: ")]
    assert hint in err
    assert os.listdir() == []


CONFIGS = (
    ("{", "no JSON"),
    ("[]", ""),
    ("{}", "model_type"),
    ('{"model_type": "bert"}', "bert"),
    ('{"model_type": "llama", "hidden_size": -1}', "hidden_size"),
    ('{"model_type": "llama", "hidden_size": "big"}', "hidden_size"),
    ('{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 0}', "num_attention_heads"),
    ("\x00\x01binary", ""),
    ("", ""),
)


@pytest.mark.parametrize(("text", "names"), CONFIGS)
def test_a_broken_model_config_is_an_error_that_names_what_is_wrong(
    text: str, names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("config.json").write_text(text)
    assert run(["--model", "./config.json", "--gpus", "1xA100-80G"]) == 2
    err = capsys.readouterr().err
    assert err.count("error: ") == 1
    assert "Traceback" not in err
    assert names in err
    assert os.listdir() == ["config.json"]


@pytest.mark.parametrize("name", ["$(touch owned)", "a'b\"c", "a\nb", "x" * 9000, "../..", "\u202e13b", "; rm -rf ."])
def test_hostile_names_are_data(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--model", name, "--gpus", "4xA100-80G"], ["--model", "13b", "--gpus", name]):
        assert run(arguments) == 2
        error = capsys.readouterr().err
        assert "\n".join(error.splitlines()[1:2]) in ("",)
    assert os.listdir() == []


CONFLICTS = (
    ({"zero_optimization": {"stage": 3}}, ["--zero", "2"], "conflicts with `--config`"),
    ({"zero_optimization": {"stage": 7}}, [], "$.zero_optimization.stage"),
    ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, [], "both"),
    ({"train_micro_batch_size_per_gpu": -1}, [], "$.train_micro_batch_size_per_gpu"),
    ({"tensor_parallel": {"autotp_size": 3}}, [], "autotp_size"),
    ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "gpu"}}}, [], "offload"),
    ({"zero_optimization": []}, [], "$.zero_optimization"),
)


@pytest.mark.parametrize(("document", "flags", "says"), CONFLICTS)
def test_a_config_that_contradicts_is_refused(
    document: object, flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("ds.json").write_text(json.dumps(document))
    assert run([*PLAN, "--config", "ds.json", *flags]) == 2
    assert says in capsys.readouterr().err


def test_a_folder_with_foreign_files_is_refused_without_force(capsys: pytest.CaptureFixture[str]) -> None:
    Path("out").mkdir()
    Path("out/notes.txt").write_text("mine")
    assert run([*PLAN, "--out", "out"]) == 2
    assert "`notes.txt`, which dsplan did not write" in capsys.readouterr().err
    assert os.listdir("out") == ["notes.txt"]
    assert run([*PLAN, "--out", "out", "--force"]) == 0
    assert Path("out/notes.txt").read_text() == "mine"
    assert Path("out/launch.sh").stat().st_mode & 0o111


def test_a_plan_replaces_its_own_files_but_not_an_edited_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--out", "out"]) == 0
    Path("out/smoke.json").write_text("{}")
    assert run([*PLAN, "--out", "out", "--seq-len", "1024"]) == 0
    assert not Path("out/smoke.json").exists()
    Path("out/train.py").write_text("edited")
    assert run([*PLAN, "--out", "out"]) == 2
    assert "`train.py`, which was edited" in capsys.readouterr().err
    assert Path("out/train.py").read_text() == "edited"


def test_a_plan_takes_away_what_only_the_earlier_one_had(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PLAN, "--out", "out", "--integration", "accelerate"]) == 0
    assert {"loop_args.json", "loop_parts.py"} <= set(os.listdir("out"))
    Path("out/__pycache__").mkdir()
    assert run([*PLAN, "--out", "out"]) == 0
    left = set(os.listdir("out"))
    assert "training_args.json" in left
    assert not {"loop_args.json", "loop_parts.py"} & left
    Path("out/training_args.json").write_text("mine")
    assert run([*PLAN, "--out", "out", "--integration", "deepspeed"]) == 2
    assert "`training_args.json`, which was edited" in capsys.readouterr().err
    assert run([*PLAN, "--out", "out", "--integration", "deepspeed", "--force"]) == 0
    assert Path("out/training_args.json").read_text() == "mine"


def test_a_full_disk_leaves_nothing_half_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    real = Path.write_text

    def fails_at_the_third(self: Path, *args: object, **kwargs: object) -> int:
        written.append(self.name)
        if len(written) == 3:
            raise OSError(28, "No space left on device")
        return real(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(folder_module.Path, "write_text", fails_at_the_third)
    with pytest.raises(PlannerError, match="No space left on device"):
        write_folder(Path("out"), {"a": "1", "b": "2", "c": "3"}, force=False)
    assert os.listdir() == []


def test_an_unwritable_place_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("/proc/dsplan/out", "/dev/null", "/dev/null/out"):
        assert run([*PLAN, "--out", place]) == 2
        assert f"`{place}`" in capsys.readouterr().err
    Path("file").write_text("x")
    assert run([*PLAN, "--out", "file/out"]) == 2
    assert sorted(os.listdir()) == ["file"]
