"""A plan folder made small: the same files, with the shrunken model's sizes in them, for the dry run to load.

In: the plan folder and its `SmallPlan`. Out: {file name: text}. What a training script reads is what the user would
run, but for the model, the sequence length, ZeRO's sizes, and what needs a GPU, a drive or worker processes.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import PlannerError
from planner.launch.folder import PlanFolder
from planner.launch.small_plan import SmallPlan
from planner.launch.small_settings import zero_sizes

ARGUMENT_FILES = ("training_args.json", "loop_args.json")
ON_A_CPU = {"dataloader_num_workers": 0, "dataloader_pin_memory": False, "use_liger_kernel": False}


def small_files(folder: PlanFolder, small: SmallPlan, *, nvme_path: Path) -> dict[str, str]:
    """The scripts as they are, and the JSON files that they read, made small."""
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.path.glob("*.py"))}
    documents = {
        "plan.json": small_document(folder.document, small),
        "ds_config.json": small_engine(folder.engine, small, nvme_path=nvme_path),
        **{name: on_a_cpu(folder.path / name) for name in ARGUMENT_FILES if (folder.path / name).is_file()},
    }
    return {**files, **{name: json.dumps(document) for name, document in documents.items()}}


def small_document(document: Mapping[str, Any], small: SmallPlan) -> dict[str, Any]:
    """plan.json with the shrunken model, and with kernels that a CPU has."""
    work = small.workload
    request = {
        "seq_len": work.seq_len,
        "attention": work.attention.value,
        "loss": work.loss.value,
        "method": work.method.value,
    }
    return {
        **document,
        "model": {**document["model"], "config": dict(small.config)},
        "request": {**document["request"], **request},
    }


def small_engine(engine: Mapping[str, Any], small: SmallPlan, *, nvme_path: Path) -> dict[str, Any]:
    """ds_config.json with ZeRO's sizes for the shrunken model, and a folder in place of the drive."""
    changed = copy.deepcopy(dict(engine))
    zero = changed.setdefault("zero_optimization", {})
    zero |= zero_sizes(small.candidate.settings, small.candidate.zero)
    for section in zero.values():
        if isinstance(section, dict) and "nvme_path" in section:
            section["nvme_path"] = str(nvme_path)
    return changed


def on_a_cpu(file: Path) -> dict[str, Any]:
    """The script's arguments, as far as it has them, without workers, pinning and GPU kernels."""
    try:
        arguments = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlannerError(
            f"`{file}` cannot be read: {error}", hint="write the plan again, or repair the file"
        ) from None
    return {**arguments, **{name: value for name, value in ON_A_CPU.items() if name in arguments}}
