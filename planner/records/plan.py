"""The answer: evaluated candidates, rejections with their reasons, remedies, and the plan that holds them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from planner.records.candidate import Candidate
from planner.records.estimate import MemoryEstimate, TimeEstimate
from planner.records.request import Request


class Verdict(str, Enum):
    """Does it fit?"""

    FITS = "fits"
    BORDERLINE = "borderline"
    """It fits only inside the stated error of the memory model."""
    DOES_NOT_FIT = "does_not_fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The resource that binds: where, when, and by how much it is exceeded (negative: what is left)."""

    resource: str  # gpu, host, disk
    phase: str
    excess_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why a candidate is out: the named rule, a sentence, and what was needed against what there is."""

    candidate: Candidate
    rule: str
    detail: str
    needed: int
    available: int
    memory: MemoryEstimate | None  # None when a rule rejects before memory is looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A candidate with its numbers. `time` is None when it does not fit: no speed is shown for a plan that cannot
    run."""

    candidate: Candidate
    verdict: Verdict
    limit: Limit
    memory: MemoryEstimate
    time: TimeEstimate | None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A change of the request that admits a plan, or pays."""

    change: str
    fields: tuple[tuple[str, object], ...]
    request: Request  # the changed one
    evaluation: Evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole answer, best plan first."""

    request: Request
    ranked: tuple[Evaluation, ...]
    rejected: tuple[Rejection, ...]
    remedies: tuple[Remedy, ...]
