"""Which findings hold for a release of DeepSpeed, and which settings it does not know.

In: the files, the context, and findings made for the release that dsplan is written for. Out: the findings of another
release. The table is `data/releases.toml`; nothing of it is read where no other release is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from planner import toml
from planner.check.context import Context, release_of
from planner.check.one_file.deepspeed_rules import device_of, section, stage_of, tp_of
from planner.check.rules import finding
from planner.check.together import Together
from planner.records.problem import Problem, Severity
from planner.resources import read_table
from planner.version import TARGET_VERSIONS


def for_release(problems: list[Problem], context: Context) -> list[Problem]:
    """The findings that hold for the release; unchanged where no other than dsplan's own is named."""
    if context.release == release_of(TARGET_VERSIONS["deepspeed"]):
        return problems
    kept = (_judged(problem, context.release) for problem in problems)
    return [problem for problem in kept if problem is not None]


def _judged(problem: Problem, release: tuple[int, ...]) -> Problem | None:
    table = _table()
    for row in table["holds"]:
        place = row.get("path", "$")
        inside = problem.path == place or problem.path.startswith((f"{place}.", f"{place}["))
        if problem.rule == row["rule"] and inside and release < release_of(row["since"]):
            return None
    for row in table["instead"]:
        if problem.rule != row["rule"] or release >= release_of(row["until"]):
            continue
        if any(word in problem.message.casefold() for word in row.get("drop", ())):
            return None
        if "message" in row:
            problem = replace(problem, message=row["message"])
    return problem


def settings_of_later_releases(together: Together, context: Context) -> Iterator[Problem]:
    """Keys, values and combinations that the release does not have yet."""
    file, release = together.deepspeed, context.release
    if file is None or release >= release_of(TARGET_VERSIONS["deepspeed"]):
        return
    number, table = ".".join(map(str, release)), _table()
    for path, row in table["keys"].items():
        if release < release_of(row["since"]) and _has(file.fields, path):
            known_above = any(
                path.startswith(f"{other}.") and release < release_of(table["keys"][other]["since"])
                for other in table["keys"]
            )
            if known_above:
                continue
            does = "refuses the file: its section has no such key" if row["earlier"] == "refuses" else "ignores it"
            yield finding(
                "DS501",
                path,
                f"DeepSpeed {number} {does}",
                fix=f"leave it out, or take {row['since']} or newer",
                bites="config" if row["earlier"] == "refuses" else "silently",
                file=file.name,
            )
    for path, row in _broken(file.fields, release):
        message = f"DeepSpeed {number} {row['earlier']}"
        fix = f"take {row['since']} or newer, or another setting"
        yield finding("DS501", path, message, fix=fix, bites="engine init", file=file.name)


def _broken(config: Mapping[str, Any], release: tuple[int, ...]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    table = _table()
    for row in table["value"]:
        *sections, key = row["path"].removeprefix("$.").split(".")
        if release < release_of(row["since"]) and str(section(config, *sections).get(key)).lower() == row["value"]:
            yield row["path"], row
    has_autotp = release >= release_of(table["keys"]["$.tensor_parallel"]["since"])
    met = {
        "AutoTP with ZeRO-3": has_autotp and tp_of(config) > 1 and stage_of(config) == 3,
        "Lion with offload": str(section(config, "optimizer").get("type")).lower() == "lion"
        and stage_of(config) > 0
        and device_of(config, "offload_optimizer") != "none",
    }
    for row in table["together"]:
        if met[row["name"]] and release < release_of(row["since"]):
            yield row["path"], row


def release_is_known(together: Together, context: Context) -> Iterator[Problem]:
    """A release outside the table: said once, judged by the nearest that was read."""
    file = together.deepspeed or (together.accelerate[0] if together.accelerate else together.training)
    if file is None or not context.deepspeed:
        return
    target, oldest = TARGET_VERSIONS["deepspeed"], _table()["oldest"]
    number = ".".join(map(str, context.deepspeed))
    if context.deepspeed > release_of(target):
        message = f"dsplan knows DeepSpeed up to {target}; {number} is judged like it"
    elif context.deepspeed < release_of(oldest):
        message = f"no release as old as {number} was read; it is judged like {oldest}"
    else:
        return
    yield finding("DS502", "$", message, fix="see its release notes", severity=Severity.INFO, file=file.name)


def _has(config: Mapping[str, Any], path: str) -> bool:
    *sections, key = path.removeprefix("$.").split(".")
    return key in section(config, *sections) and section(config, *sections)[key] is not None


@cache
def _table() -> Mapping[str, Any]:
    return toml.loads(read_table("check", "releases.toml"))


RULES = (settings_of_later_releases, release_is_known)
