#!/usr/bin/env python3
"""Dry run of a plan on CPU: the plan's own train.py, a shrunken model, and questions to the running engine.

`dsplan smoke` starts this file through the plan's launch.sh, in place of train.py, on every rank. It reads the
task that DSPLAN_SMOKE_TASK names (the plan, the shrunken model, where to work), trains a few optimizer steps,
compares what the DeepSpeed engine answers with plan.json, counts tensor bytes, saves a checkpoint, spoils every weight
and reads the checkpoint back. Rank 0 writes all comparisons as JSON; it decides nothing about them.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # before zero.Init, which replaces torch.Tensor.__new__
import torch.distributed as dist
from safetensors import safe_open
from smoke_memory import Phases
from smoke_optimizers import CLASSES, stand_in_for_gpu_kernels, state_elements, state_tensors
from transformers import AutoConfig, AutoModelForCausalLM, TrainerCallback

TASK = json.loads(Path(os.environ["DSPLAN_SMOKE_TASK"]).read_text("utf-8"))
PLAN = TASK["plan"]
STAGE, TP, DP = PLAN["zero_stage"], PLAN["tp"], TASK["ranks"] // PLAN["tp"]
OPTIMIZER, PRECISION = TASK["optimizer"], PLAN["precision"]
DTYPE = {"fp16": torch.float16, "fp32": torch.float32}.get(PRECISION, torch.bfloat16)
MASTER_DTYPE = torch.bfloat16 if PRECISION == "pure-bf16" else torch.float32
DEVICES = {
    "none": ("none", "none"),
    "optimizer": ("cpu", "none"),
    "optimizer+param": ("cpu", "cpu"),
    "nvme": ("nvme",) * 2,
}
OPTIMIZER_DEVICE, PARAM_DEVICE = DEVICES[PLAN["offload"]]
checks: list[dict[str, Any]] = []


def check(what: str, expected: Any, found: Any, *, ok: bool | None = None) -> None:
    """Record one comparison; equal unless `ok` says how else it is judged."""
    good = expected == found if ok is None else ok
    checks.append({"what": what, "expected": expected, "found": found, "ok": bool(good)})


def write_report(**more: Any) -> bool:
    """Rank 0 writes the checks, for each the answer of the first rank that disagrees with the plan, if one does.

    Every rank learns whether all ranks agree.
    """
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, checks)
    if dist.get_rank() == 0:
        merged = []
        for answers in zip(*everyone, strict=True):
            failed = [rank for rank, answer in enumerate(answers) if not answer["ok"]]
            merged.append({**answers[failed[0] if failed else 0], "ranks_failed": failed})
        report = Path(TASK["report"])
        report.with_suffix(".tmp").write_text(json.dumps({"checks": merged, **more}), "utf-8")
        report.with_suffix(".tmp").replace(report)
    return all(answer["ok"] for answers in everyone for answer in answers)


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
    read_files, training_arguments, build_model = train.read_files, train.training_arguments, train.build_model

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
        phases.end("load")
        return model

    train.read_files, train.training_arguments = read_shrunken, without_workers
    train.build_model = build_counted
    return train


def whole_shapes() -> dict[str, list[int]]:
    """Names and shapes of the shrunken model, undivided."""
    fields = {key: value for key, value in TASK["config"].items() if key != "model_type"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(TASK["model_type"], **fields))
    return {name: list(p.shape) for name, p in model.named_parameters()}


def numel(parameter: Any) -> int:
    """Elements of a parameter on this tensor-parallel rank, whether or not ZeRO-3 has divided it."""
    return getattr(parameter, "ds_numel", parameter.numel())


def decoder(model: Any) -> tuple[str, Any]:
    """The repeated layers: the module list that holds the most parameters."""
    lists = [(name, m) for name, m in model.named_modules() if isinstance(m, torch.nn.ModuleList)]
    return max(lists, key=lambda pair: sum(numel(p) for p in pair[1].parameters()))


def weights(engine: Any) -> list[torch.Tensor]:
    """This rank's weights, or its shards of them."""
    return [p.ds_tensor if hasattr(p, "ds_tensor") else p.data for p in engine.module.parameters()]


def digests(tensors: list[torch.Tensor]) -> list[str]:
    """What the tensors hold, without keeping a copy that would be counted."""
    return [hashlib.sha256(t.detach().contiguous().view(torch.uint8).numpy()).hexdigest() for t in tensors]


