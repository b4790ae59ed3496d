"""The files against the memory of the machine, by dsplan's own estimate.

In: the files and the context: a model that dsplan plans, and a cluster. Out: Problems, warnings only, for a file does
not say what is trained: every parameter is assumed. Answers: which phase needs more than the card or the node has, and
which smallest change would fit?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.check.context import Context
from planner.check.one_file.deepspeed_rules import section
from planner.check.one_run.run_facts import (
    argument,
    argument_is_on,
    half_precision,
    lone_yaml,
    named_file,
    offload_device,
    whole,
    zero_stage,
)
from planner.check.rules import finding
from planner.check.together import Together
from planner.errors import PlannerError
from planner.memory.estimate import estimate_memory
from planner.records.candidate import Candidate, Checkpointing, Degrees, Offload, ZeroStage
from planner.records.estimate import Device, MemoryEstimate, Phase
from planner.records.machine import Cluster
from planner.records.model import ModelShape, Precision
from planner.records.problem import Problem
from planner.records.request import Attention, Loss, Optimizer, Workload
from planner.search.capacity import SYSTEM_BYTES
from planner.search.evaluate import PHASE_WORDS
from planner.spec.ds_config import Pinned, pinned_by
from planner.units import GIB, gib_text

USUAL_SEQ_LEN = 2048
OPTIMIZERS_OF_THE_TRAINER = {
    "8bit": Optimizer.ADAMW_8BIT,
    "adafactor": Optimizer.ADAFACTOR,
    "lion": Optimizer.LION,
    "muon": Optimizer.MUON,
    "sgd": Optimizer.SGD,
}
"""Parts of the words that `optim` takes. Source: transformers 5.24, training_args.py OptimizerNames."""
CHECKPOINTING = ("gradient_checkpointing", "activation_checkpointing")


def memory_is_enough(together: Together, context: Context) -> Iterator[Problem]:
    """One candidate, the one of the files, against the card and the node."""
    model, cluster, stage = context.model, context.cluster, zero_stage(together)
    if model is None or cluster is None or stage is None or _trains_adapters(together):
        return
    try:
        pinned = pinned_by(_document(together), world_size=cluster.world_size, hidden=model.hidden)
        workload, candidate = _asked(together, context, pinned, model, cluster)
        memory = estimate_memory(model, cluster, workload, candidate)
    except PlannerError:
        return  # the files hold what dsplan does not model, or what other rules report
    gpu, host = cluster.gpu.memory_bytes, _host_bytes(context)
    if memory.needs[0] > gpu:
        remedy = _remedy(model, cluster, workload, candidate, gpu, host)
        message = (
            f"if every parameter of `{model.name}` is trained, {_phases(memory, Device.GPU, gpu)} of "
            f"{gib_text(gpu)} ({_assumed(workload, candidate)})"
        )
        yield finding("DS416", stage.path, message, fix=remedy, file=stage.file)
    device = offload_device(together, "offload_optimizer")
    offloads = device is not None and device.value != "none" and stage.value > 0
    if device is not None and offloads and host is not None and memory.needs[1] > host:
        message = (
            f"{_phases(memory, Device.HOST, host)} of the {gib_text(host)} that a node has for it: the kernel kills "
            "the run without a message"
        )
        fix = "more nodes or memory, or no offload"
        yield finding("DS415", device.path, message, fix=fix, file=device.file)


def _trains_adapters(together: Together) -> bool:
    """Whether an argument of the run speaks of adapters."""
    given = dict(together.training.fields) if together.training is not None else {}
    if together.launch is not None:
        given |= section(together.launch.fields, "script_flags")
    return any(("lora" in str(name).lower() or "peft" in str(name).lower()) and given[name] for name in given)


def _optimizer(together: Together, pinned: Pinned) -> Optimizer:
    """As the file says, else as the Trainer's `optim` says."""
    if "optimizer" in pinned.fields:
        return Optimizer(pinned.fields["optimizer"])
    words = str(argument(together, "optim", "")).lower()
    for part, optimizer in OPTIMIZERS_OF_THE_TRAINER.items():
        if part in words:
            return optimizer
    return Optimizer.ADAMW


def _document(together: Together) -> Mapping[str, Any]:
    """The DeepSpeed file, or what accelerate makes of a YAML without one; what the Trainer fills is left out."""
    if together.deepspeed is not None:
        return together.deepspeed.fields
    yaml = lone_yaml(together)
    if yaml is None or named_file(yaml.fields) is not None:
        raise PlannerError("the DeepSpeed file is not there", hint="name it too")
    stage = zero_stage(together)
    zero: dict[str, Any] = {"stage": stage.value if stage is not None else 0}
    for block in ("offload_optimizer", "offload_param"):
        device = offload_device(together, block)
        zero[block] = {"device": device.value if device is not None else "none"}
    return {"zero_optimization": zero}


