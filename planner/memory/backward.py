"""Activations at every moment of backward, and how far backward has come when gradients weigh most.

In: activation terms, alive at the loss, at the head or in the last layer; layers. Out: the same terms at the moments in
between, so that they can be added to the gradients that are alive then.
"""

from __future__ import annotations

from functools import lru_cache

from planner.memory.inputs import LATE, Inputs
from planner.memory.reduction import oversize_elements, reduction
from planner.memory.states import gradient_partition_bytes
from planner.records.candidate import ZeroStage
from planner.records.estimate import Moment, Term
from planner.units import ceil_div

TRANSIENT = ("activations/backward_temporaries",)
BY_LAYER = ("activations/kept", "activations/checkpoints")


def late_layers(given: Inputs) -> int:
    """Layers that still keep their activations at `Moment.BACKWARD_LATE`.

    Formula: 1 where gradients pile up to the end (stages 0 and 1). Where they are reduced as they come: at stage 1 with
    tensors above the bucket, the layers of the first partition, whose rank then holds the most foreign gradients; else
    the layers left when the bucket is flushed first, because the partition is allocated then, or when it is copied
    first, where the partition exists since the last layer.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `reduce_ipg_grads`, `copy_grads_in_partition` (0.19.8).
    Leaves out: the lag of one bucket.
    """
    c, order = given.candidate, given.sizes.order
    depth = len(order.layers)
    if c.zero is ZeroStage.DISABLED or not reduces_at_once(given):
        return min(1, depth)
    if c.zero is ZeroStage.PARAMETERS:
        walk = reduction(order, c.settings.reduce_bucket_elements, None, c.degrees.dp)
        return min(depth, max(1, walk.first_copy))
    bucket, share = c.settings.reduce_bucket_elements, gradient_partition_bytes(given.sizes.total, c.degrees, 1)
    if holds_foreign(given):
        return max(1, order.layers_in_first_part(share))
    walk = reduction(order, bucket, share)
    return min(depth, max(1, walk.first_flush if walk.first_flush < depth else walk.first_copy))


def holds_foreign(given: Inputs) -> bool:
    """Whether ranks keep whole gradients that are not theirs: above the bucket, at stage 1 with overlap_comm."""
    c, order = given.candidate, given.sizes.order
    oversize = oversize_elements(order.flat, c.settings.reduce_bucket_elements)
    return c.zero is ZeroStage.OPTIMIZER and c.settings.overlap_comm and oversize > 0


def reduces_at_once(given: Inputs) -> bool:
    """Whether a gradient is reduced when it comes (from stage 2, or overlap_comm), not when backward is over."""
    c = given.candidate
    return c.zero >= ZeroStage.GRADIENTS or c.settings.overlap_comm


def through_backward(terms: tuple[Term, ...], *, layers: int, left: int) -> tuple[Term, ...]:
    """The activation terms at the moments that they do not name themselves.

    Formula: what all layers keep: whole until the last layer is differentiated, `left / layers` of it at BACKWARD_LATE;
    a layer's own recomputed tensors and transients in every layer, the transients until its gradients are reduced; the
    head's until the head is reduced.
    Source: autograd frees what a layer saved when its backward is over.
    Leaves out: that layers of different kinds keep different amounts.
    """
    spread = []
    for term in terms:
        if term.name in BY_LAYER:
            size_bytes = waiting_bytes(term.size_bytes, layers=layers, left=left)
            spread.append(_at(LATE, term, size_bytes, f"{left} / {layers} * ({term.formula})"))
        spread.append(_at(_moments(term.name, term.moments), term, term.size_bytes, term.formula))
    return tuple(spread)


def _at(moments: tuple[Moment, ...], term: Term, size_bytes: int, formula: str) -> Term:
    """A term at other moments; `replace` takes twice as long, and a search does this a thousand times."""
    return Term(
        name=term.name,
        device=term.device,
        moments=moments,
        size_bytes=size_bytes,
        formula=formula,
        source=term.source,
        pinned=term.pinned,
    )


@lru_cache(maxsize=256)
def _moments(name: str, named: tuple[Moment, ...]) -> tuple[Moment, ...]:
    """All moments of a term; kept because every micro-batch has the same terms."""
    moments = set(named)
    at_head, in_layer = Moment.BACKWARD_HEAD in moments, Moment.BACKWARD_LAYER in moments
    if at_head:
        moments |= {Moment.BACKWARD_HEAD_WEIGHT, Moment.BACKWARD_HEAD_REDUCED}
    if at_head and in_layer:
        moments.add(Moment.FORWARD_LAYER)
    if in_layer and name not in BY_LAYER:
        moments.add(Moment.BACKWARD_LATE)
    if in_layer and name not in TRANSIENT:
        moments |= {Moment.BACKWARD_LAYER_REDUCED, *(LATE[1:] if name not in BY_LAYER else ())}
    return tuple(sorted(moments))


def waiting_bytes(kept_bytes: int, *, layers: int, left: int) -> int:
    """What `left` layers still keep of what all layers keep.

    Formula: bytes * left / layers.
    Source: as `through_backward`.
    Leaves out: see that.
    """
    return ceil_div(kept_bytes * left, layers)
