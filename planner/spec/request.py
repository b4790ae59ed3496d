"""Flags or keywords to a `Request`: every default resolved, every conflict named.

In: the fields of CONTRACT section 2 as plain values (strings from the command line, or Python values). Out: `Request`.
Names are those of the flags: `--seq-len` is `seq_len`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.catalog.versions import target_sentence
from planner.errors import PlannerError, nearest
from planner.memory.activations_families import attention_in_force
from planner.records.candidate import Checkpointing, Offload, ZeroStage
from planner.records.machine import Cluster
from planner.records.model import ModelShape, Precision
from planner.records.request import (
    Attention,
    Axes,
    Integration,
    Launcher,
    Loss,
    Objective,
    Optimizer,
    Request,
    Stack,
    Workload,
)
from planner.spec import ds_config
from planner.spec.adapter import adapter_notes, adapter_of, script_notes
from planner.spec.cluster import parse_cluster
from planner.spec.fields import MAX_MICRO_BATCH, choice, choices, integers, positive, share
from planner.spec.model import resolve_model
from planner.spec.traced import traced_as_run
from planner.units import divisors

DEFAULT_SEQ_LEN = 2048
DEFAULT_MARGIN = 0.05
DEFAULT_TOP = 5
FIELDS = (
    "model", "gpus", "seq_len", "global_batch", "method", "lora_rank", "lora_targets", "precision", "optimizer",
    "attention", "loss", "stack", "host_ram", "zero", "tp", "micro_batch", "checkpointing", "offload", "accumulation",
    "config", "objective", "margin", "integration", "tokens", "launcher", "script", "script_arguments", "top",
)  # fmt: skip
LAUNCHERS_NOT_YET = ("slurm", "kubernetes", "skypilot")


def build_request(fields: Mapping[str, Any]) -> Request:
    """The request that `fields` ask for; raises PlannerError for a value that is wrong, unknown or in conflict."""
    given = {name: value for name, value in fields.items() if value is not None and value != ()}
    _refuse_unknown(given)
    for name in ("model", "gpus"):
        if not given.get(name):
            raise PlannerError(f"`--{name}` is required", hint="for example `dsplan --model 13b --gpus 4xA100-80G`")
    model = resolve_model(str(given["model"]))
    host_ram = positive("host_ram", given["host_ram"]) if "host_ram" in given else None
    cluster = parse_cluster(str(given["gpus"]), host_ram_gib=host_ram)
    pinned = (
        ds_config.read(given["config"], world_size=cluster.world_size, hidden=model.hidden)
        if "config" in given
        else None
    )
    if pinned is not None:
        given = _merge(given, pinned.fields)
    workload = _workload(given, model, cluster)
    model = traced_as_run(model, workload)
    axes = _axes(given, model, cluster, pinned)
    margin = share("margin", given.get("margin", DEFAULT_MARGIN), upper=0.5)
    request = Request(
        model=model,
        cluster=cluster,
        workload=workload,
        axes=axes,
        objective=choice(Objective, "objective", given.get("objective", "throughput")),
        margin=margin,
        launcher=_launcher(given.get("launcher", "accelerate")),
        top=_count("top", given.get("top", DEFAULT_TOP)),
        script=_script(given.get("script")),
        script_arguments=_script_arguments(given),
        asked=(),
        assumptions=(
            *_assumptions(model, cluster, workload, pinned, asked=_attention(given)),
            *script_notes(workload.adapter, given.get("script")),
        ),
        integration=choice(Integration, "integration", given.get("integration", "trainer")),
    )
    return described(request, model=str(given["model"]), gpus=str(given["gpus"]))


def _refuse_unknown(given: Mapping[str, Any]) -> None:
    unknown = sorted(set(given) - set(FIELDS))
    if unknown:
        near = nearest(unknown[0], FIELDS)
        hint = f"did you mean `{near[0]}`?" if near else f"the fields are {', '.join(FIELDS)}"
        raise PlannerError(f"no field of a request is called `{unknown[0]}`", hint=hint)


def _launcher(value: Any) -> Launcher:
    if value in LAUNCHERS_NOT_YET:
        raise PlannerError(f"`--launcher {value}` is not written yet", hint="accelerate, deepspeed and torchrun are")
    return choice(Launcher, "launcher", value)


def _merge(given: Mapping[str, Any], from_config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the DeepSpeed JSON beside the flags; the same field with two values is a conflict."""
    for name, value in from_config.items():
        if name in given and str(given[name]) != str(value):
            raise PlannerError(
                f"`--{name.replace('_', '-')} {given[name]}` conflicts with `--config`, which says `{value}`",
                hint="leave the flag out, or change the file",
            )
    return {**given, **from_config}


