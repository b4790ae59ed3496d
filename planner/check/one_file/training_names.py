"""The names of transformers' TrainingArguments.

In: nothing. Out: tables. Answers: is a key or a flag one of the Trainer's, and what is its value read as?
Source: dataclasses.fields(transformers.TrainingArguments), 5.24; what the fields are typed as, None left out. A field
that takes several kinds, text among them, is text on a command line.
"""

from __future__ import annotations

BY_KIND = {
    "text": """
        output_dir lr_scheduler_type lr_scheduler_kwargs optim optim_args optim_target_modules
        activation_checkpointing_kwargs gradient_checkpointing_kwargs torch_compile_backend torch_compile_mode
        logging_strategy include_num_input_tokens_seen log_level log_level_replica report_to run_name project
        trackio_space_id trackio_bucket_id trackio_static_space_id eval_strategy include_for_metrics save_strategy
        hub_token hub_model_id hub_strategy hub_revision metric_for_best_model accelerator_config
        dataloader_multiprocessing_context train_sampling_strategy length_column_name ddp_backend fsdp fsdp_config
        deepspeed debug resume_from_checkpoint
    """,
    "int": """
        per_device_train_batch_size max_steps gradient_accumulation_steps torch_empty_cache_steps
        per_device_eval_batch_size eval_accumulation_steps save_total_limit seed data_seed dataloader_num_workers
        dataloader_prefetch_factor ddp_bucket_cap_mb ddp_timeout local_rank
    """,
    "float": """
        num_train_epochs learning_rate warmup_steps weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm
        label_smoothing_factor neftune_noise_alpha logging_steps eval_steps eval_delay save_steps
    """,
    "bool": """
        average_tokens_across_devices bf16 fp16 bf16_full_eval fp16_full_eval tf32 activation_checkpointing
        gradient_checkpointing torch_compile use_liger_kernel use_cache auto_find_batch_size logging_first_step
        log_on_each_node logging_nan_inf_filter disable_tqdm prediction_loss_only eval_on_start eval_do_concat_batches
        eval_use_gather_object batch_eval_metrics save_only_model save_on_each_node enable_jit_checkpoint push_to_hub
        hub_private_repo hub_always_push load_best_model_at_end greater_is_better ignore_data_skip
        restore_callback_states_from_checkpoint full_determinism use_cpu dataloader_drop_last dataloader_pin_memory
        dataloader_persistent_workers dataloader_in_order remove_unused_columns ddp_find_unused_parameters
        ddp_broadcast_buffers ddp_static_graph skip_memory_metrics do_train do_eval do_predict
    """,
    "other": """
        liger_kernel_config parallelism_config label_names
    """,
}
KINDS = {name: kind for kind, names in BY_KIND.items() for name in names.split()}
# Fields of transformers 4 that 5 has renamed or removed: still what a Trainer's file looks like.
OLD = """
    evaluation_strategy warmup_ratio logging_dir no_cuda overwrite_output_dir group_by_length save_safetensors
    per_gpu_train_batch_size per_gpu_eval_batch_size fp16_backend half_precision_backend fp16_opt_level use_ipex
    use_mps_device tpu_num_cores jit_mode_eval include_tokens_per_second include_inputs_for_metrics adafactor
    push_to_hub_model_id push_to_hub_organization push_to_hub_token dispatch_batches split_batches past_index
    mp_parameters xpu_backend fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap torchdynamo
    ray_scope sharded_ddp
"""
NAMES = frozenset((*KINDS, *OLD.split()))
RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "warmup_ratio": "warmup_steps",  # below 1 it is a share of all steps
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "no_cuda": "use_cpu",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_token": "hub_token",
    "xpu_backend": "ddp_backend",
}
"""Old names whose value goes under the new one as it is. Source: the deprecation warnings of transformers 4."""
