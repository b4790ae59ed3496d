"""A measured run in the records that plans are made of.

In: a `Point`. Out: `Run`: model shape, cluster, workload and candidate as a plan would have them, and what the run did
that no plan of ours does. Geometry comes from the row, never from the model's name. What a row leaves open is assumed
here, and listed: the score of such a row is reported apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.accuracy.points import Point
from planner.accuracy.settings import run_settings
from planner.accuracy.tuning import Tuning, tuning_of
from planner.accuracy.words import (
    Engine,
    Framework,
    Layers,
    Storage,
    activations_offloaded,
    default_optimizer,
    engine_of,
    framework_of,
    fused_loss,
    offload_of,
    optimizer_of,
    storage_of,
)
from planner.catalog import tables
from planner.errors import PlannerError
from planner.records.candidate import Candidate, Checkpointing, Degrees, ZeroStage
from planner.records.machine import Cluster, Gpu, Link
from planner.records.model import Adapter, AutoTP, Method, ModelShape, Norm, Position, Precision
from planner.records.request import Attention, Loss, Workload
from planner.units import GIB, ceil_div

UNKNOWN_GPU_SHARE = 0.985
"""What torch reports of a card's marketed GB, where the card is not in the catalogue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a plan would know about the run, and what else it did."""

    point: Point
    framework: Framework
    engine: Engine
    layers: Layers
    storage: Storage
    shape: ModelShape
    cluster: Cluster
    workload: Workload
    candidate: Candidate
    sequence_parallel: bool  # Megatron's: norms and residual stream divided by tp too
    checkpoints_offloaded: bool
    fused_kernels: bool  # torch.compile or Liger Kernel in the layers, not only in the loss
    tuning: Tuning
    tiled_mlp: bool  # the MLP runs over short tiles of the sequence
    in_backward: bool  # the optimizer updates each parameter as its gradient comes, and keeps no gradient
    paged: bool  # optimizer states in managed memory, outside torch's allocator
    assumed: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """Tokens of one rank's forward pass."""
        return self.candidate.micro_batch * self.workload.seq_len


