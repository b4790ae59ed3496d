"""Seconds of collectives: over the data-parallel group, over the tensor-parallel group, and what overlap hides.

In: bytes, degrees and the cluster. Out: seconds. Symbols: `planner.geometry.legend`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from planner.geometry.flops import LayerWork
from planner.records.candidate import Degrees
from planner.records.machine import Cluster
from planner.speed.constants import Engine, SpeedConstants


class GroupRate(NamedTuple):
    """What a byte costs in each group, and what a collective costs before its first byte arrives."""

    data_s_per_byte: float  # gather or scatter among the data-parallel ranks
    data_start_s: float
    data_reduce_s_per_byte: float  # all-reduce among them
    data_reduce_start_s: float
    near_s_per_byte: float  # gather among the ranks that share a second copy of the weights (hpZ); else as above
    near_start_s: float
    tensor_s_per_byte: float  # all-reduce among the tensor-parallel ranks
    tensor_latency_s: float


class Library(NamedTuple):
    """How the collective library works, as it stands in `SpeedConstants`."""

    base_s: float
    rank_s: float
    cross_node_s: float
    network_step_s: float
    flat_rings: bool


def library(constants: SpeedConstants) -> Library:
    """Those of the constants that collectives depend on, beside links and network."""
    return Library(
        constants.collective_base_s,
        constants.collective_rank_s,
        constants.collective_cross_node_s,
        constants.collective_network_step_s,
        constants.engine.flat_rings,
    )


@lru_cache(maxsize=1024)
def group_rates(cluster: Cluster, degrees: Degrees, lib: Library, *, hpz_partition_size: int = 1) -> GroupRate:
    """The rates that every collective of one candidate needs; raises ValueError if the network rate is missing.

    Formula: the functions below.
    Source: see those.
    Leaves out: see those.
    """
    if cluster.nodes > 1 and cluster.network_bytes_per_s is None:
        raise ValueError(f"a cluster of {cluster.nodes} nodes needs a network rate")
    network, dp = cluster.network_bytes_per_s or 0.0, degrees.dp
    data, data_start = (
        data_s_per_byte(cluster, degrees, network, flat_rings=lib.flat_rings),
        gather_start_s(cluster, degrees, lib),
    )
    near, near_start = data, data_start
    if 1 < hpz_partition_size < dp:
        group = Degrees(tp=degrees.tp, dp=hpz_partition_size)
        near, near_start = (
            data_s_per_byte(cluster, group, network, flat_rings=lib.flat_rings),
            gather_start_s(cluster, group, lib),
        )
    return GroupRate(
        data_s_per_byte=data,
        data_start_s=data_start,
        data_reduce_s_per_byte=data_reduce_s_per_byte(cluster, degrees, network, flat_rings=lib.flat_rings),
        data_reduce_start_s=data_reduce_start_s(cluster, degrees, lib),
        near_s_per_byte=near,
        near_start_s=near_start,
        tensor_s_per_byte=tensor_s_per_byte(cluster, degrees, network),
        tensor_latency_s=collective_latency_s(cluster, degrees, lib),
    )


def nodes_of_group(cluster: Cluster, degrees: Degrees) -> int:
    """Nodes that one data-parallel group reaches: its ranks lie t apart."""
    per_node = max(cluster.gpus_per_node // degrees.tp, 1)
    return min(cluster.nodes, -(-degrees.dp // per_node))


def group_bus_bytes_per_s(cluster: Cluster, tp: int, local_ranks: int) -> float:
    """Bus bandwidth of one data-parallel group inside a node, while the t groups of the node run at the same time.

    Formula: B of its ranks, at most B of all the GPUs that its t neighbours span, and 1/t of what crosses the CPUs.
    Source: PCIe tables of SimuMax: 2 and 4 GPUs reach 70 % of a link and 8 only 42 %, since rings then cross the CPUs,
        whoever they belong to; ranks that lie t apart are on no common bridge. Crossing: its steps with tp 2 and 4.
    Leaves out: what else crosses the same PCIe switch, as copies to the host.
    """
    link = cluster.intra_node
    own = link.bus(local_ranks)
    if tp == 1:
        return own
    span = min(local_ranks * tp, cluster.gpus_per_node)
    shared = link.crossing[1] / min(tp, span) if link.crossing and span >= link.crossing[0] else own
    return min(own, link.bus(span), shared)


def data_s_per_byte(cluster: Cluster, degrees: Degrees, network_bytes_per_s: float, *, flat_rings: bool) -> float:
    """Seconds per byte of a gather or reduce-scatter among the n ranks of one data-parallel group.

    Formula: max((n-1)/n / B, (n-1)/n * min(t, G) / Net), B for the ranks it has in a node; with (m-1)/m between nodes,
        m the nodes it reaches, where rings are not flat.
    Source: ring algorithm, Thakur et al. 2005, section 4: every byte but the own share enters each node; a node's rails
        add up, its t groups share them: llm-foundry. Flat: 32 B200 over EFA in ml-engineering, network.
    Leaves out: the start, which is `gather_start_s`.
    """
    tp, dp = degrees.tp, degrees.dp
    if dp == 1:
        return 0.0
    nodes = nodes_of_group(cluster, degrees)
    local_ranks = max(dp // nodes, 1)
    inside = (dp - 1) / dp / group_bus_bytes_per_s(cluster, tp, local_ranks) if local_ranks > 1 else 0.0
    if nodes == 1:
        return inside
    entering = (dp - 1) / dp if flat_rings else (nodes - 1) / nodes
    return max(inside, entering * min(tp, cluster.gpus_per_node) / network_bytes_per_s)


def data_reduce_s_per_byte(
    cluster: Cluster, degrees: Degrees, network_bytes_per_s: float, *, flat_rings: bool
) -> float:
    """Seconds per byte of an all-reduce among the n ranks of one data-parallel group.

    Formula: twice a gather; 2 * (n-1)/n / B of the switch where one node's switch adds up (NVLS).
    Source: ring algorithm, Thakur et al. 2005, section 4; switch: all-reduce of 8 H200, ml-engineering, network.
    Leaves out: that trees between nodes send a little less.
    """
    inside = degrees.dp > 1 and nodes_of_group(cluster, degrees) == 1
    switch = cluster.intra_node.switch(degrees.dp) if inside and degrees.tp == 1 else None
    if switch is not None:
        return 2 * (degrees.dp - 1) / degrees.dp / switch
    return 2 * data_s_per_byte(cluster, degrees, network_bytes_per_s, flat_rings=flat_rings)


def gather_start_s(cluster: Cluster, degrees: Degrees, lib: Library) -> float:
    """What a gather or scatter of the data-parallel group takes beside its bytes.

    Formula: 40 µs + 3 µs * (n - m) + 9.6 µs * (m - 1): every rank of the ring is a step, m - 1 of them between nodes.
    Source: half of vTrain's 6 µs per rank, since an all-reduce goes round twice; between nodes the latency of NCCL's
        own model, nccl/src/graph/tuning.cc, hwLat (ring, simple protocol: 3.4 µs by NVLink, 9.6 by network).
    Leaves out: NCCL's protocols for small messages, which are faster; PAT, which steps log2(m) times.
    """
    if degrees.dp == 1:
        return 0.0
    nodes = nodes_of_group(cluster, degrees)
    inside = lib.rank_s / 2 * (degrees.dp - nodes)
    return lib.base_s + inside + lib.network_step_s * (nodes - 1)


def data_reduce_start_s(cluster: Cluster, degrees: Degrees, lib: Library) -> float:
    """The same of an all-reduce.

    Formula: 40 µs + 6 µs * ranks in a node + 2 * 9.6 µs * log2(m), rounded up: trees connect the nodes; the ranks count
        as 2 where the switch adds up.
    Source: vTrain's tables inside a node; nccl/src/graph/tuning.cc between nodes.
    Leaves out: as `gather_start_s`.
    """
    if degrees.dp == 1:
        return 0.0
    nodes = nodes_of_group(cluster, degrees)
    local_ranks = max(degrees.dp // nodes, 1)
    by_switch = nodes == 1 and degrees.tp == 1 and cluster.intra_node.switch(degrees.dp)
    inside = lib.rank_s * (2 if by_switch else local_ranks)
    return lib.base_s + inside + 2 * lib.network_step_s * (nodes - 1).bit_length()


def tensor_s_per_byte(cluster: Cluster, degrees: Degrees, network_bytes_per_s: float) -> float:
    """Seconds per byte of an all-reduce among the t ranks of one tensor-parallel group, without latency.

    Formula: 2 * (t-1)/t / B, with the switch's B where it adds up (NVLS), and B = min(B, Net) when the group leaves the
        node.
    Source: ring algorithm, Thakur et al. 2005, section 4; across nodes chosen on six rows of vTrain, error 6.6 %.
    Leaves out: nothing known.
    """
    tp = degrees.tp
    if tp == 1:
        return 0.0
    link = cluster.intra_node
    if tp > cluster.gpus_per_node:
        return 2 * (tp - 1) / tp / min(link.bus(cluster.gpus_per_node), network_bytes_per_s)
    return 2 * (tp - 1) / tp / (link.switch(tp) or link.bus(tp))


def collective_latency_s(cluster: Cluster, degrees: Degrees, lib: Library) -> float:
    """Start-up time of one all-reduce among t ranks.

    Formula: 40 µs + 6 µs * t, and 50 µs more when the group leaves the node; t counts as 2 where the switch adds up.
    Source: NCCL tables of vTrain, 2 to 8 GPUs, https://github.com/VIA-Research/vTrain; 8 H200 in ml-engineering.
    Leaves out: the protocol change of NCCL between small and large messages.
    """
    tp = degrees.tp
    if tp == 1:
        return 0.0
    across = tp > cluster.gpus_per_node
    ranks = 2 if not across and cluster.intra_node.switch(tp) else tp
    latency = lib.base_s + lib.rank_s * ranks
    return latency + lib.cross_node_s if across else latency


def tensor_parallel_s(rate: GroupRate, activation_bytes: float, all_reduces: int, wait_s: float) -> float:
    """Seconds of the tensor-parallel all-reduces of one layer in one pass.

    Formula: all-reduces * (α + 40 µs + w * h * T * 2 * (t-1)/t / B): kernels and all-reduce wait for each other.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3: two in forward, two in backward. DeepSpeed 0.19.8,
        deepspeed/module_inject/layers.py: in backward one per column-parallel Linear. The wait is what vTrain's steps
        take beyond its own tables of collectives.
    Leaves out: overlap with compute, which AutoTP does not do by default.
    """
    return all_reduces * (rate.tensor_latency_s + wait_s + activation_bytes * rate.tensor_s_per_byte)


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
        deepspeed/runtime/zero/stage_1_and_2.py, average_tensor, and stage3.py, reduce_and_partition_stream,
        parameter_offload.py, allgather stream, DeepSpeed 0.19.8.
    Leaves out: how kernels slow down while NCCL uses their multiprocessors; k holds it on average.
    """
    return (1.0 - exposed_share) * min(compute_s, transfer_s)
