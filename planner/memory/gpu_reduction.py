"""Stages 1 and 2 where gradients are reduced as they come: what of them is on the GPU at which moment of backward.

In: `Inputs`. Out: terms, and the instants of which one is the fullest while layers are differentiated.
"""

from __future__ import annotations

from planner.geometry.sharding import touched_elements
from planner.memory import states
from planner.memory.backward import Late
from planner.memory.gradient_walk import GradientWalk, Held, Keeps, gradient_walk, ranks_that_matter
from planner.memory.inputs import FORWARD_TO_HEAD, LATE, LAYER, REDUCTION, STAGE12, STEP, Inputs, term
from planner.records.candidate import Offload, ZeroStage
from planner.records.estimate import Moment, Term
from planner.records.model import Precision

END = (Moment.BACKWARD_END,)


def walk_of(given: Inputs) -> GradientWalk:
    """The backward of this candidate."""
    c, sizes = given.candidate, given.sizes
    offloads, compact = c.offload is not Offload.NONE, fp32_partition(given)
    stage_one, accumulates = c.zero is ZeroStage.OPTIMIZER, c.accumulation > 1
    partition = None
    if offloads or (compact and accumulates):  # nowhere, or for the whole run
        partition = 0
    elif compact:
        partition = states.FP32_BYTES // given.element_bytes * share_elements(given)
    return gradient_walk(
        sizes.order,
        c.settings.reduce_bucket_elements,
        share_elements(given),
        c.degrees.dp,
        Keeps(
            partition=partition,
            casts=states.FP32_BYTES // given.element_bytes if compact else 0,
            own=compact,
            foreign=stage_one,
            unreduced=stage_one and accumulates,
            accumulated=not stage_one and accumulates and not offloads and not compact,
        ),
    )


def fp32_partition(given: Inputs) -> bool:
    """Whether reduced gradients are kept in fp32, in one compact partition."""
    c = given.candidate
    return c.settings.fp32_gradient_accumulation and given.precision is not Precision.FP32 and c.offload is Offload.NONE


def share_elements(given: Inputs) -> int:
    """Elements of one partition.

    Formula: P / N, rounded up to the partition's alignment.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `partition_size` (0.19.8).
    Leaves out: a second parameter group's own padding.
    """
    return states.gradient_partition_bytes(given.sizes.total, given.candidate.degrees, 1)


def partition_elements(given: Inputs) -> int:
    """Elements of all tensors that the fullest rank has a part of.

    Formula: end of the last tensor in its partition - start of the first one, the most of `ranks_that_matter`.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `copy_grads_in_partition` (0.19.8).
    Leaves out: the other ranks.
    """
    order, share = given.sizes.order, share_elements(given)
    ranks = ranks_that_matter(order, share, given.candidate.degrees.dp)
    return max(touched_elements(order.flat, share, rank) for rank in ranks)


def reduced_at_once(given: Inputs, walk: GradientWalk) -> list[Term]:
    """Gradients outside the buckets at every moment but those of LATE."""
    c, e, order = given.candidate, given.element_bytes, given.sizes.order
    tied = e * given.sizes.head if order.tied else 0
    terms = [
        term("gradients/tied_head", REDUCTION[:-1], tied, "e * V * h, until the embedding's gradient is added",
             "torch autograd, InputBuffer of a shared parameter"),
    ]  # fmt: skip
    instants = (walk.head, walk.layer, walk.layer, walk.end)
    for moment, held in zip((*REDUCTION[:1], *LAYER, *END), instants, strict=True):
        terms += _held(held, moment, e)
    if c.offload is Offload.NONE and not fp32_partition(given):
        terms.append(term("gradients/partition", STEP, e * partition_elements(given),
                          "e * tensors that lie in the rank's part", f"{STAGE12} grads_in_partition"))  # fmt: skip
    if c.accumulation > 1 and c.zero is ZeroStage.OPTIMIZER:
        full = states.full_gradient_bytes(given.sizes.total, e)
        terms.append(term("gradients/whole", FORWARD_TO_HEAD, full, "e * P", f"{STAGE12} reduce_gradients"))
    elif c.accumulation > 1 and c.offload is Offload.NONE and not fp32_partition(given):
        terms.append(term("gradients/whole", FORWARD_TO_HEAD, e * partition_elements(given),
                          "e * tensors that lie in the rank's part", f"{STAGE12} all_grad_tensors"))  # fmt: skip
    return terms


def late_instants(given: Inputs) -> tuple[tuple[Late, ...], tuple[Late, ...]]:
    """The instants that can be the fullest of each moment of LATE."""
    walk, e = walk_of(given), given.element_bytes
    made, reduced = (
        tuple(Late(held.left, tuple(_held(held, moment, e)), held_bytes(held, e)) for held in instants)
        for moment, instants in zip(LATE, (walk.made, walk.reduced), strict=True)
    )
    return made, reduced


def held_bytes(held: Held, element_bytes: int) -> int:
    """All gradients outside the buckets at an instant.

    Formula: e * (partition + whole ones + what passes).
    Source: memory/gradient_walk.py.
    Leaves out: see that.
    """
    return element_bytes * held.elements


def _held(held: Held, moment: Moment, e: int) -> list[Term]:
    """The gradients of one instant."""
    return [
        term("gradients/partition", (moment,), e * held.partition, "e * tensors that lie in the rank's part",
             f"{STAGE12} grads_in_partition"),
        term("gradients/whole", (moment,), e * held.whole,
             "e * (gradients not reduced yet + those above the bucket that are kept)", f"{STAGE12} reduce_ipg_grads"),
        term("gradients/in_reduction", (moment,), e * held.passing,
             "e * (the gradient that comes + the bucket's copy where it crosses partitions), 4 * a slice that is cast",
             f"{STAGE12} reduce_independent_p_g_buckets_and_remove_grads, average_tensor"),
    ]  # fmt: skip
