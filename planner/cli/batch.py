"""`--batch FILE.jsonl`: one request a line in, one result a line out, in the same order, on every core.

A bad line gets `{"id": …, "error": …}` in its place and the run goes on; the exit code is then 2. Flags of the command
line are defaults for every line; paths in a line are relative to the JSONL file. A terminal shows a progress bar on
stderr; a pipe gets none.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import typer

from planner.api import Answer
from planner.cli.workers import in_order
from planner.errors import PlannerError

PATH_FIELDS = ("model", "gpus", "config")
CLEAR_LINE = "\r\x1b[K"


def run_batch(file: Path, solve: Callable[..., Answer], defaults: Mapping[str, Any], *, chunk: int) -> int:
    """Answer every line that is not blank, `chunk` of them at once in a process; raises PlannerError only when the file
    cannot be read or a process is ended from outside."""
    try:
        lines = [line for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PlannerError(
            f"cannot read `{file}`: {reason}", hint="`--batch` takes a JSONL file, one request a line"
        ) from None
    work = partial(answer_line, solve=solve, defaults=defaults, folder=file.parent)
    failed = False
    with closing(in_order(work, lines, chunk=chunk)) as results, _progress(len(lines)) as advance:
        for text, good in results:
            failed = failed or not good
            advance(text)
    return PlannerError.exit_code if failed else 0


def answer_line(
    line: str, *, solve: Callable[..., Answer], defaults: Mapping[str, Any], folder: Path
) -> tuple[str, bool]:
    """The JSON of one result, and whether the line was good."""
    identity: dict[str, Any] = {}
    try:
        request = _read(line)
        if "id" in request:
            identity["id"] = request.pop("id")
        fields = {**{k: v for k, v in defaults.items() if v}, **request}
        answer = solve(**{k: _beside(folder, k, v) for k, v in fields.items()})
    except PlannerError as error:
        problem = {"id": identity.get("id"), "error": error.message, **({"hint": error.hint} if error.hint else {})}
        return json.dumps(problem), False
    return json.dumps({**identity, **answer.to_dict()}), True


@contextmanager
def _progress(length: int) -> Iterator[Callable[[str], None]]:
    """What prints a result and moves the bar, where stderr is a terminal; elsewhere there is no bar."""
    if not sys.stderr.isatty():
        yield typer.echo
        return
    with typer.progressbar(length=length, label="answered", show_pos=True, file=sys.stderr) as bar:

        def advance(text: str) -> None:
            if sys.stdout.isatty():
                typer.echo(CLEAR_LINE, err=True, nl=False)
            typer.echo(text)
            bar.update(1)

        yield advance


def _read(line: str) -> dict[str, Any]:
    """One line as a request; raises PlannerError when it is no JSON object."""
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PlannerError(f"not a JSON line: {error}", hint="one JSON object a line") from None
    if not isinstance(request, dict):
        raise PlannerError("a line is no JSON object", hint="one JSON object a line")
    return request


def _beside(folder: Path, name: str, value: Any) -> Any:
    """A path of a line, seen from the folder of the JSONL file."""
    if name not in PATH_FIELDS or not isinstance(value, str) or os.path.isabs(value):
        return value
    try:
        there = folder / value
        return str(there) if there.exists() else value
    except (OSError, ValueError):
        return value
