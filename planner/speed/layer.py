"""One layer and one micro-batch: from the candidate to the seconds of forward, recompute and backward on one GPU."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from planner.geometry.flops import ModelWork, model_work
from planner.geometry.params import rank_parameter_count
from planner.records.candidate import Candidate, Checkpointing, ZeroStage
from planner.records.machine import Cluster
from planner.records.model import Adapter, ModelShape
from planner.records.request import Attention, Loss, Stack, Workload
from planner.speed.adapters import Frozen, adapter_s, frozen_base, unpack_s
from planner.speed.communication import GroupRate, backward_all_reduces, group_rates, library, tensor_parallel_s
from planner.speed.compute import (
    eager_attention_s,
    flash_attention_backward_s,
    flash_attention_s,
    gemm_efficiency,
    gradient_traffic_s,
    host_floor_s,
    layer_gemm_s,
    peak_flop_per_s,
)
from planner.speed.constants import SpeedConstants
from planner.speed.elementwise import LayerKernels, layer_kernels

_rank_parameters = lru_cache(maxsize=512)(rank_parameter_count)


class Setup(NamedTuple):
    """What the formulas take as plain numbers, resolved once per candidate; a tuple, because it is built that often."""

    work: ModelWork
    parameters: int  # of one tensor-parallel rank
    stage: ZeroStage
    tp: int
    dp: int
    seq_len: int
    tokens: int  # of one micro-batch on one rank
    accumulation: int
    weight_bytes: int
    gradient_bytes: int  # on the wire
    accumulator_bytes: int  # of a gradient that waits for those of further micro-batches
    gemm_flop_per_s: float  # reached, not peak
    attention_flop_per_s: float
    hbm_bytes_per_s: float
    rate: GroupRate
    exposed_share: float
    floor_s: float
    checkpointed: bool
    eager_attention: bool
    kernels: tuple[LayerKernels, ...]  # of every kind of layer
    launches: tuple[tuple[float, float], ...]  # that adapters add, forward and backward, of every kind of layer
    logit_bytes: float
    hbm_share: float  # that element-wise kernels reach
    score_values: tuple[float, float]  # times materialised scores cross memory, forward and backward
    frozen: Frozen | None  # None: every parameter is trained


class LayerSeconds(NamedTuple):
    """Parts of one forward pass, and whole passes with tensor-parallel traffic and the host floor in them."""

    gemm: float
    attention: float
    attention_backward: float
    elementwise: float
    elementwise_backward: float
    gradients: float
    adapters: float
    unpacking: float  # of 4-bit weights
    tensor_parallel: float  # all passes
    forward: float
    recompute_and_backward: float
    idle: float  # all passes: what the GPU waits for the host


def setup(
    model: ModelShape,
    cluster: Cluster,
    workload: Workload,
    candidate: Candidate,
    constants: SpeedConstants,
    context: int,
) -> Setup:
    """The candidate as plain numbers; raises ValueError if several nodes have no network rate.

    Formula: T = b * s; reached rates e * P and e_a * P; floor + 1 ms per layer and pass under ZeRO-3.
    Source: DeepSpeed issues 1174 and 5770 for the hooks of ZeRO-3 (order of magnitude); the rest names its own.
    Leaves out: gradients reduced in fp32 (`communication_data_type`), unless the engine says so.
    """
    gpu = cluster.gpu
    peak = peak_flop_per_s(gpu, workload.precision)
    stack = workload.stack
    profile = constants.profile(stack)
    weight_bytes = workload.precision.bytes
    wire = constants.engine.gradient_wire_bytes or weight_bytes
    floor = host_floor_s(profile, candidate.degrees.tp)
    if candidate.zero is ZeroStage.PARAMETERS:
        floor += constants.engine.zero3_hook_s
    return Setup(
        work=model_work(model),
        parameters=_rank_parameters(model, candidate.degrees.tp),
        stage=candidate.zero,
        tp=candidate.degrees.tp,
        dp=candidate.degrees.dp,
        seq_len=workload.seq_len,
        tokens=candidate.micro_batch * workload.seq_len // context,
        accumulation=candidate.accumulation,
        weight_bytes=weight_bytes,
        gradient_bytes=wire,
        accumulator_bytes=4 if candidate.settings.fp32_gradient_accumulation else wire,
        gemm_flop_per_s=gemm_efficiency(gpu, workload.precision, constants) * peak,
        attention_flop_per_s=gpu.attention_efficiency * peak,
        hbm_bytes_per_s=gpu.hbm_bytes_per_s,
        rate=_rate(cluster, candidate, constants),
        exposed_share=_exposed_share(candidate, constants),
        floor_s=floor,
        checkpointed=candidate.checkpointing is Checkpointing.FULL,
        eager_attention=workload.attention is Attention.EAGER,
        kernels=layer_kernels(model, workload.adapter, attention=workload.attention, stack=stack),
        launches=adapter_launches(model, workload.adapter, stack),
        logit_bytes=(constants.profile(Stack.FUSED) if workload.loss is Loss.FUSED else profile).logit_bytes,
        hbm_share=profile.hbm_share,
        score_values=profile.score_values,
        frozen=frozen_base(model, workload.adapter, weight_bytes) if workload.adapter else None,
    )


def with_settings(job: Setup, cluster: Cluster, candidate: Candidate, constants: SpeedConstants) -> Setup:
    """The job of a candidate that differs from its own in nothing but settings, and not in the gradients' width.

    Formula: the rates of its groups, and what overlap leaves exposed; nothing else depends on settings.
    Source: see `setup`.
    Leaves out: see that.
    """
    return job._replace(rate=_rate(cluster, candidate, constants), exposed_share=_exposed_share(candidate, constants))


def _rate(cluster: Cluster, candidate: Candidate, constants: SpeedConstants) -> GroupRate:
    """Rates of the candidate's groups."""
    ranks = candidate.settings.hpz_partition_size
    return group_rates(cluster, candidate.degrees, library(constants), hpz_partition_size=ranks)


