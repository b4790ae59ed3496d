"""The step time of a measured run, predicted by the model that plans use.

In: a `Point`. Out: `SpeedRow`. The engine's constants are DeepSpeed's unless another engine ran; the stack is what the
run's layers are made of; link and network are those usual for the card, as for a plan that names nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.accuracy.measured_speed import measured_tokens_per_second
from planner.accuracy.points import Point
from planner.accuracy.predict import predict
from planner.accuracy.run import Run, adapter_of, run_of
from planner.accuracy.words import Engine, Layers, Storage
from planner.catalog import tables
from planner.errors import PlannerError
from planner.records.candidate import Candidate, ZeroStage
from planner.records.estimate import TimeEstimate
from planner.records.machine import Cluster
from planner.records.model import ModelShape, Norm
from planner.records.request import Stack
from planner.spec.cluster import parse_cluster
from planner.speed.constants import SpeedConstants, StackProfile
from planner.speed.estimate import time_estimate
from planner.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedRow:
    """One point with what was measured and what is predicted, in tokens per second and GPU."""

    point: Point
    measured: float | None
    predicted: float | None
    time: TimeEstimate | None
    run: Run | None
    cluster: Cluster | None
    apart: str = ""  # why the two cannot be compared

    @property
    def card(self) -> str:
        """The card's name in the catalogue."""
        return self.cluster.gpu.name if self.cluster else ""

    @property
    def peak_flop_per_s(self) -> float:
        """Dense peak of the card in the precision of the run."""
        return self.time.peak_flop_per_s if self.time else 0.0

    @property
    def model_flop_per_token(self) -> float:
        """Model FLOPs of a token, in the convention of planner/geometry/flops.py."""
        return self.time.model_flop_per_step / self.time.tokens_per_step if self.time else 0.0

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one; None where they cannot be compared."""
        return None if self.apart or not self.measured or self.predicted is None else self.predicted / self.measured - 1


NATURAL_LENGTHS = ("litgpt", "ms-swift", "peft")
"""Sources whose samples are neither packed nor made to one length."""

OLDER_ATTENTION = {Layers.FOUNDRY.value: {"A100": 0.4, "H100": 0.225}, "flash_attention 1": {"A100": 0.35}}
"""Share of the peak that attention kernels before FlashAttention-2 reached on long samples. Sources: the Triton kernel
of 2023, end-to-end fit on llm-foundry's tables; FlashAttention 1: arXiv:2307.08691, figure 5."""

SXM = ("nvlink-mesh", "nvswitch")
"""Links of cards that come on a board with others, in a server of two sockets, however few of them a run used."""

DRIVES = {"Samsung 980": (3.5e9, 0.5e9)}
"""Bytes per second that a drive reads, and writes once its cache is full: optimizer states fill any cache in a step or
two. Source: data sheet of the drive, 1 TB."""

GPTQ_TRAFFIC_BYTES = 22.0
"""Per weight and pass: AutoGPTQ unpacks with a dozen torch operations. Source: fitted on 24 rows of Qwen's README, one
value for 1.8, 7, 14 and 72 B parameters."""

AUTOCAST_SCORES = (18.5, 18.5)
"""Times that scores cross memory under torch.autocast, in 16-bit values: scaled and masked (2 + 2), cast (3), softmax
(4) and dropout (4.5) in fp32, cast back (3); backward the same. Source: torch.amp, "CUDA Ops that can autocast to
float32"."""

FOREACH_TRAFFIC_BYTES = 45.0
"""Of torch's multi-tensor AdamW, per parameter. Source: fitted on llm-foundry, see `speed.toml`."""


def speed_row(point: Point, constants: SpeedConstants) -> SpeedRow:
    """The prediction for a point; a reason instead where it gives no geometry, no batch or no speed."""
    try:
        run = settled_run(point)
        cluster = speed_cluster(run)
    except PlannerError as error:
        return SpeedRow(
            point=point, measured=None, predicted=None, time=None, run=None, cluster=None, apart=error.message
        )
    seq_len, context = point.seq_len or run.workload.seq_len, (point.sp or 1) * (point.cp or 1)
    measured = measured_tokens_per_second(run, seq_len)
    time = time_estimate(
        shape_in_code(run),
        cluster,
        replace(
            run.workload,
            seq_len=seq_len,
            stack=stack_of(run),
            adapter=run.workload.adapter or adapter_of(run.tuning, run.shape),
        ),
        candidate_of(run),
        constants=engine_constants(run, constants),
        context=context,
    )
    return SpeedRow(
        point=point,
        measured=measured,
        predicted=time.tokens_per_second_per_gpu,
        time=time,
        run=run,
        cluster=cluster,
        apart=apart(point),
    )


def apart(point: Point) -> str:
    """Why a row's speed says nothing about a plan of ours; empty where it does."""
    if "fp8" in (point.dtype or "").casefold() or "fp4" in (point.dtype or "").casefold():
        return "8-bit products, which no plan of ours has"
    if point.source_name.startswith(NATURAL_LENGTHS):
        return "samples of natural length: padding is computed and not counted"
    return ""


def settled_run(point: Point) -> Run:
    """The run behind a point; recomputation that is not stated is what its memory decides.

    Where the source prints the tensors' peak, whichever prediction is nearer to it; else without it if that fits.
    """
    if point.grad_checkpoint is not None or not point.gpu_mem_gb:
        return run_of(point)
    kept, again = (run_of(replace(point, grad_checkpoint=words)) for words in ("none", "full"))
    found = predict(kept)
    if point.measured_peak_gib and point.counter_class in ("allocated", "active"):
        peak_bytes = point.measured_peak_gib * GIB
        closer = abs(found.tensor_bytes - peak_bytes) <= abs(predict(again).tensor_bytes - peak_bytes)
        return kept if closer else again
    return kept if found.total_bytes <= found.capacity_bytes else again


