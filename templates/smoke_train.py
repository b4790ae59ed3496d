#!/usr/bin/env python3
"""Dry run of a plan on CPU: the plan's own train.py, a shrunken model, and questions to the running engine.

`dsplan smoke` starts this file through the plan's launch.sh, in place of train.py, on every rank. It reads the
task that DSPLAN_SMOKE_TASK names (the plan, the shrunken model, where to work), trains a few optimizer steps,
compares what the DeepSpeed engine answers with plan.json, counts tensor bytes, saves a checkpoint, spoils every weight
and reads the checkpoint back.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401 - before zero.Init, which replaces torch.Tensor.__new__
import torch.distributed as dist
from smoke_checks import (
    check_checkpoint,
    check_saved_model,
    check_settings,
    check_shards,
    check_training,
    decoder,
    digests,
    weights,
    whole_shapes,
)
from smoke_memory import Phases
from smoke_optimizers import stand_in_for_gpu_kernels
from smoke_task import OPTIMIZER_DEVICE, PARAM_DEVICE, PLAN, TASK, write_report
from transformers import TrainerCallback


def count_tensors() -> Phases:
    """From now on, where the counting allocator could be built."""
    if TASK["counting_library"] is None:
        return Phases(None)
    sys.path.append(TASK["planner"])  # last: it is needed only where dsplan runs from a checkout
    from planner.launch.counting_allocator import install, leave_out_staging

    counter = install(Path(TASK["counting_library"]))
    leave_out_staging(counter)
    phases = Phases(counter)
    phases.leave_out_random_weights()
    phases.leave_out_what_gloo_holds()
    return phases


def run_without_gpu() -> None:
    """Let Accelerate, Transformers and DeepSpeed start on a CPU; nothing here touches what the plan decides."""
    import accelerate.state
    import transformers.training_args
    from deepspeed.accelerator import get_accelerator

    original = accelerate.state.PartialState._prepare_backend

    @functools.wraps(original)
    def with_gloo(self: Any, *arguments: Any, **options: Any) -> Any:
        backend, kind = original(self, *arguments, **options)
        return ("gloo" if backend is None and "LOCAL_RANK" in os.environ else backend), kind

    accelerate.state.PartialState._prepare_backend = with_gloo
    transformers.training_args.is_torch_bf16_gpu_available = lambda: True
    kind = type(get_accelerator())
    kind.is_bf16_supported = kind.is_fp16_supported = lambda self: True
    stand_in_for_gpu_kernels()
    if "nvme" in (OPTIMIZER_DEVICE, PARAM_DEVICE):
        from deepspeed.ops.op_builder import AsyncIOBuilder

        if not AsyncIOBuilder().is_compatible(verbose=False):
            raise SystemExit("cannot be dry-run here: NVMe offload needs libaio and its headers")


def load_train_script(phases: Phases) -> Any:
    """The plan's train.py, in a folder whose files name the shrunken model."""
    sys.path.insert(0, TASK["folder"])
    if "ACCELERATE_DEEPSPEED_CONFIG_FILE" in os.environ:  # the launcher's; it names the file of the whole model
        os.environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = str(Path(TASK["folder"]) / "ds_config.json")
    model_and_data, train = importlib.import_module("model_and_data"), importlib.import_module("train")
    build_model, with_adapters = train.build_model, model_and_data.with_adapters

    def build_counted(*arguments: Any) -> Any:
        model = build_model(*arguments)
        if TASK["method"] == "full":
            phases.end("load")
        return model

    def add_counted(*arguments: Any) -> Any:  # adapters are made on the loaded model
        phases.end("load")
        return with_adapters(*arguments)

    train.build_model, model_and_data.with_adapters = build_counted, add_counted
    return train


class Watch:
    """Asks the engine before the first step, then counts micro-steps and layer forwards and keeps the losses."""

    def __init__(self, whole: dict[str, list[int]], phases: Phases) -> None:
        self.whole, self.phases = whole, phases
        self.losses: list[float] = []
        self.micro_steps: list[int] = []
        self.forwards = 0
        self.batch: Any = None

    def begin(self, engine: Any) -> None:
        """The engine is built, training has not begun."""
        self.phases.end("init")
        self.engine = engine
        name, self.layers = decoder(engine.module)
        for layer in self.layers:  # hooks on a part: wrapping a layer's forward would switch its checkpointing off
            next(layer.children()).register_forward_pre_hook(self.count_forward)
        check_settings(engine)
        if not write_report(finished=False):
            raise SystemExit("the engine is not built as the plan says")
        check_shards(engine, self.whole, name)
        self.first_weights = digests(weights(engine))
        self.phases.follow(engine)

    def count_forward(self, *_: Any) -> None:
        self.forwards += 1

    def begin_step(self) -> None:
        """An optimizer step begins."""
        self.micro_steps.append(0)
        self.phases.begin_step()

    def end_micro_step(self, batch: Any, loss: Any) -> None:
        """A micro-batch went forward and backward."""
        self.batch = dict(batch)
        self.losses.append(loss.item())
        self.micro_steps[-1] += 1


class Callback(TrainerCallback):
    """Lets the Trainer tell the watch where it is."""

    def __init__(self, trainer: Any, watch: Watch) -> None:
        self.trainer, self.watch = trainer, watch

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.watch.begin(self.trainer.model_wrapped)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.watch.begin_step()


def train_with_the_trainer(train: Any, options: Any, watch: Watch) -> tuple[Any, list[float]]:
    """The trainer and the losses that it logged."""
    trainer = train.build_trainer(options)
    training_step = trainer.training_step

    def watched_step(model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
        batch = dict(inputs)
        loss = training_step(model, inputs, *more, **named)
        watch.end_micro_step(batch, loss)
        return loss

    trainer.training_step = watched_step
    trainer.add_callback(Callback(trainer, watch))
    trainer.train()
    return trainer, [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


def train_with_a_loop(train: Any, options: Any, watch: Watch) -> tuple[Any, list[float]]:
    """The run and the mean loss of each step on this rank."""
    run = train.Run(options)
    watch.begin(run.engine)
    micro_step = run.micro_step

    def watched_step(batch: Any) -> Any:
        if run.engine.global_steps == len(watch.micro_steps):
            watch.begin_step()
        loss = micro_step(batch)
        watch.end_micro_step(batch, loss)
        return loss

    run.micro_step = watched_step
    run.train()
    accumulation = PLAN["accumulation"]
    steps = [watch.losses[start : start + accumulation] for start in range(0, len(watch.losses), accumulation)]
    return run, [sum(step) / len(step) for step in steps]


def fullest(peaks: dict[str, int]) -> dict[str, int]:
    """The peak of each phase on the rank that held the most in it."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, peaks)
    return {phase: max(rank[phase] for rank in everyone) for phase in peaks}


def main() -> None:
    phases = count_tensors()
    run_without_gpu()
    whole = whole_shapes()
    train = load_train_script(phases)
    options = train.parse_arguments(["--max-steps", str(TASK["steps"]), "--output-dir", TASK["work"]])
    watch = Watch(whole, phases)
    run_training = train_with_the_trainer if TASK["integration"] == "trainer" else train_with_a_loop
    trained, losses = run_training(train, options, watch)
    memory = fullest(phases.peaks)
    check_training(watch)
    write_report(finished=False, losses=losses, memory=memory)
    check_checkpoint(watch)
    check_saved_model(trained, whole)
    write_report(finished=True, losses=losses, memory=memory)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