def _exposed_share(candidate: Candidate, constants: SpeedConstants) -> float:
    """Share of the shorter activity that overlap does not hide."""
    return constants.overlap_exposed_share if candidate.settings.overlap_comm else 1.0


@lru_cache(maxsize=256)
def adapter_launches(model: ModelShape, adapter: Adapter | None, stack: Stack) -> tuple[tuple[float, float], ...]:
    """Kernels that adapters add to each kind of layer, forward and backward.

    Formula: launches with adapters - launches without.
    Source: planner/speed/elementwise.py.
    Leaves out: nothing beyond it.
    """
    plain, adapted = layer_kernels(model, stack=stack), layer_kernels(model, adapter, stack=stack)
    return tuple(
        (mine.forward.kernels - base.forward.kernels, max(0.0, mine.backward.kernels - base.backward.kernels))
        for base, mine in zip(plain, adapted, strict=True)
    )


def attention_s(job: Setup, constants: SpeedConstants) -> tuple[float, float]:
    """Forward and backward seconds of attention in one layer, for the kernel of the run.

    Formula: flash_attention_s and its backward, or eager_attention_s and its backward.
    Source: see those.
    Leaves out: see those.
    """
    work = job.work
    query_width = work.heads * work.head_dim
    if not job.eager_attention:
        forward = flash_attention_s(
            query_width,
            job.seq_len,
            job.tokens,
            job.tp,
            flop_per_s=job.attention_flop_per_s,
            constants=constants,
        )
        return forward, flash_attention_backward_s(forward, constants)
    products, score_pass = eager_attention_s(
        query_width,
        work.heads,
        job.seq_len,
        job.tokens,
        job.tp,
        weight_bytes=job.weight_bytes,
        flop_per_s=constants.eager_attention_share * job.gemm_flop_per_s,
        hbm_bytes_per_s=job.hbm_bytes_per_s,
    )
    forward, backward = job.score_values
    return products + forward * score_pass, 2 * products + backward * score_pass