def _workload(given: Mapping[str, Any], model: ModelShape, cluster: Cluster) -> Workload:
    seq_len = _count("seq_len", given["seq_len"]) if "seq_len" in given else min(DEFAULT_SEQ_LEN, model.max_positions)
    if seq_len > model.max_positions and model.position.value == "learned":
        raise PlannerError(
            f"`--seq-len {seq_len}` is more than the {model.max_positions} positions `{model.name}` has a table for",
            hint=f"`--seq-len {model.max_positions}` is its maximum",
        )
    if seq_len < 2:
        raise PlannerError(f"`--seq-len {seq_len}` leaves no token to predict", hint="the smallest length is 2")
    precision = _precision(given.get("precision", "auto"), cluster)
    return Workload(
        seq_len=seq_len,
        global_batch=_count("global_batch", given["global_batch"]) if "global_batch" in given else None,
        accumulation=_count("accumulation", given["accumulation"]) if "accumulation" in given else None,
        precision=precision,
        attention=attention_in_force(model, _attention(given)),
        loss=_loss(given, model),
        tokens=_count("tokens", given["tokens"]) if "tokens" in given else None,
        optimizer=choice(Optimizer, "optimizer", given.get("optimizer", "adamw")),
        adapter=adapter_of(given, model, precision),
        stack=choice(Stack, "stack", given.get("stack", "eager")),
    )


def _loss(given: Mapping[str, Any], model: ModelShape) -> Loss:
    loss = choice(Loss, "loss", given.get("loss", "standard"))
    if loss is Loss.FUSED and not model.trait("fused_loss"):
        raise PlannerError(
            f"`--loss fused` would change nothing: Liger Kernel does not know `{model.model_type}` models",
            hint="`--loss standard` plans the whole logits that such a run has",
        )
    return loss


def _attention(given: Mapping[str, Any]) -> Attention:
    return choice(Attention, "attention", given.get("attention", "sdpa"))


def _precision(value: Any, cluster: Cluster) -> Precision:
    if value == "auto":
        return Precision.BF16 if cluster.gpu.has_bf16 else Precision.FP16
    precision = choice(Precision, "precision", value, also=("auto",))
    if precision in (Precision.BF16, Precision.PURE_BF16) and not cluster.gpu.has_bf16:
        raise PlannerError(
            f"`{cluster.gpu.name}` has no bf16", hint="`--precision fp16` trains with dynamic loss scaling"
        )
    return precision


def _axes(given: Mapping[str, Any], model: ModelShape, cluster: Cluster, pinned: ds_config.Pinned | None) -> Axes:
    default_tp = tuple(2**k for k in range(4) if 2**k <= cluster.gpus_per_node)
    micro = (
        integers("micro_batch", given["micro_batch"], lowest=1, highest=MAX_MICRO_BATCH)
        if "micro_batch" in given
        else None
    )
    tp = integers("tp", given["tp"], lowest=1, highest=1024) if "tp" in given else default_tp
    for degree in tp:
        if cluster.world_size % degree and "tp" in given:
            raise PlannerError(
                f"`--tp {degree}` does not divide {cluster.world_size} GPUs",
                hint=f"divisors are {', '.join(map(str, divisors(cluster.world_size)))}",
            )
    stages = integers("zero", given["zero"], lowest=0, highest=3) if "zero" in given else (0, 1, 2, 3)
    return Axes(
        zero=tuple(ZeroStage(stage) for stage in stages),
        tp=tp,
        checkpointing=choices(Checkpointing, "checkpointing", given["checkpointing"])
        if "checkpointing" in given
        else tuple(Checkpointing),
        offload=choices(Offload, "offload", given["offload"]) if "offload" in given else tuple(Offload),
        micro_batch=micro,
        settings=pinned.settings if pinned else None,
    )


