"""Weights, gradients and optimizer states where DeepSpeed does not hold them.

In: a `Run`. Out: terms. Question: what do Megatron, FSDP and a plain PyTorch optimizer keep, and when?
Symbols: P trained elements of the rank, N ranks that share, w and g bytes of a weight and a gradient.
"""

from __future__ import annotations

from planner.accuracy.counts import Counts, counts_of
from planner.accuracy.moments import GRADIENTS, HEAD, HEAD_GRADIENT, LAYERS_KEPT, STEP_ONLY
from planner.accuracy.run import Run
from planner.accuracy.words import Layers, Storage
from planner.memory.inputs import FORWARD_BACKWARD, FROM_INIT, REDUCTION, STEP, TRAINING, term
from planner.memory.optimizers import optimizer_state_bytes
from planner.records.candidate import Checkpointing, Offload
from planner.records.estimate import Moment, Term
from planner.records.model import Precision
from planner.records.request import Optimizer
from planner.units import ceil_div

MEGATRON_SOURCE = "https://github.com/NVIDIA/Megatron-LM: megatron/core/optimizer/distrib_optimizer.py"
FSDP_SOURCE = "torch/distributed/fsdp/_flat_param.py and _runtime_utils.py"
TORCH_SOURCE = "torch/optim/adamw.py, torch/amp/autocast_mode.py"
DDP_SOURCE = "torch/nn/parallel/distributed.py: gradient_as_bucket_view is off by default"
LITGPT_LOAD = "LitGPT finetune/lora.py: the checkpoint is loaded whole on every GPU and sharded there"


def storage_of_trained(run: Run) -> Storage:
    """What is trained may be stored otherwise than the model: peft keeps adapters in fp32."""
    return Storage.AUTOCAST if run.tuning.fp32_adapters else run.storage


def stored_bytes(storage: Storage) -> tuple[int, int, int]:
    """Bytes of a weight as the model holds it, of its gradient, and of its master copy.

    Formula: mixed 2, 2, 4; with fp32 gradients 2, 4, 4; under autocast and in fp32 4, 4, 0; pure 16-bit 2, 2, 0.
    Source: arXiv:1910.02054, section 3.1; Megatron-LM README `--accumulate-allreduce-grads-in-fp32`.
    Leaves out: casts that live for one operation.
    """
    return {
        Storage.MIXED: (2, 2, 4),
        Storage.MIXED_FP32_GRADIENTS: (2, 4, 4),
        Storage.AUTOCAST: (4, 4, 0),
        Storage.FP32: (4, 4, 0),
        Storage.PURE: (2, 2, 0),
    }[storage]


def optimizer_bytes(run: Run, elements: int) -> int:
    """States of the update rule.

    Formula: as `optimizer_state_bytes`; 0 for paged states, which lie in managed memory that torch does not count.
    Source: bitsandbytes `functional.py` `get_paged`.
    Leaves out: nothing.
    """
    if run.paged:
        return 0
    precision = Precision.PURE_BF16 if storage_of_trained(run) is Storage.PURE else Precision.BF16
    return optimizer_state_bytes(elements, run.workload.optimizer, precision)


def step_bytes(run: Run, elements: int) -> int:
    """The square root of the second moment that torch's multi-tensor AdamW makes for all parameters at once.

    Formula: one state; 0 for fused kernels, which LitGPT and torchtune ask for, and for other optimizers.
    Source: torch/optim/adamw.py `_multi_tensor_adamw`; LitGPT utils.py `instantiate_torch_optimizer` (fused on CUDA);
        torchtune recipes/configs, `fused: True`.
    Leaves out: nothing.
    """
    fused = run.layers in (Layers.LITGPT, Layers.TORCHTUNE)
    if fused or run.paged or run.workload.optimizer is not Optimizer.ADAMW:
        return 0
    return (2 if storage_of_trained(run) is Storage.PURE else 4) * elements


def megatron_terms(run: Run) -> list[Term]:
    """Megatron's mixed-precision optimizer.

    Gradients live in one contiguous buffer for the whole run; the distributed optimizer (counted as stage 1) shares
    master weights and states out. Without fp32 gradients the step makes fp32 copies of the rank's share.
    """
    weight, gradient, master = stored_bytes(run.storage)
    sizes, n, stage = counts_of(run).sizes, run.candidate.degrees.dp, run.candidate.zero
    p = sizes.total
    share = ceil_div(p, n) if stage >= 1 else p
    whole_weights = p if stage < 3 else ceil_div(p, n)
    whole_gradients = p if stage < 2 else ceil_div(p, n)
    terms = [
        term("states/weights", FROM_INIT, weight * whole_weights, "2 * P", MEGATRON_SOURCE),
        term("states/gradients", FROM_INIT, gradient * whole_gradients, "g * P, for the whole run", MEGATRON_SOURCE),
        term("states/master", FROM_INIT, master * share, "4 * P / N", MEGATRON_SOURCE),
        term("states/optimizer", TRAINING, optimizer_bytes(run, share), "8 * P / N", MEGATRON_SOURCE),
    ]
    if gradient < 4:
        terms.append(term("step/gradient_cast", STEP, 4 * share, "4 * P / N", f"{MEGATRON_SOURCE}: main gradients"))
    if stage >= 3:
        terms.append(term("gathered/layers", FORWARD_BACKWARD, 2 * 2 * sizes.layer, "2 * 2 layers", MEGATRON_SOURCE))
    return terms


