"""`data/versions.toml`: in which releases the facts behind the memory model hold.

In: the table. Out: records, the facts a plan rests on, and what another release does differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from planner import toml
from planner.records.candidate import Candidate, Offload
from planner.resources import read_table
from planner.version import TARGET_VERSIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Releases from `since` to the next range, and what holds in them. None: every earlier release."""

    since: str | None
    holds: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFact:
    """One fact that the memory model rests on."""

    name: str
    package: str
    terms: tuple[str, ...]  # memory terms that it decides
    stages: tuple[int, ...]
    offload: bool  # it concerns plans with offload only
    tp: bool  # it concerns plans with tensor parallelism only
    written: bool  # the plan's files say it explicitly
    ranges: tuple[Range, ...]  # oldest first; the last is what is planned
    source: str

    def range_of(self, version: str) -> Range | None:
        """The range that holds a release; None for one that is older than every range."""
        found = None
        for one in self.ranges:
            if one.since is None or _order(one.since) <= _order(version):
                found = one
        return found

    def concerns(self, candidate: Candidate) -> bool:
        """Whether a plan rests on it."""
        return (
            int(candidate.zero) in self.stages
            and (not self.offload or candidate.offload is not Offload.NONE)
            and (not self.tp or candidate.degrees.tp > 1)
        )


@cache
def version_facts() -> tuple[VersionFact, ...]:
    """Every fact; raises ValueError for a row that contradicts itself."""
    return tuple(_fact(row) for row in toml.loads(read_table("catalog", "versions.toml"))["fact"])


def version_rows() -> tuple[Mapping[str, Any], ...]:
    """Every fact as a row: what is planned, since when, and what earlier releases do."""
    return tuple(
        {
            "name": fact.name,
            "package": fact.package,
            "since": fact.ranges[-1].since or "",
            "holds": fact.ranges[-1].holds,
            "earlier": [f"before {after.since}: {one.holds}" for one, after in pairwise(fact.ranges)],
            "terms": list(fact.terms),
            "stages": list(fact.stages),
            "written_out": fact.written,
            "source": fact.source,
        }
        for fact in version_facts()
    )


def _fact(row: Mapping[str, Any]) -> VersionFact:
    fact = VersionFact(
        name=row["name"],
        package=row["package"],
        terms=tuple(row["terms"]),
        stages=tuple(row["stages"]),
        offload=row.get("offload", False),
        tp=row.get("tp", False),
        written=row.get("written", False),
        ranges=tuple(Range(since=one.get("since"), holds=one["holds"]) for one in row["ranges"]),
        source=row["source"],
    )
    starts = [one.since for one in fact.ranges]
    known = [start for start in starts if start is not None]
    if not fact.source or fact.package not in TARGET_VERSIONS or None in starts[1:]:
        raise ValueError(f"versions.toml: `{fact.name}` lacks a source, a known package or a release")
    if known != sorted(known, key=_order) or fact.range_of(TARGET_VERSIONS[fact.package]) is not fact.ranges[-1]:
        raise ValueError(f"versions.toml: the ranges of `{fact.name}` do not end with what is planned")
    return fact


def _order(version: str) -> tuple[int, ...]:
    """Release numbers as they count; what follows them (`rc1`, `+cpu`) does not."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    if numbers is None:
        raise ValueError(f"`{version}` is no release")
    parts = [int(part) for part in numbers.group().split(".")]
    return tuple([*parts, 0, 0, 0][:3])


def differing(versions: Mapping[str, str], facts: Iterable[VersionFact]) -> tuple[tuple[VersionFact, str], ...]:
    """The facts that do not hold with these releases, and what holds instead; settings written out hold everywhere."""
    found = []
    for fact in facts:
        version = versions.get(fact.package)
        if version is None or fact.written:
            continue
        there = fact.range_of(version)
        if there is not fact.ranges[-1]:
            found.append((fact, there.holds if there else "not known: no release that old was read"))
    return tuple(found)


def difference_sentences(versions: Mapping[str, str], candidate: Candidate) -> tuple[str, ...]:
    """What a plan assumes and these releases do not do."""
    concerned = [fact for fact in version_facts() if fact.concerns(candidate)]
    return tuple(
        f"{fact.package} {versions[fact.package]} is not the {TARGET_VERSIONS[fact.package]} that was planned for: "
        f"{holds}; planned: {fact.ranges[-1].holds}"
        for fact, holds in differing(versions, concerned)
    )


def earlier_sentences(candidate: Candidate) -> tuple[str, ...]:
    """What earlier releases do otherwise than a plan assumes, where its files do not write the setting out."""
    concerned = [fact for fact in version_facts() if fact.concerns(candidate) and not fact.written]
    return tuple(
        f"{fact.package} before {after.since}: {one.holds}"
        for fact in concerned
        for one, after in pairwise(fact.ranges)
    )


def target_sentence() -> str:
    """The releases that a plan speaks for."""
    releases = ", ".join(f"{package} {version}" for package, version in TARGET_VERSIONS.items())
    return f"memory and files are those of {releases}; `dsplan show versions` tells what other releases do otherwise"
