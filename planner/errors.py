"""What can go wrong, and the exit code of each.

    PlannerError            exit 2   the request or a file is wrong
    ├── UnknownName         exit 2   no such model, GPU or instance; carries the nearest spellings
    ├── NothingFits         exit 3   the search ended without a plan
    ├── CheckFailed         exit 4   a file is not what its reader accepts
    └── LaunchFailed        exit 5   a dry run did not do what the plan says

A `PlannerError` is the caller's mistake: one line that names the value in backticks, and a hint with the
next step. Anything else that escapes is a bug in dsplan (exit 1) and may show a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PlannerError(Exception):
    """A mistake of the caller: `message` in one line, `hint` with the smallest change that would work."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(one_line(message))
        self.message = one_line(message)
        self.hint = one_line(hint)


class UnknownName(PlannerError):
    """A name that no table holds."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, listing: str) -> None:
        near = nearest(name, known)
        article = "an" if kind[0] in "aeiou" else "a"
        suggestion = f"did you mean {' or '.join(f'`{n}`' for n in near)}? " if near else ""
        super().__init__(
            f"no {kind} is called `{name}`", hint=f"{suggestion}`{listing}` lists every name of {article} {kind}"
        )


class NothingFits(PlannerError):
    """No candidate fits the cluster."""

    exit_code = 3


class CheckFailed(PlannerError):
    """A file breaks a rule of the program that reads it."""

    exit_code = 4


class LaunchFailed(PlannerError):
    """A dry run failed, or ran without the plan in force."""

    exit_code = 5


def one_line(text: str) -> str:
    """The text with every control character escaped, so that a file name cannot start a second line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def nearest(name: str, known: Iterable[str], *, limit: int = 3) -> list[str]:
    """The known names that look most like `name`; only for hints, never for matching."""
    by_folded = {k.casefold(): k for k in known}
    close = difflib.get_close_matches(name.casefold(), list(by_folded), n=limit, cutoff=0.6)
    return [by_folded[c] for c in close]
