"""Optimizer, scheduler and clipping in a DeepSpeed configuration.

In: the document. Out: Problems. Answers: will the optimizer and the scheduler be built, and with the values meant?
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from planner.check.loader.typed import flag
from planner.check.one_file import engine_rules
from planner.check.one_file.deepspeed_rules import ZERO, device_of, section, stage_of
from planner.check.rules import finding, move, rename, take_out, write
from planner.errors import nearest
from planner.records.problem import Problem, Severity

# Types that ZeRO runs without zero_allow_untested_optimizer (deepspeed/runtime/zero/utils.py); upper case is ignored.
TESTED = ("adam", "adamw", "adagrad", "lion", "muon")
OWN = (*TESTED, "lamb", "muadam", "muadamw", "musgd")
TORCH_OPTIMIZERS = (
    *("SGD", "ASGD", "RMSprop", "Rprop", "Adadelta", "Adamax", "NAdam", "RAdam", "Adafactor", "LBFGS", "SparseAdam"),
)
"""Source: torch.optim (2.13); DeepSpeed takes any of these by name."""
GONE = ("onebitadam", "zerooneadam", "onebitlamb")
TAKEN_OUT = ("torch_adam", "adam_w_mode", "fp32_optimizer_states")
"""Of Adam and AdamW: the engine takes these before it calls the constructor."""
ADAM = ("lr", "betas", "eps", "weight_decay", "amsgrad")
OF_TORCH = ("foreach", "maximize", "differentiable", "capturable")
PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "FusedAdam": (*ADAM, "bias_correction", "set_grad_none"),
    "DeepSpeedCPUAdam": (*ADAM, "bias_correction"),
    "torch.optim.AdamW": (*ADAM, "maximize", "foreach", "capturable", "differentiable", "fused"),
    "FusedLion": ("lr", "betas", "weight_decay", "set_grad_none"),
    "DeepSpeedCPULion": ("lr", "betas", "weight_decay", "fp32_optimizer_states"),
    "torch.optim.Adagrad": (
        *("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps", "foreach", "maximize"),
        *("differentiable", "fused"),
    ),
    "DeepSpeedCPUAdagrad": ("lr", "eps", "weight_decay", "amsgrad", "fp32_optimizer_states"),
    "FusedLamb": (*(*ADAM, "bias_correction", "eps_inside_sqrt", "max_grad_norm", "max_coeff", "min_coeff"),),
    "torch.optim.SGD": (
        *("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize", "foreach", "differentiable", "fused"),
    ),
    "torch.optim.Adafactor": ("lr", "beta2_decay", "eps", "d", "weight_decay", "foreach", "maximize"),
    "torch.optim.RMSprop": ("lr", "alpha", "eps", "weight_decay", "momentum", "centered", *OF_TORCH),
    "torch.optim.Rprop": ("lr", "etas", "step_sizes", *OF_TORCH),
    "torch.optim.Adadelta": ("lr", "rho", "eps", "weight_decay", *OF_TORCH),
    "torch.optim.ASGD": ("lr", "lambd", "alpha", "t0", "weight_decay", *OF_TORCH),
    "torch.optim.Adamax": ("lr", "betas", "eps", "weight_decay", *OF_TORCH),
    "torch.optim.NAdam": (
        *("lr", "betas", "eps", "weight_decay", "momentum_decay", "decoupled_weight_decay", *OF_TORCH),
    ),
    "torch.optim.RAdam": ("lr", "betas", "eps", "weight_decay", "decoupled_weight_decay", *OF_TORCH),
}
"""What the constructors take; a test compares them with the installed ones."""
ON_THE_GPU = {"adam": "FusedAdam", "adamw": "FusedAdam", "lion": "FusedLion", "adagrad": "torch.optim.Adagrad"}
ON_THE_CPU = {"adam": "CPUAdam", "adamw": "CPUAdam", "lion": "CPULion", "adagrad": "CPUAdagrad"}
WITHOUT_AMSGRAD = ("FusedAdam", "DeepSpeedCPUAdam", "FusedLamb")
ELSEWHERE = {
    "lamb": "FusedLamb",
    **{name.rpartition(".")[2].lower(): name for name in PARAMETERS if name.startswith("torch.optim.")},
}
SCHEDULERS = ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
COSINE_PARAMETERS = (
    "total_num_steps",
    "warmup_min_ratio",
    "warmup_num_steps",
    "cos_min_ratio",
    "warmup_type",
    "last_batch_iteration",
)


def training_problems(config: Mapping[str, Any]) -> list[Problem]:
    """Every rule of this module over one document."""
    return [problem for rule in (*RULES, *engine_rules.RULES) for problem in rule(config)]


def optimizer_is_known(config: Mapping[str, Any]) -> Iterator[Problem]:
    kind = section(config, "optimizer").get("type")
    if not isinstance(kind, str) or kind == "auto":
        return
    path, name = "$.optimizer.type", kind.lower()
    if name in GONE:
        yield finding("DS066", path, f"DeepSpeed has removed `{kind}`", fix="use AdamW")
    elif name not in OWN and kind not in TORCH_OPTIMIZERS:
        alike = {one.lower(): one for one in (*OWN, *TORCH_OPTIMIZERS)}
        plain = re.sub(r"deepspeed|cpu|fused|torch|hf|[_.\W]", "", name)
        near = [alike[plain]] if plain in alike else [alike[one] for one in nearest(name, alike, limit=1)]
        fix = f"did you mean `{near[0]}`?" if near else f"one of {', '.join(TESTED)}, or a class of torch.optim"
        message = f"neither DeepSpeed nor torch.optim has an optimizer `{kind}`"
        yield finding("DS066", path, message, fix=fix, edits=write(path, near[0]) if near else ())
    elif stage_of(config) > 0 and name not in TESTED and not config.get("zero_allow_untested_optimizer"):
        fix = "set `zero_allow_untested_optimizer` to true"
        edits = write("$.zero_allow_untested_optimizer", value=True)
        yield finding("DS066", path, f"ZeRO refuses `{kind}` as untested", fix=fix, edits=edits)


def sixteen_bit_master_weights(config: Mapping[str, Any]) -> Iterator[Problem]:
    stage, offloaded = stage_of(config), device_of(config, "offload_optimizer") != "none"
    for name in ("bf16", "fp16"):
        path = f"$.{name}.{name}_master_weights_and_grads"
        master, states = (
            flag(config, name, key) for key in (f"{name}_master_weights_and_grads", "bf16_optimizer_states")
        )
        if states is True and master is not True and name == "bf16":
            message = "bf16 states need bf16 master weights"
            yield finding(
                "DS033", "$.bf16.bf16_optimizer_states", message, fix="set `bf16_master_weights_and_grads` to true"
            )
        if master is not True:
            continue
        if stage == 0:
            yield finding("DS033", path, "without ZeRO master weights stay fp32", fix="use stage 1 or above")
        elif not offloaded and (name == "fp16" or states is not True):
            fix = "set `bf16_optimizer_states` to true, or offload" if name == "bf16" else "offload the optimizer"
            message = "with fp32 states this needs optimizer offload and DeepSpeed's CPU Adam"
            yield finding("DS033", path, message, fix=fix, bites="engine init")
        elif offloaded and str(section(config, "optimizer").get("type", "adam")).lower() not in ("adam", "adamw"):
            message = "with offload only DeepSpeed's CPU Adam keeps them"
            yield finding("DS033", path, message, fix="use AdamW", bites="engine init")


def muon_can_run(config: Mapping[str, Any]) -> Iterator[Problem]:
    if str(section(config, "optimizer").get("type")).lower() != "muon":
        return
    if stage_of(config) == 3 and section(config, "zero_optimization").get("reduce_scatter", True) is not False:
        message = "DeepSpeed refuses it with Muon at stage 3, and it is on by default"
        edits = write(f"{ZERO}.reduce_scatter", value=False)
        yield finding("DS067", f"{ZERO}.reduce_scatter", message, fix="set it to false", edits=edits)
    if device_of(config, "offload_optimizer") != "none":
        message = "Muon with offload has been seen to diverge (https://github.com/deepspeedai/DeepSpeed/issues/8463)"
        yield finding(
            "DS067",
            f"{ZERO}.offload_optimizer",
            message,
            fix="use AdamW, or no offload",
            severity=Severity.WARNING,
            bites="silently",
        )


def constructor_of(config: Mapping[str, Any]) -> str | None:
    """The class that the engine builds, of those whose parameters are known.

    Source: deepspeed 0.19.8, runtime/engine.py, `_configure_basic_optimizer` and `get_optimizer_configuration`.
    """
    optimizer, params = section(config, "optimizer"), section(config, "optimizer", "params")
    name = str(optimizer.get("type")).lower()
    if name in ("adam", "adamw") and params.get("torch_adam") is True:
        return "torch.optim.AdamW"
    if name in ON_THE_CPU and device_of(config, "offload_optimizer") != "none":
        return f"DeepSpeed{ON_THE_CPU[name]}"
    return ON_THE_GPU.get(name) or ELSEWHERE.get(name)


def optimizer_parameters(config: Mapping[str, Any]) -> Iterator[Problem]:
    kind, params = section(config, "optimizer").get("type"), section(config, "optimizer", "params")
    path = "$.optimizer.params"
    if "max_grad_norm" in params:
        here = f"{path}.max_grad_norm"
        edits = take_out(here) if "gradient_clipping" in config else move(here, "$.gradient_clipping")
        message = "the optimizer has no such parameter"
        yield finding("DS062", here, message, fix="use `gradient_clipping`", edits=edits)
    built = constructor_of(config)
    if built is not None:
        known = (*PARAMETERS[built], *(TAKEN_OUT if "Adam" in built else ()))
        for key in params:
            if key not in known and key != "max_grad_norm":
                near = nearest(key, known, limit=1)
                fix = (
                    "write `lr`" if key == "learning_rate" else f"did you mean `{near[0]}`?" if near else "take it out"
                )
                right = "lr" if key == "learning_rate" else near[0] if near else ""
                here = f"{path}.{key}"
                edits = take_out(here) if not right or right in params else rename(here, right)
                message = f"`{kind}` becomes {built} here, which has no parameter `{key}`"
                yield finding("DS062", here, message, fix=fix, edits=edits)
        if params.get("amsgrad") is True and built in WITHOUT_AMSGRAD:
            message = f"`{kind}` becomes {built} here, which has no AMSGrad variant and raises"
            yield finding("DS062", f"{path}.amsgrad", message, fix="leave it out", edits=take_out(f"{path}.amsgrad"))
    if params.get("torch_adam") is True and device_of(config, "offload_optimizer") != "none":
        message = "torch's AdamW steps the offloaded states, several times slower than DeepSpeed's CPU Adam"
        here, warning = f"{path}.torch_adam", Severity.WARNING
        yield finding("DS062", here, message, fix="leave it out", severity=warning, bites="silently")


def scheduler_is_known(config: Mapping[str, Any]) -> Iterator[Problem]:
    kind = section(config, "scheduler").get("type")
    if not isinstance(kind, str) or kind in SCHEDULERS or kind == "auto":
        return
    near = nearest(kind, SCHEDULERS, limit=1)
    if near or not kind.endswith(("LR", "Restarts", "Plateau")):  # anything else may be a class of torch
        fix = f"did you mean `{near[0]}`?" if near else f"one of {', '.join(SCHEDULERS)}, or a class of torch"
        edits = write("$.scheduler.type", near[0]) if near else ()
        yield finding("DS063", "$.scheduler.type", f"there is no scheduler `{kind}`", fix=fix, edits=edits)


def clipping(config: Mapping[str, Any]) -> Iterator[Problem]:
    if "gradient_clipping" not in config:
        message = "not given: DeepSpeed clips at 1.0, whatever the Trainer's `max_grad_norm` says"
        filled = any(config.get(key) == "auto" for key in ("train_micro_batch_size_per_gpu", "train_batch_size"))
        edits = write("$.gradient_clipping", "auto" if filled else 1.0) if "max_grad_norm" not in config else ()
        yield finding("DS060", "$.gradient_clipping", message, fix="add it", edits=edits)
    if section(config, "zero_optimization").get("compute_grad_norm") is False and config.get("gradient_clipping", 1.0):
        path = f"{ZERO}.compute_grad_norm"
        message, fix = "clipping needs the gradient norm", "set `gradient_clipping` to 0, or leave it out"
        yield finding("DS061", path, message, fix=fix, edits=take_out(path))


def scheduler_can_start(config: Mapping[str, Any]) -> Iterator[Problem]:
    kind, params = section(config, "scheduler").get("type"), section(config, "scheduler", "params")
    path = "$.scheduler.params"
    if kind in ("WarmupDecayLR", "WarmupCosineLR") and params.get("total_num_steps") is None:
        yield finding("DS063", f"{path}.total_num_steps", f"`{kind}` needs `total_num_steps`", fix="add it")
    if kind == "WarmupDecayLR" and "warmup_max_lr" not in params:
        message = "without `warmup_max_lr` the learning rate becomes 0.001, whatever the optimizer says"
        lr = section(config, "optimizer", "params").get("lr")
        edits = write(f"{path}.warmup_max_lr", lr) if isinstance(lr, (int, float, str)) else ()
        yield finding("DS063", f"{path}.warmup_max_lr", message, fix="add it", bites="silently", edits=edits)
    if kind == "WarmupCosineLR":
        for key in params:
            if key not in COSINE_PARAMETERS:
                message = f"`WarmupCosineLR` has no parameter `{key}`"
                fix, edits = "it takes `warmup_min_ratio` and `cos_min_ratio`", take_out(f"{path}.{key}")
                yield finding("DS063", f"{path}.{key}", message, fix=fix, edits=edits)
    steps = params.get("warmup_num_steps", 1)
    warms_up = kind in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR") and steps != "auto"
    if warms_up and (not isinstance(steps, int) or steps <= 0):  # true is 1
        message, fix = (
            f"`{steps}` is not a positive whole number of steps",
            "write 1 or more, without point or exponent",
        )
        whole = isinstance(steps, float) and steps >= 1 and steps.is_integer()
        edits = write(f"{path}.warmup_num_steps", int(steps)) if whole else ()
        yield finding("DS063", f"{path}.warmup_num_steps", message, fix=fix, edits=edits)


RULES: tuple[Callable[[Mapping[str, Any]], Iterator[Problem]], ...] = (
    optimizer_is_known,
    sixteen_bit_master_weights,
    muon_can_run,
    optimizer_parameters,
    scheduler_is_known,
    scheduler_can_start,
    clipping,
)
