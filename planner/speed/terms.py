"""The named time terms: what each stands for, its formula and source, and the sum that makes a step.

In: seconds and hidden seconds added under a name, in any order. Out: `TimeTerm` records in the order of `TERMS`.
"""

from __future__ import annotations

from math import fsum
from operator import sub

from planner.records.estimate import TimeTerm

TERMS: dict[str, tuple[str, str]] = {
    "compute/gemm": (
        "gas * layers * 3 * (flop / (e * P) + 0.56 * operand bytes / W + 11 µs per product)",
        "SimuMax, fit on 183 shapes; backward is twice forward, once where weights are frozen",
    ),
    "compute/attention": (
        "gas * layers * (forward + backward); flash: 2*s*q*T/t / (e_a * P) * (s + 512)/s, backward 2.5/0.85 of it; "
        "eager: 4*s*q*T/t / (0.46 * e * P) + 14 passes over the scores (fused softmax: 5), backward 2 products each",
        "arXiv:2307.08691, section 4.1 and figure 5; vTrain for materialised scores",
    ),
    "compute/elementwise": (
        "gas * layers * w * T * (values of forward + of backward, halved parts over t) / (0.7 * W)",
        "values per token counted on the operators of real layers, planner/speed/elementwise.py; share fitted on "
        "llm-foundry",
    ),
    "compute/adapters": (
        "gas * layers * 3 * two products of width r per target, 4 with recomputation",
        "peft 0.21, tuners/lora/layer.py",
    ),
    "compute/unpacking": (
        "gas * layers * passes * (0.5 + w) * 4-bit weights / W",
        "bitsandbytes 0.50, autograd/_functions.py MatMul4Bit",
    ),
    "compute/gradients": (
        "gas * layers * b * Ψ_l / W: b = 2*w into a bucket at stages 2 and 3, w + 2*g onto those of earlier "
        "micro-batches at stages 0 and 1",
        "torch/csrc/autograd/functions/accumulate_grad.h; deepspeed/runtime/zero/stage_1_and_2.py, stage3.py, 0.19.8",
    ),
    "compute/recompute": (
        "gas * layers * (forward of gemm, attention and element-wise work)",
        "arXiv:2205.05198, section 5: full recomputation repeats forward",
    ),
    "compute/head": (
        "gas * (3 * gemm(T, V/t, h) + 36 * T * V / W), 10 in place of 36 for a fused loss",
        "transformers 5.24, loss/loss_utils.py, traced",
    ),
    "compute/host_floor": (
        "gas * layers * sum over passes of max(0, floor - time of the pass on the GPU)",
        "vTrain, 720 rows; +1 ms per layer and pass for ZeRO-3 hooks (unverified), DeepSpeed issues 1174 and 5770",
    ),
    "communication/tensor_parallel": (
        "gas * layers * all-reduces * (80 µs + 6 µs * t + 2*(t-1)/t * w*h*T / B), and the logits' gather",
        "arXiv:1909.08053, section 3; deepspeed/module_inject/layers.py, DeepSpeed 0.19.8",
    ),
    "communication/gather": (
        "weights, stage 3: per micro-batch w*Ψ in forward and what is not kept until backward, in gathers of "
        "tensors that fill the prefetch bucket; stages 1 and 2: once w*Ψ; per gather 40 µs + 3 µs per rank "
        "(9.6 µs per node) + bytes * (n-1)/n / B, or the network",
        "arXiv:1910.02054, section 7; deepspeed/runtime/zero/partitioned_param_coordinator.py, DeepSpeed 0.19.8; "
        "max + 0.6 * min with compute, fit on llm-foundry",
    ),
    "communication/reduce": (
        "gradients: stage 3 gas * g*Ψ, stage 2 gas * 2*g*Ψ, stages 0, 1 once 2*g*Ψ, in buckets of "
        "reduce_bucket_size, each with its start; times (n-1)/n / B, or the network",
        "arXiv:1910.02054, section 7; all-reduced buckets: deepspeed/runtime/zero/stage_1_and_2.py, DeepSpeed 0.19.8",
    ),
    "optimizer/step": (
        "GPU: 28 bytes * Ψ/n / W for AdamW and Muon, 20 for Lion and SGD, 16 for 8-bit AdamW, 76 for Adafactor; "
        "CPU: parameters of the node / (0.9e9 per socket, 2.1e9 with PCIe 5)",
        "fit on vTrain; DeepSpeed issue 6834, pull request 7474, ZenFlow blog; ml-engineering, when-to-upgrade-gpus",
    ),
    "optimizer/conversion": (
        "GPU: 42 bytes * Ψ/n / W in 16 bits: norm, cast, clipping, weights back; + 12 * 11 µs per stage-3 sub-group",
        "deepspeed/runtime/zero/stage3.py and stage_1_and_2.py, step, DeepSpeed 0.19.8",
    ),
    "optimizer/orthogonalisation": (
        "Muon: (8*n*n*m + 28*n*n*n for each matrix of n < m, 30*n*n*n for a square one) / n / (e * P)",
        "deepspeed/runtime/zero/muon/original_muon.py, DeepSpeed 0.19.8",
    ),
    "offload/gradients": (
        "stage 3: gas * 2 * w*Ψ/n / pc + 4*Ψ/n / pc; stages 1, 2: owner by owner 4*Ψ / pc, with accumulation 2 * w*Ψ "
        "more per micro-batch that is reduced; beside backward on the stream of reductions",
        "stage3.py partition_grads, stage_1_and_2.py copy_grads_in_partition, DeepSpeed 0.19.8",
    ),
    "offload/weights": (
        "w * Ψ/n / pc: updated weights back to the GPU; four uplinks of a node below PCIe 5",
        "rate of the host link in the GPU table; arXiv:2104.07857, figure 2b",
    ),
    "offload/parameters": (
        "per gather: w * Ψ_l/n / pc, or w * Ψ_l/n * GPUs of a node / NVMe read rate if that is slower",
        "deepspeed/runtime/swap_tensor/partitioned_param_swapper.py, DeepSpeed 0.19.8",
    ),
    "offload/nvme_states": (
        "16 bytes * parameters of the node * (1/read + 1/write): states and fp32 gradients, before and after each step",
        "rates: DeepNVMe blog of DeepSpeed, 06-2025; partitioned_optimizer_swapper.py, DeepSpeed 0.19.8",
    ),
    "offload/nvme_weights": (
        "w * parameters of the node / NVMe write rate",
        "deepspeed/runtime/swap_tensor/partitioned_param_swapper.py, DeepSpeed 0.19.8",
    ),
}


