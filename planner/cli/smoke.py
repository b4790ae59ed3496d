"""`dsplan smoke DIR`: launches a written plan on this machine's CPU with the real engine and checks that it is in
force."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def smoke_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that `dsplan plan` wrote.")],
    *,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds before the launch is ended.")] = 900,
    json: Annotated[bool, typer.Option("--json", help="The smoke document on stdout.")] = False,
) -> int:
    """Dry run: the plan's own launch.sh, a shrunken model, three optimizer steps, assertions inside the engine."""
    return dry_run(folder, timeout_s=timeout, as_json=json, quiet=json)


def dry_run(folder: Path, *, timeout_s: float = 900, as_json: bool = False, quiet: bool = False) -> int:
    """Run it, print what was asserted and compared, also where that fails."""
    from planner.cli.show_answer import print_json
    from planner.launch.result import DryRunFailed, smoke_text
    from planner.launch.smoke import run_smoke

    failure = None
    try:
        result = run_smoke(folder, timeout_s=timeout_s, report=lambda line: typer.echo(line, err=True))
    except DryRunFailed as failed:
        failure, result = failed, failed.result
    if as_json:
        print_json(result.to_dict())
    elif not quiet:
        typer.echo(smoke_text(result))
    if failure is not None:
        raise failure
    return 0
