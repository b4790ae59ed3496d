"""The dry run: launches a plan folder through its own `launch.sh` on CPU, with the real engine and a tiny model.

In: a plan folder. Out: a `SmokeResult` and `smoke.json` in the folder. Answers: would DeepSpeed really run what
plan.json says, and does it allocate what the memory model predicts? What a CPU cannot show (speed, NCCL, GPU kernels)
is listed in the result, not passed over.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import planner
from planner.errors import PlannerError
from planner.launch.compile_locks import left_behind, locks, remove_abandoned
from planner.launch.counting_allocator import build
from planner.launch.folder import PlanFolder, read_folder
from planner.launch.logs import hint_for
from planner.launch.process import run
from planner.launch.result import Check, DryRunFailed, SmokeResult, smoke_text
from planner.launch.shared_buffers import remove_shared_buffers
from planner.launch.small_folder import small_files
from planner.launch.small_plan import SmallPlan, small_plan
from planner.launch.small_settings import zero_sizes
from planner.launch.verdict import judge
from planner.records.request import Integration
from planner.resources import read_text

__all__ = ["Check", "DryRunFailed", "SmokeResult", "run_smoke", "smoke_text"]

SCRIPTS = ("smoke_train.py", "smoke_task.py", "smoke_checks.py", "smoke_memory.py", "smoke_optimizers.py")
PACKAGES = ("torch", "deepspeed", "accelerate", "transformers")
MAX_RANKS = 8
NOT_IN_FORCE_HINT = "was a file edited? write the plan again, or plan what the file says with --config ds_config.json"
WRONG_MEMORY_HINT = (
    "the plan is in force, its memory figures may be off by as much: smoke.json has all that a report needs"
)
STEPS = 3  # Adam's states exist from the second step on, and stage 3 prefetches from the third
# What an outer launcher leaves in the environment would turn the ranks of the dry run into ranks of that job.
FOREIGN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "GROUP_RANK")
FOREIGN_PREFIXES = ("ACCELERATE_", "TORCHELASTIC_", "PET_", "DSPLAN_")


def run_smoke(folder: Path, *, timeout_s: float = 900, report: Callable[[str], None] | None = None) -> SmokeResult:
    """Launch the plan and judge it; raises DryRunFailed when it is not in force or its memory is not as predicted,
    after writing `smoke.json`."""
    plan_folder = read_folder(folder)
    ranks = _ranks(plan_folder)
    small = small_plan(plan_folder.document, plan_folder.path / "ds_config.json", ranks=ranks)
    packages = (*PACKAGES, "peft") if small.workload.adapter else PACKAGES
    _need_packages(packages)
    say = report or (lambda _: None)
    with tempfile.TemporaryDirectory(prefix="dsplan-smoke-", ignore_cleanup_errors=True) as scratch:
        library, uncounted = _counting_library(Path(scratch))
        task = _task(plan_folder, small, scratch=Path(scratch), library=library)
        task_file = Path(scratch) / "task.json"
        for name in SCRIPTS:
            (Path(scratch) / name).write_text(read_text("templates", name), encoding="utf-8")
        (Path(scratch) / "plan").mkdir()
        for name, text in small_files(plan_folder, small, nvme_path=Path(scratch) / "work").items():
            (Path(scratch) / "plan" / name).write_text(text, encoding="utf-8")
        task_file.write_text(json.dumps(task), encoding="utf-8")
        env = _environment(os.environ, script=Path(scratch) / SCRIPTS[0], task=task_file, ranks=ranks)
        remove_abandoned(left_behind(locks(env)))
        before = locks(env)
        say(f"launching {ranks} ranks through launch.sh on CPU; the first time compiles CPU optimizers (minutes)")
        command = [_bash(), str(plan_folder.path / "launch.sh")]
        try:
            finished = run(command, env=env, cwd=plan_folder.path, timeout_s=timeout_s)
        finally:
            remove_abandoned(locks(env) - before)
            remove_shared_buffers(env["MASTER_PORT"])
        answer = _read_report(Path(task["report"]))
    versions = {name: importlib.metadata.version(name) for name in packages}
    result = judge(
        plan_folder, small, finished, answer, steps=STEPS, timeout_s=timeout_s, uncounted=uncounted, versions=versions
    )
    _write(plan_folder.path / "smoke.json", result)
    if result.error is not None:
        if any(not check.ok for check in result.checks):
            hint = NOT_IN_FORCE_HINT
        elif finished.returncode == 0 and result.memory.phases:
            hint = WRONG_MEMORY_HINT
        else:
            hint = hint_for(finished.tail, timed_out=finished.returncode is None)
        raise DryRunFailed(result, hint=hint)
    return result


def _counting_library(folder: Path) -> tuple[Path | None, str | None]:
    """The counting allocator, or why there is none; a dry run goes on without it."""
    try:
        return build(folder), None
    except PlannerError as error:
        return None, f"{error.message}; {error.hint}"


def _need_packages(names: tuple[str, ...]) -> None:
    """Look for the packages without importing them: they run in the children only."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        extras = "launch,lora" if "peft" in names else "launch"
        raise PlannerError(
            f"a dry run needs {', '.join(f'`{name}`' for name in missing)}", hint=f'pip install "dsplan[{extras}]"'
        )


