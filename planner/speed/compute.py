"""Seconds of one layer's kernels on one GPU: matrix products, attention, element-wise work, head, and the host floor.

In: sizes and rates as plain numbers. Out: seconds. Symbols: `planner.geometry.legend`.
"""

from __future__ import annotations

from planner.geometry.flops import LayerWork, attention_flop, linear_flop
from planner.records.candidate import ZeroStage
from planner.records.machine import Gpu
from planner.records.model import Precision
from planner.speed.constants import SpeedConstants, StackProfile


def peak_flop_per_s(gpu: Gpu, precision: Precision) -> float:
    """Dense peak of the GPU in the precision of the run.

    Formula: the card's peak in bf16, fp16 or fp32; without hardware units for 16 bits the fp32 rate.
    Source: vendor data sheets, in the GPU table.
    Leaves out: TF32 for fp32 runs, which torch leaves off by default.
    """
    if precision in (Precision.BF16, Precision.PURE_BF16):
        return gpu.bf16_flop_per_s or gpu.fp32_flop_per_s
    if precision is Precision.FP16:
        return gpu.fp16_flop_per_s or gpu.fp32_flop_per_s
    return gpu.fp32_flop_per_s


def gemm_efficiency(gpu: Gpu, precision: Precision, constants: SpeedConstants) -> float:
    """Share of the peak that large matrix products reach.

    Formula: the card's own in 16 bits; one share for all cards in fp32.
    Source: the GPU table; fp32 products run on the vector units, which have less to wait for than tensor cores.
    Leaves out: TF32.
    """
    on_vector_units = precision is Precision.FP32 or not (gpu.bf16_flop_per_s or gpu.fp16_flop_per_s)
    return constants.fp32_gemm_efficiency if on_vector_units else gpu.gemm_efficiency


def gemm_s(
    flop: float,
    operand_bytes: float,
    launches: float,
    *,
    flop_per_s: float,
    hbm_bytes_per_s: float,
    constants: SpeedConstants,
) -> float:
    """Seconds of matrix products.

    Formula: flop / (e * P) + 0.56 * operand bytes / W + 11 µs for each product.
    Source: fit on 183 shapes of A100 PCIe, mean error 3.7 %: SimuMax, https://github.com/MooreThreads/SimuMax.
    Leaves out: tile and wave quantisation; small dimensions are slow through the second and third term only.
    """
    return (
        flop / flop_per_s
        + constants.gemm_operand_share * operand_bytes / hbm_bytes_per_s
        + launches * constants.gemm_launch_s
    )


def layer_gemm_s(
    layer: LayerWork,
    tokens: int,
    tp: int,
    *,
    weight_bytes: int,
    flop_per_s: float,
    hbm_bytes_per_s: float,
    constants: SpeedConstants,
) -> float:
    """Seconds of all matrix products of one layer, forward, on one tensor-parallel rank.

    Formula: gemm_s of (T, (q + 2*kv*d)/t, h), (T, h, q/t), (T, f/t, h) for up and gate, (T, h, f/t), summed.
    Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3, for what tensor parallelism divides.
    Leaves out: uneven experts; all experts count as one grouped product that reads every expert's weights.
    """
    widths = layer.whole_width + layer.split_width / tp
    return gemm_s(
        linear_flop(layer.active_elements, tokens) / tp,
        weight_bytes * (tokens * widths + layer.held_elements / tp),
        layer.gemms,
        flop_per_s=flop_per_s,
        hbm_bytes_per_s=hbm_bytes_per_s,
        constants=constants,
    )


def flash_attention_s(
    query_width: int, seq_len: int, tokens: int, tp: int, *, flop_per_s: float, constants: SpeedConstants
) -> float:
    """Seconds of a flash kernel in one layer, forward.

    Formula: 2 * s * q * T / t / (e_a * P) * (s + s_0) / s: a sample of s_0 tokens runs at half the rate of a long one.
    Source: Dao 2023, arXiv:2307.08691, section 4.1, and figure 5 for the rise with s; e_a from the GPU table.
    Leaves out: the fall of e_a when few heads are left per rank; sliding windows.
    """
    long_s = attention_flop(query_width, seq_len, tokens) / tp / flop_per_s
    return long_s * (seq_len + constants.attention_half_rate_tokens) / seq_len


