"""A frozen base model in 4 bits: its bytes, and what DeepSpeed sees of it.

In: model shape, bytes of the run's dtype. Out: `QuantizedBase` and rank sizes. Question: how large are nf4 weights,
which part of them can ZeRO-3 divide, and what does their use need beside them?
Every linear matrix but the output head is packed; embedding, head, norms, biases, and the routed experts, which are
no linear modules, keep the run's dtype. No tensor parallelism, which does not go with adapters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from planner.geometry.adapters import linear_tensors
from planner.geometry.params import parameter_tensors
from planner.memory.sizes import RankSizes
from planner.records.model import ModelShape, ParameterTensor
from planner.units import ceil_div

SOURCE = "bitsandbytes 0.50 functional.py quantize_4bit; Dettmers et al. 2023, arXiv:2305.14314, section 3"
BLOCK = 64  # weights that share a scale
NESTED_BLOCK = 256  # scales that share one of their own
FP32_BYTES = 4
LOADING_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedBase:
    """What the packed weights need beside themselves, in bytes; 16-bit means the dtype of the run."""

    scales_bytes: int  # whole on every rank
    matrix_bytes: int  # the largest packed matrix in 16 bits
    tensor_bytes: int  # the largest tensor of the model in 16 bits


@lru_cache(maxsize=64)
def quantized_base(shape: ModelShape, element_bytes: int) -> QuantizedBase:
    """The base model of QLoRA."""
    matrices = linear_tensors(shape)
    return QuantizedBase(
        scales_bytes=sum(scales_bytes(tensor.numel) * tensor.count for tensor in matrices),
        matrix_bytes=element_bytes * max(tensor.numel for tensor in matrices),
        tensor_bytes=element_bytes * max(tensor.numel for tensor in parameter_tensors(shape)),
    )


def packed_elements(elements: int, element_bytes: int) -> int:
    """Elements of the tensor that holds a matrix of 4-bit values, as DeepSpeed counts them.

    Formula: elements / 2w: a storage value of w bytes holds 2w of them.
    Source: bitsandbytes 0.50 functional.py `quantize_4bit`, `quant_storage`.
    Leaves out: nothing.
    """
    return ceil_div(elements, 2 * element_bytes)


def scales_bytes(elements: int) -> int:
    """Scales of one matrix under double quantisation: attributes of the parameter, which ZeRO does not divide.

    Formula: 1 byte per block of 64 + 4 bytes per 256 blocks: 0.016 bytes per parameter, 0.516 with the 4 bits.
    Source: bitsandbytes 0.50 functional.py `quantize_4bit` (`compress_statistics`); arXiv:2305.14314, section 3.
    Leaves out: code tables, 1 KiB a matrix.
    """
    blocks = ceil_div(elements, BLOCK)
    return blocks + FP32_BYTES * ceil_div(blocks, NESTED_BLOCK)


@lru_cache(maxsize=64)
def packed_sizes(shape: ModelShape, base: RankSizes, element_bytes: int) -> RankSizes:
    """The sizes of the base with its linear matrices packed."""
    packed = {tensor.name for tensor in linear_tensors(shape)}

    def numel(tensor: ParameterTensor) -> int:
        return packed_elements(tensor.numel, element_bytes) if tensor.name in packed else tensor.numel

    tensors = parameter_tensors(shape)
    saved = sum((tensor.numel - numel(tensor)) * tensor.count for tensor in tensors)
    in_layers = [tensor for tensor in tensors if tensor.name.startswith("layer/")]
    return replace(
        base,
        total=base.total - saved,
        largest_tensor=max(numel(tensor) for tensor in tensors),
        layer=base.layer - saved // shape.layers,
        layer_largest_tensor=max(numel(tensor) for tensor in in_layers),
        tensors=tuple((numel(tensor), tensor.count) for tensor in tensors),
    )


def loading_bytes(base: QuantizedBase) -> int:
    """Host memory of one rank while the weights are read: tensors go to the GPU one by one and are packed there.

    Formula: 4 threads * the largest tensor in 16 bits.
    Source: transformers 5.24 core_model_loading.py `GLOBAL_WORKERS`, quantizers/quantizer_bnb_4bit.py.
    Leaves out: the page cache of the files.
    """
    return LOADING_THREADS * base.tensor_bytes
