"""`dsplan check FILE…`: what is wrong in a DeepSpeed JSON, an Accelerate YAML, TrainingArguments, a launch script or a
plan folder."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import Gpus, HostRam, Model, SeqLen
from planner.errors import CheckFailed, PlannerError, one_line

if TYPE_CHECKING:
    from planner.check import CheckResult

EXAMPLES = (
    "Examples: dsplan check ds_config.json accelerate.yaml --gpus 8xA100-80G | dsplan check launch.sh --fix | "
    "dsplan check 'configs/**/*.json' --sarif | dsplan check --explain DS012"
)


def check_command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...",
            help="DeepSpeed JSON, Accelerate YAML, TrainingArguments, a launch script, a folder, a pattern.",
            show_default=False,
        ),
    ] = None,
    *,
    gpus: Gpus = None,
    model: Model = None,
    launcher: Annotated[
        str | None, typer.Option("--launcher", help="What starts the run: accelerate, deepspeed, torchrun, ...")
    ] = None,
    trainer: Annotated[
        str | None,
        typer.Option(
            "--trainer", help='Who reads the DeepSpeed file and fills "auto": trainer, accelerate, deepspeed.'
        ),
    ] = None,
    deepspeed_version: Annotated[
        str | None, typer.Option("--deepspeed-version", help="The DeepSpeed release to judge by, e.g. 0.16.4.")
    ] = None,
    host_ram: HostRam = None,
    seq_len: SeqLen = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Write the mechanical fixes into the files; shows the diff.")
    ] = False,
    diff_only: Annotated[bool, typer.Option("--diff-only", help="Show the diff of --fix, write nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Findings as JSON on stdout.")] = False,
    sarif: Annotated[bool, typer.Option("--sarif", help="Findings as SARIF 2.1.0 on stdout, for CI.")] = False,
    explain: Annotated[
        str | None, typer.Option("--explain", help="The page of a rule, e.g. DS012; `all` lists the rules.")
    ] = None,
) -> int:
    """Exit code 4 when a finding is an error."""
    if explain is not None:
        typer.echo(_explained(explain))
        return 0
    if json and sarif:
        raise PlannerError("`--json` and `--sarif` both write to stdout", hint="choose one of them")
    known: dict[str, Any] = {
        "gpus": gpus,
        "model": model,
        "launcher": launcher,
        "trainer": trainer,
        "deepspeed_version": deepspeed_version,
        "host_ram": host_ram,
        "seq_len": seq_len,
    }
    if fix or diff_only:
        result = _fixed(files or [], known, write=not diff_only, aside=json or sarif)
    else:
        from planner.check import check

        result = check(*(files or []), **known)
    _print(result, json=json, sarif=sarif)
    return CheckFailed.exit_code if result.has_errors else 0


def _print(result: CheckResult, *, json: bool, sarif: bool) -> None:
    if json:
        typer.echo(json_module.dumps(result.to_dict(), indent=2))
    elif sarif:
        from planner.check.sarif import sarif as as_sarif

        typer.echo(json_module.dumps(as_sarif(result), indent=2))
    else:
        from planner.cli.show_findings import findings_as_text

        typer.echo("\n".join(one_line(line) for line in findings_as_text(result)))


def _fixed(files: list[str], known: dict[str, Any], *, write: bool, aside: bool) -> CheckResult:
    """The findings that are left; the diff goes to stdout, or to stderr where stdout belongs to a document."""
    from planner.check.given import context_of
    from planner.check.mending.fix import fix_paths

    fixed = fix_paths(files, context_of(**known))
    for name, diff in fixed.diffs.items():
        typer.echo(diff, err=aside, nl=False)
        if write:
            _write(Path(name), fixed.texts[name])
    done = "mended" if write else "can be mended"
    typer.echo(f"{len(fixed.mended)} finding{'' if len(fixed.mended) == 1 else 's'} {done}", err=aside)
    return fixed.result


def _write(path: Path, text: str) -> None:
    """Replace the file at once, so that nothing half-written is left behind."""
    import os

    target = path.resolve()
    part = target.with_name(f".{target.name}.dsplan")
    try:
        part.write_bytes(text.encode("utf-8"))
        os.chmod(part, target.stat().st_mode)
        os.replace(part, target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise PlannerError(
            f"cannot write `{one_line(str(path))}`: {error.strerror}", hint="use --diff-only to see the changes"
        ) from None


def _explained(rule: str) -> str:
    from planner.check.pages import as_text, page
    from planner.check.rules import RULES

    if rule.strip().casefold() == "all":
        return "\n".join(f"{name}  {known.severity.value:8}{known.title}" for name, known in sorted(RULES.items()))
    return as_text(page(rule))
