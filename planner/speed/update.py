"""Seconds of the optimizer step and of everything that offload moves.

In: parameter counts and rates as plain numbers. Out: seconds. Symbols: `planner.geometry.legend`.
"""

from __future__ import annotations

from functools import lru_cache

from planner.geometry.params import EXPERT_PREFIX, parameter_tensors
from planner.memory import host
from planner.memory.optimizers import muon_takes, update_traffic_bytes
from planner.memory.sizes import rank_sizes
from planner.records.candidate import Offload, ZeroStage
from planner.records.machine import Cluster
from planner.records.model import ModelShape, Precision
from planner.records.request import Optimizer
from planner.speed.constants import Engine, SpeedConstants

SUB_GROUP_KERNELS = 12
"""Kernels that prepare, step and copy back one sub-group: deepspeed/runtime/zero/stage3.py `step` (0.19.8)."""


def gpu_step_s(
    local_parameters: float,
    hbm_bytes_per_s: float,
    constants: SpeedConstants,
    *,
    optimizer: Optimizer = Optimizer.ADAMW,
    precision: Precision = Precision.BF16,
) -> float:
    """Seconds of the update on the GPU.

    Formula: 28 bytes * local parameters / W for AdamW; for others in proportion to their traffic.
    Source: DeepSpeed's FusedAdam reads gradient, master weight and both moments once; fitted on vTrain.
    Leaves out: what `conversion_s` counts.
    """
    share = update_traffic_bytes(optimizer, precision) / update_traffic_bytes(Optimizer.ADAMW, Precision.BF16)
    return constants.engine.optimizer_traffic_bytes * share * local_parameters / hbm_bytes_per_s


def conversion_s(
    local_parameters: float,
    hbm_bytes_per_s: float,
    constants: SpeedConstants,
    *,
    precision: Precision,
    sub_groups: int = 0,
) -> float:
    """Seconds around the update on the GPU: norm, cast of gradients, clipping, weights back to 16 bits.

    Formula: 42 bytes * local parameters / W in 16 bits, + 12 kernels * 11 µs for each stage-3 sub-group.
    Source: deepspeed/runtime/zero/stage3.py and stage_1_and_2.py `step` (0.19.8).
    Leaves out: Python's time for the tensors of a sub-group; pure bf16, which casts less.
    """
    converted = constants.engine.optimizer_conversion_bytes if precision.bytes < precision.state_bytes else 0.0
    return converted * local_parameters / hbm_bytes_per_s + sub_groups * SUB_GROUP_KERNELS * constants.gemm_launch_s