def _asked(
    together: Together, context: Context, pinned: Pinned, model: ModelShape, cluster: Cluster
) -> tuple[Workload, Candidate]:
    fields = pinned.fields
    half = half_precision(together)
    precision = Precision(half.value) if half is not None else Precision.FP32
    if fields["precision"] == Precision.PURE_BF16.value:
        precision = Precision.PURE_BF16
    micro = fields.get("micro_batch") or whole(argument(together, "per_device_train_batch_size")) or 1
    accumulation = fields.get("accumulation") or whole(argument(together, "gradient_accumulation_steps")) or 1
    known = together.training is not None
    on = argument_is_on(together, *CHECKPOINTING)
    workload = Workload(
        seq_len=context.seq_len or min(USUAL_SEQ_LEN, model.max_positions),
        global_batch=None,
        accumulation=accumulation,
        precision=precision,
        attention=Attention.SDPA,
        loss=Loss.STANDARD,
        tokens=None,
        optimizer=_optimizer(together, pinned),
    )
    candidate = Candidate(
        zero=ZeroStage(fields["zero"]),
        degrees=Degrees(tp=fields["tp"], dp=cluster.world_size // fields["tp"]),
        checkpointing=Checkpointing.FULL if on or not known else Checkpointing.NONE,
        offload=Offload(fields["offload"]),
        micro_batch=micro,
        accumulation=accumulation,
        settings=pinned.settings,
    )
    return workload, candidate


def _host_bytes(context: Context) -> int | None:
    return None if context.host_ram_gib is None else int(context.host_ram_gib * GIB) - SYSTEM_BYTES


def _phases(memory: MemoryEstimate, device: Device, available: int) -> str:
    extra = memory.gpu_overhead_bytes if device is Device.GPU else 0
    needed = {phase: memory.phase_bytes(device, phase) + extra for phase in Phase}
    over = [phase for phase, need in needed.items() if need > available]
    worst = max(over, key=lambda phase: needed[phase])
    said = f"{PHASE_WORDS[worst]} needs {gib_text(needed[worst])}"
    return said if over[0] is worst else f"{PHASE_WORDS[over[0]]} needs {gib_text(needed[over[0]])} already, {said}"


def _assumed(workload: Workload, candidate: Candidate) -> str:
    words = [f"micro-batch {candidate.micro_batch}", f"{workload.seq_len} tokens"]
    words.append("with checkpointing" if candidate.checkpointing is Checkpointing.FULL else "no checkpointing")
    return ", ".join(words)


def _remedy(
    model: ModelShape, cluster: Cluster, workload: Workload, candidate: Candidate, gpu: int, host: int | None
) -> str:
    """The first change, from the cheapest on, with which the estimate fits; several at once where none does alone."""
    steps: list[tuple[str, dict[str, Any]]] = []
    if candidate.checkpointing is Checkpointing.NONE:
        steps.append(("gradient checkpointing", {"checkpointing": Checkpointing.FULL}))
    if candidate.micro_batch > 1:
        steps.append(("micro-batch 1", {"micro_batch": 1}))
    for stage in (ZeroStage.GRADIENTS, ZeroStage.PARAMETERS):
        if candidate.zero < stage:
            steps.append((f"ZeRO stage {int(stage)}", {"zero": stage}))
    if candidate.offload is Offload.NONE:
        stage = max(candidate.zero, ZeroStage.GRADIENTS)
        steps.append(("optimizer offload to the CPU", {"offload": Offload.OPTIMIZER, "zero": stage}))
        everything = {"offload": Offload.OPTIMIZER_AND_PARAMS, "zero": ZeroStage.PARAMETERS}
        steps.append(("optimizer and parameter offload", everything))
    so_far: dict[str, Any] = {}
    said: list[str] = []
    for words, change in steps:
        if _fits(model, cluster, workload, replace(candidate, **change), gpu, host):
            return f"{words} would fit"
    for words, change in steps:
        so_far |= change
        said = [one for one in said if one[:4] != words[:4] or one.startswith("micro")] + [
            words
        ]  # a later one includes it
        if _fits(model, cluster, workload, replace(candidate, **so_far), gpu, host):
            return f"{', '.join(said)} together would fit"
    return "more or larger GPUs, or adapters instead of all parameters"


def _fits(
    model: ModelShape, cluster: Cluster, workload: Workload, candidate: Candidate, gpu: int, host: int | None
) -> bool:
    needs = estimate_memory(model, cluster, workload, candidate).needs
    return needs[0] <= gpu and (host is None or needs[1] <= host)
