"""Sections that few files have: expert parallelism, ZenFlow, DeepCompile, and what torch's own schedulers need.

In: the document. Out: Problems. Answers: what does the engine refuse there although the file loads? Source: deepspeed
0.19.8 module_inject/auto_ep_config.py and auto_ep_folding.py, runtime/zenflow/, compile/init_z3.py, runtime/engine.py
(`compile`, `_scheduler_from_config`), runtime/swap_tensor/.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from planner.check.one_file.deepspeed_rules import ZERO, device_of, is_on, section, stage_of, tp_of
from planner.check.rules import finding, take_out, write
from planner.errors import nearest
from planner.records.problem import Problem, Severity

EXPERTS, ZENFLOW, COMPILE = "$.expert_parallel", f"{ZERO}.zenflow", "$.compile"
TORCH_SCHEDULERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "StepLR": (("step_size",), ("gamma",)),
    "MultiStepLR": (("milestones",), ("gamma",)),
    "ConstantLR": ((), ("factor", "total_iters")),
    "LinearLR": ((), ("start_factor", "end_factor", "total_iters")),
    "ExponentialLR": (("gamma",), ()),
    "PolynomialLR": ((), ("total_iters", "power")),
    "CosineAnnealingLR": (("T_max",), ("eta_min",)),
    "CosineAnnealingWarmRestarts": (("T_0",), ("T_mult", "eta_min")),
    "ReduceLROnPlateau": (
        (),
        ("mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lr", "eps"),
    ),
}
"""What the constructors need and what else they take, beside `last_epoch`; a test compares them with torch's."""
TWO_BETAS = ("adam", "adamw", "lion", "lamb", "adamax", "nadam", "radam", "sparseadam")
ADAM_BUFFERS = 4
"""Weights, two moments and the gradient of one parameter."""


def rare_problems(config: Mapping[str, Any]) -> list[Problem]:
    """Every rule of this module over one document."""
    return [problem for rule in RULES for problem in rule(config)]


def whole_of(values: Mapping[str, Any], key: str, default: int) -> int | None:
    """A whole number, its default where it is absent; None for anything else."""
    value = values.get(key, default)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def experts_are_switched_on(config: Mapping[str, Any]) -> Iterator[Problem]:
    block = section(config, "expert_parallel")
    size = whole_of(block, "autoep_size", 1)
    if size is not None and size > 1 and "enabled" not in block:
        edits = write(f"{EXPERTS}.enabled", value=True)
        message = f"`autoep_size` {size} switches nothing on without `enabled`"
        yield finding("DS077", f"{EXPERTS}.enabled", message, fix="add it", bites="silently", edits=edits)


def experts_are_routed(config: Mapping[str, Any]) -> Iterator[Problem]:
    """What `validate_autoep_config` refuses whatever the ranks are."""
    block = section(config, "expert_parallel")
    if block.get("enabled") is not True:
        return
    size, deepep = whole_of(block, "autoep_size", 1), block.get("comm_backend") == "deepep"
    if deepep and block.get("comm_max_tokens_per_rank", 0) == 0:
        path = f"{EXPERTS}.comm_max_tokens_per_rank"
        yield finding("DS077", path, "`deepep` needs it", fix="write micro-batch x longest sequence")
    if block.get("expert_tensor_parallel_size", 1) != 1:
        path = f"{EXPERTS}.expert_tensor_parallel_size"
        yield finding("DS077", path, "only 1 is supported yet", fix="leave it out", edits=take_out(path))
    if block.get("row_weighting_impl") == "fused" and (not deepep or size == 1):
        path = f"{EXPERTS}.row_weighting_impl"
        message = "`fused` runs with `comm_backend` deepep and `autoep_size` above 1 only"
        yield finding("DS077", path, message, fix="leave it out", edits=take_out(path))
    if block.get("gate_up_impl") == "fused" and block.get("use_grouped_mm", True) is False:
        path = f"{EXPERTS}.gate_up_impl"
        yield finding("DS077", path, "`fused` needs `use_grouped_mm`", fix="leave it out", edits=take_out(path))
    weighted = block.get("combine_impl") == "fused_weighted_sum"
    if weighted and (tp_of(config) > 1 or (deepep and size is not None and size > 1)):
        path = f"{EXPERTS}.combine_impl"
        message = "`fused_weighted_sum` goes neither with AutoTP nor with `deepep`"
        yield finding("DS077", path, message, fix="leave it out", edits=take_out(path))
    groups, limited = (whole_of(block, f"num_{name}_groups", 0) for name in ("expert", "limited"))
    if groups and limited and limited > groups:
        path = f"{EXPERTS}.num_limited_groups"
        yield finding("DS077", path, f"{limited} is more than the {groups} groups", fix=f"write at most {groups}")


