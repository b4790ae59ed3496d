"""What there is of each resource, and how much of it a plan may use.

In: request, memory estimate. Out: bytes. Question: does the fullest phase fit, and inside which error?
"""

from __future__ import annotations

from typing import NamedTuple

from planner.geometry.params import parameter_count
from planner.records.candidate import Candidate
from planner.records.estimate import Device, MemoryEstimate, Moment, Needs
from planner.records.request import Request
from planner.units import GB, GIB, ceil_div

TP_MARGIN = 0.15
"""Tensor parallelism on GPUs is the least proven part of the memory model: one report is 17 GiB above it
(https://github.com/deepspeedai/DeepSpeed/issues/7242), while the engine on CPU agrees to the byte."""

HOST_MARGIN = 0.1
"""Error of the host model: the figures people report lie within it, less what their machines need for themselves
(tests/memory/test_host.py prints them)."""

DEVICES = tuple(Device)

PAGE_TABLE_PARTS = 64
"""Linux keeps a 64-byte record of every 4,096-byte page: not all of an instance's nominal RAM is reported as total."""

SYSTEM_BYTES = 4 * GIB
"""The operating system, its services, NCCL's shared memory: 16 to 17 GiB are in use on nodes of four ranks before
DeepSpeed makes its first host tensor (public see_memory_usage logs), 12 of them the ranks' own."""

SAFE_BYTES_PER_PARAMETER = 24
SAFE_BASE_BYTES = 40 * GB
"""What reported runs of full fine-tuning with offload stayed below: 23.2 to 23.5 bytes per parameter, base included, at
25, 52 and 97 B parameters (https://github.com/bigscience-workshop/bigscience, experiments/gpt2-hf-ds), 24.6 for 33 B
(https://github.com/deepspeedai/DeepSpeed/issues/3448), with up to 40 GB per node in use before DeepSpeed starts."""


def usable_gpu_bytes(request: Request, candidate: Candidate) -> int:
    """GPU memory a plan may use and still be called fitting: what the driver reports, less the stated error."""
    margin = request.margin if candidate.degrees.tp == 1 else max(request.margin, TP_MARGIN)
    return int(request.cluster.gpu.memory_bytes * (1 - margin))


def capacity_bytes(request: Request, device: Device) -> int | None:
    """What there is; None where it is unknown."""
    if device is Device.GPU:
        return request.cluster.gpu.memory_bytes
    return request.cluster.host_memory_bytes if device is Device.HOST else request.cluster.nvme_bytes


def available_bytes(request: Request, device: Device) -> int | None:
    """What a job may have of it: host memory less what the machine itself needs."""
    capacity = capacity_bytes(request, device)
    if capacity is None or device is not Device.HOST:
        return capacity
    page_table = capacity // PAGE_TABLE_PARTS if request.cluster.instance else 0
    return max(0, capacity - page_table - SYSTEM_BYTES)


def needed_bytes(memory: MemoryEstimate, device: Device) -> int:
    """What the fullest phase needs: overhead included on the GPU; on NVMe the states, for checkpoints go elsewhere."""
    return dict(zip(Device, memory.needs, strict=True))[device]


class Limits(NamedTuple):
    """What a candidate may need of each device, in the order of `Device`; None where nobody knows."""

    available: tuple[int | None, ...]
    safe: tuple[float | None, ...]  # even if the model errs as far as it is known to


def limits(request: Request, candidate: Candidate) -> Limits:
    """The same for every micro-batch and setting of a strategy."""
    gpu, host, disk = (available_bytes(request, device) for device in DEVICES)
    safe_host = None if host is None else host * (1 - HOST_MARGIN)
    return Limits((gpu, host, disk), (usable_gpu_bytes(request, candidate), safe_host, disk))


def overflow(limits: Limits, needs: Needs) -> Device | None:
    """The first device that does not hold what it has to."""
    for device, needed, available in zip(DEVICES, needs, limits.available, strict=True):
        if available is not None and needed > available:
            return device
    return None


def inside_margins(limits: Limits, needs: Needs) -> bool:
    """Whether it fits even when the model errs as far as it is known to."""
    return all(safe is None or needed <= safe for needed, safe in zip(needs, limits.safe, strict=True))


def safe_host_bytes(request: Request, memory: MemoryEstimate) -> int:
    """Host memory per node on which an offload plan has run elsewhere, or the need and its error, whichever is more."""
    need = int(memory.peak_bytes(Device.HOST) / (1 - HOST_MARGIN))
    if request.workload.adapter is not None:
        return need
    share = ceil_div(parameter_count(request.model), request.cluster.nodes)
    return max(need, SAFE_BYTES_PER_PARAMETER * share + SAFE_BASE_BYTES)


def checkpoint_bytes(memory: MemoryEstimate) -> int:
    """One whole checkpoint of the job, all ranks together."""
    return sum(term.size_bytes for term in memory.terms if term.name == "checkpoint/files")


def pinned_host_bytes(memory: MemoryEstimate) -> int:
    """Page-locked memory of one node at its fullest."""
    pinned = [term for term in memory.terms if term.pinned]
    return max(sum(term.size_bytes for term in pinned if moment in term.moments) for moment in Moment)
