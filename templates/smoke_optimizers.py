"""The optimizer of a dry run: its class, its states, and CPU code for what DeepSpeed and bitsandbytes run on GPUs only.

The stand-ins change no state: FusedLion's kernel, which DeepSpeed does not build for CPUs, and bitsandbytes' 8-bit
update, which on a CPU dequantises whole tensors and is therefore fed block by block.
"""

from __future__ import annotations

import importlib.util
from typing import Any

CHUNK_ELEMENTS = 65536  # a multiple of the 256 elements of an 8-bit block
CLASSES = {  # on the GPU, in host memory
    "adamw": ("FusedAdam", "DeepSpeedCPUAdam"),
    "adamw-8bit": ("AdamW", None),
    "adafactor": ("Adafactor", "Adafactor"),
    "lion": ("FusedLion", "DeepSpeedCPULion"),
    "muon": ("MuonWithAuxAdam", None),
    "sgd": ("SGD", "SGD"),
}
STATES = {  # of which every parameter has exactly one, where optimizers see flat partitions
    "adamw": ("exp_avg",),
    "adamw-8bit": ("state1",),
    "adafactor": ("variance",),
    "lion": ("exp_avg",),
    "muon": ("momentum_buffer", "exp_avg"),
    "sgd": ("momentum_buffer",),
}


def state_tensors(basic_optimizer: Any) -> list[Any]:
    """Every tensor of the optimizer's states, but for counters and the code table that 8-bit states share."""
    return [
        value
        for state in basic_optimizer.state.values()
        for name, value in state.items()
        if getattr(value, "ndim", 0) and not name.startswith("qmap")
    ]


def state_elements(basic_optimizer: Any, optimizer: str) -> int:
    """Elements of the state that every parameter has once."""
    states = basic_optimizer.state.values()
    return sum(state[name].numel() for state in states for name in STATES[optimizer] if name in state)


def stand_in_for_gpu_kernels() -> None:
    """See the head of this file."""
    import deepspeed.ops.lion.fused_lion

    deepspeed.ops.lion.fused_lion.FusedLionBuilder = LionKernel
    if importlib.util.find_spec("bitsandbytes"):
        update_8bit_by_blocks()


class LionKernel:
    """The extension that FusedLion loads."""

    def load(self) -> LionKernel:
        return self

    def multi_tensor_lion(self, _: int, __: Any, lists: Any, lr: float, beta1: float, beta2: float, *rest: Any) -> None:
        import torch

        with torch.no_grad():
            for tensors in zip(*lists, strict=True):
                for g, p, m in zip(*(t.data.view(-1).split(CHUNK_ELEMENTS) for t in tensors), strict=True):
                    direction = (beta1 * m + (1 - beta1) * g).sign_()
                    p.mul_(1 - lr * rest[-1]).add_(direction, alpha=-lr)
                    m.mul_(beta2).add_(g, alpha=1 - beta2)


def update_8bit_by_blocks() -> None:
    """Let bitsandbytes update a few blocks at a time."""
    import bitsandbytes.functional

    whole = bitsandbytes.functional.optimizer_update_8bit_blockwise

    def by_blocks(name: str, g: Any, p: Any, state1: Any, state2: Any, *rest: Any, **options: Any) -> None:
        *scalars, qmap1, qmap2, absmax1, absmax2, decay = rest
        tensors = (g, p.data, state1, state2, absmax1, absmax2)
        sizes = (CHUNK_ELEMENTS,) * 4 + (CHUNK_ELEMENTS // 256,) * 2
        parts = (tensor.view(-1).split(size) for tensor, size in zip(tensors, sizes, strict=True))
        for g_part, p_part, first, second, scale1, scale2 in zip(*parts, strict=True):
            whole(name, g_part, p_part, first, second, *scalars, qmap1, qmap2, scale1, scale2, decay, **options)

    bitsandbytes.functional.optimizer_update_8bit_blockwise = by_blocks