def held(engine: Any) -> list[torch.Tensor]:
    """Every tensor of this rank's state: weights, master weights, optimizer states."""
    optimizer = engine.basic_optimizer
    return [*weights(engine), *(key.data for key in optimizer.state), *state_tensors(optimizer)]


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


def check_settings(engine: Any) -> None:
    """What the engine was built as."""

    def device(section: Any) -> str:
        return "none" if section is None else str(getattr(section.device, "value", section.device))

    def precision() -> str:
        if engine.bfloat16_enabled():
            return "pure-bf16" if engine.bf16_optimizer_states() else "bf16"
        return "fp16" if engine.fp16_enabled() else "fp32"

    check("ZeRO stage", STAGE, engine.zero_optimization_stage())
    check("ranks", TASK["ranks"], dist.get_world_size())
    check("data-parallel world size", DP, engine.dp_world_size)
    check("tensor-parallel world size", TP, engine.mp_world_size)
    check("optimizer offload device", OPTIMIZER_DEVICE, device(engine.zero_offload_optimizer()))
    check("parameter offload device", PARAM_DEVICE, device(engine.zero_offload_param()))
    wanted = CLASSES[OPTIMIZER][OPTIMIZER_DEVICE != "none"]
    check("optimizer class", wanted, type(engine.basic_optimizer).__name__)
    check("precision", PRECISION, precision())
    check("dtype of parameters", [str(DTYPE)], sorted({str(p.dtype) for p in engine.module.parameters()}))
    check("micro-batch", PLAN["micro_batch"], engine.train_micro_batch_size_per_gpu())
    check("gradient accumulation", PLAN["accumulation"], engine.gradient_accumulation_steps())
    check("gradient clipping", TASK["gradient_clipping"], engine.gradient_clipping())
    check("checkpointing", PLAN["checkpointing"] == "full", engine.module.is_activation_checkpointing)
    for name, size in TASK["zero_sizes"].items():
        found = getattr(engine._config.zero_config, name.removeprefix("stage3_"))
        check(f"{name} (the plan's, shrunken with the model)", size, found)


def trained(engine: Any) -> dict[str, Any]:
    """The parameters that the optimizer updates: all, or those of the adapters."""
    return {name: p for name, p in engine.module.named_parameters() if p.requires_grad}


def least_shard(local: dict[str, Any], whole: dict[str, list[int]]) -> int:
    """Elements of this rank's ZeRO share without padding.

    At stage 3 zero.Init shares out the whole model over all ranks before tensor parallelism divides any matrix, and
    what tensor parallelism leaves whole (embedding, norms) stays shared by all ranks.
    """
    if STAGE == 0:
        return sum(map(numel, local.values()))
    kept = [name for name, p in local.items() if STAGE == 3 and numel(p) == math.prod(whole.get(name, ()))]
    by_all = sum(numel(local[name]) for name in kept)
    return math.ceil(by_all / (DP * TP)) + math.ceil((sum(map(numel, local.values())) - by_all) / DP)


