"""Training states: weights, gradients, fp32 master weights and optimizer states of one rank.

In: element counts of the rank and who shares what. Out: bytes on the fullest rank.
Symbols as in geometry/legend.py: P elements of the rank after tensor parallelism, N data-parallel ranks.
"""

from __future__ import annotations

from planner.geometry.sharding import State, padded_share, shards
from planner.records.candidate import Degrees, ZeroStage
from planner.records.model import Precision
from planner.units import ceil_div

FP32_BYTES = 4


def share_elements(rank_elements: int, stage: ZeroStage, state: State, degrees: Degrees) -> int:
    """Elements of a state on the fullest rank.

    Formula: P / N rounded up to the partition's alignment where the state is shared, else P.
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5; padding from deepspeed/runtime/zero/stage_1_and_2.py.
    Leaves out: a second parameter group's own padding, a few elements.
    """
    ranks = shards(stage, state, degrees)
    return rank_elements if ranks == 1 else padded_share(rank_elements, ranks)


def sharded_parameter_elements(total: int, divided: int, degrees: Degrees) -> int:
    """Elements of a stage-3 shard.

    What tensor parallelism leaves whole is shared by all ranks, not only by those of one tensor-parallel index, because
    zero.Init runs first.

    Formula: divided / N + (P - divided) / (t * N).
    Source: measured on the engine (DeepSpeed 0.19.8), tp 2 x dp 2.
    Leaves out: padding of each tensor's shard.
    """
    whole = total - divided if degrees.tp > 1 else 0
    return padded_share(total - whole, degrees.dp) + padded_share(whole, degrees.world_size)


def weight_bytes(rank_elements: int, stage: ZeroStage, degrees: Degrees, element_bytes: int) -> int:
    """Weights in the precision of the run.

    Formula: e * P for stages 0-2, e * P / N at stage 3.
    Source: arXiv:1910.02054, section 5.3.
    Leaves out: parameters that stage 3 keeps or holds gathered (memory/gathered.py).
    """
    return element_bytes * share_elements(rank_elements, stage, State.PARAMETERS, degrees)


def master_bytes(rank_elements: int, stage: ZeroStage, degrees: Degrees, precision: Precision) -> int:
    """Master weights: fp32, or bf16 in pure bf16.

    Formula: 4 * P / N from stage 1, 4 * P at stage 0; 0 for fp32 runs at stage 0, where the weights are the master.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `single_partition_of_fp32_groups`, stage3.py
    `fp32_partitioned_groups_flat` (0.19.8): stage 3 means to reuse fp32 weights, but compares a device with its name
    and always copies (measured on the engine).
    Leaves out: nothing known.
    """
    if precision is Precision.FP32 and stage is ZeroStage.DISABLED:
        return 0
    return precision.state_bytes * share_elements(rank_elements, stage, State.OPTIMIZER, degrees)


def secondary_weight_bytes(rank_elements: int, hpz_partition_size: int, element_bytes: int) -> int:
    """hpZ's second copy of the weights, which a few ranks share so that backward gathers among them only.

    Formula: e * P / hpz; 0 without hpZ.
    Source: Wang et al. 2023, arXiv:2306.10209, section 3.2; deepspeed/runtime/zero/partition_parameters.py
    `_partition_param_sec`, made when a parameter is partitioned; stage3.py `_post_step` drops it (0.19.8).
    Leaves out: padding of each tensor.
    """
    return element_bytes * ceil_div(rank_elements, hpz_partition_size) if hpz_partition_size > 1 else 0


def frozen_share_bytes(frozen_weight_bytes: int, dp: int) -> int:
    """A stage-3 shard of weights that are not trained.

    Formula: bytes of the frozen weights / N, rounded up.
    Source: deepspeed/runtime/zero/partition_parameters.py (0.19.8): zero.Init divides every parameter.
    Leaves out: padding of each tensor's shard.
    """
    return ceil_div(frozen_weight_bytes, dp)


def full_gradient_bytes(rank_elements: int, element_bytes: int) -> int:
    """Gradients of every parameter, before any partitioning.

    Formula: e * P.
    Source: arXiv:1910.02054, section 3.1.
    Leaves out: nothing.
    """
    return element_bytes * rank_elements


def gradient_partition_bytes(rank_elements: int, degrees: Degrees, element_bytes: int) -> int:
    """The rank's own share of the reduced gradients.

    Formula: e * P / N.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `grads_in_partition`; stage3.py `grad_partitions_flat_buffer`
    (0.19.8).
    Leaves out: parameters that straddle a partition boundary, which are kept whole.
    """
    return element_bytes * padded_share(rank_elements, degrees.dp)
