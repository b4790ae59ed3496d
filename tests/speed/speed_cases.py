"""Models, machines and engines for the speed tests, written by hand: no table of dsplan is part of an expectation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.catalog.speed import speed_constants
from planner.records.candidate import Candidate, Checkpointing, Degrees, Offload, ZeroSettings, ZeroStage
from planner.records.machine import Cluster, Gpu, Link
from planner.records.model import AutoTP, ModelShape, Norm, Position, Precision
from planner.records.request import Attention, Loss, Workload
from planner.speed.constants import SpeedConstants

SHARED_DATA = Path(__file__).parents[2].parent / "shared" / "data"


def model(hidden: int, layers: int, heads: int, kv: int, ffn: int, vocab: int, **changes: Any) -> ModelShape:
    values: dict[str, Any] = {
        "name": "test",
        "model_type": "llama",
        "hub_id": None,
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv,
        "head_dim": hidden // heads,
        "ffn_hidden": ffn,
        "vocab": vocab,
        "max_positions": 131072,
        "tied_embeddings": False,
        "gated_mlp": True,
        "activation": "silu",
        "norm": Norm.RMS,
        "norms_per_layer": 2,
        "parallel_block": False,
        "qk_norm": False,
        "qkv_bias": False,
        "attention_output_bias": False,
        "mlp_bias": False,
        "head_bias": False,
        "final_norm": True,
        "position": Position.ROTARY,
        "autotp": AutoTP.TRAINED,
        "source": "test",
    }
    return ModelShape(**(values | changes))


LLAMA_7B = model(4096, 32, 32, 32, 11008, 32000)
LLAMA_13B = model(5120, 40, 40, 40, 13824, 32000)
LLAMA_8B = model(4096, 32, 32, 8, 14336, 128256)
LLAMA_70B = model(8192, 80, 64, 8, 28672, 128256)
MIXTRAL = model(4096, 32, 32, 8, 0, 32000, experts=8, experts_per_token=2, expert_ffn_hidden=14336)


def gpu(peak: float, efficiency: float, attention: float, hbm: float, host_link: float, **changes: Any) -> Gpu:
    values: dict[str, Any] = {
        "name": "test",
        "full_name": "test",
        "memory_bytes": 80 * 2**30,
        "bf16_flop_per_s": peak,
        "fp16_flop_per_s": peak,
        "fp32_flop_per_s": peak / 16,
        "hbm_bytes_per_s": hbm,
        "gemm_efficiency": efficiency,
        "attention_efficiency": attention,
        "host_link_bytes_per_s": host_link,
        "usd_per_hour": None,
        "tdp_w": None,
        "source": "test",
    }
    return Gpu(**(values | changes))


GPU_A = gpu(312e12, 0.82, 0.353, 2.039e12, 24e9)
GPU_H = gpu(989e12, 0.72, 0.20, 3.35e12, 50e9)


def cluster(device: Gpu, per_node: int, nodes: int, bus: float, network: float | None, **changes: Any) -> Cluster:
    values: dict[str, Any] = {
        "gpu": device,
        "gpus_per_node": per_node,
        "nodes": nodes,
        "intra_node": Link(name="test", bus_bytes_per_s=((2, bus),), source="test"),
        "network_bytes_per_s": network,
        "network_name": "test",
        "host_memory_bytes": None,
        "cpu_cores": None,
        "nvme_bytes": None,
        "nvme_read_bytes_per_s": None,
        "nvme_write_bytes_per_s": None,
        "usd_per_hour": None,
        "instance": None,
        "source": "test",
    }
    return Cluster(**(values | changes))


def workload(seq_len: int, **changes: Any) -> Workload:
    values: dict[str, Any] = {
        "seq_len": seq_len,
        "global_batch": None,
        "accumulation": None,
        "precision": Precision.BF16,
        "attention": Attention.SDPA,
        "loss": Loss.STANDARD,
        "tokens": None,
    }
    return Workload(**(values | changes))


def candidate(zero: int, dp: int, micro_batch: int, accumulation: int, *, tp: int = 1, **changes: Any) -> Candidate:
    values: dict[str, Any] = {
        "zero": ZeroStage(zero),
        "degrees": Degrees(tp=tp, dp=dp),
        "checkpointing": Checkpointing.FULL,
        "offload": Offload.NONE,
        "micro_batch": micro_batch,
        "accumulation": accumulation,
        "settings": settings(),
    }
    return Candidate(**(values | changes))


def settings(*, overlap_comm: bool = True) -> ZeroSettings:
    return ZeroSettings(
        overlap_comm=overlap_comm,
        reduce_bucket_elements=500_000_000,
        allgather_bucket_elements=500_000_000,
        prefetch_bucket_elements=50_000_000,
        param_persistence_threshold=100_000,
        max_live_parameters=1_000_000_000,
        max_reuse_distance=1_000_000_000,
        sub_group_elements=1_000_000_000,
        pin_memory=True,
        fp32_gradient_accumulation=False,
    )


def with_engine(**changes: Any) -> SpeedConstants:
    """The shipped constants with another engine."""
    constants = speed_constants()
    return replace(constants, engine=replace(constants.engine, **changes))


def textbook(**changes: Any) -> SpeedConstants:
    """Megatron's tensor parallelism and reduce-scatter as papers describe them, with torch's foreach Adam; attention
    at one rate whatever the length, element-wise work at the full bandwidth."""
    constants = with_engine(
        **{
            "zero12_reduce_passes": 1.0,
            "all_reduce_per_column_linear": False,
            "optimizer_traffic_bytes": 45.0,
            "optimizer_conversion_bytes": 0.0,
            "bucketed": False,
            "host_gradient_copies": False,
            "nvme_pipelined": True,
            "nvme_gradient_bytes": 0,
            "flat_rings": False,
        }
        | changes
    )
    stacks = tuple((stack, replace(profile, hbm_share=1.0, logit_bytes=10.0)) for stack, profile in constants.stacks)
    return replace(constants, attention_half_rate_tokens=0.0, collective_wait_s=0.0, stacks=stacks)
