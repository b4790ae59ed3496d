"""The dry run: launches a plan folder through its own `launch.sh` on CPU, with the real engine and a tiny model.

In: a plan folder. Out: a `SmokeResult` and `smoke.json` in the folder. Answers: would DeepSpeed really run what
plan.json says? What a CPU cannot show (memory, speed, NCCL, GPU kernels) is listed in the result, not passed over.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import LaunchFailed, PlannerError
from planner.launch.compile_locks import locks, remove_abandoned
from planner.launch.logs import hint_for, telling_line
from planner.launch.process import Finished, run
from planner.launch.result import Check, SmokeResult, smoke_text
from planner.launch.shrink import shrink
from planner.resources import read_text

__all__ = ["Check", "SmokeResult", "run_smoke", "smoke_text"]

FILES = ("plan.json", "ds_config.json", "launch.sh", "train.py")
PACKAGES = ("torch", "deepspeed", "accelerate", "transformers")
MAX_RANKS = 8
NOT_IN_FORCE_HINT = "was a file edited? write the plan again, or plan what the file says with --config ds_config.json"
STEPS = 3
SEQ_LEN = 16
LOG_LINES = 60
# What an outer launcher leaves in the environment would turn the ranks of the dry run into ranks of that job.
FOREIGN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "GROUP_RANK")
FOREIGN_PREFIXES = ("ACCELERATE_", "TORCHELASTIC_", "PET_", "DSPLAN_")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """The parts of a plan folder that the dry run needs."""

    path: Path
    document: Mapping[str, Any]
    engine: Mapping[str, Any]

    @property
    def plan(self) -> Mapping[str, Any]:
        chosen: Mapping[str, Any] = self.document["plans"][0]
        return chosen


def run_smoke(folder: Path, *, timeout_s: float = 900, report: Callable[[str], None] | None = None) -> SmokeResult:
    """Launch the plan and judge it; raises LaunchFailed when it is not in force, after writing `smoke.json`."""
    plan_folder = _read_folder(folder)
    _need_packages()
    ranks = _ranks(plan_folder)
    say = report or (lambda _: None)
    with tempfile.TemporaryDirectory(prefix="dsplan-smoke-", ignore_cleanup_errors=True) as scratch:
        task = _task(plan_folder, ranks=ranks, scratch=Path(scratch))
        script, task_file = Path(scratch) / "smoke_train.py", Path(scratch) / "task.json"
        script.write_text(read_text("templates", "smoke_train.py"), encoding="utf-8")
        task_file.write_text(json.dumps(task), encoding="utf-8")
        env = _environment(os.environ, script=script, task=task_file, ranks=ranks)
        before = locks(env)
        say(f"launching {ranks} ranks through launch.sh on CPU; the first time compiles CPU optimizers (minutes)")
        command = [_bash(), str(plan_folder.path / "launch.sh")]
        try:
            finished = run(command, env=env, cwd=plan_folder.path, timeout_s=timeout_s)
        finally:
            remove_abandoned(locks(env) - before)
        answer = _read_report(Path(task["report"]))
    result = _judge(plan_folder, task, finished, answer, timeout_s=timeout_s)
    _write(plan_folder.path / "smoke.json", result)
    if result.error is not None:
        wrong = any(not check.ok for check in result.checks)
        known = hint_for(finished.tail, timed_out=finished.returncode is None)
        raise LaunchFailed(result.error, hint=NOT_IN_FORCE_HINT if wrong else known)
    return result


def _read_folder(folder: Path) -> _Folder:
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
    return _Folder(path=folder.resolve(), document=document, engine=engine)


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


def _need_packages() -> None:
    """Look for the packages without importing them: they run in the children only."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise PlannerError(
            f"a dry run needs {', '.join(f'`{name}`' for name in missing)}", hint='pip install "dsplan[launch]"'
        )


def _bash() -> str:
    found = shutil.which("bash")
    if found is None:
        raise PlannerError("a dry run needs `bash`", hint="install bash, or run on a machine that has it")
    return found


def _ranks(folder: _Folder) -> int:
    """Two data-parallel ranks of tp ranks each, as far as eight processes go."""
    tp: int = folder.plan["tp"]
    if tp > MAX_RANKS:
        raise PlannerError(
            f"a dry run of tp {tp} needs {tp} ranks and runs at most {MAX_RANKS}", hint="plan with a smaller --tp"
        )
    return min(MAX_RANKS, 2 * tp)