def _bash() -> str:
    found = shutil.which("bash")
    if found is None:
        raise PlannerError("a dry run needs `bash`", hint="install bash, or run on a machine that has it")
    return found


def _ranks(folder: PlanFolder) -> int:
    """Two data-parallel ranks of tp ranks each, as far as eight processes go."""
    tp: int = folder.plan["tp"]
    if tp > MAX_RANKS:
        raise PlannerError(
            f"a dry run of tp {tp} needs {tp} ranks and runs at most {MAX_RANKS}", hint="plan with a smaller --tp"
        )
    return min(MAX_RANKS, 2 * tp)


def _task(folder: PlanFolder, small: SmallPlan, *, scratch: Path, library: Path | None) -> dict[str, Any]:
    """What `smoke_train.py` reads."""
    return {
        "folder": str(scratch / "plan"),
        "integration": folder.document["request"].get("integration", Integration.TRAINER.value),
        "work": str(scratch / "work"),
        "report": str(scratch / "report.json"),
        "planner": str(Path(planner.__file__).resolve().parents[1]),
        "counting_library": None if library is None else str(library),
        "plan": dict(folder.plan),
        "ranks": small.ranks,
        "steps": STEPS,
        "seq_len": small.workload.seq_len,
        "model_type": small.shape.model_type,
        "config": small.config,
        "optimizer": small.workload.optimizer.value,
        "method": small.workload.method.value,
        "gradient_clipping": folder.engine.get("gradient_clipping"),
        "zero_sizes": zero_sizes(small.candidate.settings, small.candidate.zero),
    }


def _environment(outer: Mapping[str, str], *, script: Path, task: Path, ranks: int) -> dict[str, str]:
    """The environment of the launch: CPU only, offline, this Python's launchers first on the path."""
    kept = {k: v for k, v in outer.items() if k not in FOREIGN and not k.startswith(FOREIGN_PREFIXES)}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        **kept,
        "DSPLAN_SMOKE_SCRIPT": str(script),
        "DSPLAN_SMOKE_TASK": str(task),
        "DSPLAN_SMOKE_RANKS": str(ranks),
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "MASTER_PORT": str(port),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), outer.get("PATH", os.defpath)]),
    }


def _read_report(path: Path) -> Mapping[str, Any]:
    """What rank 0 wrote; nothing if it did not come that far."""
    try:
        answer: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return answer


def _write(path: Path, result: SmokeResult) -> None:
    """Write `smoke.json` whole or not at all."""
    text = json.dumps(result.to_dict(), indent=2) + "\n"
    try:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=".smoke-", delete=False
        ) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        raise PlannerError(f"`{path}` cannot be written: {error.strerror}", hint="make the folder writable") from None
