"""What the two training loops share: how the model is prepared, how many steps, which learning rate, which checkpoint.

`loop_args.json` holds what neither ds_config.json nor plan.json says: epochs, warm-up, seed, data-loader settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from model_and_data import SYNTHETIC_STEPS, log
from torch.utils.data import DataLoader
from transformers import get_scheduler

TIMEOUT = timedelta(minutes=30)  # as the Trainer has it; torch's 10 minutes are over before a large file is tokenized
HEAD_AND_LOSS_ONLY = dict.fromkeys(("cross_entropy", "rms_norm", "rope", "swiglu", "geglu", "layer_norm"), False)


def prepare_model(model: Any, plan: dict[str, Any]) -> Any:
    """The plan's activation checkpointing and loss, switched on where Hugging Face models have them."""
    if plan["request"]["loss"] == "fused":  # head and loss in chunks: the logits are never whole
        from transformers.integrations.liger import apply_liger_kernel

        apply_liger_kernel(model, {"fused_linear_cross_entropy": True, **HEAD_AND_LOSS_ONLY})
    if plan["plans"][0]["checkpointing"] == "full":
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def trained_parameters(model: Any) -> list[Any]:
    """All parameters, or those of the adapters."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def own_optimizer(model: Any, loop: dict[str, Any]) -> Any:
    """The optimizer that DeepSpeed does not have, where the plan asks for it; otherwise ds_config.json names one."""
    if "optimizer" not in loop:
        return None
    import bitsandbytes

    values = dict(loop["optimizer"])
    return getattr(bitsandbytes.optim, values.pop("type"))(trained_parameters(model), **values)


def optimizer_steps(options: argparse.Namespace, loop: dict[str, Any], *, blocks: int, samples_per_step: int) -> int:
    """--max-steps, or as many whole steps as the epochs give."""
    if options.max_steps > 0:
        return options.max_steps
    if options.data is None:
        return SYNTHETIC_STEPS
    steps = int((options.epochs or loop["epochs"]) * (blocks // samples_per_step))
    if steps < 1:
        raise SystemExit(f"--data gives {blocks} samples, one step takes {samples_per_step}")
    return steps


def schedule(loop: dict[str, Any], steps: int) -> Callable[[Any], Any]:
    """Makes the learning-rate schedule for an optimizer; the number of steps is known only here, not in the files."""
    warmup = round(loop["warmup_share"] * steps)
    return lambda optimizer: get_scheduler(loop["lr_scheduler_type"], optimizer, warmup, steps)


def batches(loader: DataLoader, set_epoch: Callable[[int], None], *, done: int) -> Iterator[dict[str, torch.Tensor]]:
    """Micro-batches without end, epoch after epoch; the first `done` were trained before the run was resumed."""
    for epoch in count(done // len(loader)):
        set_epoch(epoch)
        yield from islice(loader, done % len(loader), None)
        done = 0


def loader_arguments(loop: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """For torch's DataLoader; the micro-batch is that of ds_config.json."""
    return {
        "batch_size": settings["train_micro_batch_size_per_gpu"],
        "num_workers": loop["dataloader_num_workers"],
        "pin_memory": loop["dataloader_pin_memory"],
        "drop_last": True,
    }


def last_checkpoint(folder: str) -> Path:
    """The checkpoint with the most steps."""
    found = sorted(Path(folder).glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    if not found:
        raise SystemExit(f"--resume: there is no checkpoint in {folder}")
    return found[-1]


def log_step(step: int, steps: int, losses: list[torch.Tensor], rate: float) -> None:
    """The mean loss of the step's micro-batches over all ranks; every rank has to call it."""
    loss = torch.stack(losses).float().mean()
    torch.distributed.all_reduce(loss)
    log.warning(f"step {step}/{steps}: loss {loss.item() / torch.distributed.get_world_size():.4f}, lr {rate:.3g}")
