"""Activation memory of a model whose type has no formulas, from the coefficients that a trace of it gave.

In: a traced shape, micro-batch, sequence length, checkpointing, precision, attention. Out: the same terms as
`activations`. Question: how many bytes of activations are alive at the moments of forward and backward?
"""

from __future__ import annotations

from planner.errors import PlannerError
from planner.memory.logits import logits_forward_bytes_per_token
from planner.records.candidate import Checkpointing
from planner.records.estimate import Device, Moment, Term
from planner.records.model import ModelShape, Precision
from planner.records.request import Attention
from planner.records.traced import TracedModel, TracedStack

ALIVE = (Moment.FORWARD_END, Moment.BACKWARD_HEAD, Moment.BACKWARD_LAYER)


def traced_activation_terms(
    shape: ModelShape,
    traced: TracedModel,
    *,
    micro_batch: int,
    seq_len: int,
    checkpointing: Checkpointing,
    precision: Precision,
    attention: Attention,
) -> tuple[Term, ...]:
    """What the layers keep, and what is alive beside it at the loss, at the head and in a layer."""
    found = traced.activations
    if found is None or (found.attention, found.width) != (attention, precision.bytes):
        raise PlannerError(
            f"the activations of `{shape.name}` were not traced with {attention.value} attention in {precision.value}",
            hint="name attention and precision in the request",
        )
    stack = found.stack(checkpointing, seq_len)
    each = [kind.kept.size_bytes(micro_batch, seq_len) for kind in stack.kinds]
    kept = sum(kind.layers * size for kind, size in zip(traced.kinds, each, strict=True))
    at_loss = max(0, stack.at_loss.size_bytes(micro_batch, seq_len))
    logits = logits_forward_bytes_per_token(shape.vocab, precision.bytes, capped=False) * micro_batch * seq_len
    forward, _ = fullest_layer_bytes(traced, stack, each, micro_batch, seq_len, backward=False)
    backward, fullest = fullest_layer_bytes(traced, stack, each, micro_batch, seq_len, backward=True)
    again = 0
    if checkpointing is Checkpointing.FULL:
        whole = found.stack(Checkpointing.NONE, seq_len).kinds[fullest].kept.size_bytes(micro_batch, seq_len)
        again = min(backward, whole - each[fullest])
    formula = " + ".join(f"{kind.layers} layers x {size}" for kind, size in zip(traced.kinds, each, strict=True))
    name = "activations/checkpoints" if checkpointing is Checkpointing.FULL else "activations/kept"
    amounts = (
        (name, ALIVE, kept, formula),
        ("activations/at_loss", ALIVE[:1], at_loss, "beside the layers and the logits"),
        ("activations/forward_layer", ALIVE[:1], forward - at_loss - logits, "a layer's peak above the loss"),
        ("activations/at_head", ALIVE[1:2], stack.at_head.size_bytes(micro_batch, seq_len), "beside the same"),
        ("activations/layer", ALIVE[2:], again, "1 layer, recomputed"),
        ("activations/backward_temporaries", ALIVE[2:], backward - again, "the fullest layer"),
    )
    source = f"a trace of the model on tensors without storage: {traced.versions}"
    return tuple(
        Term(name=name, device=Device.GPU, moments=moments, size_bytes=size_bytes, formula=formula, source=source)
        for name, moments, size_bytes, formula in amounts
        if size_bytes > 0
    )


def fullest_layer_bytes(
    traced: TracedModel, stack: TracedStack, each: list[int], micro_batch: int, seq_len: int, *, backward: bool
) -> tuple[int, int]:
    """The highest peak of any layer beyond what all layers keep, and the kind of that layer.

    Formula: maximum over the kinds of a layer's own peak - what the layers above its last occurrence keep.
    Source: the traced peaks of one layer of each kind, `planner.records.traced`.
    Leaves out: nothing.
    """
    peaks = (kind.in_backward if backward else kind.in_forward for kind in stack.kinds)
    return max(
        (
            peak.size_bytes(micro_batch, seq_len)
            - sum(count * size for count, size in zip(kind.layers_after, each, strict=True)),
            number,
        )
        for number, (kind, peak) in enumerate(zip(traced.kinds, peaks, strict=True))
    )