def fsdp_terms(run: Run) -> list[Term]:
    """FSDP's full sharding.

    The root unit (embedding, final norm, head) stays gathered from forward to the end of backward, but in torchtune,
    which wraps both by themselves; two layers are gathered at a time, and a layer's gradient is whole until it is
    reduced.
    """
    weight, gradient, master = stored_bytes(storage_of_trained(run))
    counts, n = counts_of(run), run.candidate.degrees.dp
    sizes, share, offload = counts.sizes, ceil_div(counts.trained, n), run.candidate.offload
    width = run.tuning.frozen_bytes if not run.tuning.full else 2.0
    layer, root = int(width * sizes.layer), 2 * (sizes.total - run.shape.layers * sizes.layer)
    terms = []
    if offload is not Offload.OPTIMIZER_AND_PARAMS:
        frozen = ceil_div(counts.frozen_bytes, n)
        terms += [
            term("states/weights", FROM_INIT, weight * share, "w * P / N", FSDP_SOURCE),
            term("states/frozen_weights", FROM_INIT, frozen, "bytes of frozen weights / N", FSDP_SOURCE),
            term("states/gradients", GRADIENTS, gradient * share, "g * P / N", FSDP_SOURCE),
        ]
    if offload is Offload.NONE:
        terms += [
            term("states/master", FROM_INIT, master * share, "4 * P / N", FSDP_SOURCE),
            term("states/optimizer", TRAINING, optimizer_bytes(run, share), "two states", FSDP_SOURCE),
            term("step/foreach", STEP_ONLY, step_bytes(run, share), "one more state", TORCH_SOURCE),
        ]
    rewrapped = run.layers is Layers.TORCHTUNE
    terms += [
        term("gathered/root", HEAD if rewrapped else FORWARD_BACKWARD, root, "2 * (embedding + head)", FSDP_SOURCE),
        term("gathered/layers", LAYERS_KEPT, 2 * layer, "2 layers", FSDP_SOURCE),
        term("gathered/dequantized", LAYERS_KEPT, counts.dequantized_bytes, "one matrix", TORCH_SOURCE),
    ]
    if run.layers is Layers.LITGPT:
        whole = counts.frozen_bytes + 2 * counts.trained
        loaded = whole + ceil_div(whole, n)
        terms.append(term("load/whole", (Moment.LOAD,), loaded, "2 * P * (1 + 1 / N)", LITGPT_LOAD))
    if run.tuning.full:
        terms += [
            term("gradients/layer", REDUCTION, 2 * layer, "2 layers", FSDP_SOURCE),
            term("gradients/root", () if rewrapped else REDUCTION, root, "2 * (embedding + head)", FSDP_SOURCE),
        ]
    return terms


def torch_terms(run: Run) -> list[Term]:
    """A PyTorch optimizer over whole parameters, with DDP's buckets beside the gradients on several GPUs."""
    weight, gradient, master = stored_bytes(storage_of_trained(run))
    counts = counts_of(run)
    p, once, e = counts.trained, run.candidate.accumulation == 1, counts.trained_embeddings
    terms = [
        term("buffers/ddp", FROM_INIT, gradient * p if run.candidate.degrees.dp > 1 else 0, "g * P", DDP_SOURCE),
        term("states/embeddings", FROM_INIT, 8 * e, "a trained copy: 2 + 2 + 4 * V h", TORCH_SOURCE),
        term("step/embeddings", STEP_ONLY, 2 * e, "one more state", TORCH_SOURCE),
        term("states/weights", FROM_INIT, weight * p, "w * P", TORCH_SOURCE),
        term("states/frozen_weights", FROM_INIT, counts.frozen_bytes, "bytes of frozen weights", TORCH_SOURCE),
        term("states/master", FROM_INIT, master * p, "4 * P", TORCH_SOURCE),
        term("states/optimizer", TRAINING, optimizer_bytes(run, p), "two states", TORCH_SOURCE),
        term("gathered/dequantized", LAYERS_KEPT, counts.dequantized_bytes, "one matrix", TORCH_SOURCE),
    ]
    if run.in_backward:
        largest = gradient * counts.largest_trained
        terms.append(term("gradients/largest", REDUCTION, largest, "g * largest tensor", TORCH_SOURCE))
    else:
        moments = GRADIENTS if once else (*FORWARD_BACKWARD, *STEP)
        terms.append(term("states/gradients", moments, gradient * p, "g * P", TORCH_SOURCE))
        terms.append(term("step/foreach", STEP_ONLY, step_bytes(run, p), "one more state", TORCH_SOURCE))
        if once:
            head = gradient * counts.head_trained
            terms.append(term("gradients/head", HEAD_GRADIENT, head, "g * V * h", TORCH_SOURCE))
    if run.storage is Storage.AUTOCAST:
        terms += _autocast_terms(run, counts)
    return terms


def _autocast_terms(run: Run, counts: Counts) -> list[Term]:
    """Casts of fp32 weights that saved operations hold, and a residual stream that stays in fp32."""
    if not run.tuning.full:
        return []
    sizes, full = counts.sizes, run.candidate.checkpointing is Checkpointing.FULL
    cast = sizes.layer + sizes.head if full else sizes.total - (0 if sizes.tied else sizes.embedding)
    stream = run.tokens * run.shape.hidden * run.shape.layers * (2 if full else 4)
    alive = LAYERS_KEPT
    return [
        term("gathered/autocast", alive, 2 * cast, "2 * weights that a saved operation holds", TORCH_SOURCE),
        term("activations/fp32_stream", alive, stream, "2h a layer checkpointed, else 4h", TORCH_SOURCE),
    ]
