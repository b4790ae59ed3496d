"""Do the files of a plan folder say the same?

In: the documents of plan.json, ds_config.json, accelerate.yaml and training_args.json. Out: Problems. Answers: is the
first plan of plan.json what the engine will read and what the launcher will start?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.check.one_file.deepspeed_rules import device_of, is_on, section, stage_of, tp_of
from planner.check.rules import finding
from planner.records.candidate import Offload
from planner.records.problem import Problem
from planner.records.request import Optimizer
from planner.spec.ds_config import optimizer_named

# Values that no plan states; the Trainer fills them from training_args.json.
FILLED_BY_THE_TRAINER = tuple(f"$.optimizer.params.{name}" for name in ("lr", "betas", "eps", "weight_decay"))


def plan_problems(
    plan: Mapping[str, Any],
    deepspeed: Mapping[str, Any],
    accelerate: Mapping[str, Any] | None,
    training: Mapping[str, Any] | None = None,
) -> list[Problem]:
    """Every rule across the files of a plan; what ds_config.json and training_args.json share is judged elsewhere."""
    plans = plan.get("plans")
    if not isinstance(plans, list) or not plans or not isinstance(plans[0], Mapping):
        return [finding("DS201", "$.plans", "there is no plan in plan.json", fix="plan again", file="plan.json")]
    best = plans[0]
    request = section(plan, "request")
    optimizer = request.get("optimizer", "adamw")
    filled = FILLED_BY_THE_TRAINER if request.get("integration") == "trainer" else ()
    problems = [
        *_deepspeed_is_the_plan(best, deepspeed),
        *_optimizer_is_the_plans(str(optimizer), deepspeed),
        *_no_auto(deepspeed, filled),
    ]
    if accelerate is not None:
        problems += _accelerate_is_the_plan(best, plan, accelerate)
    if training is not None:
        problems += _training_is_the_plan(best, training)
    return problems


def _training_is_the_plan(best: Mapping[str, Any], training: Mapping[str, Any]) -> Iterator[Problem]:
    """Activation checkpointing, which no other file switches."""
    on, wanted = training.get("activation_checkpointing", False), best.get("checkpointing") == "full"
    if on is not wanted:
        message = f"activation checkpointing is `{on}`, in plan.json `{best.get('checkpointing')}`"
        path = "$.activation_checkpointing"
        yield finding("DS202", path, message, fix="plan again instead of editing", file="training_args.json")


def _deepspeed_is_the_plan(best: Mapping[str, Any], deepspeed: Mapping[str, Any]) -> Iterator[Problem]:
    offload = best.get("offload")
    devices = Offload(offload) if offload in {choice.value for choice in Offload} else Offload.NONE
    found = {
        "zero_stage": ("$.zero_optimization.stage", stage_of(deepspeed)),
        "tp": ("$.tensor_parallel.autotp_size", tp_of(deepspeed)),
        "micro_batch": ("$.train_micro_batch_size_per_gpu", deepspeed.get("train_micro_batch_size_per_gpu")),
        "accumulation": ("$.gradient_accumulation_steps", deepspeed.get("gradient_accumulation_steps", 1)),
        "precision": ("$.fp16.enabled" if is_on(deepspeed, "fp16") else "$.bf16.enabled", precision_of(deepspeed)),
    }
    for key, (path, value) in found.items():
        if value != best.get(key):
            message = f"{key.replace('_', ' ')} is `{value}`, in plan.json `{best.get(key)}`"
            yield finding("DS202", path, message, fix="plan again instead of editing", file="ds_config.json")
    for block, wanted in (("offload_optimizer", devices.optimizer_device), ("offload_param", devices.param_device)):
        device = device_of(deepspeed, block)
        if device != wanted:
            path = f"$.zero_optimization.{block}.device"
            message = f"`{block}` goes to `{device}`, in plan.json to `{wanted}`"
            yield finding("DS202", path, message, fix="plan again instead of editing", file="ds_config.json")


def _optimizer_is_the_plans(wanted: str, deepspeed: Mapping[str, Any]) -> Iterator[Problem]:
    """The file's optimizer, or none where the training script builds it."""
    kind = section(deepspeed, "optimizer").get("type")
    known = optimizer_named(str(kind))
    found = "built by the script" if kind is None else known.value if known else kind
    expected = "built by the script" if wanted == Optimizer.ADAMW_8BIT.value else wanted
    if found != expected:
        message = f"the optimizer is `{found}`, in plan.json `{wanted}`"
        path = "$.optimizer.type" if kind is not None else "$.optimizer"
        yield finding("DS202", path, message, fix="plan again instead of editing", file="ds_config.json")


def precision_of(deepspeed: Mapping[str, Any]) -> str:
    """`bf16`, `pure-bf16`, `fp16` or `fp32`, as the engine will train."""
    for name in ("bf16", "bfloat16"):
        if is_on(deepspeed, name):
            return "pure-bf16" if section(deepspeed, name).get("bf16_optimizer_states") is True else "bf16"
    return "fp16" if is_on(deepspeed, "fp16") else "fp32"


def _no_auto(value: Any, filled: tuple[str, ...], path: str = "$") -> Iterator[Problem]:
    if value == "auto" and path not in filled:
        yield finding("DS014", path, 'a plan holds plain values, no `"auto"`', fix="plan again", file="ds_config.json")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _no_auto(inner, filled, f"{path}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _no_auto(inner, filled, f"{path}[{index}]")


def _accelerate_is_the_plan(
    best: Mapping[str, Any], plan: Mapping[str, Any], accelerate: Mapping[str, Any]
) -> Iterator[Problem]:
    ranks, nodes = (best.get("tp"), best.get("dp")), section(plan, "cluster").get("nodes")
    expected = {
        "$.num_processes": (ranks[0] * ranks[1] if all(isinstance(rank, int) for rank in ranks) else None),  # type: ignore[operator]
        "$.num_machines": nodes,
        "$.distributed_type": "DEEPSPEED",
        "$.deepspeed_config.deepspeed_config_file": "ds_config.json",
        "$.deepspeed_config.zero3_init_flag": best.get("zero_stage") == 3,
    }
    for path, wanted in expected.items():
        found: Any = accelerate
        for key in path.split(".")[1:]:
            found = found.get(key) if isinstance(found, Mapping) else None
        if found != wanted:
            message = f"`{path.rpartition('.')[2]}` is `{found}`, by plan.json it is `{wanted}`"
            yield finding("DS203", path, message, fix="plan again instead of editing", file="accelerate.yaml")
