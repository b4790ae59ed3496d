"""What an optimizer stores for the parameters it updates under DeepSpeed, and what its step makes and drops.

In: element counts of one rank. Out: bytes. The one place that knows an optimizer's states. From ZeRO stage 1 on an
optimizer is given flat partitions, one-dimensional tensors that hold many parameters; at stage 0 each parameter by
itself, but for AdamW under the 16-bit wrapper. Muon alone looks at whole matrices whatever the stage.
"""

from __future__ import annotations

from planner.records.model import ParameterTensor, Precision
from planner.records.request import Optimizer

STATES_PER_ELEMENT = {
    Optimizer.ADAMW: 2,
    Optimizer.ADAFACTOR: 1,
    Optimizer.LION: 1,
    Optimizer.MUON: 2,
    Optimizer.SGD: 1,
}
"""Values kept for every parameter of a flat partition, in the dtype of the master weights; Muon's for what Adam takes.

A flat partition has no rows and columns, so Adafactor keeps its whole variance there.
"""
BLOCK_ELEMENTS_8BIT = 256
"""Elements that share one fp32 scale in bitsandbytes' block-wise states."""
SMALLEST_8BIT_TENSOR = 4096
"""Tensors with fewer elements keep fp32 states in bitsandbytes (`min_8bit_size`)."""
HALF_BYTES = 2
"""Muon orthogonalises in fp16 (`ns_compute_dtype`)."""
MUON_WORKSPACE = "2 * (2 * n * m + 3 * n * n) of the largest matrix, n <= m (Muon: orthogonalisation)"
KEPT = {
    Optimizer.ADAMW: ("AdamW: momentum and variance", "deepspeed/ops/adam/fused_adam.py (0.19.8)"),
    Optimizer.ADAMW_8BIT: (
        "8-bit AdamW: momentum and variance in one byte each, a scale per 256",
        "bitsandbytes 0.50 optim/optimizer.py Optimizer2State",
    ),
    Optimizer.ADAFACTOR: ("Adafactor: variance", "torch 2.13 torch/optim/_adafactor.py"),
    Optimizer.LION: ("Lion: momentum", "deepspeed/ops/lion/fused_lion.py (0.19.8)"),
    Optimizer.MUON: (
        "Muon: momentum of matrices; Adam's momentum and variance for the rest",
        "deepspeed/runtime/zero/muon/muon_optimizer.py (0.19.8)",
    ),
    Optimizer.SGD: ("SGD: momentum", "torch 2.13 torch/optim/sgd.py"),
}
OUTSIDE_LAYERS = frozenset(("embedding", "position", "head"))
TABLES_WITHOUT_EMBED = frozenset(("gpt2", "gpt_bigcode", "gpt_neo", "gptj", "codegen", "mpt"))
"""Types that name their tables `wte` and `wpe`: DeepSpeed leaves a matrix to Adam where its name holds `embed`."""


