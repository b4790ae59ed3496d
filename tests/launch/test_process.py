"""A run leaves nothing behind, whatever its children do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from planner.launch.process import TAIL_LINES, run

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="children are found through /proc")
ENV = {"PATH": os.environ["PATH"]}


def bash(script: str, cwd: Path, *, timeout_s: float = 30, on_line=None):
    return run(["bash", "-c", script], env=ENV, cwd=cwd, timeout_s=timeout_s, on_line=on_line)


def running(seconds: str) -> list[int]:
    """Processes called `sleep SECONDS`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", seconds.encode()]:
            found.append(int(entry.name))
    return found


def test_exit_code_and_both_streams_come_back(tmp_path):
    finished = bash("echo out; echo err >&2; exit 7", tmp_path)
    assert finished.returncode == 7
    assert sorted(finished.tail) == ["err", "out"]


def test_only_the_end_of_a_long_output_is_kept(tmp_path):
    finished = bash(f"seq {TAIL_LINES + 100}", tmp_path)
    assert len(finished.tail) == TAIL_LINES
    assert finished.tail[-1] == str(TAIL_LINES + 100)


def test_each_line_is_reported_as_it_comes(tmp_path):
    lines: list[str] = []
    bash("echo one; echo two", tmp_path, on_line=lines.append)
    assert lines == ["one", "two"]


def test_output_that_is_not_utf8_does_not_stop_the_run(tmp_path):
    assert bash(r"printf '\xff\xfe\n'; echo end", tmp_path).tail[-1] == "end"


def test_the_time_limit_ends_the_command(tmp_path):
    finished = bash("echo started; sleep 71.001", tmp_path, timeout_s=0.5)
    assert finished.returncode is None
    assert finished.tail == ("started",)
    assert finished.seconds < 10
    assert running("71.001") == []


def test_the_time_limit_ends_a_process_that_ignores_termination(tmp_path):
    finished = bash("trap '' TERM; sleep 71.002 & while :; do wait; done", tmp_path, timeout_s=0.5)
    assert finished.returncode is None
    assert running("71.002") == []


def test_a_grandchild_in_a_session_of_its_own_is_ended(tmp_path):
    finished = bash("setsid sleep 71.003 & sleep 0.3; exit 0", tmp_path)
    assert finished.returncode == 0
    assert finished.seconds < 10
    assert running("71.003") == []


def test_a_grandchild_whose_parents_are_gone_is_ended(tmp_path):
    bash("(setsid bash -c 'sleep 71.004 & disown' &) ; sleep 0.3", tmp_path)
    assert running("71.004") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_program_ends_the_command_too(tmp_path, number):
    name = f"71.1{int(number):02d}"
    program = textwrap.dedent(f"""
        from pathlib import Path
        from planner.launch.process import run
        import os
        run(["bash", "-c", "setsid sleep {name} & sleep {name}"], env=dict(os.environ), cwd=Path("."), timeout_s=60)
    """)
    root = Path(__file__).parents[2]
    child = subprocess.Popen([sys.executable, "-c", program], cwd=root, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while len(running(name)) < 2:
            assert time.monotonic() < deadline, "the command did not start"
            time.sleep(0.05)
        child.send_signal(number)
        assert child.wait(timeout=20) != 0
        assert running(name) == []
    finally:
        child.kill()
        child.wait()


def test_processes_of_other_programs_are_left_alone(tmp_path):
    other = subprocess.Popen(["sleep", "71.005"])
    try:
        bash("sleep 71.006", tmp_path, timeout_s=0.3)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
