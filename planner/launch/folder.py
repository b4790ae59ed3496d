"""A plan folder as the dry run needs it: plan.json and ds_config.json, read and looked over.

In: a path. Out: a `PlanFolder`. Every way in which it is no plan folder is the caller's mistake, said in one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import PlannerError

FILES = ("plan.json", "ds_config.json", "launch.sh", "train.py", "model_and_data.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFolder:
    """The files by name, the two documents parsed."""

    path: Path
    document: Mapping[str, Any]
    engine: Mapping[str, Any]

    @property
    def plan(self) -> Mapping[str, Any]:
        chosen: Mapping[str, Any] = self.document["plans"][0]
        return chosen


def read_folder(folder: Path) -> PlanFolder:
    """The folder's JSON files; every way in which it is no plan folder is the caller's mistake."""
    if not folder.is_dir():
        raise PlannerError(f"`{folder}` is not a folder", hint="give the folder that `dsplan --out` wrote")
    for name in FILES:
        if not (folder / name).is_file():
            raise PlannerError(f"`{folder}` has no `{name}`", hint="give the folder that `dsplan --out` wrote")
    document, engine = _read_json(folder / "plan.json"), _read_json(folder / "ds_config.json")
    try:
        chosen, request, model = document["plans"][0], document["request"], document["model"]
        needed = (
            [chosen[k] for k in ("zero_stage", "tp", "dp", "checkpointing", "offload", "micro_batch", "accumulation")],
            [chosen["precision"], request["attention"], request["loss"], model["model_type"], dict(model["config"])],
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PlannerError(
            f"`{folder / 'plan.json'}` is not a plan document: no {error}", hint="write the plan again with this dsplan"
        ) from None
    if not all(needed):
        raise PlannerError(f"`{folder / 'plan.json'}` is empty", hint="write the plan again with this dsplan")
    return PlanFolder(path=folder.resolve(), document=document, engine=engine)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlannerError(
            f"`{path}` cannot be read: {error}", hint="write the plan again, or repair the file"
        ) from None
    if not isinstance(document, dict):
        raise PlannerError(f"`{path}` holds no JSON object", hint="write the plan again, or repair the file")
    return document
