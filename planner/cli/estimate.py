"""`dsplan estimate`: memory and speed of one configuration, whether it fits or not."""

from __future__ import annotations

from pathlib import Path

import typer

from planner.cli import options as o

EXAMPLES = (
    "Examples: dsplan estimate --model 7b --gpus 8xA100-80G --zero 2 --micro-batch 4 --checkpointing full | "
    "dsplan estimate --config ds_config.json --model 13b --gpus 4xA100-80G"
)


def estimate_command(
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
    margin: o.Margin = None,
    tokens: o.Tokens = None,
    batch: o.Batch = None,
    json: o.Json = False,
) -> int:
    """One value an axis; axes left out take stage 0, tp 1, no checkpointing, no offload, micro-batch 1."""
    request = {k: v for k, v in locals().items() if k not in ("batch", "json")}
    from planner.api import estimate
    from planner.cli.show_answer import print_json
    from planner.report.text import estimate_text

    if batch is not None:
        from planner.cli.batch import run_batch

        return run_batch(Path(batch), estimate, request, chunk=250)
    answer = estimate(**request)
    if json:
        print_json(answer.to_dict())
    else:
        typer.echo(estimate_text(answer.plan), nl=False)
    return 0
