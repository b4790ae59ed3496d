#!/usr/bin/env python3
"""Trains the model of `plan.json` with a plain `accelerate` loop; all files lie beside this one.

    ./launch.sh                                   random weights, synthetic tokens: shows memory and speed
    ./launch.sh --model PATH_OR_ID --data FILE    real weights on your text or JSONL file

Each value has one home: what DeepSpeed reads is in ds_config.json, which launch.sh hands to `Accelerator`; the model,
sequence length, method, attention, loss and checkpointing are in plan.json, the rest in loop_args.json.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DataLoaderConfiguration,
    DistributedType,
    DummyOptim,
    DummyScheduler,
    GradientAccumulationPlugin,
    InitProcessGroupKwargs,
    set_seed,
)
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
from torch.utils.data import DataLoader


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    return argument_parser(__doc__).parse_args(argv)


class Run:
    """The engine, the data, and how far training has come."""

    def __init__(self, options: argparse.Namespace) -> None:
        plan, settings = read_json("plan.json"), read_json("ds_config.json")
        self.loop = read_json("loop_args.json")
        self.options, self.folder = options, options.output_dir or self.loop["output_dir"]
        micro, accumulation = settings["train_micro_batch_size_per_gpu"], settings["gradient_accumulation_steps"]
        seed = self.loop["seed"]
        # At stage 3 this also makes transformers build the model under zero.Init, so it comes before the model.
        self.accelerator = Accelerator(
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=accumulation, sync_with_dataloader=False),
            dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=seed),
            kwargs_handlers=[InitProcessGroupKwargs(timeout=TIMEOUT)],
        )
        if self.accelerator.distributed_type is not DistributedType.DEEPSPEED:
            raise SystemExit("no DeepSpeed file: start this script with launch.sh, which names ds_config.json")
        start_logging(self.accelerator.process_index)
        set_seed(seed)
        self.model = prepare_model(build_model(plan, options), plan)
        self.only_adapters = plan["request"]["method"] != "full"
        dp = self.accelerator.num_processes // settings.get("tensor_parallel", {}).get("autotp_size", 1)
        dataset = build_dataset(
            plan,
            options,
            vocab=self.model.config.get_text_config().vocab_size,
            folder=self.folder,
            synthetic_blocks=micro * accumulation * dp * max(options.max_steps, SYNTHETIC_STEPS),
            one_per_node_first=self.accelerator.local_main_process_first(),
        )
        self.steps = optimizer_steps(
            options, self.loop, blocks=len(dataset), samples_per_step=micro * accumulation * dp
        )
        loader = DataLoader(dataset, shuffle=True, **loader_arguments(self.loop, settings))
        make_schedule = schedule(self.loop, self.steps)
        optimizer = own_optimizer(self.model, self.loop)
        if optimizer is None:  # ds_config.json names the optimizer; these two only stand for it and for its schedule
            dummy = DummyOptim(trained_parameters(self.model))
            stand_ins: list[Any] = [dummy, DummyScheduler(dummy, lr_scheduler_callable=make_schedule)]
            self.engine, self.loader, *_ = self.accelerator.prepare(self.model, loader, *stand_ins)
        else:
            self.engine, self.loader, _ = self.accelerator.prepare(self.model, loader, optimizer)
            # The engine steps its schedule once a step; accelerate would step one of its own once a process.
            self.engine.lr_scheduler = make_schedule(self.engine.basic_optimizer)
        ranks, checkpointing = self.accelerator.num_processes, plan["plans"][0]["checkpointing"] == "full"
        log_settings(self.engine, ranks, checkpointing=checkpointing)

    def micro_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Forward and backward; the last micro-batch of a step also clips and updates, inside backward."""
        with self.accelerator.accumulate(self.engine):
            loss = self.engine(**batch).loss
            self.accelerator.backward(loss)
        return loss.detach()

    def train(self) -> None:
        """Up to the last step, from the last checkpoint with --resume."""
        engine, accumulation = self.engine, self.accelerator.gradient_accumulation_steps
        if self.options.resume:
            folder = str(last_checkpoint(self.folder))
            self.accelerator.load_state(folder, load_module_strict=not self.only_adapters)
        every = self.loop["logging_steps"] if self.options.data else 1
        losses: list[torch.Tensor] = []
        for batch in batches(self.loader, self.loader.set_epoch, done=engine.global_steps * accumulation):
            if engine.global_steps >= self.steps:
                break
            losses.append(self.micro_step(batch))
            if len(losses) < accumulation:
                continue
            step = engine.global_steps
            if step % every == 0:
                log_step(step, self.steps, losses, engine.get_lr()[0])
            if self.options.save_steps and step % self.options.save_steps == 0:
                folder = f"{self.folder}/checkpoint-{step}"
                self.accelerator.save_state(folder, exclude_frozen_parameters=self.only_adapters)
            losses = []

    def save_model(self, folder: str) -> None:
        """Whole weights in the run's dtype, or the adapters alone; every rank has to call it.

        Whole also at ZeRO-3 and with tensor parallelism, because ds_config.json sets
        stage3_gather_16bit_weights_on_model_save; without it `get_state_dict` raises.
        """
        weights = self.accelerator.get_state_dict(self.engine)
        if self.accelerator.is_main_process:
            self.accelerator.unwrap_model(self.engine).save_pretrained(folder, state_dict=weights)
        self.accelerator.wait_for_everyone()


def main() -> None:
    options = parse_arguments()
    run = Run(options)
    run.train()
    if options.model or options.data:
        run.save_model(run.folder)
    run.accelerator.end_training()


if __name__ == "__main__":
    main()
