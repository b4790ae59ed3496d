"""The `dsplan` command: `dsplan --model 13b --gpus 4xA100-80G` is `dsplan plan …`, spelled short.

Parses, calls one library function, prints. Errors become one line and a hint on stderr, with the exit code of their
branch.
"""

from __future__ import annotations

import errno
import gc
import sys
from collections.abc import Callable, Iterable, Mapping

import typer

from planner.cli import accuracy, check, estimate, plan, show, smoke
from planner.errors import PlannerError, nearest, one_line
from planner.version import VERSION

COMMANDS: Mapping[str, tuple[Callable[..., int], str | None]] = {
    "plan": (plan.plan_command, plan.EXAMPLES),
    "estimate": (estimate.estimate_command, estimate.EXAMPLES),
    "check": (check.check_command, check.EXAMPLES),
    "smoke": (smoke.smoke_command, None),
    "show": (show.show_command, None),
    "accuracy": (accuracy.accuracy_command, accuracy.EXAMPLES),
}
# UsageError of whichever click this typer brings: its own copy, or the package.
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
GARBAGE_THRESHOLD = 100_000
"""Objects between two searches for cycles: a plan makes many records and hardly a cycle, and looking takes a twentieth
of the command's time."""
LATER = ("measure", "calibrate", "compare", "report", "diagnose")


def application(names: Iterable[str]) -> typer.Typer:
    """The command line with these commands: typer reads every flag of each, so the one that runs is enough."""
    app = typer.Typer(
        help="Plans DeepSpeed training before anything runs: what fits, with which settings, how fast, "
        "and the files to launch it.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(invoke_without_command=True)(root)
    for name in names:
        function, examples = COMMANDS[name]
        app.command(name, epilog=examples)(function)
    return app


def root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),  # noqa: FBT001, FBT003
) -> None:
    """`dsplan --model 13b --gpus 4xA100-80G` plans; it is short for `dsplan plan ...`."""
    if version:
        typer.echo(f"dsplan {VERSION}")


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    arguments = list(sys.argv[1:] if argv is None else argv)
    sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """The exit code of one command line."""
    try:
        flags, script_arguments = split_script_arguments(arguments)
        words = with_command(flags)
        command = typer.main.get_command(application(words[:1] if words[0] in COMMANDS else COMMANDS))
        result = command.main(args=words, prog_name="dsplan", standalone_mode=False, obj=script_arguments)
    except PlannerError as error:
        return complain(error.message, error.hint, error.exit_code)
    except USAGE_ERROR as error:
        return complain(str(getattr(error, "message", error)).rstrip("."), usage_hint(error), 2)
    except (typer.Abort, KeyboardInterrupt):
        return complain("interrupted", "", 130)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return complain(f"cannot write the answer: {error.strerror}", "make room, or send the output elsewhere", 2)
    return result if isinstance(result, int) else 0


def split_script_arguments(arguments: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """What stands before the first `--` is ours; what follows belongs to the script."""
    if "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    return arguments[:at], tuple(arguments[at + 1 :])


def with_command(arguments: list[str]) -> list[str]:
    """`--model …` means `plan --model …`; a leading word must be a command; nothing at all asks for help."""
    if not arguments:
        return ["--help"]
    if arguments[0] in (*COMMANDS, "--help", "--version"):
        return arguments
    if arguments[0].startswith("-"):
        return ["plan", *arguments]
    word = arguments[0]
    if word in LATER:
        raise PlannerError(f"`dsplan {word}` is not written yet", hint=f"the commands are {', '.join(COMMANDS)}")
    near = nearest(word, COMMANDS)
    hint = (
        f"did you mean `dsplan {near[0]}`?"
        if near
        else f"the commands are {', '.join(COMMANDS)}; to plan, start with `--model`"
    )
    raise PlannerError(f"`{word}` is no command", hint=hint)


def usage_hint(error: Exception) -> str:
    """The nearest option, or where the help is."""
    near = getattr(error, "possibilities", None)
    if near:
        return f"did you mean `{near[0]}`?"
    context = getattr(error, "ctx", None)
    name = context.command_path if context else "dsplan"
    return f"`{name} --help` lists every flag"


def complain(message: str, hint: str, code: int) -> int:
    """One line on stderr, a hint under it."""
    typer.echo(f"error: {one_line(message)}", err=True)
    if hint:
        typer.echo(f"\nhint: {one_line(hint)}", err=True)
    return code