def optimizer_state_bytes(elements: int, optimizer: Optimizer, precision: Precision) -> int:
    """The optimizer's states for so many parameters, all of them in flat partitions.

    Formula: 8 * elements for AdamW; 4 for one fp32 state; 2 + 8 / 256 in 8 bits; half of it in pure bf16.
    Source: arXiv:1910.02054, section 3.1 (K = 12 with the master weights); bitsandbytes `optim/optimizer.py`.
    Leaves out: step counters; Muon's matrices, see `muon_state_bytes`.
    """
    if optimizer is Optimizer.ADAMW_8BIT:
        return 2 * elements + 2 * 4 * -(-elements // BLOCK_ELEMENTS_8BIT)
    return STATES_PER_ELEMENT[optimizer] * precision.state_bytes * elements


def host_state_bytes(elements: int, optimizer: Optimizer, precision: Precision) -> int:
    """The same for an optimizer that steps in host memory.

    Formula: as `optimizer_state_bytes`; 8 * elements for Lion, whose CPU version makes a variance and never uses it.
    Source: deepspeed/ops/lion/cpu_lion.py `step` (0.19.8); measured on the engine.
    Leaves out: nothing known.
    """
    kept = Optimizer.ADAMW if optimizer is Optimizer.LION else optimizer
    return optimizer_state_bytes(elements, kept, precision)


def muon_state_bytes(matrices: int, rest: int, precision: Precision, *, momentum_bytes: int) -> int:
    """Muon's states: one momentum for matrices, Adam's two for everything else.

    Formula: m * matrices + 8 * rest, m the bytes of one momentum: 4 at stage 0; e at stage 3, in the dtype of the
    gradients; 2e at stages 1 and 2, which keep a second copy until the step is known to be good.
    Source: deepspeed/runtime/zero/stage_1_and_2.py `_muon_staging_momentum`, stage3.py `_create_momentum_buffer`
    (0.19.8).
    Leaves out: at stages 1 and 2, the other rank's part of a matrix that lies across two partitions.
    """
    return momentum_bytes * matrices + optimizer_state_bytes(rest, Optimizer.MUON, precision)


def whole_tensor_state_bytes(
    tensors: tuple[tuple[int, int], ...], factored: int, muon: int, optimizer: Optimizer, precision: Precision
) -> int:
    """States of stage 0, where every parameter is a tensor of its own.

    Formula: as for flat partitions, but 4 * (rows + columns) for Adafactor's matrices, 4 for Muon's, and 8 bytes per
    element for small tensors of 8-bit AdamW.
    Source: torch/optim/_adafactor.py `_init_group`; bitsandbytes optim/optimizer.py `init_state`;
    deepspeed/runtime/zero/muon/muon_optimizer.py `step` (0.19.8).
    Leaves out: step counters; the fp32 states that bitsandbytes gives embeddings of fp32 runs.
    """
    total = sum(numel * count for numel, count in tensors)
    if optimizer is Optimizer.ADAFACTOR:
        return precision.state_bytes * factored
    if optimizer is Optimizer.MUON:
        return muon_state_bytes(muon, total - muon, precision, momentum_bytes=precision.state_bytes)
    if optimizer is Optimizer.ADAMW_8BIT:
        small = sum(numel * count for numel, count in tensors if numel < SMALLEST_8BIT_TENSOR)
        return optimizer_state_bytes(total - small, optimizer, precision) + 2 * 4 * small
    return optimizer_state_bytes(total, optimizer, precision)


def update_bytes(elements: int, optimizer: Optimizer, precision: Precision) -> int:
    """What the update of one tensor makes and drops, beside its gradient.

    Formula: 2 * 4 * elements for Adafactor (squared gradients, then the update); half of it in pure bf16; 0 for the
    fused kernels of DeepSpeed and bitsandbytes, for SGD without weight decay and for Muon, which adds an update that
    is there already.
    Source: torch 2.13 torch/optim/_adafactor.py `_single_tensor_adafactor`.
    Leaves out: torch's AdamW (`torch_adam`), SGD with weight decay: one more copy of the gradients.
    """
    return 2 * precision.state_bytes * elements if optimizer is Optimizer.ADAFACTOR else 0


def whole_tensor_update_bytes(
    largest: int, layer_largest: int, muon_workspace: int, optimizer: Optimizer, precision: Precision
) -> int:
    """The same at stage 0, tensor by tensor.

    Formula: 4 * (largest tensor + the one before it) for Adafactor, whose last update lives until the next is made;
    Muon's workspace and 4 * largest matrix of a layer, the update in fp32; else 0.
    Source: as `update_bytes`; measured on the engine.
    Leaves out: vectors, which are small.
    """
    if optimizer is Optimizer.MUON:
        return muon_workspace + precision.state_bytes * layer_largest
    return precision.state_bytes * (largest + layer_largest) if optimizer is Optimizer.ADAFACTOR else 0


def update_traffic_bytes(optimizer: Optimizer, precision: Precision) -> float:
    """Memory traffic of the update of one element.

    Formula: 3 * s for gradient and master weight + states read and written, s the bytes of a master weight: 28 for
    AdamW, 20 for one state; 19 * s for Adafactor, whose update is a dozen kernels.
    Source: deepspeed/ops/csrc/adam/multi_tensor_adam.cu (0.19.8); torch/optim/_adafactor.py
    `_single_tensor_adafactor` (2.13).
    Leaves out: Muon's orthogonalisation, which is arithmetic, and what its matrices save against Adam.
    """
    width = precision.state_bytes
    if optimizer is Optimizer.ADAFACTOR:
        return 19.0 * width
    if optimizer is Optimizer.ADAMW_8BIT:
        return 3.0 * width + 2 * (2 + 8 / BLOCK_ELEMENTS_8BIT)
    return 3.0 * width + 2 * STATES_PER_ELEMENT[optimizer] * width


def muon_workspace_bytes(rows: int, columns: int) -> int:
    """What orthogonalising one matrix makes and drops.

    Formula: 2 * (2 * n * m + 3 * n * n) for n <= m: the matrix before and after, and three of its Gram matrices.
    Source: deepspeed/runtime/zero/muon/original_muon.py `zeropower_via_gram_newtonschulz` (0.19.8); measured on the
    engine.
    Leaves out: what torch.compile fuses away.
    """
    narrow = min(rows, columns)
    return HALF_BYTES * (2 * rows * columns + 3 * narrow * narrow)


def muon_takes(tensor: ParameterTensor, model_type: str) -> bool:
    """Whether Muon updates the tensor, rather than the Adam beside it.

    Source: deepspeed/__init__.py `set_optimizer_flags` (0.19.8): matrices whose name holds neither `embed` nor
    `lm_head`.
    """
    if tensor.columns == 1 or tensor.name == "head":
        return False
    return tensor.name not in OUTSIDE_LAYERS or model_type in TABLES_WITHOUT_EMBED


def state_formula(optimizer: Optimizer, precision: Precision, share: str) -> str:
    """Bytes per element and what they are, as text, for the term's formula."""
    kept = KEPT[optimizer][0]
    if optimizer is Optimizer.ADAMW_8BIT:
        return f"(2 + 8 / 256) * {share} ({kept})"
    return f"{STATES_PER_ELEMENT[optimizer] * precision.state_bytes} * {share} ({kept})"


def host_state_formula(optimizer: Optimizer, precision: Precision, share: str) -> str:
    """The same for `host_state_bytes`."""
    if optimizer is Optimizer.LION:
        return f"{2 * precision.state_bytes} * {share} (Lion: momentum, and a variance that DeepSpeed never uses)"
    return state_formula(optimizer, precision, share)


def whole_tensor_state_formula(optimizer: Optimizer, precision: Precision) -> str:
    """The same at stage 0."""
    if optimizer is Optimizer.ADAFACTOR:
        return f"{precision.state_bytes} * (rows + columns) of every matrix (Adafactor: variance)"
    if optimizer is Optimizer.MUON:
        return f"4 * matrices + 8 * rest ({KEPT[optimizer][0]})"
    return state_formula(optimizer, precision, "P")


def update_formula(optimizer: Optimizer, precision: Precision) -> str:
    """What `update_bytes` and `whole_tensor_update_bytes` count, as text."""
    if optimizer is Optimizer.MUON:
        return MUON_WORKSPACE
    return f"{2 * precision.state_bytes} per element (Adafactor: squared gradients, update)"


def state_source(optimizer: Optimizer) -> str:
    """The file that defines the states."""
    return KEPT[optimizer][1]
