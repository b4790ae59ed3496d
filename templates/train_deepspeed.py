#!/usr/bin/env python3
"""Trains the model of `plan.json` with a plain `deepspeed.initialize` loop; all files lie beside this one.

    ./launch.sh                                   random weights, synthetic tokens: shows memory and speed
    ./launch.sh --model PATH_OR_ID --data FILE    real weights on your text or JSONL file

Each value has one home: what DeepSpeed reads is in ds_config.json, the model, sequence length, method, attention, loss
and checkpointing in plan.json, the rest in loop_args.json.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from loop_parts import (
    TIMEOUT,
    batches,
    last_checkpoint,
    loader_arguments,
    log_step,
    optimizer_steps,
    own_optimizer,
    prepare_model,
    schedule,
    trained_parameters,
)
from model_and_data import (
    SYNTHETIC_STEPS,
    argument_parser,
    build_dataset,
    build_model,
    log_settings,
    read_json,
    start_logging,
)
from torch.utils.data import DataLoader, DistributedSampler
from transformers import set_seed
from transformers.integrations import HfDeepSpeedConfig


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    return argument_parser(__doc__).parse_args(argv)


@contextmanager
def first_rank_of_each_node_first() -> Iterator[None]:
    if int(os.environ["LOCAL_RANK"]) != 0:
        dist.barrier()
    yield
    if int(os.environ["LOCAL_RANK"]) == 0:
        dist.barrier()


class Run:
    """The engine, the data, and how far training has come."""

    def __init__(self, options: argparse.Namespace) -> None:
        plan, settings = read_json("plan.json"), read_json("ds_config.json")
        self.loop = read_json("loop_args.json")
        self.options, self.folder = options, options.output_dir or self.loop["output_dir"]
        deepspeed.init_distributed(timeout=TIMEOUT)
        get_accelerator().set_device(int(os.environ["LOCAL_RANK"]))
        start_logging(dist.get_rank())
        set_seed(self.loop["seed"])
        # As long as this object lives, transformers builds the model under zero.Init where the stage is 3.
        self.zero_init = HfDeepSpeedConfig(settings)
        self.model = prepare_model(build_model(plan, options), plan)
        self.only_adapters = plan["request"]["method"] != "full"
        # All ranks of a tensor-parallel group need the same batch; their ranks are contiguous.
        tp = settings.get("tensor_parallel", {}).get("autotp_size", 1)
        dp = dist.get_world_size() // tp
        per_step = settings["train_micro_batch_size_per_gpu"] * settings["gradient_accumulation_steps"] * dp
        dataset = build_dataset(
            plan,
            options,
            vocab=self.model.config.get_text_config().vocab_size,
            folder=self.folder,
            synthetic_blocks=per_step * max(options.max_steps, SYNTHETIC_STEPS),
            one_per_node_first=first_rank_of_each_node_first(),
        )
        self.steps = optimizer_steps(options, self.loop, blocks=len(dataset), samples_per_step=per_step)
        seed = self.loop["seed"]
        self.sampler = DistributedSampler(dataset, dp, dist.get_rank() // tp, seed=seed, drop_last=True)
        self.loader = DataLoader(dataset, sampler=self.sampler, **loader_arguments(self.loop, settings))
        self.engine, _, _, _ = deepspeed.initialize(
            model=self.model,
            model_parameters=trained_parameters(self.model),
            optimizer=own_optimizer(self.model, self.loop),
            lr_scheduler=schedule(self.loop, self.steps),
            config=settings,
        )
        log_settings(self.engine, dist.get_world_size(), checkpointing=plan["plans"][0]["checkpointing"] == "full")

    def micro_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Forward and backward; the last micro-batch of a step also clips and updates."""
        loss = self.engine(**{name: tensor.to(self.engine.device) for name, tensor in batch.items()}).loss
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()

    def train(self) -> None:
        """Up to the last step, from the last checkpoint with --resume."""
        engine, accumulation = self.engine, self.engine.gradient_accumulation_steps()
        if self.options.resume:
            tag = last_checkpoint(self.folder).name
            engine.load_checkpoint(self.folder, tag=tag, load_module_strict=not self.only_adapters)
        every = self.loop["logging_steps"] if self.options.data else 1
        losses: list[torch.Tensor] = []
        for batch in batches(self.loader, self.sampler.set_epoch, done=engine.global_steps * accumulation):
            if engine.global_steps >= self.steps:
                break
            losses.append(self.micro_step(batch))
            if len(losses) < accumulation:
                continue
            step = engine.global_steps
            if step % every == 0:
                log_step(step, self.steps, losses, engine.get_lr()[0])
            if self.options.save_steps and step % self.options.save_steps == 0:
                tag = f"checkpoint-{step}"
                engine.save_checkpoint(self.folder, tag=tag, exclude_frozen_parameters=self.only_adapters)
            losses = []

    def save_model(self, folder: str) -> None:
        """Whole weights in the run's dtype, or the adapters alone; every rank has to call it.

        `engine.save_16bit_model` would do without tensor parallelism; with it, below stage 3, it writes one shard.
        """
        engine, only_trained = self.engine, self.only_adapters
        if engine.zero_optimization_partition_weights() or engine.autotp_size() > 1:
            weights = engine._consolidated_16bit_state_dict(exclude_frozen_parameters=only_trained)
        else:
            weights = engine.module_state_dict(exclude_frozen_parameters=only_trained)
        if dist.get_rank() == 0:
            engine.module.save_pretrained(folder, state_dict=weights)
        dist.barrier()


def main() -> None:
    options = parse_arguments()
    run = Run(options)
    run.train()
    if options.model or options.data:
        run.save_model(run.folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
