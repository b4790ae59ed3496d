"""The optimizer on the GPU under ZeRO: its states, gradients on their way to it, what its update makes and drops.

In: `Inputs` and the elements of this rank's share. Out: terms. Muon differs from all others: it sees whole matrices.
"""

from __future__ import annotations

from planner.geometry.sharding import padded_share
from planner.memory import muon, optimizers, transients
from planner.memory.backward import reduces_at_once
from planner.memory.inputs import FROM_INIT, STAGE3, STAGE12, STEP, TRAINING, Inputs, term
from planner.records.estimate import Moment, Term
from planner.records.model import Precision
from planner.records.request import Optimizer
from planner.units import ceil_div


def stages_one_two_update(given: Inputs, share: int, gradient_bytes: int, *, in_reduction: int = 0) -> list[Term]:
    """States and step at stages 1 and 2, where an optimizer updates a flat partition of `share` elements.

    `in_reduction`: bytes of gradients that are still being reduced when backward ends.
    """
    optimizer, precision = given.optimizer, given.precision
    if optimizer is Optimizer.MUON:
        return _muon_one_two(given, gradient_bytes, in_reduction)
    width, source = precision.state_bytes, optimizers.state_source(optimizer)
    flat = gradient_bytes > precision.bytes  # fp32 accumulation keeps one flat partition, which is updated as it is
    cast = 0 if flat else transients.gradient_cast_bytes(share, gradient_bytes, width)
    return [
        term("states/optimizer", TRAINING, optimizers.optimizer_state_bytes(share, optimizer, precision),
             optimizers.state_formula(optimizer, precision, "P / N"), source),
        term("step/gradient_cast", (Moment.STEP_CAST,), cast, _cast_formula("P / N", precision), f"{STAGE12} step"),
        term("step/gradients", (Moment.STEP_UPDATE,), width * share, f"{width} * P / N", f"{STAGE12} step"),
        term("step/update", (Moment.STEP_UPDATE,), optimizers.update_bytes(share, optimizer, precision),
             optimizers.update_formula(optimizer, precision), source),
    ]  # fmt: skip


def _muon_one_two(given: Inputs, gradient_bytes: int, in_reduction: int) -> list[Term]:
    """States and step of Muon: matrices and the rest in partitions of their own, updated one after the other.

    The updates of the matrices are made when backward is over and the last reduction done. One buffer holds the
    gradients of both partitions, so that it lives until the rest is cast.
    """
    sizes, dp, width = given.sizes, given.candidate.degrees.dp, given.precision.state_bytes
    matrices, rest = padded_share(sizes.muon, dp), padded_share(sizes.total - sizes.muon, dp)
    touched, source = muon.fullest_partition_elements(sizes.muon_by_shape, dp), optimizers.state_source(Optimizer.MUON)
    updates = gradient_bytes * touched
    cast = max(transients.gradient_cast_bytes(matrices, gradient_bytes, width),
               transients.gradient_cast_bytes(rest, gradient_bytes, width) - updates)  # fmt: skip
    in_backward = max(0, updates + sizes.muon_workspace_bytes - in_reduction) if reduces_at_once(given) else 0
    return [
        term("states/optimizer", TRAINING,
             optimizers.muon_state_bytes(touched, rest, given.precision, momentum_bytes=2 * gradient_bytes),
             f"2e * matrices / N + {2 * width} * rest / N ({optimizers.KEPT[Optimizer.MUON][0]}; the momentum twice)",
             source),
        term("backward/muon", (Moment.BACKWARD_END,), in_backward,
             f"e * matrices / N + {optimizers.MUON_WORKSPACE}, less what is still in reduction before", source),
        term("gradients/muon_updates", STEP, updates, "e * matrices / N", f"{STAGE12} get_flat_partition"),
        term("step/gradient_cast", (Moment.STEP_CAST,), cast, _cast_formula("matrices / N", given.precision),
             f"{STAGE12} step"),
        term("step/gradients", (Moment.STEP_UPDATE,), width * matrices + gradient_bytes * (matrices + rest),
             f"{width} * matrices / N + e * P / N", f"{STAGE12} step"),
    ]  # fmt: skip


def _cast_formula(share: str, precision: Precision) -> str:
    """The gradients on their way to the update, as text."""
    if precision.bytes == precision.state_bytes:
        return f"e * {share} flattened"
    return f"e * {share} flattened + {precision.state_bytes} * {share} cast"


def stage_three_update(given: Inputs, shard: int, group: int, gradient_bytes: int) -> list[Term]:
    """States and step at stage 3: one sub-group after the other."""
    optimizer, precision = given.optimizer, given.precision
    width, source = precision.state_bytes, optimizers.state_source(optimizer)
    terms = [
        term("step/gradient_cast", (Moment.STEP_CAST,),
             transients.gradient_cast_bytes(group, gradient_bytes, width), _cast_formula("S", precision),
             f"{STAGE3} _prepare_sub_group"),
        term("step/gradients", (Moment.STEP_UPDATE,), width * group, f"{width} * S", f"{STAGE3} _prepare_sub_group"),
    ]  # fmt: skip
    if optimizer is Optimizer.MUON:
        return [*terms, *_muon_three(given, shard)]
    return [
        *terms,
        term("states/optimizer", TRAINING, optimizers.optimizer_state_bytes(shard, optimizer, precision),
             optimizers.state_formula(optimizer, precision, "P / N"), source),
        term("step/update", (Moment.STEP_UPDATE,), optimizers.update_bytes(group, optimizer, precision),
             optimizers.update_formula(optimizer, precision), source),
    ]  # fmt: skip


def _muon_three(given: Inputs, shard: int) -> list[Term]:
    """States of Muon at stage 3, and the gathers of whole gradients and momentums before the norm is taken."""
    c, sizes, e = given.candidate, given.sizes, given.element_bytes
    matrices = ceil_div(shard * sizes.muon, sizes.total)
    source, dp = optimizers.state_source(Optimizer.MUON), c.degrees.dp
    settings = c.settings
    chunks = muon.chunk_elements(sizes.muon_matrices, settings.reduce_bucket_elements, settings.sub_group_elements, dp)
    largest = max(sizes.muon_matrices, default=0)
    working = muon.chunk_bytes(chunks, largest, sizes.muon_workspace_bytes, dp, e)
    norm = transients.norm_slice_bytes(ceil_div(sizes.largest_tensor, dp))
    return [
        term("states/muon_momentum", FROM_INIT, e * matrices, "e * matrices / N (Muon: momentum of matrices)", source),
        term("states/optimizer", TRAINING,
             optimizers.optimizer_state_bytes(shard - matrices, Optimizer.MUON, given.precision),
             optimizers.state_formula(Optimizer.MUON, given.precision, "rest / N"), source),
        term("buffers/muon_gather", TRAINING, muon.kept_gather_bytes(chunks, dp, e),
             "e * (C + C / N) for every size C of a chunk of matrices, at most 256 MiB",
             f"{STAGE3} _partitioned_buffers_all_gather"),
        term("step/muon", (Moment.STEP_NORM,), max(0, working - norm),
             "e * (3 * C + C / N) + e * m * (3 + 4 * N), m the largest matrix; less the norm, which comes later",
             f"{STAGE3} _muon_update_sub_group"),
    ]  # fmt: skip
