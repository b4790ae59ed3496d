#!/usr/bin/env python3
"""Dry run of a plan on CPU: the plan's own train.py, a shrunken model, and questions to the running engine.

`dsplan smoke` starts this file through the plan's launch.sh, in place of train.py, on every rank. It reads the
task that DSPLAN_SMOKE_TASK names (the plan, the shrunken model, where to work), trains a few optimizer steps,
compares what the DeepSpeed engine answers with plan.json, counts tensor bytes, saves a checkpoint, spoils every weight
and reads the checkpoint back.
"""

from __future__ import annotations

import functools
import importlib.util
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
from smoke_task import OPTIMIZER_DEVICE, PARAM_DEVICE, TASK, write_report
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
    """The plan's train.py, given the shrunken model with sizes to match, spared what needs a GPU or workers."""
    spec = importlib.util.spec_from_file_location("train", Path(TASK["folder"]) / "train.py")
    train = importlib.util.module_from_spec(spec)
    sys.modules["train"] = train
    spec.loader.exec_module(train)
    read_files, training_arguments = train.read_files, train.training_arguments
    build_model, with_adapters = train.build_model, train.with_adapters

    def read_shrunken(folder: Path) -> Any:
        plan, engine = read_files(folder)
        plan["model"]["config"] = TASK["config"]
        plan["request"].update(seq_len=TASK["seq_len"], attention=TASK["attention"], loss="standard")
        plan["request"]["method"] = TASK["method"]
        return plan, engine

    def without_workers(*arguments: Any) -> Any:
        built = training_arguments(*arguments)
        built.dataloader_num_workers, built.dataloader_pin_memory = 0, False
        zero = built.hf_deepspeed_config.config["zero_optimization"]
        zero.update(TASK["zero_sizes"])
        for section in zero.values():
            if isinstance(section, dict) and "nvme_path" in section:
                section["nvme_path"] = TASK["work"]
        return built

    def build_counted(*arguments: Any) -> Any:
        model = build_model(*arguments)
        if TASK["method"] == "full":
            phases.end("load")
        return model

    def add_counted(*arguments: Any) -> Any:  # adapters are made on the loaded model
        phases.end("load")
        return with_adapters(*arguments)

    train.read_files, train.training_arguments = read_shrunken, without_workers
    train.build_model, train.with_adapters = build_counted, add_counted
    return train


class Watch(TrainerCallback):
    """Asks the engine before the first step, then counts micro-steps and layer forwards and keeps the losses."""

    def __init__(self, trainer: Any, whole: dict[str, list[int]], phases: Phases) -> None:
        self.trainer, self.whole, self.phases = trainer, whole, phases
        self.losses: list[float] = []
        self.micro_steps: list[int] = []
        self.forwards = 0
        self.batch: Any = None
        original = trainer.training_step

        def training_step(model: Any, inputs: Any, *more: Any, **options: Any) -> Any:
            self.batch = dict(inputs)
            loss = original(model, inputs, *more, **options)
            self.losses.append(loss.item())
            self.micro_steps[-1] += 1
            return loss

        trainer.training_step = training_step

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.phases.end("init")
        self.engine = self.trainer.model_wrapped
        name, self.layers = decoder(self.engine.module)
        for layer in self.layers:  # hooks on a part: wrapping a layer's forward would switch its checkpointing off
            next(layer.children()).register_forward_pre_hook(self.count_forward)
        check_settings(self.engine)
        if not write_report(finished=False):
            raise SystemExit("the engine is not built as the plan says")
        check_shards(self.engine, self.whole, name)
        self.first_weights = digests(weights(self.engine))
        self.phases.follow(self.engine)

    def count_forward(self, *_: Any) -> None:
        self.forwards += 1

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.micro_steps.append(0)
        self.phases.begin_step()


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
    options = ["--max-steps", str(TASK["steps"]), "--output-dir", TASK["work"]]
    trainer = train.build_trainer(train.parse_arguments(options))
    watch = Watch(trainer, whole, phases)
    trainer.add_callback(watch)
    trainer.train()
    memory = fullest(phases.peaks)
    check_training(watch)
    losses = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    write_report(finished=False, losses=losses, memory=memory)
    check_checkpoint(watch)
    check_saved_model(trainer, whole)
    write_report(finished=True, losses=losses, memory=memory)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
