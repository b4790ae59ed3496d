"""The flags of a request, said once for `plan` and `estimate`.

Values stay text: `planner.spec` reads and checks them, so the command line and the Python call agree on every message.
"""

from __future__ import annotations

from typing import Annotated

import typer


def _option(flag: str, help_text: str) -> object:
    return typer.Option(flag, help=help_text, show_default=False)


Model = Annotated[
    str | None, _option("--model", "13b, a catalogue name, a Hugging Face id, a config.json or its folder.")
]
Gpus = Annotated[str | None, _option("--gpus", "4xA100-80G, 2x8xH100-80G, 2xp4d.24xlarge, a cluster TOML file, auto.")]
SeqLen = Annotated[str | None, _option("--seq-len", "Tokens per sample [2048, or the model's maximum].")]
GlobalBatch = Annotated[str | None, _option("--global-batch", "Samples per optimizer step [none].")]
Method = Annotated[str | None, _option("--method", "full, lora, qlora [full].")]
LoraRank = Annotated[str | None, _option("--lora-rank", "Rank of the adapters [16].")]
LoraTargets = Annotated[
    str | None, _option("--lora-targets", "Modules that carry adapters: q_proj,v_proj [all-linear].")
]
Precision = Annotated[
    str | None, _option("--precision", "auto, bf16, fp16, fp32, pure-bf16 [auto: bf16 where the GPU has it].")
]
Optimizer = Annotated[str | None, _option("--optimizer", "adamw, adamw-8bit, adafactor, lion, muon, sgd [adamw].")]
Attention = Annotated[str | None, _option("--attention", "sdpa, flash, eager [sdpa].")]
Loss = Annotated[str | None, _option("--loss", "standard, fused (logits never whole) [standard].")]
Stack = Annotated[
    str | None, _option("--stack", "How your script's layers run: eager, fused, compiled [eager]; for speed only.")
]
HostRam = Annotated[str | None, _option("--host-ram", "GiB per node [from the instance, else unknown].")]
Zero = Annotated[str | None, _option("--zero", "ZeRO stages: 2,3 [0-3].")]
Tp = Annotated[str | None, _option("--tp", "Tensor-parallel degrees: 1,2,4 [powers of two up to a node].")]
MicroBatch = Annotated[str | None, _option("--micro-batch", "Samples per GPU: 4 or 1-8 [up to the largest that fits].")]
Checkpointing = Annotated[str | None, _option("--checkpointing", "none,full [both].")]
Offload = Annotated[str | None, _option("--offload", "none,optimizer,optimizer+param,nvme [all].")]
Accumulation = Annotated[
    str | None, _option("--accumulation", "Gradient accumulation steps [from --global-batch, else 1].")
]
Config = Annotated[str | None, _option("--config", "A DeepSpeed JSON whose settings are taken as given.")]
Objective = Annotated[str | None, _option("--objective", "throughput, memory, cost [throughput].")]
Margin = Annotated[str | None, _option("--margin", "Share of GPU memory kept free, 0-0.5 [0.05].")]
Integration = Annotated[
    str | None, _option("--integration", "Who reads the files: trainer, accelerate, deepspeed [trainer].")
]
Tokens = Annotated[str | None, _option("--tokens", "Tokens to train on: adds time, cost and energy.")]
Launcher = Annotated[str | None, _option("--launcher", "accelerate, deepspeed, torchrun [accelerate].")]
Script = Annotated[
    str | None, _option("--script", "Your training script; its arguments go after `--` [the plan's train.py].")
]
Top = Annotated[str | None, _option("--top", "How many plans to show [5].")]
Batch = Annotated[str | None, _option("--batch", "A JSONL file: one request a line in, one result a line out.")]
Out = Annotated[str | None, _option("--out", "Folder to write [dsplan-<model>-<gpus>].")]
Json = Annotated[bool, typer.Option("--json", help="The plan document on stdout; files only with --out.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that dsplan did not write.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Run the dry run after writing.")]
