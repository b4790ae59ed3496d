"""What is known beside the files: who reads them, and the machine, model and releases they are meant for.

In: the flags of `dsplan check`. Out: a Context; a rule that needs what is not there stays silent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from planner.errors import PlannerError
from planner.records.machine import Cluster
from planner.records.model import ModelShape
from planner.version import TARGET_VERSIONS


class Reader(str, Enum):
    """The program that hands the DeepSpeed file to the engine; it decides what `"auto"` means."""

    TRAINER = "trainer"
    """The Hugging Face Trainer: fills "auto" from TrainingArguments, refuses values that differ."""
    ACCELERATE = "accelerate"
    """accelerate without the Trainer: fills a shorter list in `prepare`."""
    DEEPSPEED = "deepspeed"
    """The script calls deepspeed.initialize: nothing fills anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """None: not known."""

    reader: Reader | None = None
    ranks: int | None = None  # processes of the whole run
    gpu_name: str | None = None  # as given, also of cards that the catalogue lacks
    cluster: Cluster | None = None
    host_ram_gib: float | None = None  # of one node
    model: ModelShape | None = None
    model_name: str | None = None  # as given, also of models that dsplan cannot plan or look up
    model_config: Mapping[str, Any] | None = None  # config.json as it is, also of models that dsplan cannot plan
    seq_len: int | None = None
    launcher: str | None = None
    deepspeed: tuple[int, ...] = ()  # release; empty: the one that dsplan is written for

    @property
    def release(self) -> tuple[int, ...]:
        """The DeepSpeed release to judge by."""
        return self.deepspeed or release_of(TARGET_VERSIONS["deepspeed"])


def release_of(text: str) -> tuple[int, ...]:
    """`0.16.4` as numbers; raises PlannerError for what is no release."""
    found = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+))?(?:[.+-]?\w+)*", text.strip())
    if found is None:
        raise PlannerError(f"`{text}` is no release of DeepSpeed", hint="write it like 0.19.8")
    return tuple(int(part) for part in found.groups(default="0"))
