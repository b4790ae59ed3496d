"""`--batch FILE.jsonl`: one request a line in, one result a line out, in the same order.

A bad line gets `{"id": …, "error": …}` in its place and the run goes on; the exit code is then 2. Flags of the command
line are defaults for every line; paths in a line are relative to the JSONL file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from planner.api import Answer
from planner.errors import PlannerError

PATH_FIELDS = ("model", "gpus", "config")


def run_batch(file: Path, solve: Callable[..., Answer], defaults: Mapping[str, Any]) -> int:
    """Answer every line; raises PlannerError only when the file itself cannot be read."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PlannerError(
            f"cannot read `{file}`: {reason}", hint="`--batch` takes a JSONL file, one request a line"
        ) from None
    failed = False
    for result in answers(lines, solve, defaults, folder=file.parent):
        failed = failed or "error" in result
        typer.echo(json.dumps(result))
    return PlannerError.exit_code if failed else 0


def answers(
    lines: list[str], solve: Callable[..., Answer], defaults: Mapping[str, Any], *, folder: Path
) -> Iterator[dict[str, Any]]:
    """One result for each line that is not blank."""
    for line in lines:
        if not line.strip():
            continue
        identity: dict[str, Any] = {}
        try:
            request = _read(line)
            if "id" in request:
                identity["id"] = request.pop("id")
            fields = {**{k: v for k, v in defaults.items() if v}, **request}
            yield {**identity, **solve(**{k: _beside(folder, k, v) for k, v in fields.items()}).to_dict()}
        except PlannerError as error:
            yield {"id": identity.get("id"), "error": error.message, **({"hint": error.hint} if error.hint else {})}


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
