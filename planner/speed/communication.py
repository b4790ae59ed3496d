"""Seconds of collectives: over the data-parallel group, over the tensor-parallel group, and what overlap hides.

In: bytes, degrees and the cluster. Out: seconds. Symbols: `planner.geometry.legend`.
"""

from __future__ import annotations

from typing import NamedTuple

from planner.geometry.flops import LayerWork
from planner.records.candidate import Degrees
from planner.records.machine import Cluster
from planner.speed.constants import Engine, SpeedConstants


class GroupRate(NamedTuple):
    """Seconds per byte: gather or scatter over the data-parallel ranks, all-reduce over the tensor-parallel ranks."""

    data_s_per_byte: float
    tensor_s_per_byte: float
    tensor_latency_s: float


def group_rates(cluster: Cluster, degrees: Degrees, constants: SpeedConstants) -> GroupRate:
    """The rates that every collective of one candidate needs; raises ValueError if the network rate is missing.

    Formula: data_s_per_byte, tensor_s_per_byte, collective_latency_s.
    Source: see those.
    Leaves out: see those.
    """
    if cluster.nodes > 1 and cluster.network_bytes_per_s is None:
        raise ValueError(f"a cluster of {cluster.nodes} nodes needs a network rate")
    network = cluster.network_bytes_per_s or 0.0
    return GroupRate(
        data_s_per_byte(cluster, degrees, network),
        tensor_s_per_byte(cluster, degrees, network),
        collective_latency_s(cluster, degrees, constants),
    )


def data_s_per_byte(cluster: Cluster, degrees: Degrees, network_bytes_per_s: float) -> float:
    """Seconds per byte of a gather or reduce-scatter among the n ranks of one data-parallel group.

    Formula: max((n-1)/n / B, (m-1)/m * min(t, G) / Net), m = nodes the group reaches, B for the ranks it has in a node.
    Source: ring algorithm, Thakur et al. 2005, section 4; a node's rails add up, its t groups share them: llm-foundry.
    Leaves out: latency, which large messages hide; contention of several groups on a PCIe switch.
    """
    tp, dp, per_node = degrees.tp, degrees.dp, cluster.gpus_per_node
    if dp == 1:
        return 0.0
    nodes = min(cluster.nodes, dp)
    local_ranks = max(dp // nodes, 1)
    inside = (dp - 1) / dp / cluster.intra_node.bus(local_ranks) if local_ranks > 1 else 0.0
    if nodes == 1:
        return inside
    return max(inside, (nodes - 1) / nodes * min(tp, per_node) / network_bytes_per_s)


def tensor_s_per_byte(cluster: Cluster, degrees: Degrees, network_bytes_per_s: float) -> float:
    """Seconds per byte of an all-reduce among the t ranks of one tensor-parallel group, without latency.

    Formula: 2 * (t-1)/t / B, with B = min(B, Net) when the group leaves the node.
    Source: ring algorithm, Thakur et al. 2005, section 4; across nodes chosen on six rows of vTrain, error 6.6 %.
    Leaves out: in-switch reduction (NVLS) unless the link's table has it.
    """
    tp = degrees.tp
    if tp == 1:
        return 0.0
    bus = cluster.intra_node.bus(min(tp, cluster.gpus_per_node))
    if tp > cluster.gpus_per_node:
        bus = min(bus, network_bytes_per_s)
    return 2 * (tp - 1) / tp / bus


def collective_latency_s(cluster: Cluster, degrees: Degrees, constants: SpeedConstants) -> float:
    """Start-up time of one all-reduce among t ranks.

    Formula: 40 µs + 6 µs * t, and 50 µs more when the group leaves the node.
    Source: NCCL tables of vTrain, 2 to 8 GPUs, https://github.com/VIA-Research/vTrain.
    Leaves out: the protocol change of NCCL between small and large messages.
    """
    if degrees.tp == 1:
        return 0.0
    latency = constants.collective_base_s + constants.collective_rank_s * degrees.tp
    return latency + constants.collective_cross_node_s if degrees.tp > cluster.gpus_per_node else latency


def tensor_parallel_s(rate: GroupRate, activation_bytes: float, all_reduces: int) -> float:
    """Seconds of the tensor-parallel all-reduces of one layer in one pass.

    Formula: all-reduces * (α + w * h * T * 2 * (t-1)/t / B).
    Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3: two in forward, two in backward. DeepSpeed 0.19.8,
        deepspeed/module_inject/layers.py: in backward one per column-parallel Linear.
    Leaves out: overlap with compute, which AutoTP does not do by default.
    """
    return all_reduces * (rate.tensor_latency_s + activation_bytes * rate.tensor_s_per_byte)


def backward_all_reduces(layer: LayerWork, engine: Engine) -> int:
    """All-reduces of one layer's backward.

    Formula: one per column-parallel Linear (q, k, v, gate, up), or one per block of them.
    Source: DeepSpeed 0.19.8, deepspeed/module_inject/layers.py, LinearLayer.forward; per block: arXiv:1909.08053.
    Leaves out: `tp_overlap_comm`, which hides them behind the weight gradient.
    """
    return layer.column_gemms if engine.all_reduce_per_column_linear else layer.row_gemms


def hidden_s(compute_s: float, transfer_s: float, exposed_share: float) -> float:
    """The part of a transfer that compute hides.

    Formula: (1 - k) * min(compute, transfer), so that together they take max + k * min.
    Source: k = 0.6 fitted on llm-foundry FSDP rows (.48 to .85); k = 1 without `overlap_comm`: one CUDA stream,
        deepspeed/runtime/zero/stage_1_and_2.py, average_tensor, DeepSpeed 0.19.8.
    Leaves out: how kernels slow down while NCCL uses their multiprocessors; k holds it on average.
    """
    return (1.0 - exposed_share) * min(compute_s, transfer_s)
