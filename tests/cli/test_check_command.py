"""`dsplan check`: what it prints, writes and returns."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from planner.cli.main import run

GOOD = '{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}\n'
BAD = '{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0,\n "zero_optimisation": {"stage": 2}}\n'
WARNED = '{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "zero_optimization": {"stage": 3}}\n'


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("good.json", GOOD), ("bad.json", BAD), ("warned.json", WARNED)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["good.json"], 0),
        (["warned.json"], 0),
        (["bad.json"], 4),
        (["good.json", "bad.json"], 4),
        (["*.json"], 4),
        (["bad.json", "--json"], 4),
        (["bad.json", "--sarif"], 4),
        (["bad.json", "--json", "--sarif"], 2),
        (["absent.json"], 2),
        ([], 2),
        (["good.json", "--trainer", "trainr"], 2),
        (["good.json", "--launcher", "torchrum"], 2),
        (["good.json", "--gpus", "8xA100-800G"], 2),
        (["good.json", "--deepspeed-version", "new"], 2),
        (["good.json", "--host-ram", "much"], 2),
        (["good.json", "--seq-len", "-1"], 2),
        (["good.json", "--model", "lama-7b"], 2),
        (["--explain", "DS012"], 0),
        (["--explain", "all"], 0),
        (["--explain", "DS12"], 2),
        (["good.json", "--gpus", "8"], 0),
        (["good.json", "--gpus", "4xTITAN X (Pascal)"], 0),
        (["good.json", "--gpus", "2x8xA100-80G", "--model", "7b", "--trainer", "hf", "--launcher", "torchrun",
          "--deepspeed-version", "0.19.8", "--host-ram", "512", "--seq-len", "2048"], 0),
    ],
)  # fmt: skip
def test_exit_codes(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", *arguments]) == code
    captured = capsys.readouterr()
    if code == 2:
        assert captured.err.startswith("error: ")
        assert "hint: " in captured.err
        assert "Traceback" not in captured.err
    else:
        assert captured.err == ""


def test_the_text_names_place_rule_path_time_and_fix(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "good.json", "bad.json", "warned.json"]) == 4
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("bad.json (deepspeed)")
    assert lines[at + 1 : at + 4] == [
        "  bad.json:2:2: error DS011 $.zero_optimisation",
        "    no program reads `zero_optimisation` here, so it has no effect",
        "    bites silently: no message; fix: did you mean `zero_optimization`?",
    ]
    assert lines[-1] == "3 files checked: 1 error, 1 warning, 0 notes"
    assert not [line for line in lines if line.startswith("good.json")]


def test_json_is_the_document_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    run(["check", "bad.json", "good.json", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["findings", "files"]
    (found,) = document["findings"]
    assert list(found) == ["rule", "severity", "file", "line", "column", "path", "message", "bites", "fix"]
    assert (found["rule"], found["severity"], found["file"], found["line"], found["column"], found["bites"]) == (
        "DS011", "error", "bad.json", 2, 2, "silently",
    )  # fmt: skip
    assert document["files"] == [
        {"file": "bad.json", "kind": "deepspeed"},
        {"file": "good.json", "kind": "deepspeed"},
    ]


def test_fix_writes_the_file_shows_the_diff_and_keeps_its_mode(capsys: pytest.CaptureFixture[str]) -> None:
    os.chmod("bad.json", 0o640)
    assert run(["check", "bad.json", "--fix"]) == 0
    out = capsys.readouterr().out
    assert '-  "zero_optimisation"'.replace("-  ", "- ") in out
    assert '+ "zero_optimization": {"stage": 2}}' in out
    assert "1 finding mended" in out
    assert Path("bad.json").read_text() == BAD.replace("isation", "ization")
    assert stat.S_IMODE(os.stat("bad.json").st_mode) == 0o640
    assert sorted(os.listdir()) == ["bad.json", "good.json", "warned.json"]
    assert run(["check", "bad.json"]) == 0


def test_diff_only_writes_nothing_and_json_stays_alone_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "bad.json", "--diff-only", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["findings"] == []
    assert captured.err.startswith("--- a/bad.json\n+++ b/bad.json\n")
    assert Path("bad.json").read_text() == BAD


def test_explain_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--explain", "ds012"]) == 0
    out = capsys.readouterr().out
    for part in ("DS012", "bites: config", "What happens: ", "Releases: ", "Wrong:", "Right:", "Source: "):
        assert part in out


def test_a_file_name_cannot_start_a_second_line(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\nb.json"
    Path(name).write_text(BAD)
    assert run(["check", name]) == 4
    assert "a\\nb.json:2:2: error" in capsys.readouterr().out


def test_check_imports_no_training_package() -> None:
    program = (
        "import sys\n"
        "from planner.cli.main import run\n"
        "code = run(['check', 'bad.json', '--gpus', '8xA100-80G', '--model', '7b'])\n"
        "heavy = {'torch', 'deepspeed', 'accelerate', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'{code} {heavy}' if code != 4 or heavy else 0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def test_the_document_knows_the_times_of_the_contract_only(capsys: pytest.CaptureFixture[str]) -> None:
    text = "distributed_type: MULTI_GPU\nnum_processes: 8\nnum_machines: 2\nmachine_rank: 5\nmain_process_ip: a\n"
    Path("acc.yaml").write_text(text)
    run(["check", "acc.yaml", "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert "DS123" in {problem["rule"] for problem in found}
    assert {problem["bites"] for problem in found} <= {"config", "engine init", "first step", "save", "silently"}
