"""The optimizer on the GPU under ZeRO: its states, gradients on their way to it, what its update makes and drops.

In: `Inputs` and the elements of this rank's share. Out: terms. Muon differs from all others: it sees whole matrices.
"""

from __future__ import annotations

from planner.geometry.sharding import padded_share
from planner.memory import optimizers, transients
from planner.memory.inputs import FROM_INIT, STAGE3, STAGE12, STEP, TRAINING, Inputs, term
from planner.records.candidate import ZeroStage
from planner.records.estimate import Moment, Term
from planner.records.model import Precision
from planner.records.request import Optimizer
from planner.units import ceil_div


def stages_one_two_update(given: Inputs, share: int, gradient_bytes: int) -> list[Term]:
    """States and step at stages 1 and 2, where an optimizer updates a flat partition of `share` elements."""
    optimizer, precision = given.optimizer, given.precision
    if optimizer is Optimizer.MUON:
        return _muon_one_two(given, gradient_bytes)
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


def _muon_one_two(given: Inputs, gradient_bytes: int) -> list[Term]:
    """States and step of Muon: matrices and the rest in partitions of their own, updated one after the other.

    The updates of the matrices are made at the end of backward, when full gradients are gone; one buffer holds the
    gradients of both partitions, so that it lives until the rest is cast.
    """
    c, sizes, width = given.candidate, given.sizes, given.precision.state_bytes
    matrices, rest = padded_share(sizes.muon, c.degrees.dp), padded_share(sizes.total - sizes.muon, c.degrees.dp)
    source, updates = optimizers.state_source(Optimizer.MUON), gradient_bytes * matrices
    cast = max(transients.gradient_cast_bytes(matrices, gradient_bytes, width),
               transients.gradient_cast_bytes(rest, gradient_bytes, width) - updates)  # fmt: skip
    full = c.zero is ZeroStage.OPTIMIZER and (c.accumulation > 1 or not c.settings.overlap_comm)
    backward = () if full else (Moment.BACKWARD_END,)
    return [
        term("states/optimizer", TRAINING,
             optimizers.muon_state_bytes(matrices, rest, given.precision, momentum_bytes=2 * gradient_bytes),
             f"2e * matrices / N + {2 * width} * rest / N ({optimizers.KEPT[Optimizer.MUON][0]}; the momentum twice)",
             source),
        term("gradients/muon_updates", (*backward, *STEP), updates, "e * matrices / N",
             f"{STAGE12} get_flat_partition"),
        term("backward/muon", backward, sizes.muon_workspace_bytes, optimizers.MUON_WORKSPACE, source),
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
    chunk = transients.muon_chunk_elements(sizes, c.settings, dp)
    kept = transients.muon_buffer_bytes(chunk, dp, e)
    return [
        term("states/muon_momentum", FROM_INIT, e * matrices, "e * matrices / N (Muon: momentum of matrices)", source),
        term("states/optimizer", TRAINING,
             optimizers.optimizer_state_bytes(shard - matrices, Optimizer.MUON, given.precision),
             optimizers.state_formula(Optimizer.MUON, given.precision, "rest / N"), source),
        term("buffers/muon_gather", TRAINING, kept, "e * (C + C / N), at most 256 MiB, C one chunk of whole matrices",
             f"{STAGE3} _partitioned_buffers_all_gather"),
        term("step/muon", (Moment.STEP_NORM,),
             transients.muon_step_bytes(chunk, dp, e) - kept + sizes.muon_workspace_bytes,
             f"e * (3 * C + 2 * C / N) + {optimizers.MUON_WORKSPACE}", f"{STAGE3} _muon_update_sub_group"),
    ]  # fmt: skip
