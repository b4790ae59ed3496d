"""GPU memory that no tensor accounts for: CUDA context, communicators, and what the caching allocator keeps.

In: the candidate's degrees and the tensor peak. Out: bytes between `max_memory_allocated` and nvidia-smi.
"""

from __future__ import annotations

from planner.records.candidate import Degrees, ZeroStage
from planner.units import MIB

CONTEXT_BYTES = 500 * MIB
COMMUNICATOR_BYTES = 600 * MIB
SLACK_PER_MILLE = {ZeroStage.DISABLED: 20, ZeroStage.OPTIMIZER: 20, ZeroStage.GRADIENTS: 20, ZeroStage.PARAMETERS: 40}


def context_bytes() -> int:
    """The CUDA context with lazily loaded kernels.

    Formula: 500 MiB.
    Source: https://github.com/pytorch/pytorch/issues/107667 (0.3 GB lazy to 0.5-1 GB).
    Leaves out: other processes on the card.
    """
    return CONTEXT_BYTES


def communicator_bytes(degrees: Degrees) -> int:
    """NCCL buffers.

    Formula: 600 MiB for each communicator in use: the world, and two more (data and tensor parallel) where both
    degrees exceed 1.
    Source: https://github.com/NVIDIA/nccl/issues/964 (544-688 MB each).
    Leaves out: NVLS and tree buffers of large jobs.
    """
    if degrees.world_size == 1:
        return 0
    return COMMUNICATOR_BYTES * (3 if degrees.tp > 1 and degrees.dp > 1 else 1)


def allocator_slack_bytes(tensor_peak_bytes: int, stage: ZeroStage) -> int:
    """Reserved but unallocated blocks, with expandable segments as dsplan's launch files set them.

    Formula: 2 % of the tensor peak for stages 0-2, 4 % for stage 3.
    Source: reserved over allocated 1.01-1.02 at ZeRO-2, https://github.com/TensorAuto/OpenTau/pull/273; stage 3
    gathers vary in size
    (1.09 against 1.23 without expandable segments, https://github.com/deepspeedai/DeepSpeed/issues/3734).
    Leaves out: growth over a run with samples of varying length.
    """
    return tensor_peak_bytes * SLACK_PER_MILLE[stage] // 1000
