"""What is no plan folder is refused in one line, before anything is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from planner.errors import PlannerError
from planner.launch import smoke
from planner.launch.memory_check import MemoryComparison
from planner.launch.result import Check, SmokeResult, smoke_text
from planner.launch.smoke import run_smoke

PLAN = {
    "request": {"seq_len": 2048, "attention": "flash", "loss": "fused", "launcher": "accelerate"},
    "model": {
        "model_type": "llama",
        "config": {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4, "num_hidden_layers": 4,
                   "vocab_size": 4096, "max_position_embeddings": 512},
    },
    "plans": [
        {"zero_stage": 2, "tp": 1, "dp": 4, "checkpointing": "none", "offload": "none", "micro_batch": 1,
         "accumulation": 1, "precision": "bf16"}
    ],
}  # fmt: skip


def folder_with(tmp_path: Path, **texts: str) -> Path:
    given = {"plan.json": json.dumps(PLAN), "ds_config.json": "{}", "launch.sh": "exit 0"}
    texts = given | {"train.py": "", "model_and_data.py": ""} | texts
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def _with_packages(monkeypatch):
    monkeypatch.setattr(smoke, "PACKAGES", ())
    monkeypatch.setattr(smoke, "build", lambda folder: folder / "counting_allocator.so")  # no engine runs here


@pytest.mark.parametrize("name", ["plan.json", "ds_config.json", "launch.sh", "train.py", "model_and_data.py"])
def test_a_missing_file_is_named(tmp_path, name):
    (folder_with(tmp_path) / name).unlink()
    with pytest.raises(PlannerError, match=f"has no `{name}`") as error:
        run_smoke(tmp_path)
    assert error.value.exit_code == 2


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(PlannerError, match="is not a folder"):
        run_smoke(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["{", "[]", '{"plans": []}', '{"plans": [{"zero_stage": 2}]}', '{"plans": [7]}'])
def test_a_plan_that_is_none_is_refused(tmp_path, text):
    with pytest.raises(PlannerError, match=r"plan\.json") as error:
        run_smoke(folder_with(tmp_path, **{"plan.json": text}))
    assert error.value.exit_code == 2
    assert "\n" not in error.value.message


def test_missing_packages_are_named_with_the_command_that_installs_them(tmp_path, monkeypatch):
    monkeypatch.setattr(smoke, "PACKAGES", ("sys", "no_such_package_a", "no_such_package_b"))
    with pytest.raises(PlannerError, match="`no_such_package_a`, `no_such_package_b`") as error:
        run_smoke(folder_with(tmp_path))
    assert error.value.hint == 'pip install "dsplan[launch]"'


@pytest.mark.usefixtures("_with_packages")
def test_more_tensor_parallel_ranks_than_a_dry_run_starts_are_refused(tmp_path):
    plan = json.loads(json.dumps(PLAN))
    plan["plans"][0]["tp"] = 16
    with pytest.raises(PlannerError, match="tp 16 needs 16 ranks and runs at most 8"):
        run_smoke(folder_with(tmp_path, **{"plan.json": json.dumps(plan)}))


@pytest.mark.usefixtures("_with_packages")
@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'launch.sh: no such launcher' >&2; exit 3", "exit code 3: `launch.sh: no such launcher`"),
        ("echo hello", "without a report; it last said `hello`"),
        ("echo 'ValueError: bad key'; exit 1", "exit code 1: `ValueError: bad key`"),
    ],
)
def test_a_launch_that_never_reaches_the_engine_fails(tmp_path, script, words):
    with pytest.raises(PlannerError) as error:
        run_smoke(folder_with(tmp_path, **{"launch.sh": script}))
    assert error.value.exit_code == 5
    assert words in error.value.message
    written = json.loads((tmp_path / "smoke.json").read_text("utf-8"))
    assert written["passed"] is False
    assert written["error"] == error.value.message
    assert written["log_tail"]


@pytest.mark.usefixtures("_with_packages")
def test_the_launch_sees_a_cpu_and_no_ranks_of_an_outer_job(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(PlannerError):
        run_smoke(folder_with(tmp_path, **{"launch.sh": "env"}))
    seen = dict(
        line.split("=", 1)
        for line in json.loads((tmp_path / "smoke.json").read_text("utf-8"))["log_tail"]
        if "=" in line
    )
    assert (seen["DS_ACCELERATOR"], seen["CUDA_VISIBLE_DEVICES"], seen["OMP_NUM_THREADS"]) == ("cpu", "", "1")
    assert seen["DSPLAN_SMOKE_RANKS"] == "2"
    assert seen["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert not {"RANK", "WORLD_SIZE", "ACCELERATE_USE_FSDP"} & set(seen)


@pytest.mark.usefixtures("_with_packages")
def test_what_was_not_shown_is_said(tmp_path):
    with pytest.raises(PlannerError):
        run_smoke(folder_with(tmp_path))
    not_shown = " ".join(json.loads((tmp_path / "smoke.json").read_text("utf-8"))["not_shown"])
    for words in (
        "dp 2 stands for the plan's dp 4",
        "`flash`",
        "`fused`",
        "64 tokens instead of 2048",
        "speed, NCCL and GPU kernels",
        "CUDA context",
        "reduce_bucket_size 500,000,000 ->",
    ):
        assert words in not_shown


def test_the_text_shows_every_check_and_marks_a_wrong_one():
    checks = (
        Check(what="ZeRO stage", expected=2, found=3, ok=False, ranks_failed=(0, 1)),
        Check(what="micro-steps", expected=[2, 2], found=[2, 2], ok=True, ranks_failed=()),
    )
    text = smoke_text(
        SmokeResult(
            passed=False, error="why", launcher="deepspeed", ranks=2, tp=1, dp=2, steps=3, losses=(6.5,), seconds=20.0,
            checks=checks, memory=MemoryComparison(skipped="there is no C++ compiler", limit_percent=3.0),
            not_shown=("memory",), versions={}, model_config={}, log_tail=(),
        )
    )  # fmt: skip
    assert "failed: why" in text
    assert "BAD  ZeRO stage   3, the plan says 2" in text
    assert "ok   micro-steps  2 each" in text
    assert "not shown: memory" in text
    assert "memory: predicted and measured bytes were not compared: there is no C++ compiler" in text


def test_importing_the_dry_run_imports_nothing_heavy():
    heavy = ("torch", "deepspeed", "accelerate", "transformers")
    program = f"import sys, planner.launch; print([m for m in {heavy} if m in sys.modules])"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
