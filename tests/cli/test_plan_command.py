"""The commands as a person or a pipeline uses them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.cli.main import run, with_command
from planner.resources import read_text

PLAN = ["--model", "13b", "--gpus", "4xA100-80G"]
REQUESTS = (
    PLAN,
    ["--model", "70b", "--gpus", "8xA100-80G"],
    ["--model", "70b", "--gpus", "4x8xH100-80G", "--tokens", "2e9"],
    ["--model", "mixtral-8x7b", "--gpus", "2xp4de.24xlarge", "--seq-len", "4096"],
    ["--model", "7b", "--gpus", "8xV100-32G", "--global-batch", "64", "--host-ram", "256"],
    ["--model", "gpt2", "--gpus", "1x3090", "--top", "20"],
    ["--model", "7b", "--gpus", "1xA100-80G", "--offload", "none"],
    ["--model", "qwen2.5-32b", "--gpus", "1xH100-80G", "--host-ram", "744"],
)


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("arguments", REQUESTS, ids=" ".join)
def test_the_answer_is_at_most_eighty_columns_and_ascii_art_only(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = run([*arguments, "--out", "out"])
    out = capsys.readouterr().out
    assert code in (0, 3)
    assert out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "\x1b" not in out


@pytest.mark.parametrize("arguments", REQUESTS, ids=" ".join)
def test_the_document_follows_the_schema_and_its_terms_add_up(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    import jsonschema

    code = run([*arguments, "--json"])
    document = json.loads(capsys.readouterr().out)
    schema = json.loads(read_text("schemas", "plan.schema.json"))
    jsonschema.Draft202012Validator(schema).validate(document)
    assert code == (0 if document["plans"] else 3)
    assert os.listdir() == []
    shown = [*document["plans"], *document["rejected"]["nearest"], *(r["plan"] for r in document["remedies"])]
    assert shown
    for plan in shown:
        for device in ("gpu", "host"):
            for phase, total in plan["memory"][device]["phases"].items():
                terms = [t["bytes"] for t in plan["memory"]["terms"] if t["device"] == device and phase in t["phases"]]
                assert sum(terms) == total
        gpu = plan["memory"]["gpu"]
        assert gpu["peak_bytes"] == gpu["tensor_peak_bytes"] + gpu["overhead_bytes"]
        assert gpu["tensor_peak_bytes"] == max(gpu["phases"].values())
        if plan in document["plans"]:
            assert plan["dp"] * plan["tp"] == document["cluster"]["world_size"]
        assert plan["global_batch"] == plan["micro_batch"] * plan["accumulation"] * plan["dp"]
        assert (plan["time"] is None) == (plan["verdict"] == "does_not_fit")
        if plan["time"]:
            parts = sum(t["seconds"] - t["hidden_seconds"] for t in plan["time"]["terms"])
            assert parts == pytest.approx(plan["time"]["step_seconds"], rel=1e-9)


def test_without_a_command_the_flags_plan() -> None:
    assert with_command(PLAN) == ["plan", *PLAN]
    assert with_command(["show", "gpus"]) == ["show", "gpus"]
    assert with_command([]) == ["--help"]


def test_nothing_fits_is_exit_code_three_with_remedies_that_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--model", "70b", "--gpus", "8xA100-80G", "--host-ram", "512", "--json"]) == 3
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert captured.err.startswith("error: none of ")
    assert document["plans"] == []
    assert len(document["remedies"]) >= 2
    for remedy in document["remedies"]:
        flags = []
        for name, value in remedy["request"].items():
            flags += [
                f"--{name.replace('_', '-')}",
                ",".join(map(str, value)) if isinstance(value, list) else str(value),
            ]
        keep = {"--host-ram": "512", "--gpus": "8xA100-80G"}
        again = ["--model", "70b", *(x for k, v in keep.items() if k not in flags for x in (k, v)), *flags, "--json"]
        assert run(again) == 0, again
        assert json.loads(capsys.readouterr().out)["plans"]


@pytest.mark.parametrize("seed", ["0", "1"])
def test_the_same_request_gives_the_same_bytes(seed: str, tmp_path: Path) -> None:
    out = tmp_path / f"out{seed}"
    command = [sys.executable, "-m", "planner", *PLAN, "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed})
    run([*PLAN, "--out", "here"])
    names = sorted(os.listdir(out))
    assert names == sorted(os.listdir("here"))
    assert len(names) >= 7
    for name in names:
        assert (out / name).read_bytes() == (Path("here") / name).read_bytes(), name


def test_the_command_line_and_python_agree(capsys: pytest.CaptureFixture[str]) -> None:
    from planner import plan

    assert run([*PLAN, "--seq-len", "1024", "--zero", "2,3", "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out) == plan(model="13b", gpus="4xA100-80G", seq_len=1024, zero=[2, 3]).to_dict()
    )


def test_every_resolved_field_of_the_request_can_be_asked_again() -> None:
    from planner import plan

    first = plan(model="13b", gpus="4xA100-80G", global_batch=32).to_dict()
    second = plan(**first["request"]).to_dict()
    assert second["plans"] == first["plans"]


def test_a_batch_answers_every_line_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        json.dumps({"id": "a", "model": "7b", "gpus": "8xA100-80G", "zero": 2, "micro_batch": 1}),
        "{broken",
        json.dumps({"id": 3, "model": "nope", "gpus": "8xA100-80G"}),
        json.dumps({"model": "7b", "gpus": "8xA100-80G", "zero": 3}),
    ]
    Path("requests.jsonl").write_text("\n".join(lines))
    for command in ("estimate", "plan"):
        assert run([command, "--batch", "requests.jsonl"]) == 2
        results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [r.get("id") for r in results] == ["a", None, 3, None]
        assert ["error" in r for r in results] == [False, True, True, False]


def test_estimate_answers_even_when_it_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", "--model", "70b", "--gpus", "1xA100-80G", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert plan["verdict"] == "does_not_fit"
    assert plan["time"] is None
    assert plan["limiting"]["excess_bytes"] > 0


def test_estimate_takes_an_existing_deepspeed_file(capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "sub_group_size": 5e7,
            "reduce_bucket_size": "auto",
        },
    }
    Path("ds.json").write_text(json.dumps(config))
    assert run(["estimate", "--model", "7b", "--gpus", "4xA100-80G", "--config", "ds.json", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert (plan["zero_stage"], plan["offload"], plan["micro_batch"], plan["accumulation"]) == (3, "optimizer", 2, 4)
    bucket = next(t for t in plan["memory"]["terms"] if t["name"] == "buffers/reduce_bucket")
    assert bucket["bytes"] == 2 * 4096 * 4096


def test_script_arguments_are_data_to_the_end(tmp_path: Path) -> None:
    hostile = ["--name", "a b", "$(touch owned)", "it's", 'say "hi"', "line\nbreak"]
    assert run([*PLAN, "--out", "out", "--script", "my $(x) script.py", "--", *hostile]) == 0
    assert json.loads(Path("out/plan.json").read_text())["request"]["script_arguments"] == hostile


def test_show_lists_every_table_with_sources(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, least in (("models", 60), ("gpus", 45), ("instances", 60)):
        assert run(["show", kind, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)[kind]
        assert len(rows) >= least
        assert all(row["source"] for row in rows)
        assert run(["show", kind]) == 0
        assert len(capsys.readouterr().out.splitlines()) == len(rows) + 1
        assert run(["show", kind, rows[0]["name"]]) == 0
        assert rows[0]["name"] in capsys.readouterr().out


CONTRACT_FLAGS = {
    "--model", "--gpus", "--seq-len", "--global-batch", "--method", "--lora-rank", "--lora-targets", "--precision",
    "--optimizer", "--attention", "--loss", "--host-ram", "--zero", "--tp", "--micro-batch", "--checkpointing",
    "--offload", "--accumulation", "--config", "--objective", "--margin", "--integration", "--tokens", "--launcher",
    "--script", "--out", "--top", "--json", "--smoke", "--force", "--batch",
}  # fmt: skip


def test_the_flags_of_plan_hold_those_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--help"]) == 0
    listed = {
        word for line in capsys.readouterr().out.splitlines() for word in line.split()[:1] if word.startswith("--")
    }
    assert listed - {"--help", "--stack"} == CONTRACT_FLAGS