def check_shards(engine: Any, whole: dict[str, list[int]], layers: str) -> None:
    """Tensor parallelism and ZeRO-3 have really divided the weights."""
    local = dict(engine.module.named_parameters())
    if TP > 1:
        names = [n for n in local if n.startswith(f"{layers}.") and n in whole and len(whole[n]) > 1]
        total = sum(math.prod(whole[n]) for n in names)
        found = sum(numel(local[n]) for n in names)
        check("matrix elements of the layers on this tensor-parallel rank", total // TP, found)
    if STAGE == 3:
        least, shards = least_shard(local, whole), [p.ds_tensor for p in local.values()]
        found = sum(shard.ds_numel for shard in shards)
        check(
            "parameter elements in this rank's shard", least, found, ok=least <= found <= least + len(local) * DP * TP
        )
        gathered = sum(p.numel() for p in local.values() if not getattr(p, "ds_persist", False))
        check("elements of divided parameters left whole between steps", 0, gathered)
    if STAGE == 2:
        check("gradients are divided", expected=True, found=engine.optimizer.partition_gradients)


def check_training(watch: Watch) -> None:
    """The steps ran as the plan says, and the optimizer holds its share of the states."""
    engine, steps = watch.engine, TASK["steps"]
    check("micro-steps of each optimizer step", [PLAN["accumulation"]] * steps, watch.micro_steps)
    check("optimizer steps", steps, engine.global_steps)
    frozen = [not p.requires_grad for p in engine.module.parameters()]
    pairs = zip(watch.first_weights, digests(weights(engine)), strict=True)
    changed = [old != new for old, new in pairs]
    check("weight tensors that training changed", "some", sum(changed), ok=any(changed))
    if any(frozen):
        moved = sum(new and still for new, still in zip(changed, frozen, strict=True))
        check("frozen weight tensors that training changed", 0, moved)
    check("losses that are finite", len(watch.losses), sum(map(math.isfinite, watch.losses)))
    passes = 2 if PLAN["checkpointing"] == "full" else 1
    expected = passes * len(watch.layers) * PLAN["accumulation"] * steps
    check("layer forwards (twice with checkpointing: once more in backward)", expected, watch.forwards)
    tokens = watch.batch["input_ids"]
    check("shape of a micro-batch", [PLAN["micro_batch"], TASK["seq_len"]], list(tokens.shape))
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, tokens.tolist())
    check("different batches at a time (one per data-parallel rank)", DP, len({str(t) for t in everyone}))
    states = engine.basic_optimizer.state
    check("dtype of master weights", [str(MASTER_DTYPE)], sorted({str(key.dtype) for key in states}))
    local = trained(engine)
    least = least_shard(local, watch.whole)
    if OPTIMIZER_DEVICE == "nvme":  # master weights and two moments, fp32, of all ranks
        found = sum(file.stat().st_size for file in Path(TASK["work"]).rglob("*.swp"))
        check("bytes swapped to the NVMe path", f"at least {12 * least * DP}", found, ok=found >= 12 * least * DP)
        return
    if OPTIMIZER == "adafactor" and STAGE == 0:  # rows and columns instead of a whole variance
        found = sum(tensor.numel() for tensor in state_tensors(engine.basic_optimizer))
        check("optimizer state elements on this rank", f"below {least // 10}", found, ok=found < least // 10)
        return
    found = state_elements(engine.basic_optimizer, OPTIMIZER)
    padding = 64 * DP * TP * max(1, len(states)) + len(local) * DP * TP if STAGE else 0
    if OPTIMIZER == "muon" and STAGE in (1, 2):  # a matrix across two partitions has its momentum on both ranks
        padding += max(map(numel, local.values()))
    check("optimizer state elements on this rank", least, found, ok=least <= found <= least + padding)


def check_checkpoint(watch: Watch) -> None:
    """A checkpoint brings back every tensor of this rank after all of them were spoiled."""
    engine, folder = watch.engine, Path(TASK["work"]) / "checkpoint"
    engine.eval()
    loss = engine(**watch.batch).loss.item()
    engine.save_checkpoint(str(folder), tag="smoke")
    before = [tensor.clone() for tensor in held(engine)]
    with torch.no_grad():
        for tensor in held(engine):
            tensor.fill_(0.5)
    engine.load_checkpoint(str(folder), tag="smoke")
    after = held(engine)
    same = sum(torch.equal(old.float(), new.float()) for old, new in zip(before, after, strict=True))
    check("tensors restored from the checkpoint", len(before), same)
    check("loss after reloading", loss, engine(**watch.batch).loss.item())


def check_saved_model(trainer: Any, whole: dict[str, list[int]]) -> None:
    """The final model that train.py saves is whole, not one rank's shard; of adapters, nothing but they are saved."""
    folder = Path(TASK["work"]) / "model"
    trainer.save_model(str(folder))
    dist.barrier()
    saved = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            saved |= {name: list(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    adapters = TASK["method"] != "full"
    wanted = adapter_shapes(trainer.model) if adapters else whole
    wrong = sorted(name for name, shape in wanted.items() if saved.get(name) != shape)
    check("saved tensors with a missing or wrong shape", [], wrong)
    if adapters:
        check("saved tensors", len(wanted), len(saved))


def adapter_shapes(model: Any) -> dict[str, list[int]]:
    """Names, as peft saves them, and shapes of the adapters, undivided."""
    trained = ((name, p) for name, p in model.named_parameters() if p.requires_grad)
    return {name.replace(".default", ""): list(getattr(p, "ds_shape", p.shape)) for name, p in trained}


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