def speed_cluster(run: Run) -> Cluster:
    """The nodes with the link and the network usual for the card; raises PlannerError for a card unknown to us."""
    cluster = run.cluster
    name = tables.identify_gpu(run.point.gpu_class or "")[0]["name"]
    found = parse_cluster(f"{cluster.nodes}x{cluster.gpus_per_node}x{name}")
    found = with_stated_rates(found, run.point)
    kernels = "flash_attention 1" if "attentionv1" in (run.point.kernels or "") else run.layers.value
    older = OLDER_ATTENTION.get(kernels, {}).get(name.split("-")[0])
    if older is None:
        return found
    return replace(found, gpu=replace(found.gpu, attention_efficiency=older))


def with_stated_rates(cluster: Cluster, point: Point) -> Cluster:
    """The nodes with the drive, the network and the threads that a source states or measured."""
    read, write = DRIVES.get(point.nvme or "", (None, None))
    measured = point.network_gb_per_s
    return replace(
        cluster,
        nvme_read_bytes_per_s=read,
        nvme_write_bytes_per_s=write,
        network_bytes_per_s=measured * 1e9 if measured else cluster.network_bytes_per_s,
        cpu_cores=point.cpu_threads * cluster.gpus_per_node if point.cpu_threads else cluster.cpu_cores,
    )


def shape_in_code(run: Run) -> ModelShape:
    """The model with the activation of its code: GPT-2 in transformers writes its own GELU in Python.

    Source: transformers 5.24, models/gpt2/configuration_gpt2.py, `activation_function`: gelu_new.
    """
    if run.layers is Layers.TRANSFORMERS and "gpt" in (run.point.model or "").casefold():
        return replace(run.shape, activation="gelu_new")
    return run.shape


def stack_of(run: Run) -> Stack:
    """How the run's kernels are issued."""
    if run.point.compile:
        return Stack.COMPILED
    if "megatron 1." in (run.point.framework or "").casefold():
        return Stack.EAGER  # its fused softmax, bias and dropout came with version 2
    fused_loss = run.point.fused_ce not in (None, "none", "chunked")
    plain_norms = run.point.kernels is not None and "rms" not in run.point.kernels.casefold()
    if not plain_norms and (run.layers in (Layers.MEGATRON, Layers.SCALING) or run.fused_kernels or fused_loss):
        return Stack.FUSED
    return Stack.EAGER


def candidate_of(run: Run) -> Candidate:
    """The run's strategy; Megatron waits for gradients and weights unless told to overlap them.

    Source: Megatron-LM, training/arguments.py: `--overlap-grad-reduce` and `--overlap-param-gather` are off.
    """
    if run.engine is not Engine.MEGATRON:
        return run.candidate
    return replace(run.candidate, settings=replace(run.candidate.settings, overlap_comm=False))


def engine_constants(run: Run, constants: SpeedConstants) -> SpeedConstants:
    """The constants with what the run's engine does otherwise than DeepSpeed 0.19.8 with AutoTP.

    Source: Megatron-LM, core/tensor_parallel/layers.py: one all-reduce per block in backward;
    core/distributed: gradients are reduce-scattered. torch/distributed/fsdp: no module hooks of ZeRO-3.
    """
    engine = constants.engine
    if run.cluster.gpus_per_node == 1 and tables.identify_gpu(run.point.gpu_class or "")[0]["link"].startswith(SXM):
        constants = replace(constants, two_socket_gpus=1)
    if "gptq" in (run.point.method or "").casefold():
        engine = replace(engine, unpacking_bytes=GPTQ_TRAFFIC_BYTES)
    if run.layers in (Layers.MEGATRON, Layers.SCALING):
        engine = replace(engine, all_reduce_per_column_linear=False, optimizer_conversion_bytes=0.0)
    if run.storage is Storage.AUTOCAST and run.engine is Engine.TORCH and run.layers is Layers.TRANSFORMERS:
        constants = replace(constants, stacks=tuple(_autocast(*row, run) for row in constants.stacks))
    if run.engine is not Engine.DEEPSPEED:
        kept = run.candidate.zero is ZeroStage.GRADIENTS and run.engine is Engine.FSDP
        engine = replace(
            engine,
            zero12_reduce_passes=1.0,
            zero3_hook_s=0.0,
            bucketed=False,
            host_gradient_copies=False,
            optimizer_conversion_bytes=0.0,
            zero3_backward_gathers=0 if kept else engine.zero3_backward_gathers,
        )
        if run.storage in (Storage.MIXED_FP32_GRADIENTS, Storage.AUTOCAST, Storage.FP32):
            engine = replace(engine, gradient_wire_bytes=4)
        if run.engine in (Engine.FSDP, Engine.TORCH):
            engine = replace(engine, optimizer_traffic_bytes=FOREACH_TRAFFIC_BYTES)
    return replace(constants, engine=engine)


def _autocast(stack: Stack, profile: StackProfile, run: Run) -> tuple[Stack, StackProfile]:
    """A stack under torch.autocast: LayerNorms write fp32, sums and dropouts of the residual stream stay in it."""
    if stack is not Stack.EAGER or run.shape.norm is not Norm.LAYER:
        return stack, profile
    return stack, replace(profile, hbm_share=profile.hbm_share / 2, score_values=AUTOCAST_SCORES)
