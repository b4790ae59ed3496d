"""Files that are read in one run, and so have to agree.

In: files that were read. Out: `Together`. The rules across files get it beside a Context; every Problem of theirs names
its file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from planner.check.context import Context
from planner.records.problem import Problem


class Kind(str, Enum):
    """What a file is."""

    DEEPSPEED = "deepspeed"
    ACCELERATE = "accelerate"
    TRAINING = "training-arguments"
    """TrainingArguments: JSON, YAML, or the flags of a launch line."""
    LAUNCH = "launch"
    """A shell script or a line that starts the run."""
    PLAN = "plan"
    SMOKE = "smoke"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One file; `document` is what it says, for a launch line the flags by name, None if it cannot be read."""

    name: str
    kind: Kind
    text: str
    document: Any

    @property
    def fields(self) -> Mapping[str, Any]:
        """The document where it is a mapping, else empty."""
        return self.document if isinstance(self.document, Mapping) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """The files of one run. `accelerate` holds one file per node where there are several."""

    deepspeed: File | None = None
    accelerate: tuple[File, ...] = ()
    training: File | None = None
    launch: File | None = None


Rule = Callable[[Together, Context], Iterator[Problem]]
