"""Runs a rendered `launch.sh` with fake launchers on PATH that write down how they were called."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from handmade_plans import make_document

from planner.records.plan import Plan
from planner.render.bundle import render_files

RECORDER = """#!/usr/bin/env python3
import json, os, sys
names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "OMP_NUM_THREADS", "MASTER_PORT",
         "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_DEEPSPEED_CONFIG_FILE", "ACCELERATE_DEEPSPEED_ZERO3_INIT")
record = {"argv": sys.argv, "cwd": os.getcwd(), "env": {name: os.environ.get(name) for name in names}}
open(os.environ["RECORD"], "w").write(json.dumps(record))
"""


@dataclass(frozen=True, kw_only=True)
class Launched:
    returncode: int
    stderr: str
    argv: list[str]
    cwd: str
    env: dict[str, str | None]


def launch(plan: Plan, folder: Path, *arguments: str, caller: Path | None = None, **env: str) -> Launched:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in render_files(plan, make_document(plan)).items():
        (folder / name).write_text(text, encoding="utf-8")
    fakes = folder.parent / "fakes"
    fakes.mkdir(exist_ok=True)
    for name in ("accelerate", "deepspeed", "torchrun"):
        (fakes / name).write_text(RECORDER)
        (fakes / name).chmod(0o755)
    record = folder.parent / "record.json"
    record.unlink(missing_ok=True)
    done = subprocess.run(
        ["bash", str(folder / "launch.sh"), *arguments],
        env={"PATH": f"{fakes}:{os.environ['PATH']}", "RECORD": str(record), **env},
        cwd=caller or folder.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    seen = json.loads(record.read_text()) if record.exists() else {"argv": [], "cwd": "", "env": {}}
    return Launched(returncode=done.returncode, stderr=done.stderr, **seen)
