"""The page of each rule: what it is about, what really happens and when, for which releases, and how it should look.

In: a rule's id. Out: its page, from `data/pages.toml`. Answers: `dsplan check --explain DS012`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from planner import toml
from planner.check.rules import RULES
from planner.errors import UnknownName
from planner.resources import read_table

WHEN = {
    "config": "when the file is read: the run stops before it has started",
    "launch": "when the run is launched, before a process starts",
    "engine init": "when the engine starts: after the processes and the model are there",
    "first step": "at the first step",
    "save": "when the model is saved, after the training",
    "silently": "never: no message, another run than was meant",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What is known about one rule."""

    rule: str
    title: str
    severity: str
    bites: str
    about: str
    happens: str
    releases: str
    wrong: str
    right: str
    source: str


def page(rule: str) -> Page:
    """The page of a rule; raises UnknownName for an id that is none."""
    name = rule.strip().upper()
    if name not in RULES:
        raise UnknownName("rule", rule, RULES, listing="dsplan check --explain all")
    known, row = RULES[name], _pages()[name]
    return Page(
        rule=name,
        title=known.title,
        severity=known.severity.value,
        bites=known.bites,
        about=row["about"].strip(),
        happens=row["happens"].strip(),
        releases=row.get("releases", ALL_RELEASES).strip(),
        wrong=row["wrong"].strip("\n"),
        right=row["right"].strip("\n"),
        source=row["source"].strip(),
    )


ALL_RELEASES = "every release that dsplan knows; seen with DeepSpeed 0.19.8, accelerate 1.15, transformers 5.24"


def as_text(known: Page) -> str:
    """The page for a terminal."""
    parts = [
        f"{known.rule}  {known.title}",
        f"usually: {known.severity}; bites: {known.bites} ({WHEN[known.bites]})",
        known.about,
        f"What happens: {known.happens}",
        f"Releases: {known.releases}",
        f"Wrong:\n{_indented(known.wrong)}",
        f"Right:\n{_indented(known.right)}",
        f"Source: {known.source}",
    ]
    return "\n\n".join(parts)


def as_markdown(known: Page) -> str:
    """The page for a program that shows Markdown."""
    parts = [
        f"**{known.rule}: {known.title}**",
        known.about,
        f"What happens: {known.happens}",
        f"Releases: {known.releases}",
        f"Wrong:\n\n```\n{known.wrong}\n```",
        f"Right:\n\n```\n{known.right}\n```",
        f"Source: {known.source}",
    ]
    return "\n\n".join(parts)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.split("\n"))


@cache
def _pages() -> Mapping[str, Mapping[str, Any]]:
    return toml.loads(read_table("check", "pages.toml"))
