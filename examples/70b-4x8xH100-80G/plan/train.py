#!/usr/bin/env python3
"""Trains the model of `plan.json` with the Hugging Face Trainer; all files lie beside this one.

    ./launch.sh                                   random weights, synthetic tokens: shows memory and speed
    ./launch.sh --model PATH_OR_ID --data FILE    real weights on your text or JSONL file

`training_args.json` holds the Trainer's arguments. It is the home of learning rate, betas, epsilon and weight decay,
which `ds_config.json` leaves to it as "auto". Micro-batch, accumulation, clipping and precision are in both, and the
Trainer refuses to start where they differ.
"""

from __future__ import annotations

import argparse
from typing import Any

from model_and_data import (
    HERE,
    SYNTHETIC_STEPS,
    argument_parser,
    build_dataset,
    build_model,
    log_settings,
    read_json,
    start_logging,
)
from transformers import Trainer, TrainerCallback, TrainingArguments


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    return argument_parser(__doc__).parse_args(argv)


def training_arguments(options: argparse.Namespace) -> TrainingArguments:
    """The arguments of the file, with what the command line says. Building them switches zero.Init on, so they come
    before the model."""
    values = read_json("training_args.json")
    values["deepspeed"] = str(HERE / values["deepspeed"])
    if options.output_dir:
        values["output_dir"] = options.output_dir
    if options.epochs:
        values["num_train_epochs"] = options.epochs
    if options.save_steps:
        values |= {"save_strategy": "steps", "save_steps": options.save_steps}
    if options.data is None:
        values["logging_steps"] = 1
    values["max_steps"] = options.max_steps if options.data or options.max_steps > 0 else SYNTHETIC_STEPS
    return TrainingArguments(**values)


class LogSettings(TrainerCallback):
    """Says at the start what the engine really runs with."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, arguments: TrainingArguments, *_: Any, **__: Any) -> None:
        checkpointing = bool(arguments.activation_checkpointing)
        log_settings(self.trainer.model_wrapped, arguments.world_size, checkpointing=checkpointing)


def build_trainer(options: argparse.Namespace) -> Trainer:
    plan, arguments = read_json("plan.json"), training_arguments(options)
    start_logging(arguments.process_index)
    model = build_model(plan, options)
    per_step = arguments.train_batch_size * arguments.gradient_accumulation_steps * arguments.world_size
    dataset = build_dataset(
        plan,
        options,
        vocab=model.config.get_text_config().vocab_size,
        folder=arguments.output_dir,
        synthetic_blocks=per_step * arguments.max_steps,
        one_per_node_first=arguments.main_process_first(local=True, desc="tokenizing"),
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
    trainer.add_callback(LogSettings(trainer))
    return trainer


def main() -> None:
    options = parse_arguments()
    trainer = build_trainer(options)
    trainer.train(resume_from_checkpoint=options.resume)
    if options.model or options.data:
        # Whole also at ZeRO-3 and with tensor parallelism, because ds_config.json sets
        # stage3_gather_16bit_weights_on_model_save; without it this would write a sharded checkpoint.
        trainer.save_model()


if __name__ == "__main__":
    main()
