"""`dsplan accuracy` as people and pipelines call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from planner.cli.main import run

ROW = {
    "id": "mine-1", "source_name": "mine", "hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "ffn": 14336,
    "vocab": 128256, "gated_mlp": True, "tied": False, "method": "full", "framework": "deepspeed (HF)",
    "gpu_class": "H100-80GB", "gpu_mem_gb": 80, "gpu_count": 8, "zero_stage": 3, "tp": 1, "dp": 8, "dtype": "bf16",
    "grad_checkpoint": "full", "flash_attn": True, "offload": "none", "micro_batch": 1, "seq_len": 4096,
    "measured_peak_gib": 30.0, "counter_class": "allocated", "outcome": "fit", "quality": "A",
    "for_scoring": ["memory", "fit"], "missing": [], "some_other_key": 1,
}  # fmt: skip


def file_of(tmp_path: Path, *rows: object) -> str:
    file = tmp_path / "points.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return str(file)


def test_the_whole_score_prints_three_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["accuracy"]) == 0
    out = capsys.readouterr().out
    for words in ("counter", "stas-z3-offload", "mean over sources", "false fit", "false out-of-memory", "16 bytes"):
        assert words in out


@pytest.mark.parametrize(
    ("flag", "there", "not_there"),
    [
        ("--memory", "90 % within", "false fit"),
        ("--fit", "borderline", "90 % within"),
        ("--peers", "DeepSpeed's estimators", "false fit"),
        ("--overhead", "CONTEXT_BYTES", "borderline"),
    ],
)
def test_a_flag_prints_its_own_table_alone(
    flag: str, there: str, not_there: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["accuracy", flag]) == 0
    out = capsys.readouterr().out
    assert there in out
    assert not_there not in out


def test_one_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["accuracy", "--source", "simumax-b200", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["source_name"] for row in document["rows"]} == {"simumax-b200"}
    assert document["memory"]["allocated"]["simumax-b200"]["rows"] == 25
    assert len(document["rows"]) >= 25


def test_a_file_of_ones_own_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["accuracy", "--points", file_of(tmp_path, ROW), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (row,) = document["rows"]
    assert row["id"] == "mine-1"
    assert row["verdict"] == "fits"
    assert row["error"] == pytest.approx(row["predicted_gib"] / 30 - 1, abs=1e-3)
    assert document["memory_mean_over_sources"]["torch counters"]["rows"] == 1


def test_rows_that_say_little_are_reported_and_not_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = {"id": "bare", "source_name": "mine", "for_scoring": ["fit"], "outcome": "fit"}
    assert run(["accuracy", "--points", file_of(tmp_path, bare, ROW), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["rows"]
    assert first["predicted_gib"] is None
    assert "hidden" in first["reason"]
    assert second["predicted_gib"] > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--points", "nowhere.jsonl"], "cannot read"),
        (["--source", "simumax"], "did you mean `simumax-b200`"),
        (["--source", "x"], "the sources are"),
    ],
)
def test_a_wrong_request_ends_with_2_and_a_hint(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["accuracy", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "hint: " in err
    assert said in err


def test_a_broken_line_ends_with_2_and_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["accuracy", "--points", file_of(tmp_path, ROW, "{")]) == 2
    assert "line 2" in capsys.readouterr().err


def test_it_loads_no_training_package() -> None:
    program = (
        "import sys\n"
        "from planner.cli.main import run\n"
        "code = run(['accuracy', '--json'])\n"
        "heavy = {'torch', 'deepspeed', 'accelerate', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'{code} {heavy}' if code or heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["rows"]) >= 1000
