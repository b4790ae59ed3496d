"""Questions to the running engine: is it built as the plan says, did it train so, does it save and read what it holds?

Each function records comparisons; `smoke_task.py` collects them.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from smoke_optimizers import CLASSES, state_elements, state_tensors
from smoke_task import (
    DP,
    DTYPE,
    MASTER_DTYPE,
    OPTIMIZER,
    OPTIMIZER_DEVICE,
    PARAM_DEVICE,
    PLAN,
    PRECISION,
    STAGE,
    TASK,
    TP,
    check,
)
from transformers import AutoConfig, AutoModelForCausalLM


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


def check_training(watch: Any) -> None:
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


def check_checkpoint(watch: Any) -> None:
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


def check_saved_model(trained: Any, whole: dict[str, list[int]]) -> None:
    """The final model that train.py saves is whole, not one rank's shard; of adapters, nothing but they are saved."""
    folder = Path(TASK["work"]) / "model"
    trained.save_model(str(folder))
    dist.barrier()
    saved = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            saved |= {name: list(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    adapters = TASK["method"] != "full"
    wanted = adapter_shapes(trained.model) if adapters else whole
    unmatched = {name: shape for name, shape in wanted.items() if saved.get(name) != shape}
    renamed = [shape for name, shape in saved.items() if name not in wanted]  # experts: stacked here, one by one there
    whole_anyway = sum(map(math.prod, unmatched.values())) == sum(map(math.prod, renamed))
    check("saved tensors with a missing or wrong shape", [], [] if whole_anyway else sorted(unmatched))
    if adapters:
        check("saved tensors", len(wanted), len(saved))


def adapter_shapes(model: Any) -> dict[str, list[int]]:
    """Names, as peft saves them, and shapes of the adapters, undivided."""
    trained = ((name, p) for name, p in model.named_parameters() if p.requires_grad)
    return {name.replace(".default", ""): list(getattr(p, "ds_shape", p.shape)) for name, p in trained}
