"""The constants of the speed model as one frozen record: values come from `catalog/data/speed.toml`, evidence there."""

from __future__ import annotations

from dataclasses import dataclass

from planner.records.request import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class StackProfile:
    """What one software stack costs beside its matrix products."""

    logit_bytes: float  # HBM traffic of the loss per token and vocabulary entry
    hbm_share: float  # of the HBM bandwidth that element-wise kernels reach
    score_values: tuple[float, float]  # times that materialised scores cross memory, forward and backward
    floor_s: tuple[tuple[int, float], ...]  # (tp, seconds per layer and pass), ascending in tp


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What the training engine does with data. `speed.toml` describes DeepSpeed; others are made with `replace`."""

    zero3_hook_s: float  # host time that ZeRO-3's hooks add to each layer and pass
    zero12_reduce_passes: float  # traffic of a gradient reduction in units of a reduce-scatter, stages 1 and 2
    zero3_backward_gathers: int  # 0 where parameters stay gathered between forward and backward
    all_reduce_per_column_linear: bool  # in backward: one all-reduce per column-parallel Linear, or one per block
    gradient_wire_bytes: int | None  # None: as the weights
    unpacking_bytes: float  # HBM traffic per 4-bit weight and pass
    optimizer_traffic_bytes: float  # HBM traffic per parameter of the GPU optimizer
    optimizer_conversion_bytes: float  # and of gradients and weights on their way between 16 and 32 bits
    bucketed: bool  # collectives follow ZeRO's sizes and pay their start; else a layer is one unit at the link's rate
    host_gradient_copies: bool  # gradients cross to the host as ZeRO's code has it; else once per step, shard by shard
    nvme_pipelined: bool  # states are read and written while others are stepped
    flat_rings: bool  # a gather among ranks of several nodes is one ring, which brings each node all but one share
    nvme_gradient_bytes: int  # of a gradient that waits on NVMe with the states


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedConstants:
    """Everything the formulas need that is neither model nor machine."""

    gemm_operand_share: float
    gemm_launch_s: float
    fp32_gemm_efficiency: float
    attention_backward_flop_ratio: float  # flash kernel, backward over forward
    attention_backward_efficiency_ratio: float
    attention_half_rate_tokens: float  # sample length at which a flash kernel reaches half its rate on long samples
    eager_attention_share: float  # rate of the products of materialised scores over that of large matrix products
    launch_s: float  # of the host, for each small kernel of an adapter
    overlap_exposed_share: float  # of the shorter of two overlapping activities
    collective_base_s: float
    collective_rank_s: float
    collective_wait_s: float  # that the GPU idles at an all-reduce between two kernels
    collective_cross_node_s: float
    collective_network_step_s: float  # one step of a ring between nodes
    cpu_adam_parameters_per_s: float  # of one socket
    cpu_adam_ddr5_parameters_per_s: float  # of one socket of a host with PCIe 5, hence DDR5
    ddr5_host_link_bytes_per_s: float  # the host link from which a host counts as one
    cpu_adam_core_parameters_per_s: float  # of one core
    two_socket_gpus: int  # nodes with at least that many GPUs have two sockets
    host_uplinks: int  # of a node whose GPUs share PCIe switches
    nvme_state_bytes: int  # read, and written, per parameter and step
    nvme_default_read_bytes_per_s: float  # of a node whose drives are unknown
    nvme_default_write_bytes_per_s: float
    band_one_node: float
    band_several_nodes: float
    band_zero3: float
    band_adapters: float
    band_offload: float  # and of experts
    stacks: tuple[tuple[Stack, StackProfile], ...]
    engine: Engine

    def profile(self, stack: Stack) -> StackProfile:
        """The profile of a stack; raises KeyError if the table has none."""
        for key, profile in self.stacks:
            if key is stack:
                return profile
        raise KeyError(stack.value)