def frozen_s(job: Setup, constants: SpeedConstants) -> tuple[float, float]:
    """Forward seconds of a layer's adapters, and seconds to unpack its weights in any pass; 0 in full training.

    Formula: adapter_s and unpack_s.
    Source: see those.
    Leaves out: see those.
    """
    if job.frozen is None:
        return 0.0, 0.0
    adapters = adapter_s(
        job.frozen.work,
        job.tokens,
        weight_bytes=job.weight_bytes,
        flop_per_s=job.gemm_flop_per_s,
        hbm_bytes_per_s=job.hbm_bytes_per_s,
        constants=constants,
    )
    return adapters, unpack_s(job.frozen.packed_elements, constants.engine.unpacking_bytes, job.hbm_bytes_per_s)


def layer_seconds(kind: int, job: Setup, constants: SpeedConstants) -> LayerSeconds:
    """One layer of that kind, one micro-batch.

    Formula: pass = max(kernels + all-reduces, floor); backward is 2 * gemm + backward attention + element-wise work
        + gradient traffic, recomputation one more forward; beside adapters 1 * gemm, for frozen weights get no
        gradient, and 20 µs more on the floor for each kernel that they add.
    Source: 720 rows of vTrain for the floor; arXiv:2205.05198, section 5, for full recomputation.
    Leaves out: kernels that run while the host is ahead after a floor-bound layer.
    """
    hidden, tokens, tp, layer = job.work.hidden, job.tokens, job.tp, job.work.kinds[kind]
    gemm = layer_gemm_s(
        layer,
        tokens,
        tp,
        weight_bytes=job.weight_bytes,
        flop_per_s=job.gemm_flop_per_s,
        hbm_bytes_per_s=job.hbm_bytes_per_s,
        constants=constants,
    )
    per_value = job.weight_bytes * tokens / (job.hbm_share * job.hbm_bytes_per_s)
    elementwise = job.kernels[kind].forward.values(tp) * per_value
    elementwise_backward = job.kernels[kind].backward.values(tp) * per_value
    attention, attention_backward = attention_s(job, constants)
    tp_forward = tp_backward = 0.0
    if tp > 1:
        activation_bytes, wait = job.weight_bytes * tokens * hidden, constants.collective_wait_s
        tp_forward = tensor_parallel_s(job.rate, activation_bytes, layer.row_gemms, wait)
        tp_backward = tensor_parallel_s(job.rate, activation_bytes, backward_all_reduces(layer, constants.engine), wait)
    adapters, unpacking = frozen_s(job, constants)
    backward_gemms = 2 if job.frozen is None else 1
    forward_gpu = gemm + attention + elementwise + tp_forward + adapters + unpacking
    backward_gpu = backward_gemms * gemm + attention_backward + elementwise_backward + tp_backward
    trained = layer.held_elements / tp if job.frozen is None else job.frozen.work.elements
    gradients = gradient_traffic_s(
        trained,
        job.stage,
        job.accumulation,
        weight_bytes=job.weight_bytes,
        accumulator_bytes=job.accumulator_bytes,
        hbm_bytes_per_s=job.hbm_bytes_per_s,
    )
    backward_gpu += 2 * adapters + unpacking + gradients
    extra_forward, extra_backward = job.launches[kind]
    forward = max(forward_gpu, job.floor_s + constants.launch_s * extra_forward)
    backward = max(backward_gpu, job.floor_s + constants.launch_s * extra_backward)
    forwards = 2 if job.checkpointed else 1
    return LayerSeconds(
        gemm=gemm,
        attention=attention,
        attention_backward=attention_backward,
        elementwise=elementwise,
        elementwise_backward=elementwise_backward,
        gradients=gradients,
        adapters=adapters,
        unpacking=unpacking,
        tensor_parallel=forwards * tp_forward + tp_backward,
        forward=forward,
        recompute_and_backward=(forwards - 1) * forward + backward,
        idle=forwards * (forward - forward_gpu) + backward - backward_gpu,
    )
