"""Optimizer and schedule, which the file, the script and the training arguments may all name.

In: the files and the context. Out: Problems. Answers: which of them is built, and is it the one that was meant? Source:
transformers 5.24 integrations/deepspeed.py `deepspeed_optim_sched`; accelerate 1.15 utils/deepspeed.py
`map_pytorch_optim_to_deepspeed`; deepspeed 0.19.8 runtime/engine.py `_configure_optimizer`.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.check.context import Context, Reader
from planner.check.one_file.deepspeed_rules import section, stage_of
from planner.check.one_run.run_facts import argument, number, offload_device, reader_of, zero_stage
from planner.check.reading.arguments import is_word
from planner.check.rules import finding
from planner.check.together import Together
from planner.records.problem import Edit, EditKind, Problem, Severity

ZERO = "$.zero_optimization"
SAME_SCHEDULE = {
    "WarmupLR": ("constant_with_warmup", "constant"),
    "WarmupDecayLR": ("linear",),
    "WarmupCosineLR": ("cosine", "cosine_with_min_lr", "cosine_warmup_with_min_lr"),
}
"""What the Trainer calls the schedules of DeepSpeed; its own documentation pairs the first two."""
ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused", "adamw_hf", "adamw_apex_fused")
SAME_OPTIMIZER = {
    **dict.fromkeys(("adam", "adamw"), ADAMW),
    "adagrad": ("adagrad",),
    "lion": ("lion_32bit", "paged_lion_32bit"),
    "sgd": ("sgd",),
}
"""What the Trainer calls the optimizers of DeepSpeed."""
KEPT_BY_ACCELERATE = (*ADAMW, "paged_adamw_32bit", "adagrad", "lion_32bit", "paged_lion_32bit")
"""Values of `optim` that accelerate turns into the same optimizer of DeepSpeed's under CPU offload."""


def schedule_of_the_file(together: Together, context: Context) -> Iterator[Problem]:
    """The file's scheduler is built, and `lr_scheduler_type` is not looked at."""
    file, wanted = together.deepspeed, argument(together, "lr_scheduler_type")
    if file is None or reader_of(together, context) is not Reader.TRAINER or not is_word(wanted):
        return
    built = section(file.fields, "scheduler").get("type")
    if built in SAME_SCHEDULE and wanted not in SAME_SCHEDULE[built]:
        message = f"the DeepSpeed file's `{built}` runs: `lr_scheduler_type` {wanted} is not looked at"
        fix = "take `scheduler` out of the DeepSpeed file, or write the same schedule here"
        edits = (Edit(kind=EditKind.REMOVE, path="$.scheduler", file=file.name),)
        name = together.training.name if together.training else ""
        yield finding("DS307", "$.lr_scheduler_type", message, fix=fix, file=name, edits=edits)


def optimizer_of_the_file(together: Together, context: Context) -> Iterator[Problem]:
    """The file's optimizer is built and `optim` not looked at; without one accelerate replaces others under offload."""
    file, wanted = together.deepspeed, argument(together, "optim")
    if file is None or reader_of(together, context) is not Reader.TRAINER or not is_word(wanted):
        return
    name = together.training.name if together.training else ""
    built = section(file.fields, "optimizer").get("type")
    if isinstance(built, str) and wanted not in SAME_OPTIMIZER.get(built.lower(), (wanted,)):
        message = f"the DeepSpeed file's `{built}` runs: `optim` {wanted} is not looked at"
        fix = "take `optimizer` out of the DeepSpeed file, or `optim` out of the arguments"
        edits = (Edit(kind=EditKind.REMOVE, path="$.optim"),)
        alike = Severity.WARNING if "adam" in built.lower() and "adamw" in wanted else None  # other states only
        yield finding("DS307", "$.optim", message, fix=fix, severity=alike, file=name, edits=edits)


def optimizer_under_offload(together: Together, context: Context) -> Iterator[Problem]:
    """Where no file names an optimizer; the offload may stand in the DeepSpeed file or in the YAML."""
    wanted, file = argument(together, "optim"), together.deepspeed
    if reader_of(together, context) is not Reader.TRAINER or not is_word(wanted):
        return
    fields = file.fields if file is not None else {}
    stage, device = zero_stage(together), offload_device(together, "offload_optimizer")
    if "optimizer" in fields or stage is None or device is None or fields.get("zero_force_ds_cpu_optimizer") is False:
        return
    name = together.training.name if together.training else ""
    if stage.value > 0 and device.value != "none" and wanted not in KEPT_BY_ACCELERATE:
        message = f"under offload accelerate makes DeepSpeed's CPU Adam of `optim` {wanted}, without AdamW's decay"
        edits = (Edit(kind=EditKind.SET, path="$.optim", value="adamw_torch"),)
        fix = "write adamw_torch, or no offload"
        yield finding("DS307", "$.optim", message, fix=fix, file=name, edits=edits)


def offloaded_client_optimizer(together: Together, context: Context) -> Iterator[Problem]:
    """Without an optimizer in the file the script's own is used, and with offload DeepSpeed takes its CPU ones only."""
    file = together.deepspeed
    if file is None or reader_of(together, context) is not Reader.DEEPSPEED or "optimizer" in file.fields:
        return
    stage = stage_of(file.fields)
    device = section(file.fields, "zero_optimization", "offload_optimizer").get("device")
    if stage and device in ("cpu", "nvme") and file.fields.get("zero_force_ds_cpu_optimizer", True) is True:
        message = (
            "no optimizer is given here; with offload DeepSpeed refuses one of the script that is not DeepSpeedCPUAdam "
            "or another of its CPU optimizers"
        )
        path, fix = f"{ZERO}.offload_optimizer.device", "add an `optimizer` of type AdamW, or pass DeepSpeedCPUAdam"
        yield finding("DS071", path, message, fix=fix, file=file.name)


def no_optimizer_at_all(together: Together, context: Context) -> Iterator[Problem]:
    """Stage 3 without an optimizer is an engine for inference; stages 1 and 2 want one at once.

    A file that allows an untested optimizer expects one of the script.
    """
    file = together.deepspeed
    if file is None or reader_of(together, context) is not Reader.DEEPSPEED or "optimizer" in file.fields:
        return
    if file.fields.get("zero_allow_untested_optimizer") is True:
        return
    if stage_of(file.fields) in (1, 2, 3) and not section(file.fields, "zero_optimization", "offload_optimizer"):
        message = "no optimizer is given here; ZeRO needs one that the script passes to deepspeed.initialize"
        yield finding(
            "DS071",
            "$.optimizer",
            message,
            fix="add an `optimizer`, or pass one",
            severity=Severity.INFO,
            file=file.name,
        )


def learning_rates_differ(together: Together, context: Context) -> Iterator[Problem]:
    """A warm-up that ends elsewhere than the optimizer starts: the scheduler's number counts."""
    file = together.deepspeed
    if file is None or section(file.fields, "scheduler").get("type") not in ("WarmupLR", "WarmupDecayLR"):
        return
    lr = number(section(file.fields, "optimizer", "params").get("lr"))
    top = number(section(file.fields, "scheduler", "params").get("warmup_max_lr"))
    if lr is not None and top is not None and lr != top:
        message = f"the scheduler sets the learning rate to {top:g}; the optimizer's `lr` {lr:g} is not used"
        yield finding("DS072", "$.scheduler.params.warmup_max_lr", message, fix="write the same number", file=file.name)


RULES = (
    schedule_of_the_file,
    optimizer_of_the_file,
    optimizer_under_offload,
    offloaded_client_optimizer,
    no_optimizer_at_all,
    learning_rates_differ,
)
