"""Many requests in one file: order, ids, bad lines, one process or two, the progress bar, and how it ends early."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from planner.cli.main import run
from planner.cli.workers import in_order
from planner.errors import PlannerError

needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
needs_two_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two cores"
)
ONE_CORE = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
PROGRAM = "import sys\nfrom planner.cli.main import main\nmain(sys.argv[1:])\n"


def requests(count: int) -> list[dict[str, Any]]:
    """Small requests, each different."""
    models, clusters = ("7b", "gpt2", "qwen2.5-7b"), ("8xA100-80G", "2xV100-32G")
    pinned = {"zero": "2,3", "offload": "none"}
    return [
        {
            "id": n,
            "model": models[n % 3],
            "gpus": clusters[n % 2],
            "seq_len": 20 + n,
            "micro_batch": 1 + n % 4,
            **pinned,
        }
        for n in range(count)
    ]


def written(folder: Path, lines: list[str]) -> str:
    file = folder / "requests.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    return str(file)


def command(*arguments: str, prologue: str = "") -> list[str]:
    return [sys.executable, "-c", prologue + PROGRAM, *arguments]


@needs_affinity
@needs_two_cores
@pytest.mark.parametrize(("name", "count"), [("plan", 12), ("estimate", 1004)])
def test_one_process_and_two_write_the_same_bytes_in_the_order_of_the_lines(
    tmp_path: Path, name: str, count: int
) -> None:
    asked = [{k: v for k, v in r.items() if k != "zero"} | {"zero": 2} for r in requests(count)]
    lines = [json.dumps(fields) for fields in asked]
    lines[5] = "{broken"
    file = written(tmp_path, [*lines[:7], "", *lines[7:], ""])
    several, single = (
        subprocess.run(command(name, "--batch", file, prologue=prologue), capture_output=True, check=False)
        for prologue in ("", ONE_CORE)
    )
    assert several.returncode == single.returncode == 2
    assert several.stderr == single.stderr == b""
    assert several.stdout == single.stdout
    results = [json.loads(line) for line in several.stdout.splitlines()]
    assert [result["id"] for result in results] == [*range(5), None, *range(6, count)]
    assert ["error" in result for result in results] == [number == 5 for number in range(count)]


def test_every_kind_of_bad_line_is_answered_in_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"model": "gpt2", "gpus": "1xA100-80G", "zero": 2, "seq_len": 256}
    lines = {
        '{"id": "a", "model": "nope", "gpus": "1xA100-80G"}': ("a", "`nope`"),
        '{"id": "b", "model": "gpt2"}': ("b", "gpus"),
        "[1, 2]": (None, "no JSON object"),
        "{": (None, "not a JSON line"),
        json.dumps({"id": 7, **good, "seq_len": -1}): (7, "-1"),
        json.dumps({"id": 8, **good, "no_such_field": 1}): (8, "no_such_field"),
    }
    file = written(tmp_path, [*lines, json.dumps({"id": "good", **good})])
    for name in ("plan", "estimate"):
        assert run([name, "--batch", file]) == 2
        *bad, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
        assert len(bad) == len(lines) == 6
        for result, (identity, words) in zip(bad, lines.values(), strict=True):
            assert result["id"] == identity
            assert words in result["error"]
        assert last["id"] == "good"
        assert last["plans"]
    assert run(["plan", "--batch", written(tmp_path, [json.dumps(good)])]) == 0
    assert "id" not in json.loads(capsys.readouterr().out)


def test_a_file_that_is_not_there_or_no_text_is_one_line_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe{}")
    for name in ("missing.jsonl", "binary"):
        assert run(["plan", "--batch", str(tmp_path / name)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("error: cannot read `")


def test_flags_are_defaults_of_every_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, ['{"model": "gpt2", "zero": 3}', '{"model": "gpt2", "gpus": "2xA100-80G"}'])
    assert run(["estimate", "--batch", file, "--gpus", "1xA100-80G", "--zero", "1"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(f["cluster"]["world_size"], f["plans"][0]["zero_stage"]) for f in found] == [(1, 3), (2, 1)]


def test_a_pipe_gets_no_bar(tmp_path: Path) -> None:
    file = written(tmp_path, [json.dumps(fields) for fields in requests(6)])
    done = subprocess.run(command("plan", "--batch", file), capture_output=True, check=True)
    assert done.stderr == b""
    assert len(done.stdout.splitlines()) == 6
    assert b"\x1b" not in done.stdout
    assert b"\r" not in done.stdout


def test_a_terminal_gets_a_bar_on_stderr_alone(tmp_path: Path) -> None:
    file = written(tmp_path, [json.dumps(fields) for fields in requests(6)])
    ours, theirs = pty.openpty()
    out = tmp_path / "out.jsonl"
    with out.open("wb") as stdout:
        process = subprocess.Popen(command("plan", "--batch", file), stdout=stdout, stderr=theirs)
    os.close(theirs)
    shown = terminal_text(ours)
    assert process.wait(timeout=60) == 0
    positions = [int(found) for found in re.findall(r"answered +\[[#-]+\] +(\d)/6", shown)]
    assert positions[0] == 0
    assert positions[-1] == 6
    assert positions == sorted(positions)
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == list(range(6))


def test_on_one_terminal_results_and_bar_keep_to_their_own_lines(tmp_path: Path) -> None:
    file = written(tmp_path, [json.dumps(fields) for fields in requests(3)])
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command("estimate", "--batch", file, "--zero", "2"), stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = terminal_text(ours)
    process.wait(timeout=60)
    results = [
        line.split("\x1b[K")[-1]
        for line in shown.replace("\r\n", "\n").split("\n")
        if "dsplan_version" in line or '"error"' in line
    ]
    assert [json.loads(line)["id"] for line in results] == [0, 1, 2]
    assert "3/3" in shown


def terminal_text(descriptor: int) -> str:
    """All that is written to a terminal until its last writer closes it."""
    parts = []
    while select.select([descriptor], [], [], 60)[0]:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # Linux: the other side is closed
            break
        if not part:
            break
        parts.append(part)
    os.close(descriptor)
    return b"".join(parts).decode()


def long_file(folder: Path) -> str:
    """A minute of work, of which a test sees the first results."""
    return written(folder, [json.dumps({"id": n, "model": "70b", "gpus": "4x8xH100-80G"}) for n in range(400)])


def children(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children")
    return [int(word) for word in found.read_text().split()]


def alive(process: int) -> bool:
    """Running, not a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def started(folder: Path) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A batch that has written its first result, and its workers; unbuffered, for `communicate` does not see what a
    buffered `readline` took beyond its line."""
    process = subprocess.Popen(
        command("plan", "--batch", long_file(folder)),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["id"] == 0
    workers = children(process.pid)
    assert len(workers) >= 2
    return process, workers


def gone(workers: list[int], *, within_s: float = 20) -> bool:
    end = time.monotonic() + within_s
    while any(map(alive, workers)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, workers))


needs_proc = pytest.mark.skipif(
    not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists(), reason="needs Linux's list of children"
)


@needs_proc
@needs_two_cores
def test_an_interrupt_ends_every_process_without_a_traceback(tmp_path: Path) -> None:
    process, workers = started(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert len(err.splitlines()) <= 1
    assert gone(workers)


@needs_proc
@needs_two_cores
def test_a_worker_that_is_killed_is_a_clear_error(tmp_path: Path) -> None:
    process, workers = started(tmp_path)
    os.kill(workers[0], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    answered = 1 + len(out.splitlines())
    assert err.decode().startswith(
        f"error: a worker process was ended from outside before request {answered + 1} of 400 was answered\n"
    )
    assert [json.loads(line)["id"] for line in out.splitlines()] == list(range(1, answered))
    assert gone(workers)


@needs_proc
@needs_two_cores
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_process_that_started_them(tmp_path: Path, number: signal.Signals) -> None:
    process, workers = started(tmp_path)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert gone(workers)


@needs_two_cores
def test_a_reader_that_stops_ends_the_batch(tmp_path: Path) -> None:
    process = subprocess.run(
        f"{sys.executable} -c '{PROGRAM}' plan --batch {long_file(tmp_path)} | head -n 2",
        shell=True, capture_output=True, timeout=60, check=True,
    )  # fmt: skip
    assert len(process.stdout.splitlines()) == 2
    assert process.stderr == b""


def square(number: int) -> int:
    if number == 13:
        raise ZeroDivisionError("a bug")
    return number * number


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_results_come_in_order_and_a_bug_comes_through(chunk: int) -> None:
    assert list(in_order(square, range(13), chunk=chunk)) == [n * n for n in range(13)]
    found = in_order(square, range(30), chunk=chunk)
    assert next(found) == 0
    with pytest.raises(ZeroDivisionError, match="a bug"):
        list(found)
    assert list(in_order(square, [], chunk=chunk)) == []


def leave(number: int) -> int:
    os._exit(3)


@needs_two_cores
def test_a_worker_that_leaves_is_named_by_its_place() -> None:
    with pytest.raises(PlannerError, match=r"before request 1 of 8 was answered"):
        list(in_order(leave, range(8), chunk=1))
