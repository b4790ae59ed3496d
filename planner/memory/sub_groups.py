"""The stage-3 sub-groups of one rank, and which of them a partial offload (`ratio`) leaves on the GPU.

In: `Inputs`. Out: elements, and the GPU terms of what stays there. Stages 1 and 2 have one group, their partition.
"""

from __future__ import annotations

from planner.memory import host, optimizers, states, transients
from planner.memory.inputs import FROM_INIT, STAGE3, TRAINING, Inputs, term
from planner.records.candidate import Offload, ZeroStage
from planner.records.estimate import Moment, Term

TWIN_FLOW = f"{STAGE3} _create_fp32_partitions, initialize_optimizer_states, backup_optimizer"


def rank_share(given: Inputs) -> int:
    """Elements of one rank's share."""
    degrees = given.candidate.degrees
    if given.candidate.zero is ZeroStage.PARAMETERS:
        return states.sharded_parameter_elements(given.sizes.total, given.sizes.divided, degrees)
    return states.gradient_partition_bytes(given.sizes.total, degrees, 1)


def rank_groups(given: Inputs) -> tuple[int, ...]:
    """Elements of every sub-group that one rank updates by itself: one below stage 3."""
    c, share = given.candidate, rank_share(given)
    if c.zero is not ZeroStage.PARAMETERS:
        return (share,)
    if c.degrees.tp == 1:
        return host.sub_group_elements(given.sizes.tensors, c.degrees.dp, c.settings.sub_group_elements)
    largest = transients.sub_group_elements(given.sizes, c.degrees, c.settings.sub_group_elements)
    full, rest = divmod(share, largest or share)  # tensor parallelism divides no adapter
    return (largest,) * full + ((rest,) if rest else ())


def groups_on_gpu(given: Inputs) -> tuple[int, ...]:
    """The first sub-groups, whose master weights, gradients and states a partial offload leaves on the GPU."""
    c = given.candidate
    if c.zero is not ZeroStage.PARAMETERS or c.offload not in (Offload.OPTIMIZER, Offload.OPTIMIZER_AND_PARAMS):
        return ()
    groups = rank_groups(given)
    return groups[: host.groups_left_on_gpu(len(groups), c.settings.optimizer_offload_ratio)]


def partial_offload_terms(given: Inputs) -> list[Term]:
    """What the sub-groups on the GPU hold there: everything in the master's width, updated by torch's AdamW."""
    groups, width, optimizer = groups_on_gpu(given), given.precision.state_bytes, given.optimizer
    if not groups:
        return []
    held, largest = sum(groups), max(groups)
    first = "S of the first (1 - ratio) sub-groups"
    return [
        term("states/master", FROM_INIT, width * held, f"{width} * {first}", TWIN_FLOW),
        term("init/master_clone", (Moment.INIT_WEIGHTS,), transients.master_clone_bytes(largest, width),
             f"{width} * S", TWIN_FLOW),
        term("gradients/update", FROM_INIT, width * held, f"{width} * {first}", TWIN_FLOW),
        term("states/optimizer", TRAINING, optimizers.optimizer_state_bytes(held, optimizer, given.precision),
             optimizers.state_formula(optimizer, given.precision, first), TWIN_FLOW),
        term("step/update", (Moment.STEP_UPDATE,), width * largest, f"{width} * S: the root of the variance",
             "torch 2.13 torch/optim/adamw.py, _multi_tensor_adamw"),
    ]  # fmt: skip