def experts_beside_tensor_parallelism(config: Mapping[str, Any]) -> Iterator[Problem]:
    block, path = section(config, "expert_parallel"), f"{EXPERTS}.enabled"
    preset, other = block.get("preset_model"), section(config, "tensor_parallel").get("preset_model")
    if block.get("enabled") is not True:
        return
    if isinstance(preset, str) and isinstance(other, str) and preset != other:
        message = f"`{preset}` is not the `{other}` of tensor_parallel: ValueError"
        yield finding("DS077", f"{EXPERTS}.preset_model", message, fix="write one of them, or leave both out")
    if tp_of(config) == 1:
        return
    zero = section(config, "zero_optimization")
    if whole_of(block, "autoep_size", 1) == 1:
        yield finding("DS077", f"{EXPERTS}.autoep_size", "AutoTP needs more than 1 here", fix="write 2 or more")
    if block.get("async_split_plan") is True:
        yield finding("DS077", f"{EXPERTS}.async_split_plan", "not with AutoTP", fix="leave it out")
    if any(isinstance(zero.get(name), Mapping) for name in ("offload_optimizer", "offload_param")):
        message = "expert and tensor parallelism together refuse the offload sections, also with device `none`"
        yield finding("DS077", path, message, fix="leave one of the three out")
    if section(config, "compile").get("deepcompile") is True:
        message = "expert and tensor parallelism together do not go with DeepCompile"
        yield finding("DS077", path, message, fix="leave one of the three out")


def zenflow_can_run(config: Mapping[str, Any]) -> Iterator[Problem]:
    block = section(config, "zero_optimization").get("zenflow")
    if not isinstance(block, Mapping):
        return
    stage = stage_of(config)
    if stage == 0:
        message = "without ZeRO the optimizer has no `reduce_gradients`: AttributeError"
        yield finding("DS078", ZENFLOW, message, fix="use stage 1 or above", bites="first step")
    elif stage < 3 and device_of(config, "offload_optimizer") == "none":
        message = "ZenFlow needs the optimizer offloaded"
        edits = write(f"{ZERO}.offload_optimizer", {"device": "cpu"})
        yield finding("DS078", f"{ZERO}.offload_optimizer", message, fix='write `{"device": "cpu"}`', edits=edits)
    if stage in (1, 2) and section(config, "optimizer", "params").get("torch_adam") is True:
        path = "$.optimizer.params.torch_adam"
        message = "ZenFlow hands it on to an AdamW of its own, which does not know it: TypeError"
        yield finding("DS078", path, message, fix="leave it out", edits=take_out(path))
    overlap = section(config, "zero_optimization").get("overlap_comm")
    if block.get("offload") is True and (overlap is False or (overlap is None and stage in (1, 2))):
        edits = write(f"{ZERO}.overlap_comm", value=True)
        yield finding("DS078", f"{ZENFLOW}.offload", "it needs `overlap_comm`", fix="set that to true", edits=edits)


def zenflow_intervals(config: Mapping[str, Any]) -> Iterator[Problem]:
    block = section(config, "zero_optimization", "zenflow")
    strategy, path = block.get("select_strategy", "auto"), f"{ZENFLOW}.select_interval"
    chosen, update = block.get("select_interval", "auto"), whole_of(block, "update_interval", 0)
    if strategy == "auto" and isinstance(chosen, int):
        message = "the strategy `auto` sets it to 1 epoch, and the engine raises where a number is given"
        yield finding("DS078", path, message, fix='write `select_strategy` "step" or "epoch", or leave it out')
    if strategy in ("step", "epoch") and chosen == "auto":
        yield finding("DS078", path, f"the strategy `{strategy}` needs a number", fix="write a number")
    if strategy == "step" and isinstance(chosen, int) and update and 0 < chosen < update:
        message = f"{chosen} is less than `update_interval` {update}: ValueError"
        yield finding("DS078", path, message, fix=f"write {update} or more")
    accumulation = whole_of(config, "gradient_accumulation_steps", 0)
    if update and accumulation and accumulation != update:
        message = f"ZenFlow sets it to `update_interval`, {update}: the {accumulation} counts for the batch size only"
        yield finding(
            "DS078",
            "$.gradient_accumulation_steps",
            message,
            fix=f"write {update}",
            severity=Severity.WARNING,
            bites="silently",
            edits=write("$.gradient_accumulation_steps", update),
        )


def one_thing_is_offloaded(config: Mapping[str, Any]) -> Iterator[Problem]:
    block = section(config, "compile")
    if block.get("deepcompile") is not True or stage_of(config) != 3 or "autosp" in (block.get("passes") or ()):
        return
    states, activations = (block.get(f"offload_{name}") is True for name in ("opt_states", "activation"))
    optimizer, weights = (device_of(config, f"offload_{name}") for name in ("optimizer", "param"))
    parameters = block.get("offload_parameters") is True or optimizer == weights == "cpu"
    if states and optimizer != "none":
        path = f"{COMPILE}.offload_opt_states"
        message = "ZeRO offloads the optimizer already: ValueError when the engine compiles"
        yield finding("DS079", path, message, fix="leave it out", bites="first step", edits=take_out(path))
    elif states and parameters:
        path = f"{COMPILE}.offload_opt_states"
        message = "not together with `offload_parameters`"
        yield finding("DS079", path, message, fix="leave one of them out", bites="first step")
    if activations and (states or parameters):
        path = f"{COMPILE}.offload_activation"
        message = "not together with the offload of states or parameters"
        yield finding("DS079", path, message, fix="leave one of them out", bites="first step")


