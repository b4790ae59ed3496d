"""Runs a command under a time limit, keeps the end of its output, and ends everything it started.

In: an argv, an environment, a folder, a time limit. Out: a `Finished` record. Answers: how did the command end, and
what did it say last? Launchers start their workers in sessions of their own, so the process group is not enough:
every process of the run inherits a mark in its environment, and all that carry it are ended, whatever happens.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

MARK = "DSPLAN_RUN"
GRACE_S = 5.0  # between asking a process to end and ending it
TAIL_LINES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a command ended. `returncode` is None when the time limit ended it."""

    returncode: int | None
    seconds: float
    tail: tuple[str, ...]


def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    timeout_s: float,
    on_line: Callable[[str], None] | None = None,
) -> Finished:
    """Run the command to its end or to the time limit; afterwards no process of it is alive."""
    mark = secrets.token_hex(16)
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    said: tuple[str, ...] | None = None
    start = time.monotonic()
    with _termination_raises():
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={**env, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        reader = threading.Thread(target=_read, args=(process, tail, on_line), daemon=True)
        try:
            reader.start()
            returncode = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            returncode, said = None, tuple(tail)  # not what the launcher says about being ended
        finally:
            end_all(process.pid, mark)
            process.wait()
            reader.join(GRACE_S)
            if process.stdout is not None and not reader.is_alive():
                process.stdout.close()
    return Finished(returncode=returncode, seconds=time.monotonic() - start, tail=tuple(tail) if said is None else said)


def end_all(group: int, mark: str) -> None:
    """End the process group and every process that carries the mark: first asked, then forced."""
    for sig, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        deadline = time.monotonic() + patience_s
        asked: set[int] = set()
        while alive := _group_members(group) | set(marked(mark)):
            for pid in alive - asked:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, sig)
            asked |= alive
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        else:
            return


def marked(mark: str) -> Iterator[int]:
    """Processes of this user whose environment carries the mark; where there is no /proc, none."""
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def _group_members(group: int) -> set[int]:
    """Living processes of the group; where there is no /proc, the group's leader stands for all."""
    if not Path("/proc/self/stat").exists():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, 0)
            return {-group}
        return set()
    members = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            # after the name in parentheses, which may hold anything: state, parent, group
            state, _, its_group = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                members.add(int(entry.name))
    return members


def _read(process: subprocess.Popen[str], tail: deque[str], on_line: Callable[[str], None] | None) -> None:
    """Keep the last lines; a process that outlives the command may hold the pipe open, so this has its own thread."""
    if process.stdout is None:
        return
    with suppress(ValueError, OSError):
        for line in process.stdout:
            text = line.rstrip("\n")
            tail.append(text)
            if on_line is not None:
                on_line(text)


@contextmanager
def _termination_raises() -> Iterator[None]:
    """While the command runs, SIGTERM and SIGHUP end this program as Ctrl-C does: with the clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