def require_even_shards(request: Request) -> None:
    """DeepSpeed runs uneven shards too, but a plan never proposes them: one rank would decide memory and time."""
    model = request.model
    for degree in request.axes.tp:
        if model.heads % degree or model.kv_heads % degree:
            raise PlannerError(
                f"`--tp {degree}` does not divide the {model.heads} heads and {model.kv_heads} key-value heads of "
                f"`{model.name}`",
                hint=f"degrees that do: {', '.join(map(str, divisors(math.gcd(model.heads, model.kv_heads))))}; "
                "`dsplan estimate` answers for any",
            )


def _count(name: str, value: Any) -> int:
    number = positive(name, value)
    if number != int(number):
        raise PlannerError(f"`--{name.replace('_', '-')} {value}` is not a whole number", hint="give an integer")
    return int(number)


def _script(value: Any) -> str | None:
    if value is None:
        return None
    if "\0" in str(value):
        raise PlannerError(f"`{value}` is no file name", hint="a path cannot hold a NUL character")
    return str(value)


def _script_arguments(given: Mapping[str, Any]) -> tuple[str, ...]:
    arguments = tuple(str(a) for a in given.get("script_arguments", ()))
    if any("\0" in a for a in arguments):
        raise PlannerError("a script argument holds a NUL character", hint="no program can receive it")
    return arguments


def _assumptions(
    model: ModelShape, cluster: Cluster, workload: Workload, pinned: ds_config.Pinned | None, *, asked: Attention
) -> tuple[str, ...]:
    notes = [*model.notes, *cluster.notes, *adapter_notes(model, workload.adapter)]
    if workload.attention is not asked:
        notes.append(f"`{model.model_type}` models refuse {asked.value} attention; planned and run with eager")
    if workload.attention is not Attention.EAGER:
        notes.append("every sample is full length and unpadded; attention uses a kernel that keeps no score matrix")
    if cluster.host_memory_bytes is None:
        notes.append("host RAM is unknown: offload plans are not checked against it; name it with `--host-ram`")
    if workload.seq_len > model.max_positions:
        notes.append(
            f"sequence length {workload.seq_len} exceeds the {model.max_positions} positions of `{model.name}`"
        )
    if workload.stack is not Stack.EAGER:
        notes.append(
            f"speed is that of {workload.stack.value} layers, which your script makes; memory is that of eager ones"
        )
    if pinned is not None:
        notes += pinned.notes
    return (*notes, target_sentence())


def described(request: Request, *, model: str, gpus: str) -> Request:
    """The same request with the fields of the document's `request`, every one resolved; `model` and `gpus` as asked."""
    w, a = request.workload, request.axes
    asked: dict[str, object] = {
        "model": model,
        "gpus": gpus,
        "seq_len": w.seq_len,
        "global_batch": w.global_batch,
        "method": w.method.value,
        "lora_rank": w.adapter.rank if w.adapter else None,
        "lora_targets": list(w.adapter.targets) if w.adapter else None,
        "precision": w.precision.value,
        "optimizer": w.optimizer.value,
        "attention": w.attention.value,
        "loss": w.loss.value,
        "stack": w.stack.value,
        "host_ram": None
        if request.cluster.host_memory_bytes is None
        else round(request.cluster.host_memory_bytes / 2**30, 3),
        "zero": [int(z) for z in a.zero],
        "tp": list(a.tp),
        "checkpointing": [c.value for c in a.checkpointing],
        "offload": [o.value for o in a.offload],
        "micro_batch": None if a.micro_batch is None else list(a.micro_batch),
        "accumulation": w.accumulation,
        "objective": request.objective.value,
        "margin": request.margin,
        "integration": request.integration.value,
        "tokens": w.tokens,
        "launcher": request.launcher.value,
        "script": request.script,
        "script_arguments": list(request.script_arguments),
        "top": request.top,
    }
    return replace(request, asked=tuple(asked.items()))
