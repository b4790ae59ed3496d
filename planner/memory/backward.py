"""Activations at every moment of backward.

In: activation terms, alive at the loss, at the head or in the last layer; layers. Out: the same terms at the moments in
between, so that they can be added to the gradients that are alive then.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from planner.memory.inputs import LATE, Inputs
from planner.records.candidate import ZeroStage
from planner.records.estimate import Moment, Term
from planner.units import ceil_div

PARTS = 64
"""Into how many parts a layer is cut that is half differentiated."""
TRANSIENT = ("activations/backward_temporaries",)
BY_LAYER = ("activations/kept", "activations/checkpoints")  # what all layers keep
IN_LAYER = "activations/layer"  # what the layer that is differentiated has recomputed
SHRINKING = (*BY_LAYER, IN_LAYER)


class Late(NamedTuple):
    """An instant of a moment of LATE that can be the fullest, depending on what a layer keeps."""

    left: int  # layers that still keep their activations, in parts
    terms: tuple[Term, ...]  # of gradients, alive at that moment only
    size_bytes: int  # of these terms


def reduces_at_once(given: Inputs) -> bool:
    """Whether a gradient is reduced when it comes (from stage 2, or overlap_comm), not when backward is over."""
    c = given.candidate
    return c.zero >= ZeroStage.GRADIENTS or c.settings.overlap_comm


def through_backward(terms: tuple[Term, ...], *, layers: int, left: tuple[int, int]) -> tuple[Term, ...]:
    """The activation terms at the moments that they do not name themselves.

    `left`: layers, in parts, that still keep their activations at each moment of LATE.
    Formula: whole until the last layer is differentiated, `waiting_bytes` at LATE; transients in every layer until its
    gradients are reduced; the head's until the head is reduced.
    Source: autograd frees what a layer saved when its backward is over.
    Leaves out: that layers of different kinds keep different amounts.
    """
    spread = []
    late = (
        ((LATE, left[0]),) if left[0] == left[1] else tuple(((m,), parts) for m, parts in zip(LATE, left, strict=True))
    )
    for term in terms:
        if term.name in SHRINKING:
            for moments, parts in late:
                size_bytes = waiting_bytes(term.name, term.size_bytes, layers=layers, left=parts)
                spread.append(
                    _at(moments, term, size_bytes, f"at {parts / PARTS:.3g} of {layers} layers: {term.formula}")
                )
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
    if in_layer and name not in SHRINKING:
        moments.add(Moment.BACKWARD_LATE)
    if in_layer and name not in TRANSIENT:
        moments |= {Moment.BACKWARD_LAYER_REDUCED, *(LATE[1:] if name not in SHRINKING else ())}
    return tuple(sorted(moments))


def waiting_bytes(name: str, kept_bytes: int, *, layers: int, left: int) -> int:
    """What is still there of an activation term when `left` parts of layers are not differentiated.

    Formula: of what all layers keep, bytes * left / (PARTS * layers); of checkpoints, those of `left` rounded up to
    whole layers; of what a layer recomputed, the share that is left of that layer.
    Source: autograd frees what an operation saved when its backward is over, and a checkpoint with its layer.
    Leaves out: see `through_backward`.
    """
    if name == IN_LAYER:
        return ceil_div(kept_bytes * (left % PARTS or min(left, PARTS)), PARTS)
    if name == "activations/checkpoints":
        return ceil_div(kept_bytes * ceil_div(left, PARTS), layers)
    return ceil_div(kept_bytes * left, layers * PARTS)
