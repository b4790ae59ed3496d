"""Seconds of the optimizer step and of everything that offload moves.

In: parameter counts and rates as plain numbers. Out: seconds. Symbols: `planner.geometry.legend`.
"""

from __future__ import annotations

from functools import lru_cache

from planner.geometry.params import EXPERT_PREFIX, parameter_tensors
from planner.memory.optimizers import muon_takes, update_traffic_bytes
from planner.records.candidate import Offload
from planner.records.machine import Cluster
from planner.records.model import ModelShape, Precision
from planner.records.request import Optimizer
from planner.speed.constants import SpeedConstants


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
    Leaves out: gradient clipping and the norm before the step.
    """
    share = update_traffic_bytes(optimizer, precision) / update_traffic_bytes(Optimizer.ADAMW, Precision.BF16)
    return constants.engine.optimizer_traffic_bytes * share * local_parameters / hbm_bytes_per_s


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

    Formula: 0.9e9 per socket, 1.8e9 on hosts with PCIe 5; two sockets from 4 GPUs on, else one; at most 62e6, or 124e6,
        per physical core where cores are known.
    Source: DeepSpeed issue 6834, pull request 7474, ZenFlow blog (1.6-1.8 G/s, two sockets); issue 1635 (62 M/s);
        ml-engineering, when-to-upgrade-gpus, for PCIe 5.
    Leaves out: bound cores (x1.15-1.3), Grace (x1.3, unverified), OMP_NUM_THREADS set too low.
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
    Leaves out: partial offload (`ratio`), overlapped updates (ZenFlow, SuperOffload), what lighter updates save.
    """
    adam = update_traffic_bytes(Optimizer.ADAMW, Precision.BF16)
    slower = max(1.0, update_traffic_bytes(optimizer, Precision.BF16) / adam)
    return slower * node_parameters / cpu_parameters_per_s(cluster, constants)


def host_copy_s(local_parameters: float, value_bytes: float, host_link_bytes_per_s: float) -> float:
    """Seconds to copy one value per local parameter between GPU and host, in one direction.

    Formula: bytes * local parameters / pc.
    Source: 12, 24 and 50 GB/s for PCIe 3, 4 and 5, in the GPU table.
    Leaves out: GPUs that share one uplink; gradients that cross again in each accumulated micro-batch.
    """
    return value_bytes * local_parameters / host_link_bytes_per_s


def nvme_states_s(
    node_parameters: float, read_bytes_per_s: float, write_bytes_per_s: float, constants: SpeedConstants
) -> float:
    """Seconds to bring the optimizer states of one node from NVMe and back.

    Formula: 12 bytes * parameters of the node * (1/read + 1/write).
    Source: fp32 master weight and two moments: deepspeed/runtime/swap_tensor/optimizer_utils.py, DeepSpeed 0.19.8.
    Leaves out: fp32 gradients that are swapped too; reading beside writing (`pipeline_read`, `pipeline_write`).
    """
    return constants.nvme_state_bytes * node_parameters * (1 / read_bytes_per_s + 1 / write_bytes_per_s)


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
    Leaves out: parameters below the persistence threshold, which stay on the GPU.
    """
    if offload.param_device == "none":
        return 0.0
    copy = host_copy_s(shard_parameters, weight_bytes, cluster.gpu.host_link_bytes_per_s)
    if offload is not Offload.NVME:
        return copy
    read, _ = nvme_rates_bytes_per_s(cluster, constants)
    return max(copy, nvme_weights_s(shard_parameters * cluster.gpus_per_node, weight_bytes, read))
