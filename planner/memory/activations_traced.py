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
    at_loss = stack.at_loss.size_bytes(micro_batch, seq_len)
    logits = logits_forward_bytes_per_token(shape.vocab, precision.bytes, capped=False) * micro_batch * seq_len
    forward, backward = (
        fullest_layer_bytes(traced, stack, each, micro_batch, seq_len, backward=way) for way in (False, True)
    )
    formula = " + ".join(f"{kind.layers} layers x {size}" for kind, size in zip(traced.kinds, each, strict=True))
    name = "activations/checkpoints" if checkpointing is Checkpointing.FULL else "activations/kept"
    amounts = (
        (name, ALIVE, kept, formula),
        ("activations/at_loss", ALIVE[:1], at_loss, "beside the layers and the logits"),
        ("activations/forward_layer", ALIVE[:1], forward - max(0, at_loss) - logits, "a layer above the loss"),
        ("activations/at_head", ALIVE[1:2], stack.at_head.size_bytes(micro_batch, seq_len), "beside the same"),
        ("activations/layer", ALIVE[2:], backward, "the fullest layer while it is differentiated"),
    )
    source = f"a trace of the model on tensors without storage: {traced.versions}"
    return tuple(
        Term(name=name, device=Device.GPU, moments=moments, size_bytes=size_bytes, formula=formula, source=source)
        for name, moments, size_bytes, formula in amounts
        if size_bytes > 0
    )


def fullest_layer_bytes(
    traced: TracedModel, stack: TracedStack, each: list[int], micro_batch: int, seq_len: int, *, backward: bool
) -> int:
    """The highest peak of any layer beyond what all layers keep.

    Formula: maximum over the kinds of a layer's own peak - what the layers above its last occurrence keep.
    Source: the traced peaks of one layer of each kind, `planner.records.traced`.
    Leaves out: nothing.
    """
    peaks = (kind.in_backward if backward else kind.in_forward for kind in stack.kinds)
    return max(
        peak.size_bytes(micro_batch, seq_len)
        - sum(count * size for count, size in zip(kind.layers_after, each, strict=True))
        for kind, peak in zip(traced.kinds, peaks, strict=True)
    )
