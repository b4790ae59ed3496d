"""`data/speed.toml` to the record of constants that the speed model takes: read on first use, checked, kept."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from planner import toml
from planner.records.request import Stack
from planner.resources import read_table
from planner.speed.constants import Engine, SpeedConstants, StackProfile

EVIDENCE = ("measured", "source", "inferred", "guess")


@lru_cache(maxsize=1)
def speed_constants() -> SpeedConstants:
    """The constants that ship with dsplan; raises ValueError if a row lacks its evidence or its source."""
    document = speed_table()
    stacks = tuple(
        (
            Stack(name),
            StackProfile(
                logit_bytes=row["logit_bytes"],
                hbm_share=row["hbm_share"],
                score_values=(row["score_values"][0], row["score_values"][1]),
                floor_s=tuple((int(tp), float(seconds)) for tp, seconds in row["floor_s"]),
            ),
        )
        for name, row in document["stacks"].items()
    )
    engine = {name: row["value"] for name, row in document["engine"].items()}
    values = {name: row["value"] for name, row in document["constants"].items()}
    return SpeedConstants(stacks=stacks, engine=Engine(gradient_wire_bytes=None, **engine), **values)


def speed_table() -> dict[str, Any]:
    """The table as it stands in the file, with source and evidence of every row; raises ValueError on a bare row."""
    document = toml.loads(read_table("catalog", "speed.toml"))
    for section, rows in document.items():
        for name, row in rows.items():
            if row.get("evidence") not in EVIDENCE or not row.get("source"):
                raise ValueError(f"speed.toml: `{section}.{name}` needs a source and one of {', '.join(EVIDENCE)}")
    return document
