"""One candidate to the DeepSpeed configuration that puts it in force.

In: the request and the candidate. Out: the dict of `ds_config.json`. Answers: which keys make the engine do exactly
this? Every key that states the plan or whose default moved between releases is written out, as a plain number or
boolean. "auto" stands only for optimizer values that the Hugging Face Trainer fills (optimizer_block.py).
The total batch is left out: under AutoTP the engine checks it against the whole world instead of world / tp. So is a
scheduler: its number of steps is known only once the data is read, by train.py.
"""

from __future__ import annotations

import json
from typing import Any

from planner.geometry.params import largest_tensor_numel
from planner.memory import host
from planner.records.candidate import Candidate, Degrees, Offload, ZeroSettings, ZeroStage
from planner.records.model import ModelShape, Precision
from planner.records.request import Optimizer, Request
from planner.render.optimizer_block import optimizer_keys
from planner.render.overlay import overlay
from planner.resources import read_text
from planner.units import ceil_div

SCHEMA_FILE = "ds_config.schema.json"  # lies beside the file, so that editors find it offline
NVME_PATH = "/local_nvme"  # edited by the user: no plan can know where a drive is mounted
INITIAL_SCALE_POWER = 12
"""Loss scaling starts at 2^12. DeepSpeed's 2^16 overflows in the first steps of most runs, and each overflow skips one
step of what may be a short fine-tuning. Source: the launch scripts of bigscience-workshop/Megatron-DeepSpeed."""
AIO_ALIGNMENT_ELEMENTS = 4096  # above DeepSpeed's alignment of swapped tensors (1024 bytes x I/O threads)


def deepspeed_config(request: Request, candidate: Candidate) -> dict[str, Any]:
    """The whole document: the template's fixed keys and the plan's own."""
    planned: dict[str, Any] = {
        "$schema": SCHEMA_FILE,
        "train_micro_batch_size_per_gpu": candidate.micro_batch,
        "gradient_accumulation_steps": candidate.accumulation,
        "zero_optimization": {
            **zero_section(request.model, candidate),
            "reduce_scatter": reduce_scatter(request, candidate),
        },
        **optimizer_keys(request),
        **precision_sections(request.workload.precision, candidate.settings),
    }
    if candidate.degrees.tp > 1:
        planned["tensor_parallel"] = {"autotp_size": candidate.degrees.tp}
    if candidate.offload is Offload.NVME:
        planned["aio"] = {
            "block_size": 1048576,
            "queue_depth": 8,
            "intra_op_parallelism": 1,
            "single_submit": False,
            "overlap_events": True,
            "use_gds": False,
        }
    return overlay(json.loads(read_text("templates", "deepspeed.json")), planned)


def reduce_scatter(request: Request, candidate: Candidate) -> bool:
    """Whether gradients are reduced to the shares of their owners; DeepSpeed refuses it for Muon at stage 3."""
    return not (request.workload.optimizer is Optimizer.MUON and candidate.zero is ZeroStage.PARAMETERS)


def precision_sections(precision: Precision, settings: ZeroSettings) -> dict[str, Any]:
    """`bf16`, with bf16 master weights and states where it is pure, or `fp16` (dynamic loss scaling), neither for fp32.

    `data_types` only for fp32 gradient accumulation.
    """
    sections: dict[str, Any] = {}
    if precision is Precision.BF16:
        sections["bf16"] = {"enabled": True}
    if precision is Precision.PURE_BF16:
        sections["bf16"] = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    if precision is Precision.FP16:
        sections["fp16"] = {
            "enabled": True,
            "loss_scale": 0,  # dynamic
            "initial_scale_power": INITIAL_SCALE_POWER,
            "loss_scale_window": 1000,
            "hysteresis": 2,  # overflows in a row before the scale is halved
            "min_loss_scale": 1,
        }
    if settings.fp32_gradient_accumulation and precision is not Precision.FP32:
        sections["data_types"] = {"grad_accum_dtype": "fp32"}
    return sections


def zero_section(model: ModelShape, candidate: Candidate) -> dict[str, Any]:
    """`zero_optimization`: stage, buckets in elements, stage-3 sizes at stage 3 only, offload blocks."""
    settings = candidate.settings
    section: dict[str, Any] = {
        "stage": int(candidate.zero),
        "overlap_comm": settings.overlap_comm,
        "reduce_bucket_size": settings.reduce_bucket_elements,
        "allgather_bucket_size": settings.allgather_bucket_elements,
    }
    if candidate.zero is ZeroStage.PARAMETERS:
        section |= {
            "sub_group_size": settings.sub_group_elements,
            "stage3_prefetch_bucket_size": settings.prefetch_bucket_elements,
            "stage3_param_persistence_threshold": settings.param_persistence_threshold,
            "stage3_max_live_parameters": settings.max_live_parameters,
            "stage3_max_reuse_distance": settings.max_reuse_distance,
        }
        if settings.hpz_partition_size > 1:
            section["zero_hpz_partition_size"] = settings.hpz_partition_size
    if candidate.zero is ZeroStage.PARAMETERS or candidate.degrees.tp > 1:
        # Without it a save at stage 3, or with tensor parallelism at any stage, writes no whole model.
        section["stage3_gather_16bit_weights_on_model_save"] = True
    if candidate.offload.optimizer_device != "none":
        section["offload_optimizer"] = offload_optimizer_section(candidate)
    if candidate.offload.param_device != "none":
        section["offload_param"] = offload_param_section(model, candidate)
    return section


def offload_optimizer_section(candidate: Candidate) -> dict[str, Any]:
    """`offload_optimizer`: device, pinning, the share that the CPU steps, and the NVMe path where there is one."""
    block: dict[str, Any] = {
        "device": candidate.offload.optimizer_device,
        "pin_memory": candidate.settings.pin_memory,
    }
    if candidate.settings.optimizer_offload_ratio < 1:  # DeepSpeed's default is 1, and below stage 3 nothing else
        block["ratio"] = candidate.settings.optimizer_offload_ratio
    if candidate.offload is Offload.NVME:
        block |= {"nvme_path": NVME_PATH, "buffer_count": host.NVME_OPTIMIZER_BUFFERS}
    return block


def offload_param_section(model: ModelShape, candidate: Candidate) -> dict[str, Any]:
    """`offload_param`: device, pinning, and for NVMe the staging buffers."""
    block: dict[str, Any] = {"device": candidate.offload.param_device, "pin_memory": candidate.settings.pin_memory}
    if candidate.offload is Offload.NVME:
        block |= {
            "nvme_path": NVME_PATH,
            "buffer_count": host.NVME_PARAM_BUFFERS,
            "buffer_size": nvme_buffer_elements(model, candidate.degrees),
            "max_in_cpu": host.MAX_IN_CPU_ELEMENTS,
        }
    return block


def nvme_buffer_elements(model: ModelShape, degrees: Degrees) -> int:
    """Elements of one staging buffer: the largest parameter shard has to fit into one, or the engine stops."""
    shard = ceil_div(largest_tensor_numel(model, degrees.tp), degrees.dp)
    return max(host.NVME_BUFFER_ELEMENTS, ceil_div(shard, AIO_ALIGNMENT_ELEMENTS) * AIO_ALIGNMENT_ELEMENTS)