def flash_attention_backward_s(forward_s: float, constants: SpeedConstants) -> float:
    """Seconds of its backward.

    Formula: 2.5 / 0.85 * forward.
    Source: Dao 2023, arXiv:2307.08691, section 4.1 for 2.5; .85 = measured efficiency of backward over forward.
    Leaves out: nothing beyond forward.
    """
    return forward_s * constants.attention_backward_flop_ratio / constants.attention_backward_efficiency_ratio


def eager_attention_s(
    query_width: int,
    heads: int,
    seq_len: int,
    tokens: int,
    tp: int,
    *,
    weight_bytes: int,
    flop_per_s: float,
    hbm_bytes_per_s: float,
) -> tuple[float, float]:
    """Seconds of attention with materialised scores in one layer: its products forward, and one pass over the scores.

    Formula: 4 * s * q * T / t / (0.46 * e * P); w * (a/t) * s * T / W.
    Source: fit on vTrain's rows without flash attention, https://github.com/VIA-Research/vTrain.
    Leaves out: what stays in the L2 cache of short samples.
    """
    products = 2 * attention_flop(query_width, seq_len, tokens) / tp / flop_per_s
    return products, weight_bytes * heads / tp * seq_len * tokens / hbm_bytes_per_s


def gradient_traffic_s(
    parameters: float,
    stage: ZeroStage,
    accumulation: int,
    *,
    weight_bytes: int,
    accumulator_bytes: int,
    hbm_bytes_per_s: float,
) -> float:
    """Seconds that one layer's fresh gradients take on their way to where they wait, in one micro-batch.

    Formula: 2 * w * Ψ_l / W at stages 2 and 3; below, (w + 2*g) * Ψ_l / W, of all micro-batches but the first where
        g = w.
    Source: torch/csrc/autograd/functions/accumulate_grad.h adds in place, and keeps the first gradient as it comes;
        deepspeed/runtime/zero/stage_1_and_2.py `copy_gradients_to_..._bucket` and stage3.py
        `__add_grad_to_ipg_bucket` copy into a bucket, DeepSpeed 0.19.8.
    Leaves out: the partition's own accumulation, n times smaller; frameworks that accumulate inside the product.
    """
    if stage >= ZeroStage.GRADIENTS:
        return 2 * weight_bytes * parameters / hbm_bytes_per_s
    moved = (weight_bytes + 2 * accumulator_bytes) * parameters / hbm_bytes_per_s
    return moved if accumulator_bytes > weight_bytes else moved * (accumulation - 1) / accumulation


def head_s(
    hidden: int,
    vocab: int,
    tokens: int,
    *,
    head_tp: int,
    logits_tp: int,
    weight_bytes: int,
    logit_bytes: float,
    flop_per_s: float,
    hbm_bytes_per_s: float,
    constants: SpeedConstants,
    frozen: bool = False,
) -> float:
    """Seconds of output head and loss, forward and backward, once per micro-batch.

    Formula: 3 * gemm_s of (T, V/t, h) + b * T * V / t / W; b is 36 for the loss of transformers, 10 for fused ones;
        t is 1 where AutoTP leaves the head, or its logits, whole; 2 * gemm_s where the head is frozen.
    Source: 36 bytes per logit: transformers 5.24, loss/loss_utils.py `ForCausalLMLoss`, traced in
        tests/golden/kernels.toml; 10: 16-bit logits, fp32 copy, log-softmax and gradient, each once.
        What is divided: deepspeed/module_inject/auto_tp.py, DeepSpeed 0.19.8.
    Leaves out: logits that are capped, 26 bytes more.
    """
    columns, passes = vocab / head_tp, 2 if frozen else 3
    products = gemm_s(
        passes * linear_flop(hidden * vocab, tokens) / head_tp,
        passes * weight_bytes * (tokens * (hidden + columns) + hidden * columns),
        passes,
        flop_per_s=flop_per_s,
        hbm_bytes_per_s=hbm_bytes_per_s,
        constants=constants,
    )
    return products + logit_bytes * tokens * vocab / logits_tp / hbm_bytes_per_s


def host_floor_s(profile: StackProfile, tp: int) -> float:
    """The least a layer takes in one pass, because the host cannot issue its kernels faster.

    Formula: a table by tensor-parallel degree: the last row not above t.
    Source: 720 rows of vTrain, 556 of them bound by it, https://github.com/VIA-Research/vTrain; FSDP rows for eager.
    Leaves out: the speed of the host's cores; more kernels in layers of experts.
    """
    floor = profile.floor_s[0][1]
    for degree, seconds in profile.floor_s:
        if degree <= tp:
            floor = seconds
    return floor
