"""What a source says about speed, as tokens per second and GPU.

In: a `Run`. Out: tokens/s/GPU, or None. Sources print tokens, samples, seconds, FLOP/s or MFU; FLOP/s are turned into
tokens with the source's own count of FLOPs per token, for published counts differ by more than models err.
"""

from __future__ import annotations

from enum import Enum

from planner.accuracy.run import Run
from planner.geometry.flops import attention_flop, head_flop, model_work
from planner.records.model import ModelShape
from planner.speed.compute import peak_flop_per_s


class Convention(str, Enum):
    """What a source counts as the FLOPs of a step."""

    CAUSAL = "model FLOPs, causal attention counted half"
    FULL = "model FLOPs, the whole square of attention counted"
    HARDWARE = "the whole square, and recomputation counted"


def convention_of(text: str | None, *, hardware: bool = False) -> Convention:
    """The convention that a source's words mean; the whole square of Narayanan et al. where it says no more.

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 5.1: 96BSlh^2(1 + s/6h + V/16lh) with recomputation.
    """
    words = (text or "").casefold()
    if hardware or "hardware" in words or "recompute" in words:
        return Convention.HARDWARE
    return Convention.CAUSAL if "half" in words else Convention.FULL


def flop_per_token(shape: ModelShape, seq_len: int, convention: Convention) -> float:
    """FLOPs of one token, forward and backward, as that convention counts them.

    Formula: 3 * (2 * active weights + attention) + 6 * h * V; with recomputation 4 times the layers.
    Source: Narayanan et al. 2021, arXiv:2104.04473, section 5.1.
    Leaves out: the embedding look-up.
    """
    attention = shape.layers * attention_flop(shape.heads * shape.head_dim, seq_len, 1)
    if convention is not Convention.CAUSAL:
        attention *= 2
    layers = sum(kind.layers * 2 * kind.active_elements for kind in model_work(shape).kinds) + attention
    passes = 4 if convention is Convention.HARDWARE else 3
    return passes * layers + 3 * head_flop(shape, 1)


def measured_tokens_per_second(run: Run, seq_len: int) -> float | None:
    """Tokens per second and GPU of the run; `seq_len` is of a whole sample."""
    point = run.point
    if point.tokens_per_s_per_gpu:
        return point.tokens_per_s_per_gpu
    world = run.cluster.world_size
    samples = point.samples_per_s
    if samples is None and point.step_time_s and point.global_batch:
        samples = point.global_batch / point.step_time_s
    if samples:
        return samples * seq_len / world
    if point.tflops_per_gpu:
        convention = convention_of(point.tflops_kind)
        return point.tflops_per_gpu * 1e12 / flop_per_token(run.shape, seq_len, convention)
    share = point.mfu_percent or point.hfu_percent
    if share:
        convention = convention_of(point.tflops_kind, hardware=point.mfu_percent is None)
        peak = peak_flop_per_s(run.cluster.gpu, run.workload.precision)
        return share / 100 * peak / flop_per_token(run.shape, seq_len, convention)
    return None
