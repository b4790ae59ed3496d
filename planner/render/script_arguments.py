"""What train.py is told beside `ds_config.json`: TrainingArguments for the Trainer, a short list for a plain loop.

In: the request, the candidate, the rendered `ds_config.json`. Out: the dict of `training_args.json` or
`loop_args.json`. Answers: with which learning rate, warm-up, seed and data loader does the plan's script run?

One value, one home. A number that states the plan (micro-batch, accumulation, clipping, precision) is plain in
ds_config.json, whoever reads it: it stays true for another program, and the Trainer refuses to start where its own
argument differs, so here it is copied from the rendered dict. The optimizer's values are no part of a plan: with the
Trainer training_args.json is their home and ds_config.json says "auto", which the Trainer fills (CONFIG: lr, betas,
eps, weight decay); with a plain loop nothing fills "auto", and ds_config.json is their home.
Source of what the Trainer compares and fills: transformers/integrations/deepspeed.py `trainer_config_process` (5.24).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.catalog.optimizers import optimizer_rows
from planner.memory.host import WORKERS_PER_RANK
from planner.records.candidate import Candidate, Checkpointing
from planner.records.machine import Cluster
from planner.records.model import Precision
from planner.records.request import Loss, Optimizer, Request
from planner.render.optimizer_block import adamw_learning_rate, optimizer_values

WARMUP_SHARE = 0.03  # of all steps; Taori et al. 2023 (Stanford Alpaca), `--warmup_ratio 0.03`
SCHEDULE = "linear"  # the Trainer's own default
SEED = 42  # the Trainer's own default
OUTPUT_FOLDER = "output"
LOGGING_STEPS = 10
ADAMW_8BIT = {"optim": "adamw_bnb_8bit"}
HEAD_AND_LOSS_ONLY = dict.fromkeys(("cross_entropy", "rms_norm", "rope", "swiglu", "geglu", "layer_norm"), False)


def training_arguments(request: Request, candidate: Candidate, engine: Mapping[str, Any]) -> dict[str, Any]:
    """The whole `training_args.json`: fields of transformers.TrainingArguments, readable by HfArgumentParser too."""
    checkpointing = candidate.checkpointing is Checkpointing.FULL
    arguments: dict[str, Any] = {
        "output_dir": OUTPUT_FOLDER,
        "deepspeed": "ds_config.json",
        "per_device_train_batch_size": engine["train_micro_batch_size_per_gpu"],
        "gradient_accumulation_steps": engine["gradient_accumulation_steps"],
        "max_grad_norm": engine["gradient_clipping"],
        **trainer_optimizer(request),
        "lr_scheduler_type": SCHEDULE,
        "warmup_steps": WARMUP_SHARE,  # below 1: a share of all steps
        "bf16": request.workload.precision in (Precision.BF16, Precision.PURE_BF16),
        "fp16": request.workload.precision is Precision.FP16,
        "activation_checkpointing": checkpointing,
    }
    if checkpointing:
        arguments["activation_checkpointing_kwargs"] = {"use_reentrant": False}
    if request.workload.loss is Loss.FUSED:  # head and loss in chunks: the logits are never whole
        arguments["use_liger_kernel"] = True
        arguments["liger_kernel_config"] = {"fused_linear_cross_entropy": True, **HEAD_AND_LOSS_ONLY}
    return arguments | {
        "num_train_epochs": 1.0,
        "logging_steps": LOGGING_STEPS,
        "save_strategy": "no",
        "save_total_limit": 2,
        "seed": SEED,
        "data_seed": SEED,
        **data_loader(request.cluster, candidate),
        "dataloader_drop_last": True,
        "remove_unused_columns": False,
        "report_to": "none",
        "disable_tqdm": True,
    }


def loop_arguments(request: Request, candidate: Candidate) -> dict[str, Any]:
    """The whole `loop_args.json`."""
    arguments: dict[str, Any] = {
        "output_dir": OUTPUT_FOLDER,
        "epochs": 1.0,
        "lr_scheduler_type": SCHEDULE,
        "warmup_share": WARMUP_SHARE,
        "logging_steps": LOGGING_STEPS,
        "seed": SEED,
        **data_loader(request.cluster, candidate),
    }
    if request.workload.optimizer is Optimizer.ADAMW_8BIT:  # DeepSpeed has none, so the loop makes it
        arguments["optimizer"] = {"type": "AdamW", "optim_bits": 8, **adamw_8bit_values(request)}
    return arguments


def trainer_optimizer(request: Request) -> dict[str, Any]:
    """The optimizer's values under the Trainer's names; the Trainer builds the 8-bit AdamW itself."""
    own = request.workload.optimizer is Optimizer.ADAMW_8BIT
    values = adamw_8bit_values(request) if own else optimizer_values(request)
    named = {"learning_rate": values["lr"]}
    if "betas" in values:
        named |= {"adam_beta1": values["betas"][0], "adam_beta2": values["betas"][1]}
    if "eps" in values:
        named["adam_epsilon"] = values["eps"]
    return {**(ADAMW_8BIT if own else {}), **named, "weight_decay": values["weight_decay"]}


def adamw_8bit_values(request: Request) -> dict[str, Any]:
    """AdamW's own; 8-bit states need no others.

    Source: Dettmers et al. 2022, arXiv:2110.02861: hyperparameters unchanged.
    """
    return {"lr": adamw_learning_rate(request), **optimizer_rows()[Optimizer.ADAMW].params}


def data_loader(cluster: Cluster, candidate: Candidate) -> dict[str, Any]:
    """Worker processes and pinning.

    Formula: min(2, cores of a node / ranks of a node - 1), at least 0; 2 where the cores are unknown.
    Source: torch/utils/data/dataloader.py `_check_worker_number_rationality` warns above one worker a core, and a rank
    needs a core for itself; more than two are no use for blocks of a mapped file, and the plan's host memory counts two
    (memory/host.py `WORKERS_PER_RANK`). Batches are page-locked where the plan lets offloaded states be.
    Leaves out: tokenizers or images in the loader, which want more workers and more host memory.
    """
    workers = WORKERS_PER_RANK
    if cluster.cpu_cores is not None:
        workers = max(0, min(workers, cluster.cpu_cores // cluster.gpus_per_node - 1))
    return {"dataloader_num_workers": workers, "dataloader_pin_memory": candidate.settings.pin_memory}
