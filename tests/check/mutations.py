"""Configurations that load, and ways to break them.

`BASES` covers each section of a DeepSpeed file, `YAML_BASES` each kind of Accelerate file. `mutated` changes a document
in one to three places, as people do: misspelt, moved, of another type, out of range, twice.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Path = tuple[str, ...]

BATCH: dict[str, Any] = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
ADAMW: dict[str, Any] = {
    "type": "AdamW",
    "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
}
BASES: tuple[dict[str, Any], ...] = (
    {
        **BATCH,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True, "immediate_grad_update": False, "check_grad_overflow": True},
        "zero_optimization": {
            "stage": 3,
            "contiguous_gradients": True,
            "overlap_comm": True,
            "reduce_bucket_size": 5e8,
            "stage3_prefetch_bucket_size": 5e7,
            "stage3_param_persistence_threshold": 100000,
            "stage3_max_live_parameters": 1e9,
            "stage3_max_reuse_distance": 1e9,
            "stage3_gather_16bit_weights_on_model_save": True,
            "sub_group_size": 1e9,
            "offload_param": {"device": "cpu", "pin_memory": True, "buffer_count": 5, "buffer_size": 1e8},
            "offload_optimizer": {"device": "cpu", "pin_memory": True, "ratio": 0.5, "buffer_count": 4},
            "leaf_module": {"classes": ["MixtralSparseMoeBlock"], "names": [], "name_suffixes": []},
        },
        "optimizer": ADAMW,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-5, "warmup_num_steps": 9}},
    },
    {
        "train_batch_size": 32,
        **BATCH,
        "steps_per_print": 10,
        "wall_clock_breakdown": False,
        "fp16": {
            "enabled": True,
            "auto_cast": False,
            "loss_scale": 0,
            "initial_scale_power": 16,
            "loss_scale_window": 1000,
            "hysteresis": 2,
            "min_loss_scale": 1,
        },
        "zero_optimization": {
            "stage": 2,
            "allgather_partitions": True,
            "allgather_bucket_size": 2e8,
            "reduce_scatter": True,
            "reduce_bucket_size": 2e8,
            "round_robin_gradients": True,
            "offload_optimizer": {"device": "cpu", "nvme_path": "/nvme", "pipeline_read": True, "fast_init": False},
        },
        "aio": {"block_size": 1048576, "queue_depth": 8, "intra_op_parallelism": 1, "single_submit": False},
        "optimizer": {"type": "Adam", "params": {"lr": 3e-4, "adam_w_mode": False}, "legacy_fusion": False},
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {"warmup_max_lr": 3e-4, "warmup_num_steps": 10, "total_num_steps": 100, "warmup_type": "linear"},
        },
    },
    {
        "train_batch_size": 64,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": True,
        "gradient_clipping": 0.5,
        "communication_data_type": "fp32",
        "seq_parallel_communication_data_type": "bf16",
        "prescale_gradients": False,
        "gradient_predivide_factor": 1.0,
        "gradient_allreduce_op": "mean",
        "dataloader_drop_last": True,
        "dump_state": False,
        "memory_breakdown": False,
        "disable_allgather": False,
        "disable_python_gc": False,
        "use_data_before_expert_parallelism": False,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "vocabulary_size": 32000,
        "log_level": "info",
        "torch_autocast": {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": ["torch.nn.Linear"]},
        "data_types": {"grad_accum_dtype": "fp32", "keep_in_fp32_modules": ["norm"]},
        "zero_optimization": {"stage": 1, "elastic_checkpoint": False, "ignore_unused_parameters": True},
        "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
    },
    {
        **BATCH,
        "gradient_clipping": 1,
        "bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True},
        "tensor_parallel": {
            "autotp_size": 2,
            "tp_overlap_comm": False,
            "tp": {"tp_size": 2, "tp_grain_size": 1},
            "preset_model": "llama",
            "vocab_parallel_ce_backend": "torch",
            "partition_config": {"layer_specs": [], "use_default_specs": True},
        },
        "zero_optimization": {"stage": 2, "stage3_gather_16bit_weights_on_model_save": True},
        "activation_checkpointing": {
            "partition_activations": True,
            "cpu_checkpointing": False,
            "contiguous_memory_optimization": False,
            "number_checkpoints": 4,
            "synchronize_checkpoint_boundary": False,
            "profile": False,
        },
        "pipeline": {"stages": "auto", "partition": "best", "seed_layers": False, "activation_checkpoint_interval": 0},
        "checkpoint": {
            "tag_validation": "Warn",
            "load_universal": False,
            "use_node_local_storage": False,
            "parallel_write": {"pipeline_stage": False},
            "checkpoint_serialization": True,
            "writer": {"type": "python", "io_buffer_size": 1048576, "data_parallel": "replica"},
        },
        "optimizer": {"type": "Lion", "params": {"lr": 1e-4, "betas": [0.9, 0.99], "weight_decay": 0.0}},
    },
    {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0.0,
        "flops_profiler": {
            "enabled": True,
            "profile_step": 1,
            "module_depth": -1,
            "top_modules": 1,
            "detailed": True,
            "output_file": None,
            "recompute_fwd_factor": 0.0,
        },
        "tensorboard": {"enabled": True, "output_path": "out/", "job_name": "a"},
        "wandb": {"enabled": False, "group": None, "team": "t", "project": "p"},
        "csv_monitor": {"enabled": False, "output_path": "out", "job_name": "b"},
        "comet": {"enabled": False, "samples_log_interval": 100, "project": "p", "online": True, "mode": "get"},
        "comms_logger": {"enabled": False, "verbose": False, "prof_all": True, "debug": False, "prof_ops": []},
        "timers": {"throughput": {"enabled": True, "synchronized": False}},
        "compile": {"deepcompile": False, "passes": ["z3"], "free_activation": True, "double_buffer": True},
        "hybrid_engine": {"enabled": False, "max_out_tokens": 512, "inference_tp_size": 1, "pin_parameters": True},
        "weight_quantization": {"enabled": True, "quantized_initialization": {}, "post_init_quant": {}},
        "data_efficiency": {
            "enabled": True,
            "seed": 1234,
            "data_sampling": {
                "enabled": True,
                "num_epochs": 1,
                "num_workers": 0,
                "pin_memory": False,
                "curriculum_learning": {"enabled": True, "curriculum_metrics": {"seqlen": {"min_difficulty": 8}}},
                "dynamic_batching": {"enabled": False, "min_batch_size": 1, "max_tokens": 1024},
            },
            "data_routing": {"enabled": True, "random_ltd": {"enabled": True, "total_layer_num": 24}},
        },
        "autotuning": {"enabled": False, "fast": True, "metric": "throughput", "arg_mappings": {}, "mp_size": 1},
        "zero_optimization": {
            "stage": 3,
            "zero_hpz_partition_size": 8,
            "zero_quantized_weights": True,
            "zero_quantized_gradients": True,
            "memory_efficient_linear": True,
            "prefetch_bucket_size": 1000,
            "max_live_parameters": 1000,
            "module_granularity_threshold": 0,
            "model_persistence_threshold": 100000,
            "log_trace_cache_warnings": True,
        },
    },
    {
        "train_batch_size": 16,
        "gradient_clipping": 1.0,
        "bfloat16": {"enabled": True},
        "sequence_parallel_size": 1,
        "data_parallel_size": 4,
        "expert_parallel": {"enabled": True, "autoep_size": 2, "preset_model": "mixtral"},
        "zero_optimization": {
            "stage": 1,
            "cpu_offload": True,
            "zenflow": {
                "topk_ratio": 0.1,
                "select_strategy": "auto",
                "select_interval": "auto",
                "update_interval": 4,
                "full_warm_up_rounds": 0,
                "overlap_step": True,
            },
            "compute_grad_norm": True,
        },
        "datastates_ckpt": {"host_cache_size": 16},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "torch_adam": False}},
        "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-6, "cycle_max_lr": 1e-5}},
    },
    {"train_batch_size": 8, "zero_optimization": True, "fp16": {"enabled": False, "loss_scale": 128}},
)
LOCAL: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "debug": False,
    "machine_rank": 0,
    "main_training_function": "main",
    "num_machines": 1,
    "num_processes": 8,
    "rdzv_backend": "static",
    "same_network": True,
    "use_cpu": False,
}
YAML_BASES: tuple[dict[str, Any], ...] = (
    {
        **LOCAL,
        "distributed_type": "DEEPSPEED",
        "mixed_precision": "bf16",
        "downcast_bf16": "no",
        "deepspeed_config": {
            "zero_stage": 3,
            "gradient_accumulation_steps": 4,
            "gradient_clipping": 1.0,
            "offload_optimizer_device": "cpu",
            "offload_param_device": "cpu",
            "zero3_init_flag": True,
            "zero3_save_16bit_model": True,
            "deepspeed_multinode_launcher": "standard",
        },
    },
    {
        **LOCAL,
        "distributed_type": "DEEPSPEED",
        "num_machines": 2,
        "main_process_ip": "10.0.0.1",
        "main_process_port": 29500,
        "deepspeed_config": {
            "deepspeed_config_file": "ds_config.json",
            "zero3_init_flag": False,
            "deepspeed_multinode_launcher": "pdsh",
            "deepspeed_hostfile": "hosts",
            "deepspeed_inclusion_filter": "a@b",
        },
    },
    {
        **LOCAL,
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "fsdp_config": {
            "fsdp_version": 1,
            "fsdp_sharding_strategy": "FULL_SHARD",
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
            "fsdp_backward_prefetch": "BACKWARD_PRE",
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_forward_prefetch": False,
            "fsdp_offload_params": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_sync_module_states": True,
            "fsdp_use_orig_params": True,
            "fsdp_activation_checkpointing": False,
        },
    },
    {
        **LOCAL,
        "distributed_type": "FSDP",
        "mixed_precision": "no",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": True,
            "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP",
            "fsdp_min_num_params": 1000,
            "fsdp_state_dict_type": "FULL_STATE_DICT",
            "fsdp_activation_checkpointing": True,
        },
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": 1,
            "parallelism_config_dp_shard_size": 4,
            "parallelism_config_tp_size": 2,
            "parallelism_config_cp_size": 1,
        },
    },
    {
        **LOCAL,
        "distributed_type": "MULTI_GPU",
        "mixed_precision": "fp16",
        "gpu_ids": "all",
        "enable_cpu_affinity": True,
    },
    {
        **LOCAL,
        "distributed_type": "NO",
        "num_processes": 1,
        "mixed_precision": "no",
        "dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_mode": "default", "dynamo_use_dynamic": False},
    },
    {**LOCAL, "distributed_type": "MULTI_CPU", "use_cpu": True, "mpirun_config": {"mpirun_hostfile": "hosts"}},
    {
        **LOCAL,
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": {"zero_stage": 2, "deepspeed_moe_layer_cls_names": "MixtralSparseMoeBlock"},
        "parallelism_config": {"parallelism_config_sp_size": 2, "parallelism_config_sp_backend": "deepspeed"},
    },
)
YAML_EXTRA: tuple[str, ...] = (
    *("x", "fp16", "dynamo_backend", "ipex_config", "deepspeed_config_file", "num_processes", "mixed_precision"),
    *("zero_stage", "fsdp_config", "deepspeed_config", "parallelism_config", "tp_config", "gpu_ids", "tpu_name"),
    *("offload_param_nvme_path", "offload_optimizer_nvme_path", "zero3_save_16bit_model", "gradient_clipping"),
    *("num_machines", "machine_rank", "fsdp_version", "fp8_config", "zero_optimization", "bf16", "commands"),
)
ARGUMENTS: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "learning_rate": 1e-5,
    "weight_decay": 0.1,
    "adam_beta2": 0.95,
    "max_grad_norm": 1.0,
    "max_steps": 100,
    "warmup_steps": 10,
    "bf16": True,
}
OTHER_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "per_device_train_batch_size": (1, 2, 4, 8),
    "gradient_accumulation_steps": (1, 2, 4),
    "learning_rate": (1e-5, 5e-5, 1e-3),
    "weight_decay": (0.0, 0.1),
    "adam_beta1": (0.9, 0.8),
    "adam_beta2": (0.95, 0.999),
    "adam_epsilon": (1e-8, 1e-6),
    "max_grad_norm": (0.0, 0.5, 1.0),
    "max_steps": (-1, 100, 200),
    "warmup_steps": (0, 1, 10, 0.1),
    "bf16": (True, False),
    "fp16": (True, False),
    "fp16_full_eval": (True, False),
    "bf16_full_eval": (True, False),
    "save_on_each_node": (True, False),
}
AUTO: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto", "loss_scale": 0},
}
TRAINER_BASES: tuple[dict[str, Any], ...] = (
    {
        **AUTO,
        "zero_optimization": {
            "stage": 3,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
            "sub_group_size": 1e9,
            "offload_optimizer": {"device": "cpu"},
        },
        "optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")},
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"), "auto"),
        },
    },
    {
        **BATCH,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "overlap_comm": True},
        "optimizer": ADAMW,
    },
    {
        **AUTO,
        "zero_optimization": {"stage": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8}},
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-5, "warmup_num_steps": 10},
        },
    },
    {"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}},
)
YAML_ODD: tuple[Any, ...] = (
    *("DEEPSPEED", "deepspeed", "FSDP", "NO", "MULTI_GPU", "TP", "LOCAL_MACHINE", "AMAZON_SAGEMAKER", "bf16", "BF16"),
    *("fp8", "int8", "pdsh", "standard", "slurm", "gpu", "CPU", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT", "NO_WRAP"),
    *("HYBRID_SHARD", "full_shard", "BACKWARD_POST", "INDUCTOR", "inductor", "0,1", "10.0.0.1"),
)
PLAN: dict[str, Any] = {
    "dsplan_version": "0.1",
    "schema": 1,
    "request": {"model": {"name": "7b"}, "cluster": {"nodes": 1, "gpus_per_node": 8}, "integration": "trainer"},
    "plans": [{"candidate": {"zero": 3, "tp": 1}, "memory": {}, "time": {}}],
    "rejected": [],
}
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, 3, 4, 5, -1, 8, 1.0, 2.0, 0.5, 1.5, -0.5, 1e-5, 5e8, 1e30, 10**30, -(10**12)),
    *(math.nan, math.inf, -math.inf, "", " ", "auto", "Auto", "true", "True", "false", "no", "on", "off", "y", "0"),
    *("1", "3", "1.0", "0.5", "-1", "5e8", "1e3", "1_000", "cpu", "nvme", "none", "None", "fp16", "bf16", "fp32"),
    *("float16", "mean", "sum", "warn", "python", "world_size", "half", "x", "/nvme", [], [1], ["x"], [True], [None]),
    *([0.9, 0.95], {}, {"enabled": True}, {"enabled": "maybe"}, {"x": 1}, {"device": "cpu"}, [[]], [{}], 255, 256),
)
EXTRA: tuple[str, ...] = (
    *("x", "enable", "enabled", "params", "type", "device", "stage", "comment", "_comment", "opt_level", "amp"),
    *("elasticity", "curriculum_learning", "mics_shard_size", "zeropp_loco_param", "nebula", "sparse_gradients"),
    *("zero_optimisation", "cpu_offload", "cpu_offload_param", "cpu_offload_params", "offload_optimizer", "tp_size"),
    *("bf16", "bfloat16", "fp16", "tp", "tensor_parallel", "kernel_inject", "max_grad_norm", "loss_scale", "disable"),
    *("stage3_gather_fp16_weights_on_model_save", "cpu_offload_use_pin_memory", "legacy_stage1", "thread_count"),
    *("fp16_master_weights_and_grads", "compute_grad_norm", "ratio", "super_offload", "use_gds", "allgather_size"),
    *("load_universal_checkpoint", "compression_training", "quantize_training", "find_unused_parameters", "throughput"),
    *("prefetch_bucket_size", "stage3_prefetch_bucket_size", "gather_16bit_weights_on_model_save", "dtype", "backend"),
)


def containers(document: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every mapping of a document with its path."""
    if isinstance(document, dict):
        yield path, document
        for key, value in document.items():
            yield from containers(value, (*path, key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What changes are made of: other documents, stray keys, odd values."""

    bases: Sequence[Mapping[str, Any]]
    keys: Sequence[str]
    values: Sequence[Any]


JSON_SUPPLY = Supply(bases=BASES, keys=EXTRA, values=ODD)
YAML_SUPPLY = Supply(bases=YAML_BASES, keys=YAML_EXTRA, values=(*ODD, *YAML_ODD, *YAML_ODD))


def other_arguments(random: Random) -> dict[str, Any]:
    """Training arguments that suit the unbroken files of the Trainer, with up to three others."""
    changed = {name: random.choice(OTHER_ARGUMENTS[name]) for name in random.sample(sorted(OTHER_ARGUMENTS), k=3)}
    return {**ARGUMENTS, **dict(list(changed.items())[: random.choice((0, 0, 1, 2, 3))])}


def mutated(document: Mapping[str, Any], supply: Supply, random: Random) -> dict[str, Any]:
    """The document with one to three changes; the same for the same state of `random`."""
    changed: dict[str, Any] = copy.deepcopy(dict(document))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = [(path, part, key) for path, part in containers(changed) for key in part]
        if not places:
            break
        path, part, key = random.choice(places)
        random.choice(CHANGES)(changed, supply, path, part, key, random)
    return changed


def _typo(changed: Any, supply: Supply, path: Path, part: dict[str, Any], key: str, random: Random) -> None:
    index = random.randrange(max(1, len(key)))
    spellings = (
        key[:index] + key[index + 1 :],
        key[:index] + key[index : index + 1] * 2 + key[index + 1 :],
        key[:index] + key[index : index + 2][::-1] + key[index + 2 :],
        key.replace("_", "-"),
        key.replace("z", "s"),
        key.upper(),
        key.removeprefix("stage3_"),
        f"stage3_{key}",
    )
    part[random.choice(spellings)] = part.pop(key)


def _move(changed: Any, supply: Supply, path: Path, part: dict[str, Any], key: str, random: Random) -> None:
    others = [other for _, other in containers(changed) if other is not part and other is not part[key]]
    inside = [other for _, other in containers(part[key])]
    homes = [other for other in others if not any(other is inner for inner in inside)]
    if homes:
        random.choice(homes)[key] = part.pop(key)


def _value(changed: Any, supply: Supply, path: Path, part: dict[str, Any], key: str, random: Random) -> None:
    part[key] = copy.deepcopy(random.choice(supply.values))


def _near_value(changed: Any, supply: Supply, path: Path, part: dict[str, Any], key: str, random: Random) -> None:
    value = part[key]
    near: list[Any] = [str(value), [value], {"value": value}, {key: value}, None, "auto"]
    if isinstance(value, str):
        near += [value.upper(), value.lower(), value.capitalize(), f" {value}", value[:-1], True]
    if isinstance(value, (int, float)):
        near += [-value, value * 2, not value, value + 1]
    if isinstance(value, (int, float)) and abs(value) < 1e18:
        near += [value * 1e9, value + 0.5, value / 2, float(value), int(value)]
    part[key] = copy.deepcopy(random.choice(near))


def _delete(changed: Any, supply: Supply, path: Path, part: dict[str, Any], key: str, random: Random) -> None:
    del part[key]


def _add(changed: Any, supply: Supply, path: Path, part: dict[str, Any], key: str, random: Random) -> None:
    part[random.choice(supply.keys)] = copy.deepcopy(random.choice(supply.values))


def _borrow(changed: Any, supply: Supply, path: Path, part: dict[str, Any], key: str, random: Random) -> None:
    """A key that another document has at this place or elsewhere, with its value or an odd one."""
    sources = list(containers(random.choice(supply.bases)))
    here = [source for source in sources if source[0] == path]
    _, source = random.choice(here or sources)
    if source:
        name = random.choice(list(source))
        part[name] = copy.deepcopy(random.choice((source[name], source[name], random.choice(supply.values))))


CHANGES = (_typo, _move, _value, _value, _near_value, _near_value, _delete, _add, _borrow, _borrow)


def mutated_text(text: str, random: Random) -> str:
    """The text with one to three slips of the pen: notes, commas, quotes, lines twice, words of Python."""
    for _ in range(random.choice((1, 1, 2, 3))):
        lines = text.split("\n")
        line = random.randrange(len(lines))
        random.choice(SLIPS)(lines, line, random)
        text = "\n".join(lines)
    return text


def _note(lines: list[str], line: int, random: Random) -> None:
    lines[line] += random.choice((" // note", " # note", " /* note */", " /*", "// note, ", " #"))


def _comma(lines: list[str], line: int, random: Random) -> None:
    lines[line] = lines[line].removesuffix(",") if lines[line].endswith(",") else f"{lines[line]},"


def _quotes(lines: list[str], line: int, random: Random) -> None:
    old, new = random.choice((('"', "'"), ('"', ""), ('": ', ": "), (': "', ": "), ('"', "“")))
    lines[line] = lines[line].replace(old, new, random.choice((1, 2, -1)))


def _words(lines: list[str], line: int, random: Random) -> None:
    for old, new in (("true", "True"), ("false", "False"), ("null", "None"), ("0,", "0.,"), (": 1", ": 01")):
        lines[line] = lines[line].replace(old, new)


def _twice(lines: list[str], line: int, random: Random) -> None:
    lines.insert(random.randrange(len(lines) + 1), lines[line])


def _gone(lines: list[str], line: int, random: Random) -> None:
    del lines[line]
    if not lines:
        lines.append("")


def _character(lines: list[str], line: int, random: Random) -> None:
    at = random.randrange(len(lines[line]) + 1)
    lines[line] = lines[line][:at] + random.choice("{}[]:,\"'x1-. \t\\") + lines[line][at + random.choice((0, 1)) :]


SLIPS = (_note, _comma, _quotes, _words, _twice, _gone, _character)