def _task(folder: _Folder, *, ranks: int, scratch: Path) -> dict[str, Any]:
    """What `smoke_train.py` reads."""
    model, request = folder.document["model"], folder.document["request"]
    return {
        "folder": str(folder.path),
        "work": str(scratch / "work"),
        "report": str(scratch / "report.json"),
        "plan": dict(folder.plan),
        "ranks": ranks,
        "steps": STEPS,
        "seq_len": SEQ_LEN,
        "model_type": model["model_type"],
        "config": shrink(model["config"], tp=folder.plan["tp"]),
        "attention": "sdpa" if request["attention"] == "flash" else request["attention"],
        "gradient_clipping": folder.engine.get("gradient_clipping"),
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


def _read_report(path: Path) -> Mapping[str, Any] | None:
    """What rank 0 wrote, if it came that far."""
    try:
        answer: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return answer


def _judge(
    folder: _Folder, task: Mapping[str, Any], finished: Finished, answer: Mapping[str, Any] | None, *, timeout_s: float
) -> SmokeResult:
    """The plan passed when every check agrees, all of them were made, and the launcher ended well."""
    checks = tuple(Check(**{**c, "ranks_failed": tuple(c["ranks_failed"])}) for c in (answer or {}).get("checks", ()))
    error = _error(checks, finished, finished_report=bool((answer or {}).get("finished")), timeout_s=timeout_s)
    return SmokeResult(
        passed=error is None,
        error=error,
        launcher=str(folder.document["request"].get("launcher", "")),
        ranks=task["ranks"],
        tp=folder.plan["tp"],
        dp=task["ranks"] // folder.plan["tp"],
        steps=STEPS,
        losses=tuple((answer or {}).get("losses", ())),
        seconds=round(finished.seconds, 1),
        checks=checks,
        not_shown=_not_shown(folder, task),
        versions={name: importlib.metadata.version(name) for name in PACKAGES},
        model_config=task["config"],
        log_tail=() if error is None else finished.tail[-LOG_LINES:],
    )


def _error(checks: tuple[Check, ...], finished: Finished, *, finished_report: bool, timeout_s: float) -> str | None:
    """Why the plan did not pass. A disagreement comes before the crash that it may have caused."""
    wrong = [c for c in checks if not c.ok]
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return (
            f"the plan is not in force: {wrong[0].what} should be `{wrong[0].expected}` and is `{wrong[0].found}`{more}"
        )
    if finished.returncode is None:
        return f"the dry run was ended after {timeout_s:g} s; it last said `{telling_line(finished.tail)}`"
    if finished.returncode != 0:
        return f"the launch ended with exit code {finished.returncode}: `{telling_line(finished.tail)}`"
    if not finished_report:
        return f"the launch ended without a report; it last said `{telling_line(finished.tail)}`"
    return None


def _not_shown(folder: _Folder, task: Mapping[str, Any]) -> tuple[str, ...]:
    """What the dry run leaves open, in words for the answer and for smoke.json."""
    plan, request = folder.plan, folder.document["request"]
    dp = task["ranks"] // plan["tp"]
    lines = [
        "a shrunken model of the same architecture on CPU: memory, speed, NCCL and GPU kernels are not tried",
        f"sequences of {task['seq_len']} tokens instead of {request.get('seq_len')}",
    ]
    if dp != plan["dp"]:
        lines.append(f"dp {dp} stands for the plan's dp {plan['dp']}")
    if dp == 1:
        lines.append("one data-parallel rank: that ZeRO divides states between ranks is not shown")
    if request["attention"] == "flash":
        lines.append("attention `flash` needs a GPU: `sdpa` ran instead")
    if request["loss"] == "fused":
        lines.append("loss `fused` needs a GPU: the standard loss ran instead")
    if request.get("script"):
        lines.append(f"`{request['script']}` was not run: the train.py of this folder ran instead")
    if plan["offload"] == "nvme":
        lines.append(
            "nvme_path was a temporary folder; of the states on disk, only the loss after reloading was compared"
        )
    return tuple(lines)


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
