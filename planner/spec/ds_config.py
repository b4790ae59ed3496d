"""An existing DeepSpeed JSON as part of a request: the axes it pins and the sizes it sets (`--config`).

In: a file. Out: `Pinned`, the request fields the file decides, its ZeRO sizes, and notes on what had to be resolved.
`"auto"` is resolved as the Hugging Face Trainer does; a key that DeepSpeed would fill takes DeepSpeed's default.
Source of defaults: deepspeed/runtime/zero/config.py and offload_config.py (0.19.8); of the auto rules:
transformers/integrations/deepspeed.py (5.24).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from planner.errors import PlannerError
from planner.records.candidate import Offload, ZeroSettings, ZeroStage
from planner.records.request import Optimizer

MAX_FILE_BYTES = 4 * 2**20
OPTIMIZERS = {
    "adam": Optimizer.ADAMW,
    "adamw": Optimizer.ADAMW,
    "lion": Optimizer.LION,
    "muon": Optimizer.MUON,
    "SGD": Optimizer.SGD,
    "Adafactor": Optimizer.ADAFACTOR,
}
"""`optimizer.type`: DeepSpeed's own in lower case, which it reads in any case, and classes of torch.optim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """What a DeepSpeed JSON decides."""

    fields: Mapping[str, Any]  # fields of the request
    settings: ZeroSettings
    notes: tuple[str, ...]


def read(path: Any, *, world_size: int, hidden: int) -> Pinned:
    """Read the file; raises PlannerError when it cannot be read, is no DeepSpeed JSON, or holds what dsplan cannot
    plan."""
    return pinned_by(_load(str(path)), world_size=world_size, hidden=hidden)


def pinned_by(document: Mapping[str, Any], *, world_size: int, hidden: int) -> Pinned:
    """What a document decides; raises PlannerError for one that holds what dsplan cannot plan."""
    zero = _section(document, "zero_optimization")
    stage = ZeroStage(_integer(zero, "stage", 0, path="$.zero_optimization.stage", highest=3))
    notes: list[str] = []
    fields: dict[str, Any] = {
        "zero": int(stage),
        "tp": max(
            1, _integer(_section(document, "tensor_parallel"), "autotp_size", 1, path="$.tensor_parallel.autotp_size")
        ),
        "offload": _offload(zero, stage, notes).value,
        "precision": _precision(document, notes),
    }
    optimizer = _optimizer(document, notes)
    if optimizer is not None:
        fields["optimizer"] = optimizer.value
    if optimizer is Optimizer.MUON and stage is ZeroStage.PARAMETERS and zero.get("reduce_scatter", True) is not False:
        raise PlannerError(
            "`$.zero_optimization.reduce_scatter` is on: DeepSpeed refuses it with Muon at stage 3",
            hint='set `"reduce_scatter": false` in `zero_optimization`',
        )
    if world_size % fields["tp"]:
        raise PlannerError(
            f"`$.tensor_parallel.autotp_size` {fields['tp']} does not divide {world_size} GPUs",
            hint="change the file or the cluster",
        )
    for key, name in (
        ("train_micro_batch_size_per_gpu", "micro_batch"),
        ("gradient_accumulation_steps", "accumulation"),
    ):
        value = document.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            fields[name] = value
        elif value is not None and value != "auto":
            raise PlannerError(f"`$.{key}` is `{value}`, not a positive whole number", hint="correct the file")
    _micro_from_total(document, fields, world_size)
    return Pinned(fields=fields, settings=_settings(document, zero, stage, hidden), notes=tuple(notes))


def _micro_from_total(document: Mapping[str, Any], fields: dict[str, Any], world_size: int) -> None:
    """DeepSpeed derives a missing micro-batch from the total and the accumulation; it divides by the full world."""
    total = document.get("train_batch_size")
    if isinstance(total, int) and "micro_batch" not in fields:
        per_gpu = total // (world_size * fields.get("accumulation", 1))
        if per_gpu < 1:
            raise PlannerError(
                f"`$.train_batch_size` {total} is below one sample for each of {world_size} GPUs",
                hint="change the file or the cluster",
            )
        fields["micro_batch"] = per_gpu


