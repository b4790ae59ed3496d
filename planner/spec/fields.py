"""Single values of a request: numbers, ranges and choices, from text or Python values.

Every function takes the field's name for its messages, and raises PlannerError with the value in backticks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from typing import Any, TypeVar

from planner.errors import PlannerError, nearest

Choice = TypeVar("Choice", bound=Enum)
MAX_MICRO_BATCH = 65_536
MAX_LISTED = 4_096


def flag(name: str) -> str:
    """`seq_len` as the user typed it: `--seq-len`."""
    return f"--{name.replace('_', '-')}"


def positive(name: str, value: Any) -> float:
    """A number above zero; text such as `2e9` or `1_000` is read."""
    try:
        number = float(str(value).replace("_", "")) if not isinstance(value, bool) else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise PlannerError(f"`{flag(name)} {value}` is no number", hint="give a number above zero")
    if number <= 0:
        raise PlannerError(f"`{flag(name)} {value}` must be above zero", hint="leave the flag out for the default")
    if number > 1e18:
        raise PlannerError(f"`{flag(name)} {value}` is beyond anything that exists", hint="check the number of digits")
    return number


def share(name: str, value: Any, *, upper: float) -> float:
    """A number from 0 to `upper`."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number <= upper:
        raise PlannerError(f"`{flag(name)} {value}` is not between 0 and {upper}", hint="0.05 keeps 5 % free")
    return number


def integers(name: str, value: Any, *, lowest: int, highest: int) -> tuple[int, ...]:
    """`2,3`, `1-8`, `4`, an int or a list of ints: ascending, without repeats."""
    parts: Iterable[Any] = value if isinstance(value, (list, tuple)) else str(value).split(",")
    found: set[int] = set()
    for part in parts:
        text = str(int(part)) if isinstance(part, int) else str(part).strip()
        first, dash, last = text.partition("-")
        bounds = (first, last if dash else first)
        if not all(bound.strip().isdecimal() and len(bound.strip()) < 19 for bound in bounds):
            raise PlannerError(
                f"`{flag(name)} {value}` is no list of whole numbers",
                hint=f"write it as `{flag(name)} {lowest}`, `2,3` or `1-8`",
            )
        low, high = int(bounds[0]), int(bounds[1])
        if low > high:
            raise PlannerError(f"`{text}` runs backwards", hint=f"`{high}-{low}`")
        if low < lowest or high > highest:
            raise PlannerError(
                f"`{flag(name)} {text}` is outside {lowest} to {highest}",
                hint=f"the values of this axis are {lowest} to {highest}",
            )
        if high - low >= MAX_LISTED:
            raise PlannerError(f"`{flag(name)} {text}` lists more than {MAX_LISTED} values", hint="narrow the range")
        found.update(range(low, high + 1))
    if not found:
        raise PlannerError(f"`{flag(name)}` is empty", hint="leave the flag out for the whole axis")
    return tuple(sorted(found))


def choice(kind: type[Choice], name: str, value: Any, *, also: tuple[str, ...] = ()) -> Choice:
    """One of an enum's values; `also` are values of the flag that the caller has dealt with."""
    if isinstance(value, kind):
        return value
    known = [*also, *(member.value for member in kind)]
    text = str(value).strip().casefold()
    for member in kind:
        if member.value == text:
            return member
    near = nearest(text, known)
    hint = (
        f"did you mean `{near[0]}`? the values are {', '.join(known)}" if near else f"the values are {', '.join(known)}"
    )
    raise PlannerError(f"`{flag(name)} {value}` is not a value of this flag", hint=hint)


def choices(kind: type[Choice], name: str, value: Any) -> tuple[Choice, ...]:
    """Several of an enum's values, in the enum's order."""
    parts = value if isinstance(value, (list, tuple)) else str(value).split(",")
    picked = {choice(kind, name, part) for part in parts}
    return tuple(member for member in kind if member in picked)
