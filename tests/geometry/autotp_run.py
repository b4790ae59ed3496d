"""Run under torchrun by test_params.py: trains tiny models on tensor-parallel ranks of the real engine.

    torchrun --nproc_per_node 2 autotp_run.py CASES.json RESULT.json

CASES.json: {name: {"model_type", "fields"}}. RESULT.json: {name: {"error"} or {"losses", "numel"}}, where numel is
the largest local parameter count of the ranks. With one rank the same script gives the unsharded run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from transformers import AutoConfig, AutoModelForCausalLM


def train(model_type: str, fields: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **fields)).float()
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True, "lr": 1e-3}},
    }
    if dist.get_world_size() > 1:
        settings["tensor_parallel"] = {"autotp_size": dist.get_world_size()}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
    numel = torch.tensor([sum(p.numel() for p in engine.module.parameters())])
    dist.all_reduce(numel, op=dist.ReduceOp.MAX)
    tokens = torch.arange(24).reshape(1, 24)
    losses = []
    for _ in range(3):
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()))
    engine.destroy()
    return {"losses": losses, "numel": int(numel)}


def main(cases_file: str, result_file: str) -> None:
    deepspeed.init_distributed("gloo")
    results: dict[str, Any] = {}
    for name, case in json.loads(Path(cases_file).read_text(encoding="utf-8")).items():
        try:
            results[name] = train(case["model_type"], case["fields"])
        except (ValueError, AssertionError, RuntimeError) as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"}
        dist.barrier()
    if dist.get_rank() == 0:
        Path(result_file).write_text(json.dumps(results), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