def regions_around_experts(config: Mapping[str, Any]) -> Iterator[Problem]:
    if section(config, "compile").get("autoep_non_moe") is not True:
        return
    offloads = any(device_of(config, block) != "none" for block in ("offload_optimizer", "offload_param"))
    hindrances = {
        "DeepCompile": section(config, "compile").get("deepcompile") is True,
        "ZeRO stage 3": stage_of(config) == 3,
        "offload": offloads,
        "AutoTP": tp_of(config) > 1,
        "`comm_backend` deepep": section(config, "expert_parallel").get("comm_backend") == "deepep",
    }
    found = [name for name, is_there in hindrances.items() if is_there]
    if found:
        message = f"it does not go with {' and '.join(found)}: ValueError when the engine compiles"
        yield finding("DS079", f"{COMPILE}.autoep_non_moe", message, fix="leave it out", bites="first step")


def swap_buffers_hold_the_states(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Source: runtime/swap_tensor/partitioned_optimizer_swapper.py; https://github.com/deepspeedai/DeepSpeed/issues/1005."""
    kind = str(section(config, "optimizer").get("type", "")).lower()
    if stage_of(config) != 3 or device_of(config, "offload_optimizer") != "nvme" or kind not in ("adam", "adamw"):
        return
    path = f"{ZERO}.offload_optimizer.buffer_count"
    count = whole_of(section(config, "zero_optimization", "offload_optimizer"), "buffer_count", ADAM_BUFFERS)
    if count is not None and count < ADAM_BUFFERS:
        message = "Adam swaps weights, two moments and the gradient of a parameter at once: AssertionError"
        edits = write(path, ADAM_BUFFERS)
        yield finding("DS079", path, message, fix="write 4 or more", bites="first step", edits=edits)


def there_are_two_betas(config: Mapping[str, Any]) -> Iterator[Problem]:
    betas = section(config, "optimizer", "params").get("betas")
    kind = str(section(config, "optimizer").get("type", "")).lower()
    if isinstance(betas, list) and len(betas) != 2 and kind in TWO_BETAS:
        message = f"{len(betas)} values where the optimizer unpacks two: ValueError"
        yield finding("DS079", "$.optimizer.params.betas", message, fix="write two", bites="first step")


def torch_scheduler_can_start(config: Mapping[str, Any]) -> Iterator[Problem]:
    """A class of torch takes torch's optimizers only; those of ZeRO and of 16-bit training are none."""
    block = section(config, "scheduler")
    kind, params = block.get("type"), section(block, "params")
    if isinstance(kind, str) and kind != "auto" and "params" not in block:
        message = "without `params` the constructor gets None: TypeError"
        edits = write("$.scheduler.params", {})
        yield finding("DS063", "$.scheduler.params", message, fix="add it, if only `{}`", edits=edits)
    if not isinstance(kind, str) or kind not in TORCH_SCHEDULERS:
        return
    half = is_on(config, "fp16") or is_on(config, "bf16") or is_on(config, "bfloat16")
    if stage_of(config) > 0 or half:
        message = f"`{kind}` is a class of torch, which refuses DeepSpeed's wrapped optimizer: TypeError"
        fix = "use WarmupLR, WarmupDecayLR or WarmupCosineLR, or make the scheduler in the script"
        yield finding("DS063", "$.scheduler.type", message, fix=fix)
        return
    needed, others = TORCH_SCHEDULERS[kind]
    for key in needed:
        if key not in params:
            yield finding("DS063", f"$.scheduler.params.{key}", f"`{kind}` needs `{key}`", fix="add it")
    for key in params:
        if key not in (*needed, *others, *(() if kind == "ReduceLROnPlateau" else ("last_epoch",))):
            near = nearest(str(key), (*needed, *others), limit=1)
            fix = f"did you mean `{near[0]}`?" if near else "take it out"
            yield finding("DS063", f"$.scheduler.params.{key}", f"`{kind}` has no parameter `{key}`", fix=fix)


RULES = (
    experts_are_switched_on,
    experts_are_routed,
    experts_beside_tensor_parallelism,
    zenflow_can_run,
    zenflow_intervals,
    one_thing_is_offloaded,
    regions_around_experts,
    swap_buffers_hold_the_states,
    there_are_two_betas,
    torch_scheduler_can_start,
)