def _load(path: str) -> dict[str, Any]:
    try:
        file = Path(path)
        if file.stat().st_size > MAX_FILE_BYTES:
            raise PlannerError(f"`{path}` is too large for a DeepSpeed JSON", hint="such a file has a few kilobytes")
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if isinstance(error, PlannerError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise PlannerError(f"cannot read `{path}`: {reason}", hint="`--config` takes a DeepSpeed JSON") from None
    if not isinstance(document, dict):
        raise PlannerError(f"`{path}` holds no JSON object", hint="`--config` takes a DeepSpeed JSON")
    return document


def _section(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = document.get(name, {})
    if isinstance(section, bool) and name == "zero_optimization":
        return {"stage": int(section)}
    if not isinstance(section, Mapping):
        raise PlannerError(f"`$.{name}` is not an object", hint="correct the file")
    return section


def _integer(section: Mapping[str, Any], key: str, default: int, *, path: str, highest: int = 10**18) -> int:
    value = section.get(key, default)
    if value == "auto" or value is None:
        return default
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or (isinstance(value, float) and not isfinite(value))
        or value != int(value)
        or not 0 <= value <= highest
    ):
        raise PlannerError(f"`{path}` is `{value}`, not a whole number from 0 to {highest}", hint="correct the file")
    return int(value)


def _offload(zero: Mapping[str, Any], stage: ZeroStage, notes: list[str]) -> Offload:
    """Below stage 3 DeepSpeed reads `offload_param` and never uses it, as many published files have it."""
    devices = []
    for key in ("offload_optimizer", "offload_param"):
        block = zero.get(key) or {}
        device = block.get("device", "none") if isinstance(block, Mapping) else block
        devices.append(device if device is not None else "none")
    optimizer, parameters = devices
    if parameters != "none" and stage < ZeroStage.PARAMETERS:
        notes.append(f"`offload_param` has no effect at ZeRO stage {int(stage)}: parameters stay on the GPU")
        parameters = "none"
    for offload in Offload:
        if (offload.optimizer_device, offload.param_device) == (optimizer, parameters):
            return offload
    known = "none, optimizer to cpu, optimizer and parameters to cpu, both to nvme"
    raise PlannerError(
        f"offload of optimizer to `{optimizer}` with parameters on `{parameters}` is not modelled",
        hint=f"modelled: {known}",
    )


def _optimizer(document: Mapping[str, Any], notes: list[str]) -> Optimizer | None:
    """The optimizer the file names; None where it leaves it to the Trainer or the script."""
    block = _section(document, "optimizer")
    kind = block.get("type")
    if kind is None or kind == "auto":
        return None
    optimizer = optimizer_named(str(kind))
    if optimizer is None:
        known = ", ".join(name if name[0].isupper() else name.capitalize() for name in OPTIMIZERS)
        raise PlannerError(f"the optimizer `{kind}` @ $.optimizer.type is not modelled", hint=f"modelled: {known}")
    if optimizer is Optimizer.SGD and not _section(block, "params").get("momentum"):
        notes.append("the file's SGD keeps no momentum; planned with one, 4 bytes per parameter more")
    return optimizer


def optimizer_named(kind: str) -> Optimizer | None:
    """What an `optimizer.type` stands for; None for one that dsplan does not model."""
    return OPTIMIZERS.get(kind) or OPTIMIZERS.get(kind.lower())


def _precision(document: Mapping[str, Any], notes: list[str]) -> str:
    section = _section(document, "bf16" if "bf16" in document else "bfloat16")
    bf16 = section.get("enabled", False)
    fp16 = _section(document, "fp16").get("enabled", False)
    if bf16 is True and fp16 is True:
        raise PlannerError(
            "both `$.bf16.enabled` and `$.fp16.enabled` are true", hint="DeepSpeed refuses such a file; keep one"
        )
    if fp16 is True and _section(document, "fp16").get("fp16_master_weights_and_grads") is True:
        raise PlannerError(
            "fp16 master weights (`$.fp16.fp16_master_weights_and_grads`) are not modelled",
            hint="leave the key out for fp32 master weights",
        )
    if bf16 is True:
        return "pure-bf16" if _pure_bf16(section) else "bf16"
    if fp16 is True:
        return "fp16"
    if "auto" in (bf16, fp16):
        notes.append("the file leaves the precision to the Trainer (`auto`); planned as the GPU's default")
        return "auto"
    return "fp32"


def _pure_bf16(section: Mapping[str, Any]) -> bool:
    """Whether master weights and optimizer states are bf16 too; DeepSpeed has a switch for each."""
    master = section.get("bf16_master_weights_and_grads") is True
    states = section.get("bf16_optimizer_states") is True
    if states and not master:
        raise PlannerError(
            "`$.bf16.bf16_optimizer_states` needs `bf16_master_weights_and_grads`",
            hint="DeepSpeed refuses such a file; set both or none",
        )
    if master and not states:
        raise PlannerError(
            "bf16 master weights with fp32 optimizer states (`$.bf16`) are not modelled",
            hint="set `bf16_optimizer_states` to true for pure bf16",
        )
    return master


def _settings(document: Mapping[str, Any], zero: Mapping[str, Any], stage: ZeroStage, hidden: int) -> ZeroSettings:
    def size(key: str, default: int, auto: int | None = None) -> int:
        value = zero.get(key, zero.get(f"stage3_{key}", default))
        if value == "auto" and auto is not None:
            return auto
        return _integer({key: value}, key, default, path=f"$.zero_optimization.{key}")

    overlap = zero.get("overlap_comm")
    offload = zero.get("offload_optimizer")
    pin = offload.get("pin_memory", True) if isinstance(offload, Mapping) else True
    accumulate = _section(document, "data_types").get("grad_accum_dtype")
    return ZeroSettings(
        overlap_comm=overlap if isinstance(overlap, bool) else stage is ZeroStage.PARAMETERS,
        reduce_bucket_elements=size("reduce_bucket_size", 500_000_000, auto=hidden * hidden),
        allgather_bucket_elements=size("allgather_bucket_size", 500_000_000),
        prefetch_bucket_elements=size("prefetch_bucket_size", 50_000_000, auto=int(0.9 * hidden * hidden)),
        param_persistence_threshold=size("param_persistence_threshold", 100_000, auto=10 * hidden),
        max_live_parameters=size("max_live_parameters", 1_000_000_000),
        max_reuse_distance=size("max_reuse_distance", 1_000_000_000),
        sub_group_elements=max(1, size("sub_group_size", 1_000_000_000)),
        pin_memory=bool(pin),
        fp32_gradient_accumulation=accumulate in ("fp32", "float32"),
        hpz_partition_size=max(1, size("zero_hpz_partition_size", 1)) if stage is ZeroStage.PARAMETERS else 1,
        optimizer_offload_ratio=_ratio(offload, stage) if isinstance(offload, Mapping) else 1.0,
    )


def _ratio(block: Mapping[str, Any], stage: ZeroStage) -> float:
    """The share of the parameters that the CPU steps; DeepSpeed has another than 1 at stage 3 only.

    Source: deepspeed/runtime/zero/config.py `offload_ratio_check` (0.19.8).
    """
    path, value = "$.zero_optimization.offload_optimizer.ratio", block.get("ratio", 1.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise PlannerError(f"`{path}` is `{value}`, not a number from 0 to 1", hint="correct the file")
    if block.get("device", "none") in (None, "none"):
        return 1.0
    if value < 1 and (stage is not ZeroStage.PARAMETERS or block.get("device") != "cpu"):
        raise PlannerError(
            f"`{path}` {value} goes with stage 3 and an optimizer on `cpu` only", hint="leave it out, or use both"
        )
    return float(value)