def sub_group_count(local_parameters: float, sub_group_elements: int) -> int:
    """Stage-3 sub-groups of one rank.

    Formula: P / N / sub_group_size, rounded up.
    Source: deepspeed/runtime/zero/stage3.py `_create_fp16_sub_groups` (0.19.8).
    Leaves out: that a group ends with a whole tensor.
    """
    return max(1, -int(-local_parameters // sub_group_elements))


@lru_cache(maxsize=512)
def cpu_share(model: ModelShape, tp: int, dp: int, sub_group_elements: int, ratio: float) -> float:
    """Share of the parameters that the CPU steps under a partial offload.

    Formula: elements of the sub-groups after the first int((1 - ratio) * groups), over all.
    Source: deepspeed/runtime/zero/stage3.py `_create_fp32_partitions` (0.19.8).
    Leaves out: adapters, whose few sub-groups count as the model's.
    """
    groups = host.sub_group_elements(rank_sizes(model, tp).tensors, dp, sub_group_elements)
    return sum(groups[host.groups_left_on_gpu(len(groups), ratio) :]) / sum(groups)


@lru_cache(maxsize=64)
def muon_flop(model: ModelShape) -> int:
    """Arithmetic of orthogonalising every matrix of the model once.

    Formula: sum of `orthogonalisation_flop` over the matrices that Muon takes.
    Source: deepspeed/runtime/zero/muon/original_muon.py `zeropower_via_gram_newtonschulz`, five steps (0.19.8).
    Leaves out: adapters, whose matrices are narrow; that tensor parallelism orthogonalises shards.
    """
    total = 0
    for tensor in parameter_tensors(model):
        if muon_takes(tensor, model.model_type):
            stacked = model.experts if tensor.name.startswith(EXPERT_PREFIX) else 1
            total += tensor.count * stacked * orthogonalisation_flop(tensor.rows // stacked, tensor.columns)
    return total


def orthogonalisation_flop(rows: int, columns: int) -> int:
    """One matrix.

    Formula: 8 * n * n * m + 28 * n * n * n for n < m, 30 * n * n * n for a square one.
    Source: as `muon_flop`.
    Leaves out: sums and scalings.
    """
    narrow, wide = sorted((rows, columns))
    return 30 * narrow**3 if narrow == wide else 8 * narrow * narrow * wide + 28 * narrow**3


def cpu_parameters_per_s(cluster: Cluster, constants: SpeedConstants) -> float:
    """Parameters that CPU Adam updates per second on one node.

    Formula: 0.9e9 per socket, 2.1e9 on hosts with PCIe 5; two sockets from 2 GPUs on, else one; at most 62e6, or 145e6,
        per physical core where cores are known.
    Source: DeepSpeed issue 6834, pull request 7474, ZenFlow blog (1.6-1.8 G/s, two sockets); issue 1635 (62 M/s);
        ml-engineering, when-to-upgrade-gpus, for PCIe 5.
    Leaves out: bound cores (x1.15-1.3), which no launch file of dsplan asks for; Grace (x1.3, unverified);
        OMP_NUM_THREADS set too low: the launch files set it to the cores of a rank.
    """
    sockets = 2 if cluster.gpus_per_node >= constants.two_socket_gpus else 1
    older = constants.cpu_adam_parameters_per_s
    modern = cluster.gpu.host_link_bytes_per_s >= constants.ddr5_host_link_bytes_per_s
    socket = constants.cpu_adam_ddr5_parameters_per_s if modern else older
    if cluster.cpu_cores is None:
        return sockets * socket
    return min(sockets * socket, cluster.cpu_cores * constants.cpu_adam_core_parameters_per_s * socket / older)


def cpu_step_s(
    node_parameters: float, cluster: Cluster, constants: SpeedConstants, *, optimizer: Optimizer = Optimizer.ADAMW
) -> float:
    """Seconds of the update in host memory.

    Formula: parameters of the node / parameters per second of the node; longer where the update moves more than Adam's.
    Source: see cpu_parameters_per_s.
    Leaves out: overlapped updates (ZenFlow, SuperOffload), what lighter updates save.
    """
    adam = update_traffic_bytes(Optimizer.ADAMW, Precision.BF16)
    slower = max(1.0, update_traffic_bytes(optimizer, Precision.BF16) / adam)
    return slower * node_parameters / cpu_parameters_per_s(cluster, constants)


def host_link_bytes_per_s(cluster: Cluster, constants: SpeedConstants, *, together: bool) -> float:
    """Rate between one GPU and the host, in one direction.

    Formula: pc; pc * 4 / GPUs where more than four copy together, below PCIe 5.
    Source: 12, 24 and 50 GB/s for PCIe 3, 4 and 5, in the GPU table; four uplinks of a node: arXiv:2104.07857,
        figure 2b.
    Leaves out: nodes with an uplink for each GPU; the memory of the host, which eight PCIe 5 links can exceed.
    """
    link = cluster.gpu.host_link_bytes_per_s
    if not together or link >= constants.ddr5_host_link_bytes_per_s:
        return link
    return link * min(1.0, constants.host_uplinks / cluster.gpus_per_node)


def host_copy_s(local_parameters: float, value_bytes: float, host_link_bytes_per_s: float) -> float:
    """Seconds to copy one value per local parameter between GPU and host, in one direction.

    Formula: bytes * local parameters / pc.
    Source: see `host_link_bytes_per_s`.
    Leaves out: pageable memory (`pin_memory: false`), which copies at a fraction of it.
    """
    return value_bytes * local_parameters / host_link_bytes_per_s


def gradient_copies_bytes(
    stage: ZeroStage,
    accumulation: int,
    dp: int,
    *,
    gradient_bytes: int,
    accumulated_bytes: int,
    master_bytes: int,
    cpu_share: float,
    engine: Engine,
) -> tuple[float, float, float]:
    """Bytes that the gradient of one parameter sends over a host link in the first micro-batch of several, in those
    between, and in the last one.

    Formula: stage 3: each rank its shard: 2 * a / n in every micro-batch, a the bytes of an accumulated gradient,
        + s / n of what the CPU steps in the last; stages 1 and 2: the owner of a partition copies while all wait: s in
        the last, with accumulation in 16 bits + 2 * e; at stage 2 also e in the first and 2 * e between.
    Source: deepspeed/runtime/zero/stage3.py `partition_grads`; stage_1_and_2.py `copy_grads_in_partition`,
        `async_accumulate_grad_in_cpu_via_gpu`, `_use_compact_grad_partition_buffer` (0.19.8): fp32 accumulation of
        stages 1 and 2 stays on the GPU.
    Leaves out: `round_robin_gradients`, with which all ranks copy at once.
    """
    if not engine.host_gradient_copies:
        return 0.0, 0.0, gradient_bytes / dp
    if stage is ZeroStage.PARAMETERS:
        trip = 2 * accumulated_bytes / dp
        return trip, trip, trip + cpu_share * master_bytes / dp
    if accumulation == 1 or accumulated_bytes > gradient_bytes:
        return 0.0, 0.0, float(master_bytes)
    last = float(master_bytes + 2 * gradient_bytes)
    return (float(gradient_bytes), 2.0 * gradient_bytes, last) if stage is ZeroStage.GRADIENTS else (0.0, 0.0, last)


def nvme_states_s(
    node_parameters: float, read_bytes_per_s: float, write_bytes_per_s: float, constants: SpeedConstants
) -> float:
    """Seconds to bring the optimizer states of one node from NVMe and back.

    Formula: (12 + 4) bytes * parameters of the node * (1/read + 1/write).
    Source: fp32 master weight, two moments and the gradient, which is written in backward and read with them:
        deepspeed/runtime/swap_tensor/partitioned_optimizer_swapper.py, DeepSpeed 0.19.8.
    Leaves out: that the gradient is written while backward goes on.
    """
    swapped = constants.nvme_state_bytes + constants.engine.nvme_gradient_bytes
    return swapped * node_parameters * (1 / read_bytes_per_s + 1 / write_bytes_per_s)


def nvme_weights_s(node_parameters: float, weight_bytes: float, bytes_per_s: float) -> float:
    """Seconds to read, or to write, the parameter shards of one node once.

    Formula: w * parameters of the node / rate of all drives.
    Source: deepspeed/runtime/swap_tensor/partitioned_param_swapper.py, DeepSpeed 0.19.8: read for each gather.
    Leaves out: shards that stay in host memory (`max_in_cpu`).
    """
    return weight_bytes * node_parameters / bytes_per_s


def nvme_rates_bytes_per_s(cluster: Cluster, constants: SpeedConstants) -> tuple[float, float]:
    """Read and write rate of one node's drives.

    Formula: as the cluster says; one PCIe 3 drive (3.2 and 2.0 GB/s) where it does not say.
    Source: DeepNVMe, https://github.com/deepspeedai/DeepSpeed/blob/master/blogs/deepnvme/06-2025/README.md.
    Leaves out: rates that fall when a drive fills up.
    """
    return (
        cluster.nvme_read_bytes_per_s or constants.nvme_default_read_bytes_per_s,
        cluster.nvme_write_bytes_per_s or constants.nvme_default_write_bytes_per_s,
    )


def gathered_parameters_s(
    shard_parameters: float, weight_bytes: float, cluster: Cluster, offload: Offload, constants: SpeedConstants
) -> float:
    """Seconds to fetch the own shard of one layer before its gather, 0 where shards lie on the GPU.

    Formula: w * Ψ_l/n / pc; from NVMe at least w * Ψ_l/n * GPUs of a node / read rate.
    Source: deepspeed/runtime/zero/partition_parameters.py, DeepSpeed 0.19.8: copied from their device for each gather.
    Leaves out: nothing known.
    """
    if offload.param_device == "none":
        return 0.0
    copy = host_copy_s(shard_parameters, weight_bytes, host_link_bytes_per_s(cluster, constants, together=True))
    if offload is not Offload.NVME:
        return copy
    read, _ = nvme_rates_bytes_per_s(cluster, constants)
    return max(copy, nvme_weights_s(shard_parameters * cluster.gpus_per_node, weight_bytes, read))
