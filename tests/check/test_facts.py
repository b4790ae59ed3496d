"""The known behaviour of the three readers, statement by statement: a rule, the smallest wrong set of files and the
nearest right one. The statements are those of the collected facts on configurations, seen by running or read in the
sources named in the rules' pages."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from planner.check import CheckResult, check
from planner.records.problem import Severity

BASE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0}},
}
AUTO: dict[str, Any] = {
    **dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto"),
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2},
}
ARGUMENTS: dict[str, Any] = {
    "deepspeed": "ds_config.json",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "max_grad_norm": 1.0,
    "learning_rate": 1e-5,
    "bf16": True,
}
YAML: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "DEEPSPEED",
    "num_machines": 1,
    "num_processes": 8,
    "machine_rank": 0,
    "deepspeed_config": {"zero_stage": 2, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0},
}
NAMED = {"deepspeed_config": {"deepspeed_config_file": "ds_config.json"}}
GATHER = "stage3_gather_16bit_weights_on_model_save"
Z = "$.zero_optimization"


def ds(change: dict[str, Any], base: dict[str, Any] = BASE) -> dict[str, Any]:
    """DeepSpeed file with `change` laid over it; a value of None takes the key out, a dict goes into its section."""
    document = copy.deepcopy(base)
    for key, value in change.items():
        if value is None:
            document.pop(key, None)
        elif isinstance(value, dict) and isinstance(document.get(key), dict) and "type" not in value:
            document[key] |= value
        else:
            document[key] = value
    return {"ds_config.json": document}


def zero(stage: int, **keys: Any) -> dict[str, Any]:
    gather = {GATHER: True} if stage == 3 and GATHER not in keys else {}
    return ds({"zero_optimization": {"stage": stage, **gather, **keys}})


def yaml(change: dict[str, Any], **others: Any) -> dict[str, Any]:
    document = {key: value for key, value in {**YAML, **change}.items() if value is not None}
    return {"accelerate.yaml": document, **others}


def trainer(change: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    given = {key: value for key, value in {**ARGUMENTS, **arguments}.items() if value is not None}
    return {**ds(change, AUTO), "training_args": given}


def parallel(**sizes: Any) -> dict[str, Any]:
    return {"parallelism_config": {f"parallelism_config_{key}": value for key, value in sizes.items()}}


def wraps(name: str) -> dict[str, Any]:
    """An Accelerate file in which FSDP wraps layers of that class."""
    layers = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_transformer_layer_cls_to_wrap": name}
    return yaml({"deepspeed_config": None, "distributed_type": "FSDP", "fsdp_config": layers})


MACHINES = {"num_machines": 2, "num_processes": 16, "deepspeed_config": {"deepspeed_multinode_launcher": "standard"}}
SCHEDULE = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")
LEAVES = {"zero_stage": 3, "zero3_save_16bit_model": True}
OFFLOADED = {"deepspeed_config": {**YAML["deepspeed_config"], "offload_optimizer_device": "cpu"}}
CHECKPOINTED = yaml(
    {"deepspeed_config": None, "distributed_type": "FSDP", "fsdp_config": {"fsdp_activation_checkpointing": True}}
)
E, W = Severity.ERROR, Severity.WARNING
DEEPSPEED, TRAINER, ACCELERATE = ({"trainer": name} for name in ("deepspeed", "trainer", "accelerate"))
EIGHT = {"gpus": "8xA100-80G"}
TWO_NODES = {"gpus": "2x8xA100-80G"}
# fact, rule, severity, place, wrong files, flags, right files
FACTS: tuple[tuple[str, str, Severity, str, dict[str, Any], dict[str, Any], dict[str, Any]], ...] = (
    (
        "a removed block raises even when off",
        "DS012",
        E,
        "$.eigenvalue",
        ds({"eigenvalue": {"enabled": False}}),
        {},
        ds({}),
    ),
    ("typed sections refuse unknown keys", "DS010", E, f"{Z}.stages", zero(2, stages=1), {}, zero(2)),
    ("the top level ignores unknown keys", "DS011", E, "$.optimiser", ds({"optimiser": {"type": "AdamW"}}), {}, ds({})),
    (
        "train = micro x accumulation x world",
        "DS021",
        E,
        "$.train_batch_size",
        ds({"train_batch_size": 32}),
        EIGHT,
        ds({"train_batch_size": 64}),
    ),
    (
        "a missing accumulation is derived, then checked",
        "DS021",
        E,
        "$.train_batch_size",
        ds({"train_batch_size": 20, "gradient_accumulation_steps": None}),
        EIGHT,
        ds({"train_batch_size": 32, "gradient_accumulation_steps": None}),
    ),
    (
        "neither total nor micro-batch",
        "DS020",
        E,
        "$.train_micro_batch_size_per_gpu",
        ds({"train_micro_batch_size_per_gpu": None}),
        {},
        ds({"train_micro_batch_size_per_gpu": None, "train_batch_size": 64}),
    ),
    (
        "AutoTP: the identity uses the full world",
        "DS021",
        E,
        "$.train_batch_size",
        {**ds({"train_batch_size": 32, "tensor_parallel": {"autotp_size": 2}})},
        EIGHT,
        ds({"train_batch_size": 64, "tensor_parallel": {"autotp_size": 2}}),
    ),
    (
        "sequence_parallel_size divides the world",
        "DS021",
        E,
        "$.train_batch_size",
        ds({"train_batch_size": 64, "sequence_parallel_size": 2}),
        EIGHT,
        ds({"train_batch_size": 32, "sequence_parallel_size": 2}),
    ),
    (
        "fp16 and bf16 both on",
        "DS030",
        E,
        "$.fp16.enabled",
        ds({"fp16": {"enabled": True}}),
        {},
        ds({"fp16": {"enabled": False}}),
    ),
    (
        "master weights in 16 bits want ZeRO",
        "DS033",
        E,
        "$.bf16.bf16_master_weights_and_grads",
        {
            **ds(
                {
                    "bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True},
                    "zero_optimization": {"stage": 0},
                }
            )
        },
        {},
        ds({"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}),
    ),
    (
        "ratio below 1 below stage 3",
        "DS043",
        E,
        f"{Z}.offload_optimizer.ratio",
        zero(1, offload_optimizer={"device": "cpu", "ratio": 0.3}),
        {},
        zero(3, offload_optimizer={"device": "cpu", "ratio": 0.3}),
    ),
    (
        "loss_scale negative",
        "DS013",
        E,
        "$.fp16.loss_scale",
        ds({"bf16": None, "fp16": {"enabled": True, "loss_scale": -1}}),
        {},
        ds({"bf16": None, "fp16": {"enabled": True, "loss_scale": 0}}),
    ),
    (
        "min_loss_scale is whole",
        "DS013",
        E,
        "$.fp16.min_loss_scale",
        ds({"bf16": None, "fp16": {"enabled": True, "min_loss_scale": 0.5}}),
        {},
        ds({"bf16": None, "fp16": {"enabled": True, "min_loss_scale": 1}}),
    ),
    (
        "communication dtype by its short name",
        "DS013",
        E,
        "$.communication_data_type",
        ds({"communication_data_type": "float16"}),
        {},
        ds({"communication_data_type": "fp16"}),
    ),
    (
        "sum reduction at stage 3",
        "DS064",
        E,
        "$.gradient_allreduce_op",
        ds({"gradient_allreduce_op": "sum", "zero_optimization": {"stage": 3, GATHER: True}}),
        {},
        ds({"gradient_allreduce_op": "sum"}),
    ),
    (
        "offload_param below stage 3",
        "DS040",
        E,
        f"{Z}.offload_param",
        zero(1, offload_param={"device": "cpu"}),
        {},
        zero(3, offload_param={"device": "cpu"}),
    ),
    (
        "offload at stage 0",
        "DS041",
        E,
        f"{Z}.offload_optimizer",
        zero(0, offload_optimizer={"device": "cpu"}),
        {},
        zero(1, offload_optimizer={"device": "cpu"}),
    ),
    (
        "super_offload below stage 3",
        "DS043",
        E,
        f"{Z}.offload_optimizer.super_offload",
        zero(2, offload_optimizer={"device": "cpu", "super_offload": True}),
        {},
        zero(3, offload_optimizer={"device": "cpu", "super_offload": True}),
    ),
    (
        "quantised keys below stage 3",
        "DS043",
        E,
        f"{Z}.zero_quantized_gradients",
        zero(2, zero_quantized_gradients=True),
        {},
        zero(3, zero_quantized_gradients=True),
    ),
    (
        "hpz below stage 3",
        "DS043",
        E,
        f"{Z}.zero_hpz_partition_size",
        zero(1, zero_hpz_partition_size=8),
        {},
        zero(1, zero_hpz_partition_size=1),
    ),
    (
        "round_robin at stage 3",
        "DS046",
        W,
        f"{Z}.round_robin_gradients",
        zero(3, round_robin_gradients=True),
        {},
        zero(2, round_robin_gradients=True),
    ),
    (
        "nvme without a path",
        "DS042",
        E,
        f"{Z}.offload_param.nvme_path",
        zero(3, offload_param={"device": "nvme"}),
        {},
        zero(3, offload_param={"device": "nvme", "nvme_path": "/nvme"}),
    ),
    (
        "torch_adam with offload is slow",
        "DS062",
        W,
        "$.optimizer.params.torch_adam",
        ds(
            {
                "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
                "zero_optimization": {"offload_optimizer": {"device": "cpu"}},
            }
        ),
        {},
        ds({"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}),
    ),
    (
        "an optimizer of the script with offload",
        "DS071",
        W,
        f"{Z}.offload_optimizer.device",
        ds({"optimizer": None, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}}),
        DEEPSPEED,
        ds({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}),
    ),
    (
        "an optimizer not tested with ZeRO",
        "DS066",
        E,
        "$.optimizer.type",
        ds({"optimizer": {"type": "RMSprop"}}),
        {},
        ds({"optimizer": {"type": "RMSprop"}, "zero_allow_untested_optimizer": True}),
    ),
    (
        "max_grad_norm in the optimizer",
        "DS062",
        E,
        "$.optimizer.params.max_grad_norm",
        ds({"optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1.0}}}),
        {},
        ds({}),
    ),
    (
        "a learning rate as text",
        "DS013",
        E,
        "$.optimizer.params.lr",
        ds({"optimizer": {"type": "AdamW", "params": {"lr": "1e-5"}}}),
        {},
        ds({}),
    ),
    (
        "total_num_steps missing",
        "DS063",
        E,
        "$.scheduler.params.total_num_steps",
        ds({"scheduler": {"type": "WarmupCosineLR", "params": {}}}),
        {},
        ds({"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 5000}}}),
    ),
    (
        "warm-up not a positive whole number",
        "DS063",
        E,
        "$.scheduler.params.warmup_num_steps",
        ds({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}}),
        {},
        ds({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1}}}),
    ),
    (
        "WarmupDecayLR without warmup_max_lr",
        "DS063",
        E,
        "$.scheduler.params.warmup_max_lr",
        ds({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5000}}}),
        {},
        ds({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5000, "warmup_max_lr": 1e-5}}}),
    ),
    (
        "bf16 below compute capability 8.0",
        "DS401",
        E,
        "$.bf16.enabled",
        ds({}),
        {"gpus": "8xV100-32G"},
        ds({"bf16": {"enabled": False}}),
    ),
    (
        "fp16 below 7.0",
        "DS401",
        E,
        "$.fp16.enabled",
        ds({"bf16": None, "fp16": {"enabled": True}}),
        {"gpus": "4xTesla P40"},
        ds({"bf16": None}),
    ),
    (
        "param_dtype differs from the precision",
        "DS034",
        E,
        "$.data_types.param_dtype",
        ds({"data_types": {"param_dtype": "fp32"}}),
        {},
        ds({"data_types": {"param_dtype": "bf16"}}),
    ),
    (
        "bf16 with fp32 accumulation at stage 0",
        "DS032",
        E,
        "$.data_types.grad_accum_dtype",
        ds({"data_types": {"grad_accum_dtype": "fp32"}, "zero_optimization": {"stage": 0}}),
        {},
        ds({"data_types": {"grad_accum_dtype": "fp32"}}),
    ),
    (
        "reduce_scatter wants no prescale",
        "DS064",
        E,
        "$.prescale_gradients",
        ds({"prescale_gradients": True}),
        {},
        ds({"prescale_gradients": True, "zero_optimization": {"reduce_scatter": False}}),
    ),
    (
        "no gradient norm with clipping, on by default",
        "DS061",
        E,
        f"{Z}.compute_grad_norm",
        ds({"gradient_clipping": None, "zero_optimization": {"compute_grad_norm": False}}),
        {},
        ds({"gradient_clipping": 0, "zero_optimization": {"compute_grad_norm": False}}),
    ),
    (
        "Muon with reduce_scatter at stage 3",
        "DS067",
        E,
        f"{Z}.reduce_scatter",
        ds({"optimizer": {"type": "Muon", "params": {"lr": 1e-3}}, "zero_optimization": {"stage": 3, GATHER: True}}),
        {},
        ds(
            {
                "optimizer": {"type": "Muon", "params": {"lr": 1e-3}},
                "zero_optimization": {"stage": 3, GATHER: True, "reduce_scatter": False},
            }
        ),
    ),
    (
        "hpz divides the world",
        "DS404",
        E,
        f"{Z}.zero_hpz_partition_size",
        zero(3, zero_hpz_partition_size=3),
        EIGHT,
        zero(3),
    ),
    (
        "autotp_size divides the world",
        "DS051",
        E,
        "$.tensor_parallel.autotp_size",
        ds({"tensor_parallel": {"autotp_size": 3}}),
        EIGHT,
        ds({"tensor_parallel": {"autotp_size": 4}}),
    ),
    (
        "tp_size differs from autotp_size",
        "DS050",
        E,
        "$.tensor_parallel.tp.tp_size",
        ds({"tensor_parallel": {"autotp_size": 2, "tp": {"tp_size": 4}}}),
        {},
        ds({"tensor_parallel": {"autotp_size": 2, "tp": {"tp_size": 2}}}),
    ),
    (
        "tp_size without autotp_size",
        "DS050",
        E,
        "$.tensor_parallel.tp.tp_size",
        ds({"tensor_parallel": {"tp": {"tp_size": 4}}}),
        {},
        ds({"tensor_parallel": {"autotp_size": 4}}),
    ),
    (
        "preset_model misspelt",
        "DS011",
        W,
        "$.tensor_parallel.preset_model",
        ds({"tensor_parallel": {"autotp_size": 2, "preset_model": "qwen"}}),
        {},
        ds({"tensor_parallel": {"autotp_size": 2, "preset_model": "qwen2"}}),
    ),
    (
        "partition_config misspelt",
        "DS052",
        E,
        "$.tensor_parallel.partition_config.layers",
        ds({"tensor_parallel": {"autotp_size": 2, "partition_config": {"layers": []}}}),
        {},
        ds({"tensor_parallel": {"autotp_size": 2, "partition_config": {"use_default_specs": True}}}),
    ),
    (
        "keys of the inference configuration",
        "DS010",
        E,
        "$.tensor_parallel.enabled",
        ds({"tensor_parallel": {"enabled": True, "autotp_size": 2}}),
        {},
        ds({"tensor_parallel": {"autotp_size": 2}}),
    ),
    (
        "Ulysses: the degree divides the query heads",
        "DS417",
        E,
        "$.parallelism_config.parallelism_config_sp_size",
        yaml(parallel(sp_size=8)),
        {"model": "Qwen/Qwen2.5-7B"},
        yaml(parallel(sp_size=4, dp_replicate_size=2)),
    ),
    (
        "Ulysses: the degree divides the sequence",
        "DS417",
        E,
        "$.parallelism_config.parallelism_config_sp_size",
        yaml(parallel(sp_size=8)),
        {"seq_len": 2044},
        yaml(parallel(sp_size=4, dp_replicate_size=2)),
    ),
    ("stage 3 without the gather flag", "DS045", W, f"{Z}.{GATHER}", zero(3, **{GATHER: False}), {}, zero(3)),
    (
        "tensor parallelism without the gather flag",
        "DS045",
        W,
        f"{Z}.{GATHER}",
        ds({"tensor_parallel": {"autotp_size": 2}}),
        {},
        ds({"tensor_parallel": {"autotp_size": 2}, "zero_optimization": {GATHER: True}}),
    ),
    (
        '"Adam" decays like AdamW',
        "DS073",
        W,
        "$.optimizer.type",
        ds({"optimizer": {"type": "Adam", "params": {"weight_decay": 0.1}}}),
        {},
        ds({"optimizer": {"type": "AdamW", "params": {"weight_decay": 0.1}}}),
    ),
    (
        "activation_checkpointing has no `enabled`",
        "DS011",
        E,
        "$.activation_checkpointing.enabled",
        ds({"activation_checkpointing": {"enabled": True}}),
        {},
        ds({"activation_checkpointing": {"partition_activations": True}}),
    ),
    (
        "activation_checkpointing does nothing for transformers",
        "DS070",
        W,
        "$.activation_checkpointing",
        trainer({"activation_checkpointing": {"cpu_checkpointing": True}}, {}),
        {},
        trainer({}, {"gradient_checkpointing": True}),
    ),
    (
        '"auto" reaches a plain script',
        "DS014",
        E,
        "$.gradient_accumulation_steps",
        ds({"gradient_accumulation_steps": "auto"}),
        DEEPSPEED,
        ds({}),
    ),
    (
        "accelerate fills neither betas nor eps",
        "DS014",
        E,
        "$.optimizer.params.eps",
        ds({"optimizer": {"type": "AdamW", "params": {"eps": "auto"}}}),
        ACCELERATE,
        ds({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}),
    ),
    (
        "the Trainer fills `bf16`, not `bfloat16`",
        "DS014",
        E,
        "$.bfloat16.enabled",
        trainer({"bf16": None, "bfloat16": {"enabled": "auto"}}, {}),
        {},
        trainer({}, {}),
    ),
    (
        "explicit values equal the arguments",
        "DS301",
        E,
        "$.gradient_clipping",
        trainer({"gradient_clipping": 0.5}, {}),
        {},
        trainer({"gradient_clipping": 0.5}, {"max_grad_norm": 0.5}),
    ),
    (
        "an argument left out counts with its default",
        "DS301",
        E,
        "$.optimizer.params.lr",
        trainer({"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}, {"learning_rate": None}),
        {},
        trainer({"optimizer": {"type": "AdamW", "params": {"lr": 5e-5}}}, {"learning_rate": None}),
    ),
    (
        "the total is world x per-device x accumulation",
        "DS301",
        E,
        "$.train_batch_size",
        trainer({"train_batch_size": 32}, {}),
        EIGHT,
        trainer({"train_batch_size": 64}, {}),
    ),
    (
        "an absent gradient_clipping is not added",
        "DS302",
        E,
        "$.gradient_clipping",
        trainer({"gradient_clipping": None}, {"max_grad_norm": 0.3}),
        {},
        trainer({}, {"max_grad_norm": 0.3}),
    ),
    (
        "auto_find_batch_size not with ZeRO-3",
        "DS305",
        E,
        "training_args#$.auto_find_batch_size",
        trainer({"zero_optimization": {"stage": 3, GATHER: True}}, {"auto_find_batch_size": True}),
        {},
        trainer({}, {"auto_find_batch_size": True}),
    ),
    (
        "save_only_model with load_best_model_at_end",
        "DS305",
        E,
        "training_args#$.save_only_model",
        trainer({}, {"save_only_model": True, "load_best_model_at_end": True}),
        {},
        trainer({}, {"save_only_model": True}),
    ),
    (
        "fsdp and deepspeed exclude each other",
        "DS304",
        E,
        "training_args#$.fsdp",
        trainer({}, {"fsdp": "full_shard"}),
        {},
        trainer({}, {}),
    ),
    (
        "arguments agree with the YAML's accumulation",
        "DS303",
        E,
        "accelerate.yaml#$.deepspeed_config.gradient_accumulation_steps",
        yaml({}, training_args={**ARGUMENTS, "deepspeed": None, "gradient_accumulation_steps": 2}),
        {},
        yaml({}, training_args={**ARGUMENTS, "deepspeed": None}),
    ),
    (
        "arguments agree with the YAML's precision",
        "DS303",
        E,
        "accelerate.yaml#$.mixed_precision",
        yaml({"mixed_precision": "bf16"}, training_args={**ARGUMENTS, "deepspeed": None, "bf16": False}),
        {},
        yaml({"mixed_precision": "bf16"}, training_args={**ARGUMENTS, "deepspeed": None}),
    ),
    (
        "unknown keys at the top of the YAML",
        "DS110",
        E,
        "accelerate.yaml#$.num_process",
        yaml({"num_process": 8}),
        {},
        yaml({}),
    ),
    (
        "nested keys are copied unchecked",
        "DS111",
        E,
        "accelerate.yaml#$.deepspeed_config.num_processes",
        yaml({"deepspeed_config": {"zero_stage": 2, "num_processes": 1}}),
        {},
        yaml({}),
    ),
    (
        "keys beside deepspeed_config_file",
        "DS120",
        E,
        "accelerate.yaml#$.deepspeed_config.gradient_clipping",
        {**yaml({"deepspeed_config": {**NAMED["deepspeed_config"], "gradient_clipping": 1.0}}), **ds({})},
        {},
        {**yaml(NAMED), **ds({})},
    ),
    (
        "mixed_precision beside it",
        "DS120",
        E,
        "accelerate.yaml#$.mixed_precision",
        {**yaml({**NAMED, "mixed_precision": "bf16"}), **ds({})},
        {},
        {**yaml(NAMED), **ds({})},
    ),
    (
        "the named file has zero_optimization",
        "DS069",
        E,
        Z,
        {**yaml(NAMED), **ds({"zero_optimization": None})},
        {},
        {**yaml(NAMED), **ds({})},
    ),
    (
        "flags beside the file are overruled",
        "DS310",
        E,
        "launch.sh#$.zero_stage",
        {
            "launch.sh": "accelerate launch --config_file accelerate.yaml --zero_stage 3 train.py\n",
            **yaml(NAMED),
            **ds({}),
        },
        {},
        {"launch.sh": "accelerate launch --config_file accelerate.yaml train.py\n", **yaml(NAMED), **ds({})},
    ),
    (
        "pdsh without a host file trains on one node",
        "DS122",
        E,
        "accelerate.yaml#$.deepspeed_config.deepspeed_multinode_launcher",
        yaml({"num_machines": 2, "num_processes": 16}),
        {},
        yaml(
            {
                "num_machines": 2,
                "num_processes": 16,
                "deepspeed_config": {"zero_stage": 2, "deepspeed_hostfile": "hosts"},
            }
        ),
    ),
    (
        "num_processes is the total of all nodes",
        "DS123",
        E,
        "accelerate.yaml#$.num_processes",
        yaml({"num_machines": 2, "num_processes": 8, "deepspeed_config": {"deepspeed_multinode_launcher": "standard"}}),
        TWO_NODES,
        yaml(
            {"num_machines": 2, "num_processes": 16, "deepspeed_config": {"deepspeed_multinode_launcher": "standard"}}
        ),
    ),
    (
        "an NVMe path in the YAML reaches nobody",
        "DS124",
        E,
        "accelerate.yaml#$.deepspeed_config.offload_param_nvme_path",
        yaml(
            {
                "deepspeed_config": {
                    "zero_stage": 3,
                    "zero3_save_16bit_model": True,
                    "offload_param_device": "nvme",
                    "offload_param_nvme_path": "/nvme",
                }
            }
        ),
        {},
        yaml({"deepspeed_config": {"zero_stage": 3, "zero3_save_16bit_model": True, "offload_param_device": "cpu"}}),
    ),
    (
        "parallelism_config_tp_size switches no AutoTP on",
        "DS126",
        E,
        "accelerate.yaml#$.parallelism_config.parallelism_config_tp_size",
        yaml(parallel(tp_size=8)),
        {},
        yaml(parallel(tp_size=1)),
    ),
    (
        "cp and sp exclude each other",
        "DS128",
        E,
        "accelerate.yaml#$.parallelism_config.parallelism_config_cp_size",
        yaml(parallel(sp_size=2, cp_size=4)),
        {},
        yaml(parallel(sp_size=2, dp_replicate_size=4)),
    ),
    (
        "AutoTP refuses families",
        "DS411",
        E,
        "$.tensor_parallel.autotp_size",
        ds({"tensor_parallel": {"autotp_size": 2}}),
        {"model": "Qwen/Qwen3-30B-A3B"},
        ds({}),
    ),
    (
        "AutoTP with stage 3 before 0.19.4",
        "DS501",
        E,
        "$.tensor_parallel.autotp_size",
        ds({"tensor_parallel": {"autotp_size": 2}, "zero_optimization": {"stage": 3, GATHER: True}}),
        {"deepspeed_version": "0.18.9"},
        ds({"tensor_parallel": {"autotp_size": 2}}),
    ),
    (
        "zero_hpz_partition_size before 0.10",
        "DS501",
        E,
        f"{Z}.zero_hpz_partition_size",
        zero(3, zero_hpz_partition_size=8),
        {"deepspeed_version": "0.9.5"},
        zero(3),
    ),
    ("a pinned total is a warning", "DS022", W, "$.train_batch_size", ds({"train_batch_size": 64}), {}, ds({})),
    (
        "a static loss scale",
        "DS031",
        W,
        "$.fp16.loss_scale",
        ds({"bf16": None, "fp16": {"enabled": True, "loss_scale": 1024}}),
        {},
        ds({"bf16": None, "fp16": {"enabled": True, "loss_scale": 0}}),
    ),
    (
        "NVMe below stage 3 is host memory",
        "DS047",
        E,
        f"{Z}.offload_optimizer.device",
        zero(2, offload_optimizer={"device": "nvme", "nvme_path": "/nvme"}),
        {},
        zero(3, offload_optimizer={"device": "nvme", "nvme_path": "/nvme"}),
    ),
    (
        "and so it is through the YAML",
        "DS125",
        E,
        "accelerate.yaml#$.deepspeed_config.offload_optimizer_device",
        yaml({"deepspeed_config": {"zero_stage": 2, "offload_optimizer_device": "nvme"}}),
        {},
        yaml({"deepspeed_config": {"zero_stage": 2, "offload_optimizer_device": "cpu"}}),
    ),
    (
        "the YAML cannot say where the NVMe is",
        "DS124",
        E,
        "accelerate.yaml#$.deepspeed_config.offload_param_device",
        yaml({"deepspeed_config": {"zero_stage": 3, "zero3_save_16bit_model": True, "offload_param_device": "nvme"}}),
        {},
        yaml({"deepspeed_config": {"zero_stage": 3, "zero3_save_16bit_model": True, "offload_param_device": "cpu"}}),
    ),
    (
        "accelerate writes stage 2 for an auto stage",
        "DS014",
        E,
        f"{Z}.stage",
        trainer({"zero_optimization": {"stage": "auto"}}, {}),
        {},
        trainer({"zero_optimization": {"stage": 3, GATHER: True}}, {}),
    ),
    (
        "an auto device offloads nothing",
        "DS014",
        E,
        f"{Z}.offload_optimizer.device",
        trainer({"zero_optimization": {"offload_optimizer": {"device": "auto"}}}, {}),
        {},
        trainer({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, {}),
    ),
    (
        "accelerate's name for the stage",
        "DS011",
        E,
        "$.zero_stage",
        ds({"zero_stage": 3}),
        {},
        ds({"zero_optimization": {"stage": 3, GATHER: True}}),
    ),
    (
        "the Trainer's name for the micro-batch",
        "DS011",
        E,
        "$.per_device_train_batch_size",
        ds({"per_device_train_batch_size": 4}),
        {},
        ds({"train_micro_batch_size_per_gpu": 4}),
    ),
    (
        "sections one level too deep",
        "DS011",
        E,
        "$.precision",
        ds({"bf16": None, "precision": {"bf16": {"enabled": True}}}),
        {},
        ds({}),
    ),
    (
        "a section of ZeRO under another name",
        "DS011",
        E,
        "$.zero",
        ds({"zero_optimization": None, "zero": {"stage": 2}}),
        {},
        ds({"zero_optimization": {"stage": 2}}),
    ),
    ("a bare true is the old form", "DS015", W, Z, ds({"zero_optimization": True}), {}, zero(1)),
    (
        "FusedAdam takes no `fused`",
        "DS062",
        E,
        "$.optimizer.params.fused",
        ds({"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "fused": True}}}),
        {},
        ds({"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "fused": True, "torch_adam": True}}}),
    ),
    (
        "DeepSpeedCPUAdam takes no `set_grad_none`",
        "DS062",
        E,
        "$.optimizer.params.set_grad_none",
        ds(
            {
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "set_grad_none": True}},
                "zero_optimization": {"offload_optimizer": {"device": "cpu"}},
            }
        ),
        {},
        ds({"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "set_grad_none": True}}}),
    ),
    (
        "the file's schedule runs",
        "DS307",
        E,
        "training_args#$.lr_scheduler_type",
        trainer(
            {"scheduler": {"type": "WarmupDecayLR", "params": dict.fromkeys(SCHEDULE, "auto")}},
            {"lr_scheduler_type": "cosine"},
        ),
        {},
        trainer(
            {"scheduler": {"type": "WarmupDecayLR", "params": dict.fromkeys(SCHEDULE, "auto")}},
            {"lr_scheduler_type": "linear"},
        ),
    ),
    (
        "the file's optimizer runs",
        "DS307",
        E,
        "training_args#$.optim",
        trainer({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}, {"optim": "adafactor"}),
        {},
        trainer({}, {"optim": "adafactor"}),
    ),
    (
        "under offload accelerate makes its own",
        "DS307",
        E,
        "training_args#$.optim",
        trainer({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, {"optim": "adamw_bnb_8bit"}),
        {},
        trainer({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, {"optim": "adamw_torch"}),
    ),
    (
        "TF32 came with Ampere",
        "DS401",
        E,
        "training_args#$.tf32",
        trainer({"bf16": None, "fp16": {"enabled": "auto"}}, {"bf16": None, "fp16": True, "tf32": True}),
        {"gpus": "8xV100-32G"},
        trainer({"bf16": None, "fp16": {"enabled": "auto"}}, {"bf16": None, "fp16": True, "tf32": False}),
    ),
    (
        "a layer of another family",
        "DS419",
        E,
        "accelerate.yaml#$.fsdp_config.fsdp_transformer_layer_cls_to_wrap",
        wraps("GPT2Block"),
        {"model": "llama-2-7b"},
        wraps("LlamaDecoderLayer"),
    ),
    (
        "a layer with a slip",
        "DS419",
        E,
        "accelerate.yaml#$.fsdp_config.fsdp_transformer_layer_cls_to_wrap",
        wraps("LlamaDecodeLayer"),
        {"model": "llama-2-7b"},
        wraps("SomethingOfItsOwn"),
    ),
    (
        "an expert block of another family",
        "DS419",
        E,
        "accelerate.yaml#$.deepspeed_config.deepspeed_moe_layer_cls_names",
        yaml({"deepspeed_config": {**LEAVES, "deepspeed_moe_layer_cls_names": "Qwen2MoeSparseMoeBlock"}}),
        {"model": "mistralai/Mixtral-8x7B-v0.1"},
        yaml({"deepspeed_config": {**LEAVES, "deepspeed_moe_layer_cls_names": "MixtralSparseMoeBlock"}}),
    ),
    (
        "an absent lr is 0.001, whatever the arguments say",
        "DS302",
        E,
        "$.optimizer.params.lr",
        trainer({"optimizer": {"type": "AdamW"}}, {}),
        {},
        trainer({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}, {}),
    ),
    (
        "a schedule may set the rate instead",
        "DS302",
        E,
        "$.optimizer.params.weight_decay",
        trainer({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}, {"weight_decay": 0.1}),
        {},
        trainer(
            {
                "optimizer": {"type": "AdamW", "params": {"weight_decay": "auto"}},
                "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
            },
            {"weight_decay": 0.1},
        ),
    ),
    (
        "an absent warm-up is 1,000 steps",
        "DS302",
        E,
        "$.scheduler.params.warmup_num_steps",
        trainer({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}}}, {"warmup_steps": 50}),
        {},
        trainer({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}}}, {"warmup_steps": 1000}),
    ),
    (
        "a DeepSpeed file that no argument names",
        "DS323",
        W,
        "training_args#$.deepspeed",
        trainer({}, {"deepspeed": None}),
        {},
        trainer({}, {}),
    ),
    (
        "accelerate adds an accumulation of 1",
        "DS133",
        Severity.INFO,
        "$.gradient_accumulation_steps",
        ds({"gradient_accumulation_steps": None}),
        ACCELERATE,
        ds({"gradient_accumulation_steps": "auto"}),
    ),
    (
        "autotp_size is compared as it stands",
        "DS013",
        E,
        "$.tensor_parallel.autotp_size",
        ds({"tensor_parallel": {"autotp_size": "2"}}),
        {},
        ds({"tensor_parallel": {"autotp_size": 2}}),
    ),
    (
        "any word is true for zero_allow_untested_optimizer",
        "DS066",
        E,
        "$.optimizer.type",
        ds({"optimizer": {"type": "SGD", "params": {"lr": 1e-3}}}),
        {},
        ds({"optimizer": {"type": "SGD", "params": {"lr": 1e-3}}, "zero_allow_untested_optimizer": "true"}),
    ),
    (
        "processes beyond gpu_ids",
        "DS123",
        E,
        "accelerate.yaml#$.num_processes",
        yaml({"gpu_ids": "0,1,2,3"}),
        {},
        yaml({"gpu_ids": "all"}),
    ),
    (
        "a YAML knows no variables",
        "DS130",
        E,
        "accelerate.yaml#$.main_process_ip",
        yaml({**MACHINES, "main_process_ip": "$MASTER_ADDR", "main_process_port": 29500}),
        {},
        yaml({**MACHINES, "main_process_ip": "10.0.0.1", "main_process_port": 29500}),
    ),
    (
        "fp8 came with Ada and Hopper",
        "DS401",
        W,
        "accelerate.yaml#$.mixed_precision",
        yaml({"mixed_precision": "fp8"}),
        {"gpus": "8xA100-80G"},
        yaml({"mixed_precision": "bf16"}),
    ),
    (
        "FlashAttention 2 came with Ampere",
        "DS401",
        E,
        "accelerate.yaml#$.parallelism_config.parallelism_config_sp_attn_implementation",
        yaml(parallel(sp_size=2, sp_backend="deepspeed", sp_attn_implementation="flash_attention_2")),
        {"gpus": "8xV100-32G"},
        yaml(parallel(sp_size=2, sp_backend="deepspeed", sp_attn_implementation="sdpa")),
    ),
    (
        "gemma3 has its width in text_config",
        "DS413",
        E,
        f"{Z}.reduce_bucket_size",
        ds({"zero_optimization": {"reduce_bucket_size": "auto"}}),
        {**ACCELERATE, "model": "google/gemma-3-4b-it"},
        ds({"zero_optimization": {"reduce_bucket_size": 10**7}}),
    ),
    (
        "localhost is another machine on each",
        "DS130",
        E,
        "accelerate.yaml#$.main_process_ip",
        yaml({**MACHINES, "machine_rank": 1, "main_process_ip": "localhost", "main_process_port": 29500}),
        {},
        yaml({**MACHINES, "machine_rank": 0, "main_process_ip": "localhost", "main_process_port": 29500}),
    ),
    (
        "nothing is gathered below stage 3",
        "DS132",
        W,
        "accelerate.yaml#$.deepspeed_config.zero3_save_16bit_model",
        yaml({"deepspeed_config": {"zero_stage": 2, "zero3_save_16bit_model": True}}),
        {},
        yaml({"deepspeed_config": {"zero_stage": 3, "zero3_save_16bit_model": True}}),
    ),
    (
        "leaves are of stage 3",
        "DS132",
        W,
        "accelerate.yaml#$.deepspeed_config.deepspeed_moe_layer_cls_names",
        yaml({"deepspeed_config": {"zero_stage": 2, "deepspeed_moe_layer_cls_names": "MixtralSparseMoeBlock"}}),
        {},
        yaml({"deepspeed_config": {**LEAVES, "deepspeed_moe_layer_cls_names": "MixtralSparseMoeBlock"}}),
    ),
    (
        "the launcher standard reads no host file",
        "DS132",
        W,
        "accelerate.yaml#$.deepspeed_config.deepspeed_hostfile",
        yaml({"deepspeed_config": {"deepspeed_multinode_launcher": "standard", "deepspeed_hostfile": "hosts"}}),
        {},
        yaml({"deepspeed_config": {"deepspeed_multinode_launcher": "pdsh", "deepspeed_hostfile": "hosts"}}),
    ),
    (
        "a configuration inside the arguments",
        "DS011",
        E,
        "training_args#$.deepspeed.zero_optimisation",
        {"training_args": {**ARGUMENTS, "deepspeed": {**AUTO, "zero_optimisation": {"stage": 3}}}},
        {},
        {"training_args": {**ARGUMENTS, "deepspeed": {**AUTO, "zero_optimization": {"stage": 3, GATHER: True}}}},
    ),
    (
        "the best model needs an evaluation with every save",
        "DS308",
        E,
        "training_args#$.load_best_model_at_end",
        trainer({}, {"load_best_model_at_end": True, "eval_strategy": "epoch"}),
        {},
        trainer({}, {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"}),
    ),
    (
        "FSDP checkpoints already",
        "DS308",
        E,
        "training_args#$.gradient_checkpointing",
        {**CHECKPOINTED, "training_args": {**ARGUMENTS, "deepspeed": None, "gradient_checkpointing": True}},
        {},
        {**CHECKPOINTED, "training_args": {**ARGUMENTS, "deepspeed": None}},
    ),
    (
        "a schedule with a slip",
        "DS309",
        E,
        "training_args#$.lr_scheduler_type",
        trainer({}, {"lr_scheduler_type": "cosine_with_restart"}),
        {},
        trainer({}, {"lr_scheduler_type": "cosine_with_restarts"}),
    ),
    (
        "the arguments' precision wins over the YAML's",
        "DS303",
        E,
        "accelerate.yaml#$.mixed_precision",
        yaml({"mixed_precision": "bf16"}, training_args={**ARGUMENTS, "deepspeed": None, "bf16": None, "fp16": True}),
        {},
        yaml({"mixed_precision": "fp16"}, training_args={**ARGUMENTS, "deepspeed": None, "bf16": None, "fp16": True}),
    ),
    (
        "and offload in the YAML replaces the optimizer too",
        "DS307",
        E,
        "training_args#$.optim",
        yaml(OFFLOADED, training_args={**ARGUMENTS, "deepspeed": None, "optim": "adamw_bnb_8bit"}),
        {},
        yaml(OFFLOADED, training_args={**ARGUMENTS, "deepspeed": None, "optim": "adamw_torch"}),
    ),
    (
        "an optimizer that nobody has, with the flag too",
        "DS066",
        E,
        "$.optimizer.type",
        ds({"optimizer": {"type": "DeepSpeed_Adam", "params": {"lr": 1e-5}}, "zero_allow_untested_optimizer": True}),
        {},
        ds({"optimizer": {"type": "RAdam", "params": {"lr": 1e-5}}, "zero_allow_untested_optimizer": True}),
    ),
    (
        "steps_per_print is divided by",
        "DS014",
        E,
        "$.steps_per_print",
        ds({"steps_per_print": "auto"}),
        DEEPSPEED,
        ds({"steps_per_print": 10}),
    ),
    (
        "the least number of parameters is of one policy",
        "DS131",
        W,
        "accelerate.yaml#$.fsdp_config.fsdp_min_num_params",
        yaml({"deepspeed_config": None, "distributed_type": "FSDP", "fsdp_config": {"fsdp_min_num_params": 10**8}}),
        {},
        yaml(
            {
                "deepspeed_config": None,
                "distributed_type": "FSDP",
                "fsdp_config": {"fsdp_min_num_params": 10**8, "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP"},
            }
        ),
    ),
    (
        "bf16 under deepspeed_config says what mixed_precision says",
        "DS111",
        W,
        "accelerate.yaml#$.deepspeed_config.bf16",
        yaml({"mixed_precision": "bf16", "deepspeed_config": {"zero_stage": 2, "bf16": {"enabled": True}}}),
        {},
        yaml({"mixed_precision": "bf16"}),
    ),
    (
        "and what mixed_precision does not say it does not say either",
        "DS111",
        E,
        "accelerate.yaml#$.deepspeed_config.bf16",
        yaml({"mixed_precision": "no", "deepspeed_config": {"zero_stage": 2, "bf16": {"enabled": True}}}),
        {},
        yaml({"mixed_precision": "bf16"}),
    ),
    ("gradient_clipping not given", "DS060", W, "$.gradient_clipping", ds({"gradient_clipping": None}), {}, ds({})),
)


def checked(folder: Path, files: dict[str, Any], flags: dict[str, Any]) -> CheckResult:
    for name, content in files.items():
        if not isinstance(content, str):
            content = json.dumps({key: value for key, value in content.items() if value is not None}, indent=1)
        (folder / name).write_text(content)
    return check(*(folder / name for name in files), **flags)


@pytest.mark.parametrize(("fact", "rule", "severity", "place", "wrong", "flags", "right"), FACTS)
def test_a_fact_is_reported_at_its_place_and_not_for_the_right_files(
    fact: str,
    rule: str,
    severity: Severity,
    place: str,
    wrong: dict[str, Any],
    flags: dict[str, Any],
    right: dict[str, Any],
    tmp_path: Path,
) -> None:
    folders = (tmp_path / "wrong", tmp_path / "right")
    for folder in folders:
        folder.mkdir()
    only = next(iter(wrong)) if len(wrong) == 1 else "ds_config.json"
    file, _, path = place.rpartition("#")
    found = [p for p in checked(folders[0], wrong, flags).findings if (p.rule, p.path) == (rule, path)]
    assert [(Path(p.file).name, p.severity) for p in found] == [(file or only, severity)], fact
    rest = [p for p in checked(folders[1], right, flags).findings if p.rule == rule and p.path == path]
    assert rest == [], fact


def test_the_table_is_long_enough() -> None:
    assert len(FACTS) >= 80
