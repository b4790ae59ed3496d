"""A measured run predicted by the model that plans use.

In: a `Run`. Out: `Prediction`: tensors, what the allocator keeps beside them, the CUDA context and communicators.
`estimate_memory` gives every term of a DeepSpeed run with transformers models; a run of another engine keeps its
activations and logits and takes the engine's own states, a run of other layers takes those layers' activations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.accuracy.activations import layer_terms, loss_terms
from planner.accuracy.megatron_layers import megatron_activation_terms
from planner.accuracy.moments import HEAD_GRADIENT, LOSS_BACKWARD
from planner.accuracy.points import Point
from planner.accuracy.run import Run, run_of
from planner.accuracy.states import fsdp_terms, megatron_terms, torch_terms
from planner.accuracy.words import Engine, Layers
from planner.errors import PlannerError
from planner.memory.backward import BY_LAYER, PARTS, through_backward
from planner.memory.estimate import add_up, estimate_memory
from planner.memory.inputs import TRAINING, term
from planner.memory.overhead import communicator_bytes, context_bytes, fragmented_slack_bytes, side_stream_bytes
from planner.records.candidate import ZeroStage
from planner.records.estimate import Device, MemoryEstimate, Moment, Term
from planner.records.request import Loss

STATES = {Engine.MEGATRON: megatron_terms, Engine.FSDP: fsdp_terms, Engine.TORCH: torch_terms}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Bytes of one GPU, for each thing that a source may have counted."""

    tensor_bytes: int
    reserved_bytes: int
    card_bytes: int  # the counterpart of nvidia-smi
    total_bytes: int  # what a plan would need, with the allocator set as dsplan sets it: decides whether it fits
    lasting_bytes: int  # tensors that stay from one step to the next
    stranded_bytes: int  # blocks that only the stream of gathers may use again
    static_bytes: int  # weights and optimizer states alone
    capacity_bytes: int
    memory: MemoryEstimate
    assumed: tuple[str, ...] = ()


def predict_point(point: Point) -> Prediction:
    """The prediction for a point; raises PlannerError where it gives no geometry or no batch.

    What a run that fitted leaves open is taken as the first setting with which it would: without checkpointing before
    with it, a lower ZeRO stage before a higher one.
    """
    stages = (point.zero_stage,) if point.zero_stage is not None else (0, 1, 2, 3)
    recomputed = (point.grad_checkpoint,) if point.grad_checkpoint is not None else ("none", "full")
    found = None
    open_settings = [name for name in ("zero_stage", "grad_checkpoint") if getattr(point, name) is None]
    for stage in stages:
        for checkpointing in recomputed:
            found = predict(run_of(replace(point, zero_stage=stage, grad_checkpoint=checkpointing)))
            if open_settings:
                setting = f"ZeRO-{stage}, checkpointing {checkpointing}"
                found = replace(found, assumed=(*found.assumed, f"{', '.join(open_settings)} not stated: {setting}"))
            if point.outcome != "fit" or found.total_bytes <= found.capacity_bytes or not found.capacity_bytes:
                return found
    if found is None:
        raise PlannerError(
            f"`{point.id}` has no setting to predict", hint="it names no ZeRO stage and no checkpointing"
        )
    return found


def predict(run: Run) -> Prediction:
    """The prediction for one run."""
    memory = estimate_memory(run.shape, run.cluster, run.workload, run.candidate)
    terms = (*_with_layers(_with_states(memory.terms, run), run), *_kept_output(run))
    if run.checkpoints_offloaded:
        terms = tuple(term for term in terms if term.name != "activations/checkpoints")
    memory = add_up(terms, run.candidate)
    tensors = memory.peak_bytes(Device.GPU)
    lasting = sum(t.size_bytes for t in terms if t.device is Device.GPU and t.moments[-len(TRAINING) :] == TRAINING)
    beside = run.candidate.zero is ZeroStage.PARAMETERS and run.candidate.settings.overlap_comm
    stranded = side_stream_bytes(terms, memory.moment_bytes[Device.GPU]) if beside else 0
    reserved = tensors + stranded + fragmented_slack_bytes(tensors, lasting)
    static = sum(t.size_bytes for t in terms if t.device is Device.GPU and t.name.startswith("states/"))
    return Prediction(
        tensor_bytes=tensors,
        reserved_bytes=reserved,
        card_bytes=reserved + context_bytes() + communicator_bytes(run.candidate.degrees),
        lasting_bytes=lasting,
        stranded_bytes=stranded,
        total_bytes=memory.gpu_total_bytes,
        static_bytes=static,
        capacity_bytes=run.cluster.gpu.memory_bytes,
        memory=memory,
        assumed=run.assumed,
    )


def _kept_output(run: Run) -> list[Term]:
    """The logits that a loop holds during backward where it keeps the model's output: 2V a token."""
    if not run.framework.keeps_output or run.workload.loss is Loss.FUSED:
        return []
    size = 2 * run.shape.vocab * run.tokens
    return [term("logits/output", (*LOSS_BACKWARD, *HEAD_GRADIENT), size, "2 * V", run.framework.source)]


def _is_activation(term: Term) -> bool:
    return term.name.startswith("activations/")


def _is_loss(term: Term) -> bool:
    return term.name.startswith("logits/")


def _with_states(terms: tuple[Term, ...], run: Run) -> tuple[Term, ...]:
    """The terms with the engine's own states in place of DeepSpeed's.

    Megatron-DeepSpeed's runs were made before the norm of stage 0 looked for replicated parameters with a mask
    (https://github.com/deepspeedai/DeepSpeed/pull/5411, DeepSpeed 0.14.2).
    """
    own = STATES.get(run.engine)
    if own is None:
        return tuple(t for t in terms if t.name != "step/norm") if run.layers is Layers.MEGATRON else terms
    return (*(t for t in terms if _is_activation(t) or _is_loss(t)), *own(run))


def _with_layers(terms: tuple[Term, ...], run: Run) -> tuple[Term, ...]:
    """The terms with the activations, and where it is the layers' own the loss, of the code that ran."""
    if run.layers in (Layers.MEGATRON, Layers.SCALING):
        own = _through_backward(megatron_activation_terms(run), terms, run)
        return (*(t for t in terms if not _is_activation(t) and not _is_loss(t)), *own)
    known = run.tuning.full or run.workload.adapter is not None
    if run.layers is Layers.TRANSFORMERS and known and not run.fused_kernels:
        return terms
    own = _through_backward(layer_terms(run), terms, run)
    terms = (*(t for t in terms if not _is_activation(t)), *own)
    if run.layers in (Layers.LITGPT, Layers.TORCHTUNE, Layers.FOUNDRY):
        return (*(t for t in terms if not _is_loss(t)), *loss_terms(run))
    return terms


def _through_backward(own: list[Term], planned: tuple[Term, ...], run: Run) -> tuple[Term, ...]:
    """The run's activations at the moments between, with as many layers left as the plan's terms have."""
    layers = run.shape.layers
    by_layer = [t for t in planned if t.name.removesuffix("_left") in BY_LAYER]
    whole = max((t.size_bytes for t in by_layer), default=0)
    late = (
        min((t.size_bytes for t in by_layer if moment in t.moments), default=0)
        for moment in (Moment.BACKWARD_LATE, Moment.BACKWARD_LATE_REDUCED)
    )
    made, reduced = (round(PARTS * layers * kept / whole) if whole else PARTS for kept in late)
    return through_backward(tuple(own), layers=layers, left=(made, reduced))
