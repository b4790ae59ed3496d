"""What one rank of a dry run was told, and what it found: the task of `dsplan smoke`, the comparisons of its report.

Rank 0 writes all comparisons as JSON; it decides nothing about them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TASK = json.loads(Path(os.environ["DSPLAN_SMOKE_TASK"]).read_text("utf-8"))
PLAN = TASK["plan"]
STAGE, TP, DP = PLAN["zero_stage"], PLAN["tp"], TASK["ranks"] // PLAN["tp"]
OPTIMIZER, PRECISION = TASK["optimizer"], PLAN["precision"]
DTYPE = {"fp16": torch.float16, "fp32": torch.float32}.get(PRECISION, torch.bfloat16)
MASTER_DTYPE = torch.bfloat16 if PRECISION == "pure-bf16" else torch.float32
DEVICES = {
    "none": ("none", "none"),
    "optimizer": ("cpu", "none"),
    "optimizer+param": ("cpu", "cpu"),
    "nvme": ("nvme",) * 2,
}
OPTIMIZER_DEVICE, PARAM_DEVICE = DEVICES[PLAN["offload"]]
checks: list[dict[str, Any]] = []


def check(what: str, expected: Any, found: Any, *, ok: bool | None = None) -> None:
    """Record one comparison; equal unless `ok` says how else it is judged."""
    good = expected == found if ok is None else ok
    checks.append({"what": what, "expected": expected, "found": found, "ok": bool(good)})


def write_report(**more: Any) -> bool:
    """Rank 0 writes the checks, for each the answer of the first rank that disagrees with the plan, if one does.

    Every rank learns whether all ranks agree.
    """
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, checks)
    if dist.get_rank() == 0:
        merged = []
        for answers in zip(*everyone, strict=True):
            failed = [rank for rank, answer in enumerate(answers) if not answer["ok"]]
            merged.append({**answers[failed[0] if failed else 0], "ranks_failed": failed})
        report = Path(TASK["report"])
        report.with_suffix(".tmp").write_text(json.dumps({"checks": merged, **more}), "utf-8")
        report.with_suffix(".tmp").replace(report)
    return all(answer["ok"] for answers in everyone for answer in answers)
