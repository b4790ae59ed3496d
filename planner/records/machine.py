"""The machine: what a GPU, a link and a cluster are to the planner. Capacities as the driver reports them, never as
marketed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device as torch sees it (a dual-die card is two devices)."""

    name: str  # canonical short spelling, e.g. `A100-80G`
    full_name: str
    memory_bytes: int  # torch's total_memory
    bf16_flop_per_s: float | None  # dense peak; None: the card has no bf16
    fp16_flop_per_s: float | None
    fp32_flop_per_s: float
    hbm_bytes_per_s: float
    gemm_efficiency: float  # share of the peak that large matrix products reach
    attention_efficiency: float  # the same for a flash kernel, causal FLOPs
    host_link_bytes_per_s: float  # effective, one direction
    usd_per_hour: float | None
    tdp_w: float | None
    source: str

    @property
    def has_bf16(self) -> bool:
        """Whether bf16 training runs on real hardware units; torch may emulate it elsewhere."""
        return self.bf16_flop_per_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How the GPUs of a node reach each other: NCCL bus bandwidth by the number of ranks that take part."""

    name: str
    bus_bytes_per_s: tuple[tuple[int, float], ...]  # (ranks, bandwidth), ascending in ranks
    source: str
    switch_bytes_per_s: tuple[tuple[int, float], ...] = ()  # the same of an all-reduce that the switch adds up itself
    crossing: tuple[int, float] | None = None  # from so many GPUs on, what all their groups share between the CPUs

    def bus(self, ranks: int) -> float:
        """Bus bandwidth for `ranks` GPUs: the row with the most ranks that is not above `ranks`, else the first."""
        best = self.bus_bytes_per_s[0][1]
        for row_ranks, bandwidth in self.bus_bytes_per_s:
            if row_ranks <= ranks:
                best = bandwidth
        return best

    def switch(self, ranks: int) -> float | None:
        """Bus bandwidth of an all-reduce among `ranks` GPUs inside the switch (NVLS); None where it adds up nothing."""
        best = None
        for row_ranks, bandwidth in self.switch_bytes_per_s:
            if row_ranks <= ranks:
                best = bandwidth
        return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes of equal GPUs. `None` means unknown: it is said in the answer and never guessed."""

    gpu: Gpu
    gpus_per_node: int
    nodes: int
    intra_node: Link
    network_bytes_per_s: float | None  # effective rate of one node for GPU traffic; None when there is one node
    network_name: str
    host_memory_bytes: int | None  # per node
    cpu_cores: int | None  # physical cores per node
    nvme_bytes: int | None  # local NVMe per node
    nvme_read_bytes_per_s: float | None  # all drives of one node together
    nvme_write_bytes_per_s: float | None
    usd_per_hour: float | None  # all nodes together
    instance: str | None  # catalogue name of the node type
    source: str
    notes: tuple[str, ...] = ()  # what the parser had to decide, for the list of assumptions

    @property
    def world_size(self) -> int:
        """GPUs in the job."""
        return self.gpus_per_node * self.nodes
