"""`--method`, `--lora-rank` and `--lora-targets` to an `Adapter`, and the sentences that say what they mean.

In: the fields of a request and the model. Out: `Adapter`, or None for full training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.errors import PlannerError
from planner.geometry.adapter_modules import linear_modules
from planner.geometry.adapters import (
    ALL_LINEAR,
    DEFAULT_RANK,
    DEFAULT_TARGETS,
    STACKED_TYPES,
    adapter_parameter_count,
    linear_tensors,
    resolved_targets,
)
from planner.geometry.adapters import target_tensors as check_targets
from planner.geometry.params import parameter_count
from planner.records.model import Adapter, Method, ModelShape, Precision
from planner.spec.fields import choice, flag, positive


def adapter_of(given: Mapping[str, Any], model: ModelShape, precision: Precision) -> Adapter | None:
    """The adapter that the fields ask for; raises PlannerError for a value that is wrong or does nothing."""
    method = choice(Method, "method", given.get("method", Method.FULL.value))
    if method is Method.FULL:
        for name in ("lora_rank", "lora_targets"):
            if name in given:
                raise PlannerError(
                    f"`{flag(name)} {given[name]}` means nothing when every parameter is trained",
                    hint="add `--method lora` or `--method qlora`, or leave the flag out",
                )
        return None
    if method is Method.QLORA and precision is Precision.FP32:
        raise PlannerError(
            "`--method qlora` stores weights in 4 bits and computes in 16, not in fp32",
            hint="`--precision bf16`, or `--method lora`",
        )
    linear_modules(model.model_type)
    targets = resolved_targets(model, _targets(given.get("lora_targets")))
    check_targets(model, targets)
    return Adapter(method=method, rank=_rank(given.get("lora_rank", DEFAULT_RANK), model), targets=targets)


def _rank(value: Any, model: ModelShape) -> int:
    number = positive("lora_rank", value)
    if number != int(number):
        raise PlannerError(f"`--lora-rank {value}` is not a whole number", hint="8 to 64 are usual")
    if number > model.hidden:
        raise PlannerError(
            f"`--lora-rank {value}` is more than the width of `{model.name}`, {model.hidden}",
            hint="8 to 64 are usual; `--method full` trains every parameter",
        )
    return int(number)


def _targets(value: Any) -> tuple[str, ...]:
    if value is None:
        return DEFAULT_TARGETS
    parts = value if isinstance(value, (list, tuple)) else str(value).split(",")
    targets = tuple(dict.fromkeys(str(part).strip() for part in parts if str(part).strip()))
    if not targets:
        raise PlannerError("`--lora-targets` is empty", hint=f"leave the flag out for {ALL_LINEAR}")
    if ALL_LINEAR in targets and len(targets) > 1:
        raise PlannerError(
            f"`--lora-targets {','.join(targets)}` names modules beside `{ALL_LINEAR}`, which has them all",
            hint=f"`--lora-targets {ALL_LINEAR}`, or the modules alone",
        )
    return targets


def script_notes(adapter: Adapter | None, script: Any) -> tuple[str, ...]:
    """What a script of the user's own has to do for the plan to hold."""
    if adapter is None or script is None:
        return ()
    return (
        f"`{script}` makes its adapters with `autocast_adapter_dtype=False`: with peft's default they stay fp32 at "
        "ZeRO-3, and every target's input is kept once more in fp32",
    )


def adapter_notes(model: ModelShape, adapter: Adapter | None) -> tuple[str, ...]:
    """What is trained and what is frozen, for the list of assumptions."""
    if adapter is None:
        return ()
    trained = adapter_parameter_count(model, adapter)
    whole = parameter_count(model)
    places = "every linear layer but the head" if adapter.targets == DEFAULT_TARGETS else ", ".join(adapter.targets)
    notes = [
        f"trained: LoRA adapters of rank {adapter.rank} on {places}, {trained:,} parameters "
        f"({trained / whole:.2%} of the model); frozen: all {whole:,} others",
        "adapters are in the run's precision with fp32 master weights in the optimizer, no dropout, no biases",
    ]
    if model.model_type in STACKED_TYPES:
        notes.append(
            "routed experts are stacked tensors, not linear layers: they carry no adapters"
            + (" and stay unquantised" if adapter.method is Method.QLORA else "")
        )
    elif model.experts and adapter.method is Method.QLORA:
        notes.append("routed experts are stacked tensors, not linear layers: they stay unquantised")
    if adapter.method is Method.QLORA:
        packed = sum(t.numel * t.count for t in linear_tensors(model))
        notes.append(
            f"quantised: {packed:,} parameters in nf4 with double quantisation (bitsandbytes), packed in the run's "
            "precision so that ZeRO-3 can divide them; embedding, head and norms stay unquantised, and DeepSpeed casts "
            "them to the run's precision even where a script raised them to fp32"
        )
    return tuple(notes)
