"""`dsplan plan`, the main job: search, rank, explain, write the launch files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import typer

from planner.cli import options as o
from planner.errors import one_line
from planner.report.table import wrapped

EXAMPLES = (
    "Examples: dsplan --model 13b --gpus 4xA100-80G | dsplan plan --model Qwen/Qwen2.5-32B --gpus 2x8xH100-80G "
    "--seq-len 4096 --global-batch 64 | dsplan plan --model ./config.json --gpus 8xA100-40G --zero 2,3 --json"
)


def plan_command(
    context: typer.Context,
    *,
    model: o.Model = None,
    gpus: o.Gpus = None,
    seq_len: o.SeqLen = None,
    global_batch: o.GlobalBatch = None,
    method: o.Method = None,
    lora_rank: o.LoraRank = None,
    lora_targets: o.LoraTargets = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    attention: o.Attention = None,
    loss: o.Loss = None,
    stack: o.Stack = None,
    host_ram: o.HostRam = None,
    zero: o.Zero = None,
    tp: o.Tp = None,
    micro_batch: o.MicroBatch = None,
    checkpointing: o.Checkpointing = None,
    offload: o.Offload = None,
    accumulation: o.Accumulation = None,
    config: o.Config = None,
    objective: o.Objective = None,
    margin: o.Margin = None,
    integration: o.Integration = None,
    tokens: o.Tokens = None,
    launcher: o.Launcher = None,
    script: o.Script = None,
    top: o.Top = None,
    batch: o.Batch = None,
    out: o.Out = None,
    json: o.Json = False,
    smoke: o.Smoke = False,
    force: o.Force = False,
) -> int:
    """Search ZeRO stage, tensor parallelism, checkpointing, offload and micro-batch; write the best plan's files."""
    request = {k: v for k, v in locals().items() if k not in ("context", "batch", "out", "json", "smoke", "force")}
    request["script_arguments"] = context.obj or ()
    if batch is not None:
        from planner.api import plan
        from planner.cli.batch import run_batch

        return run_batch(Path(batch), plan, request, chunk=1)
    return _answer(request, out=out, as_json=json, smoke=smoke, force=force)


def _answer(request: dict[str, Any], *, out: str | None, as_json: bool, smoke: bool, force: bool) -> int:
    """Plan, print, write; 3 when nothing fits."""
    from planner.api import plan
    from planner.cli.show_answer import print_json, print_nothing_fits
    from planner.report.text import plan_text

    answer = plan(**request)
    if not answer.fits:
        if as_json:
            print_json(answer.to_dict())
        else:
            typer.echo(plan_text(answer.plan), nl=False)
        return print_nothing_fits(answer.plan)
    folder = Path(out) if out is not None else None
    if folder is None and not as_json:
        folder = Path(default_folder(str(request["model"]), str(request["gpus"])))
    files = answer.write(folder, force=force) if folder is not None else answer.files()
    if as_json:
        print_json(answer.to_dict())
    else:
        typer.echo(plan_text(answer.plan), nl=False)
        typer.echo(_next_steps(folder, files))
    if smoke and folder is not None:
        from planner.cli.smoke import dry_run

        return dry_run(folder, quiet=as_json)
    return 0


def default_folder(model: str, gpus: str) -> str:
    """`dsplan-13b-4xA100-80G`: both names with everything but letters, digits, dots and dashes made a dash."""
    words = (
        re.sub(r"[^A-Za-z0-9.]+", "-", Path(text).stem if text.endswith((".json", ".toml")) else text)
        for text in (model, gpus)
    )
    return "-".join(["dsplan", *(word.strip("-.") or "plan" for word in words)])


def _next_steps(folder: Path | None, files: dict[str, str]) -> str:
    if folder is None:
        return ""
    quoted = shlex.quote(str(folder))
    names = wrapped(", ".join(sorted(files)), indent="        ")
    steps = [f"  dsplan smoke {quoted}   # dry run on this machine's CPU", f"  bash {quoted}/launch.sh"]
    return "\n".join([f"\nwrote {one_line(str(folder))}/", *names, "next", *steps])