def run_of(point: Point) -> Run:
    """The run behind a point; raises PlannerError where its geometry or batch is not given."""
    framework = framework_of(point.framework)
    storage = storage_of(point, framework)
    tp, context = point.tp or 1, (point.sp or 1) * (point.cp or 1)
    world = point.gpu_count or tp * context * (point.dp or 1)
    shards = max(1, min((point.dp or world // (tp * context)) * context, world // tp))
    framework_name = (point.framework or "").casefold()
    tuning, engine = tuning_of(point.method, framework.layers), engine_of(point, framework)
    optimizer = (point.optimizer or default_optimizer(engine, framework.layers, full=tuning.full)).casefold()
    shape, notes = shape_of(point, framework)
    if point.tp is None:
        notes = (*notes, "tensor parallelism not stated: none")
    return Run(
        point=point,
        framework=framework,
        engine=engine,
        layers=framework.layers,
        storage=storage,
        shape=shape,
        cluster=cluster_of(point),
        workload=Workload(
            seq_len=ceil_div(_given(point, "seq_len"), context),
            global_batch=None,
            accumulation=None,
            precision=precision_of(point, storage),
            attention=Attention.EAGER if point.flash_attn is False else Attention.SDPA,
            loss=Loss.FUSED if fused_loss(point.fused_ce) else Loss.STANDARD,
            tokens=None,
            optimizer=optimizer_of(optimizer),
            adapter=adapter_of(tuning, shape) if framework.layers is Layers.TRANSFORMERS else None,
        ),
        candidate=Candidate(
            zero=_stage(point),
            degrees=Degrees(tp=tp, dp=shards),
            checkpointing=Checkpointing.FULL if point.grad_checkpoint == "full" else Checkpointing.NONE,
            offload=offload_of(point.offload),
            micro_batch=_given(point, "micro_batch"),
            accumulation=point.grad_accum or 1,
            settings=run_settings(point.framework or "", _stage(point), shape.hidden),
        ),
        sequence_parallel=bool(point.seq_parallel_megatron),
        checkpoints_offloaded=activations_offloaded(point.offload),
        fused_kernels=bool(point.compile) or point.fused_ce == "liger" or framework.liger,
        tuning=tuning,
        tiled_mlp="arctic" in framework_name and activations_offloaded(point.offload),
        in_backward="backward" in optimizer,
        paged="paged" in optimizer,
        assumed=notes,
    )


MODULES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "llama": {"q": ("q_proj",), "k": ("k_proj",), "v": ("v_proj",), "o": ("o_proj",), "up": ("gate_proj", "up_proj"),
              "down": ("down_proj",)},
    "gpt2": {"q": ("c_attn",), "k": ("c_attn",), "v": ("c_attn",), "o": ("attn.c_proj",), "up": ("c_fc",),
             "down": ("mlp.c_proj",)},
}  # fmt: skip
"""Where an adapter sits to the module names of the shapes that `shape_of` makes."""


def _stage(point: Point) -> ZeroStage:
    stage = point.zero_stage or 0
    if stage not in tuple(ZeroStage):
        raise PlannerError(f"`{point.id}` has ZeRO stage {stage}", hint="stages are 0 to 3")
    return ZeroStage(stage)


def adapter_of(tuning: Tuning, shape: ModelShape) -> Adapter | None:
    """The adapter as a plan would have it; None for full fine-tuning and for prefixes."""
    if tuning.full or not tuning.sites:
        return None
    modules = MODULES[shape.model_type]
    targets = dict.fromkeys(name for site in sorted(tuning.sites) for name in modules[site])
    method = Method.QLORA if tuning.quantized else Method.LORA
    return Adapter(method=method, rank=tuning.rank, targets=tuple(targets))


def _given(point: Point, name: str) -> int:
    value = getattr(point, name)
    if not value:
        raise PlannerError(f"`{point.id}` gives no `{name}`", hint="a prediction needs it")
    return int(value)


def precision_of(point: Point, storage: Storage) -> Precision:
    """The precision whose activations and DeepSpeed states are those of the run."""
    if storage is Storage.FP32:
        return Precision.FP32
    if storage is Storage.PURE:
        return Precision.PURE_BF16
    return Precision.FP16 if (point.dtype or "").startswith("fp16") else Precision.BF16


def shape_of(point: Point, framework: Framework) -> tuple[ModelShape, tuple[str, ...]]:
    """Geometry as printed: a gated MLP with RMS norms and rotary positions, or a GPT block with LayerNorms.

    Megatron divides embedding and head by the tensor-parallel degree, AutoTP divides the head alone. GPT blocks of
    transformers drop out a tenth by default (GPT2Config, OPTConfig), gated ones nothing.
    """
    hidden, heads = _given(point, "hidden"), _given(point, "heads")
    gated = True if point.gated_mlp is None else point.gated_mlp
    notes = () if point.gated_mlp is not None else ("the MLP's form is not stated: gated",)
    head_dim = point.head_dim or hidden // heads
    traits: list[tuple[str, object]] = [] if gated else [("norm_bias", True)]
    if framework.layers is Layers.TRANSFORMERS and not gated:
        traits += [("attention_dropout", 0.1), ("residual_dropout", 0.1), ("embedding_dropout", 0.1)]
    if framework.layers in (Layers.MEGATRON, Layers.SCALING):
        traits.append(("vocab_parallel_head", True))
    shape = ModelShape(
        name=point.model or point.id,
        model_type="llama" if gated else "gpt2",
        hub_id=None,
        layers=_given(point, "layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=point.kv_heads or heads,
        head_dim=head_dim,
        ffn_hidden=_given(point, "ffn"),
        vocab=_given(point, "vocab"),
        max_positions=point.seq_len or 2048,
        tied_embeddings=bool(point.tied),
        gated_mlp=gated,
        activation="silu" if gated else "gelu",
        norm=Norm.RMS if gated else Norm.LAYER,
        norms_per_layer=2,
        parallel_block=False,
        qk_norm=False,
        qkv_bias=not gated,
        attention_output_bias=not gated,
        mlp_bias=not gated,
        head_bias=False,
        final_norm=True,
        position=Position.ROTARY,
        autotp=AutoTP.TRAINED,
        source=point.source_url or point.source_name,
        traits=tuple(sorted(traits)),
    )
    return shape, notes


def cluster_of(point: Point) -> Cluster:
    """Cards and nodes; link and network play no part in memory."""
    count = point.gpu_count or 1
    nodes = point.nodes or max(1, ceil_div(count, 8))
    return Cluster(
        gpu=gpu_of(point),
        gpus_per_node=ceil_div(count, nodes),
        nodes=nodes,
        intra_node=Link(name="not asked", bus_bytes_per_s=((1, 1.0),), source="not asked"),
        network_bytes_per_s=None,
        network_name="",
        host_memory_bytes=None,
        cpu_cores=None,
        nvme_bytes=None,
        nvme_read_bytes_per_s=None,
        nvme_write_bytes_per_s=None,
        usd_per_hour=None,
        instance=None,
        source=point.source_name,
    )


def gpu_of(point: Point) -> Gpu:
    """The card: the catalogue's, or one of the stated size."""
    if point.gpu_class:
        try:
            return tables.gpu_record(tables.identify_gpu(point.gpu_class)[0])
        except PlannerError:
            pass
    memory_bytes = int((point.gpu_mem_gb or 0) * GIB * UNKNOWN_GPU_SHARE)
    return Gpu(
        name=point.gpu_class or "unknown",
        full_name=point.gpu_class or "unknown",
        memory_bytes=memory_bytes,
        bf16_flop_per_s=None,
        fp16_flop_per_s=None,
        fp32_flop_per_s=1.0,
        hbm_bytes_per_s=1.0,
        gemm_efficiency=1.0,
        attention_efficiency=1.0,
        host_link_bytes_per_s=1.0,
        usd_per_hour=None,
        tdp_w=None,
        source=point.source_name,
    )
