"""Keys that people write and that a section does not have, by name: removed, renamed, of another file, notes.

What they are about is told by `keys.py`; the names were met in public files, or are those of earlier releases.
"""

from __future__ import annotations

import re

# Removed before DeepSpeed 0.19.8; the mere presence raises DeepSpeedConfigError, even with "enabled": false.
REMOVED = {
    **dict.fromkeys(
        ("nebula", "compression_training", "sparse_gradients", "eigenvalue", "sparse_attention"), "take it out"
    ),
    **dict.fromkeys(("elasticity", "graph_harvesting", "progressive_layer_drop", "quantize_training"), "take it out"),
    "amp": "use `bf16` or `torch_autocast`",
    "curriculum_learning": "move it to `data_efficiency.data_sampling.curriculum_learning`",
    "mics_shard_size": "use `zero_hpz_partition_size` at stage 3",
    "mics_hierarchical_params_gather": "take it out",
    "zeropp_loco_param": "take it out",
}
REMOVED_IN = {"$": set(REMOVED) - {"mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"}}
REMOVED_IN["$.zero_optimization"] = {"mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"}

# Large sections that few files have: that a stray key also exists there says nothing about what was meant.
RARE_SECTIONS = ("$.autotuning", "$.data_efficiency", "$.expert_parallel")
RENAMED = {
    ("$.aio", "thread_count"): "`intra_op_parallelism`",
    ("$", "load_universal_checkpoint"): "`checkpoint.load_universal`",
    ("$.tensor_parallel", "tp_size"): "`autotp_size`",
    ("$.tensor_parallel", "enabled"): "nothing: `autotp_size` above 1 switches it on",
    ("$.activation_checkpointing", "enabled"): "nothing: Hugging Face models use `gradient_checkpointing=True`",
    **dict.fromkeys(
        (("$.bf16", key) for key in ("loss_scale", "loss_scale_window", "initial_scale_power", "hysteresis")),
        "nothing: bf16 has no loss scale",
    ),
    **dict.fromkeys(
        (("$.bf16", key) for key in ("min_loss_scale", "consecutive_hysteresis", "auto_cast")),
        "nothing: bf16 has no loss scale",
    ),
    ("$.fp16", "opt_level"): "nothing: it is a setting of Apex",
}
ZERO = "zero_optimization"
FOREIGN = {
    "zero_stage": f"{ZERO}.stage",
    "offload_optimizer_device": f"{ZERO}.offload_optimizer.device",
    "offload_param_device": f"{ZERO}.offload_param.device",
    "offload_optimizer_nvme_path": f"{ZERO}.offload_optimizer.nvme_path",
    "offload_param_nvme_path": f"{ZERO}.offload_param.nvme_path",
    "zero3_save_16bit_model": f"{ZERO}.stage3_gather_16bit_weights_on_model_save",
    "max_grad_norm": "gradient_clipping",
    "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "per_gpu_train_batch_size": "train_micro_batch_size_per_gpu",
    "learning_rate": "optimizer.params.lr",
    "lr": "optimizer.params.lr",
    "weight_decay": "optimizer.params.weight_decay",
    "betas": "optimizer.params.betas",
    "warmup_steps": "scheduler.params.warmup_num_steps",
    "warmup_num_steps": "scheduler.params.warmup_num_steps",
    "total_num_steps": "scheduler.params.total_num_steps",
}
"""What others call it, met at the top of a DeepSpeed file, and where DeepSpeed reads it."""
OF_THE_LAUNCH = ("zero3_init_flag", "deepspeed_multinode_launcher", "deepspeed_hostfile", "deepspeed_config_file")
"""Keys of an Accelerate file that no key of DeepSpeed stands for."""
OF_THE_TRAINER = (
    *("gradient_checkpointing", "activation_checkpointing_kwargs", "gradient_checkpointing_kwargs", "num_train_epochs"),
    *("max_steps", "lr_scheduler_type", "mixed_precision", "warmup_ratio", "save_steps", "logging_steps"),
)
ONLY_SHOWS = (
    *("steps_per_print", "wall_clock_breakdown", "memory_breakdown", "dump_state", "log_level", "timers"),
    *("tensorboard", "wandb", "csv_monitor", "comet", "comms_logger", "flops_profiler"),
)
"""What a run prints or logs; without them it trains the same."""
NOTE = re.compile(r"_|//|#|comment", re.IGNORECASE)
"""How people begin the name of a note in a JSON."""
GENERAL = ("verbose", "enabled", "device", "type", "params", "dtype", "classes", "names", "path", "debug")
"""Names of many sections: that one has it does not tell where a stray one belongs."""
ONLY_IN_JSON = ("seq_parallel_communication_data_type", "communication_data_type", "tensor_parallel", "data_types")
"""Settings of DeepSpeed that an Accelerate file cannot say."""
TO_DECIDE = ("amp", "curriculum_learning")
"""Removed blocks whose work something else does now: the run goes on without them, in another way."""
OLD_ACCELERATE_KEYS = ("ipex_config", "tp_config", "use_parallelism_config")
"""Of an Accelerate file of older releases; accelerate 1.15 refuses them."""
RENAMED_IN_YAML = {
    **dict.fromkeys(
        (
            *("stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"),
            *("gather_16bit_weights_on_model_save", "zero3_save_fp16_model"),
        ),
        "zero3_save_16bit_model",
    ),
    "stage": "zero_stage",
    "zero_optimization_stage": "zero_stage",
    "config_file": "deepspeed_config_file",
    "offload_optimizer": "offload_optimizer_device",
    "offload_param": "offload_param_device",
    "max_grad_norm": "gradient_clipping",
}
"""What people write under deepspeed_config for a key that has another name there."""
