"""GPU memory that no tensor accounts for: CUDA context, communicators, and what the caching allocator keeps.

In: the candidate's degrees, and the tensor bytes at the peak and of what stays. Out: bytes between
`max_memory_allocated` and nvidia-smi. The constants are read off measured runs: `dsplan accuracy --overhead` derives
them again from the points that ship with dsplan, and a test compares.
"""

from __future__ import annotations

from planner.records.candidate import Degrees
from planner.units import MIB

CONTEXT_BYTES = 1536 * MIB
COMMUNICATOR_BYTES = 600 * MIB
SLACK_BYTES = 700 * MIB
SLACK_PER_MILLE = 140


def context_bytes() -> int:
    """The CUDA context, its kernels and libraries.

    Formula: 1.5 GiB.
    Source: `dsplan accuracy --overhead`: what nvidia-smi shows beyond the allocator's blocks on one A100.
    Leaves out: that kernels loaded lazily take less (https://github.com/pytorch/pytorch/issues/107667: 0.3 GB at
    first); other processes on the card.
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


def allocator_slack_bytes(tensor_peak_bytes: int, lasting_bytes: int) -> int:
    """Reserved but unallocated blocks.

    Formula: 0.7 GiB + 14 % of what comes and goes in a step: the peak less what stays from one step to the next. What
    stays is packed once and leaves no holes.
    Source: `dsplan accuracy --overhead`: runs whose source prints both counters, by sequence length and stage.
    Leaves out: expandable segments, which dsplan's launch files set and which leave less; growth over a run with
    samples of varying length; that a full card makes the allocator give blocks back.
    """
    return SLACK_BYTES + max(0, tensor_peak_bytes - lasting_bytes) * SLACK_PER_MILLE // 1000