class TermSums:
    """Seconds collected under the names of `TERMS`."""

    __slots__ = ("_hidden", "_seconds")

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(TERMS, 0.0)
        self._hidden = dict.fromkeys(TERMS, 0.0)

    def copy(self) -> TermSums:
        """Sums of its own, to add to."""
        other = TermSums.__new__(TermSums)
        other._seconds, other._hidden = self._seconds.copy(), self._hidden.copy()
        return other

    def add(self, name: str, seconds: float, hidden_seconds: float = 0.0) -> None:
        """Adds to a term; raises KeyError for a name that `TERMS` lacks."""
        self._seconds[name] += seconds
        self._hidden[name] += hidden_seconds

    def step_s(self) -> float:
        """What nothing hides, of all terms together."""
        # fsum rounds once, and the same way on every Python: 3.12 changed what `sum` does with floats
        return fsum(map(sub, self._seconds.values(), self._hidden.values()))

    def records(self) -> tuple[TimeTerm, ...]:
        """The terms that take time, in the order of `TERMS`."""
        hidden = self._hidden
        return tuple(
            TimeTerm(
                name=name, seconds=seconds, hidden_seconds=hidden[name], formula=TERMS[name][0], source=TERMS[name][1]
            )
            for name, seconds in self._seconds.items()
            if seconds
        )
