"""`dsplan check FILE…`: what is wrong in a DeepSpeed JSON, an Accelerate YAML or a plan folder."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.errors import CheckFailed


def check_command(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="DeepSpeed JSON, Accelerate YAML, or a plan folder.")
    ],
    *,
    json: Annotated[bool, typer.Option("--json", help="Findings as JSON on stdout.")] = False,
) -> int:
    """Exit code 4 when a finding is an error."""
    from planner.check import check
    from planner.cli.show_answer import print_json

    result = check(*files)
    if json:
        print_json(result.to_dict())
    else:
        for p in result.findings:
            place = f"{p.file}:{p.line}:{p.column}"
            typer.echo(f"{place}: {p.severity.value} {p.rule} {p.path}: {p.message} (bites: {p.bites}); fix: {p.fix}")
        typer.echo(
            f"{len(result.files)} file{'s' if len(result.files) != 1 else ''} checked, {len(result.findings)} findings"
        )
    return CheckFailed.exit_code if result.has_errors else 0
