"""Host memory per node: offloaded states, pinned rounding, and the peaks of loading and saving.

In: element counts of one rank. Out: bytes of one rank; the caller multiplies by the ranks of a node.
"""

from __future__ import annotations

from planner.units import GIB, next_power_of_two

PROCESS_BYTES = 4 * GIB
NVME_PARAM_BUFFER_ELEMENTS = 100_000_000
NVME_PARAM_BUFFERS = 5
NVME_OPTIMIZER_BUFFERS = 4


def pinned_bytes(size_bytes: int, *, pin_memory: bool) -> int:
    """What a page-locked block really takes.

    Formula: the next power of two; the size itself when memory is not pinned.
    Source: torch/include/ATen/core/CachingHostAllocator.h (torch 2.13); 2.25 to 4.008 GiB in https://github.com/vllm-project/vllm/issues/56410.
    Leaves out: DS_PIN_MEMORY_BACKEND=native, which locks the exact size.
    """
    return next_power_of_two(size_bytes) if pin_memory else size_bytes


def process_bytes() -> int:
    """One training process without its tensors: interpreter, libraries, CUDA's host side, data loading.

    Formula: 4 GiB per rank.
    Source: a base of 30-40 GB per node of 8 ranks beside 23.2-23.5 bytes per parameter
    (https://github.com/bigscience-workshop/bigscience and
    Hugging Face ZeRO-3 offload logs at 25, 52 and 97 B parameters).
    Leaves out: data-loader workers that hold whole datasets.
    """
    return PROCESS_BYTES


def load_copy_bytes(model_elements: int, element_bytes: int) -> int:
    """The copy of the model a rank reads from disk before the engine takes it.

    Formula: e * all parameters of the model.
    Source: transformers 5.24 `from_pretrained` builds the model on the host of every rank; under ZeRO-3 only rank 0
    reads
    the merged state dict, the others load it on the meta device.
    Leaves out: checkpoints stored in a wider type than they are loaded in.
    """
    return element_bytes * model_elements


def save_copy_bytes(model_elements: int, element_bytes: int) -> int:
    """The 16-bit weights collected for saving.

    Formula: e * all parameters of the model.
    Source: accelerate 1.15 `get_state_dict` clones on every rank at stages 0-2; at stage 3 DeepSpeed collects on
    rank 0 only.
    Leaves out: the optimizer shards, which are written tensor by tensor.
    """
    return element_bytes * model_elements
