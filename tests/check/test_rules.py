"""Each rule finds its fault, at its place, and says what to write instead."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.check import RULES, check_text
from planner.records.problem import Problem

GOOD: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
}
ZERO = "$.zero_optimization"
PURE_BF16 = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
# what is laid over GOOD (a whole section at a time), the rule, the place
CASES: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"zero_optimization": {"stage": 2, "reduce_bucket_sise": 1}}, "DS010", f"{ZERO}.reduce_bucket_sise"),
    ({"zero_optimisation": {"stage": 3}}, "DS011", "$.zero_optimisation"),
    ({"offload_optimizer": {"device": "cpu"}}, "DS011", "$.offload_optimizer"),
    ({"aio": {"thread_count": 1}}, "DS011", "$.aio.thread_count"),
    ({"elasticity": {"enabled": False}}, "DS012", "$.elasticity"),
    ({"zero_optimization": {"stage": 3, "mics_shard_size": 8}}, "DS012", f"{ZERO}.mics_shard_size"),
    ({"zero_optimization": {"stage": 4}}, "DS013", f"{ZERO}.stage"),
    ({"gradient_clipping": "1.0"}, "DS013", "$.gradient_clipping"),
    ({"fp16": {"enabled": True, "loss_scale": float("inf")}, "bf16": {"enabled": False}}, "DS013", "$.fp16.loss_scale"),
    ({"zero_optimization": {"stage": "auto"}}, "DS014", f"{ZERO}.stage"),
    ({"zero_optimization": {"stage": 3, "sub_group_size": "auto"}}, "DS014", f"{ZERO}.sub_group_size"),
    ({"zero_optimization": {"stage": 2, "cpu_offload": True}}, "DS015", f"{ZERO}.cpu_offload"),
    ({"train_micro_batch_size_per_gpu": None}, "DS020", "$.train_micro_batch_size_per_gpu"),
    ({"train_batch_size": 12}, "DS021", "$.train_batch_size"),
    ({"train_batch_size": 64}, "DS022", "$.train_batch_size"),
    ({"fp16": {"enabled": True}}, "DS030", "$.fp16.enabled"),
    ({"fp16": {"enabled": True, "loss_scale": 128}, "bf16": {"enabled": False}}, "DS031", "$.fp16.loss_scale"),
    (
        {"zero_optimization": {"stage": 0}, "data_types": {"grad_accum_dtype": "fp32"}},
        "DS032",
        "$.data_types.grad_accum_dtype",
    ),
    ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "DS040", f"{ZERO}.offload_param"),
    ({"zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}}, "DS041", f"{ZERO}.offload_optimizer"),
    (
        {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}},
        "DS042",
        f"{ZERO}.offload_optimizer.nvme_path",
    ),
    (
        {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme"}}},
        "DS047",
        f"{ZERO}.offload_optimizer.device",
    ),
    (
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}},
        "DS043",
        f"{ZERO}.offload_optimizer.ratio",
    ),
    ({"zero_optimization": {"stage": 2, "zero_quantized_weights": True}}, "DS043", f"{ZERO}.zero_quantized_weights"),
    ({"zero_optimization": {"stage": 2, "zero_hpz_partition_size": 8}}, "DS043", f"{ZERO}.zero_hpz_partition_size"),
    (
        {"zero_optimization": {"stage": 1, "stage3_max_live_parameters": 1}},
        "DS044",
        f"{ZERO}.stage3_max_live_parameters",
    ),
    ({"zero_optimization": {"stage": 3}}, "DS045", f"{ZERO}.stage3_gather_16bit_weights_on_model_save"),
    ({"tensor_parallel": {"autotp_size": 2}}, "DS045", f"{ZERO}.stage3_gather_16bit_weights_on_model_save"),
    ({"tensor_parallel": {"tp": {"tp_size": 2}}}, "DS050", "$.tensor_parallel.tp.tp_size"),
    ({"tensor_parallel": {"autotp_size": 4, "tp": {"tp_size": 2}}}, "DS050", "$.tensor_parallel.tp.tp_size"),
    ({"tensor_parallel": {"autotp_size": 2, "preset_model": "lama"}}, "DS011", "$.tensor_parallel.preset_model"),
    ({"zero_optimization": {"stage": 2, "compute_grad_norm": False}}, "DS061", f"{ZERO}.compute_grad_norm"),
    ({"optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1}}}, "DS062", "$.optimizer.params.max_grad_norm"),
    ({"optimizer": {"type": "AdamW", "params": {"learning_rate": 1}}}, "DS062", "$.optimizer.params.learning_rate"),
    ({"optimizer": {"type": "OneBitAdam"}}, "DS066", "$.optimizer.type"),
    ({"optimizer": {"type": "SGD"}}, "DS066", "$.optimizer.type"),
    ({"optimizer": {"type": "Lion", "params": {"lr": 1e-5, "eps": 1e-8}}}, "DS062", "$.optimizer.params.eps"),
    ({"bf16": {"enabled": True, "bf16_optimizer_states": True}}, "DS033", "$.bf16.bf16_optimizer_states"),
    (
        {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
        "DS033",
        "$.bf16.bf16_master_weights_and_grads",
    ),
    ({"bf16": PURE_BF16, "zero_optimization": {"stage": 0}}, "DS033", "$.bf16.bf16_master_weights_and_grads"),
    (
        {
            "bf16": PURE_BF16,
            "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
            "optimizer": {"type": "Lion"},
        },
        "DS033",
        "$.bf16.bf16_master_weights_and_grads",
    ),
    (
        {"optimizer": {"type": "Muon"}, "zero_optimization": {"stage": 3}},
        "DS067",
        f"{ZERO}.reduce_scatter",
    ),
    (
        {
            "optimizer": {"type": "Muon"},
            "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        },
        "DS067",
        f"{ZERO}.offload_optimizer",
    ),
    (
        {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 1}}},
        "DS063",
        "$.scheduler.params.total_num_steps",
    ),
    (
        {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9}}},
        "DS063",
        "$.scheduler.params.warmup_max_lr",
    ),
    (
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}},
        "DS063",
        "$.scheduler.params.warmup_num_steps",
    ),
    (
        {"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_min_lr": 0}}},
        "DS063",
        "$.scheduler.params.warmup_min_lr",
    ),
    ({"scheduler": {"type": "WarmupLr"}}, "DS063", "$.scheduler.type"),
    ({"zero_optimization": {"stage": 3}, "gradient_allreduce_op": "sum"}, "DS064", "$.gradient_allreduce_op"),
    ({"prescale_gradients": True}, "DS064", "$.prescale_gradients"),
    ({"gradient_predivide_factor": 2.0}, "DS064", "$.gradient_predivide_factor"),
    ({"activation_checkpointing": {"enabled": True}}, "DS011", "$.activation_checkpointing.enabled"),
)
YAML = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "DEEPSPEED",
    "num_machines": 1,
    "num_processes": 8,
    "deepspeed_config": {"zero_stage": 2},
}
PC = "parallelism_config_"


def fsdp(sizes: dict[str, int], **keys: Any) -> dict[str, Any]:
    block = {"fsdp_version": 2, **keys}
    return {
        "distributed_type": "FSDP",
        "deepspeed_config": None,
        "fsdp_config": block,
        **({"parallelism_config": sizes} if sizes else {}),
    }


YAML_CASES: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"num_proceses": 8}, "DS110", "$.num_proceses"),
    ({"deepspeed_config": {"zero_stag": 3}}, "DS111", "$.deepspeed_config.zero_stag"),
    ({"deepspeed_config": {"zero_stage": 5}}, "DS112", "$.deepspeed_config.zero_stage"),
    ({"mixed_precision": False}, "DS112", "$.mixed_precision"),
    (
        {"deepspeed_config": {"deepspeed_config_file": "a.json", "zero_stage": 3}},
        "DS120",
        "$.deepspeed_config.zero_stage",
    ),
    (
        {"deepspeed_config": {"deepspeed_config_file": "a.json"}, "mixed_precision": "bf16"},
        "DS120",
        "$.mixed_precision",
    ),
    ({"num_machines": 2}, "DS122", "$.deepspeed_config.deepspeed_multinode_launcher"),
    ({"num_machines": 3}, "DS123", "$.num_processes"),
    ({"machine_rank": 1}, "DS123", "$.machine_rank"),
    (
        {"deepspeed_config": {"zero_stage": 3, "offload_param_nvme_path": "/x"}},
        "DS124",
        "$.deepspeed_config.offload_param_nvme_path",
    ),
    (
        {"deepspeed_config": {"zero_stage": 2, "offload_param_device": "cpu"}},
        "DS125",
        "$.deepspeed_config.offload_param_device",
    ),
    ({"parallelism_config": {"sp_size": 2}}, "DS126", "$.parallelism_config.sp_size"),
    (
        {"parallelism_config": {"parallelism_config_tp_size": 2}},
        "DS126",
        "$.parallelism_config.parallelism_config_tp_size",
    ),
    ({"parallelism_config": {f"{PC}cp_size": 8}}, "DS126", f"$.parallelism_config.{PC}cp_size"),
    ({"distributed_type": "MULTI_GPU"}, "DS127", "$.deepspeed_config"),
    ({"distributed_type": "NO", "num_processes": 1}, "DS127", "$.deepspeed_config"),
    (fsdp({f"{PC}dp_shard_size": 4}), "DS128", f"$.parallelism_config.{PC}dp_shard_size"),
    (fsdp({f"{PC}tp_size": 8}), "DS128", f"$.parallelism_config.{PC}dp_shard_size"),
    (fsdp({f"{PC}dp_shard_size": 8}, fsdp_version=1), "DS128", "$.fsdp_config.fsdp_version"),
    (
        {"parallelism_config": {f"{PC}sp_size": 2, f"{PC}cp_size": 4}},
        "DS128",
        f"$.parallelism_config.{PC}cp_size",
    ),
    (
        fsdp({f"{PC}tp_size": 4, f"{PC}dp_replicate_size": 2}),
        "DS128",
        f"$.parallelism_config.{PC}dp_replicate_size",
    ),
    ({"parallelism_config": {f"{PC}sp_size": 3}}, "DS128", f"$.parallelism_config.{PC}sp_size"),
    ({"parallelism_config": {f"{PC}sp_size": 4}}, "DS128", f"$.parallelism_config.{PC}dp_replicate_size"),
    (
        {"parallelism_config": {f"{PC}sp_size": 8, f"{PC}sp_attn_implementation": "eager"}},
        "DS129",
        f"$.parallelism_config.{PC}sp_attn_implementation",
    ),
    (
        {"parallelism_config": {f"{PC}sp_size": 8, f"{PC}sp_seq_length": 1001}},
        "DS129",
        f"$.parallelism_config.{PC}sp_seq_length",
    ),
    (
        {"parallelism_config": {f"{PC}sp_size": 8, f"{PC}sp_seq_length_is_variable": False}},
        "DS129",
        f"$.parallelism_config.{PC}sp_seq_length",
    ),
    (fsdp({f"{PC}sp_size": 8}), "DS129", f"$.parallelism_config.{PC}sp_size"),
    (
        {
            "num_machines": 2,
            "main_process_port": 0,
            "main_process_ip": "10.0.0.1",
            "deepspeed_config": {"zero_stage": 2, "deepspeed_multinode_launcher": "standard"},
        },
        "DS130",
        "$.main_process_port",
    ),
    (
        {
            "num_machines": 2,
            "main_process_port": 29500,
            "deepspeed_config": {"zero_stage": 2, "deepspeed_multinode_launcher": "standard"},
        },
        "DS130",
        "$.main_process_ip",
    ),
    (fsdp({}, fsdp_forward_prefetch=True), "DS131", "$.fsdp_config.fsdp_forward_prefetch"),
    ({"deepspeed_config": {"zero_stage": 2, "zero3_init_flag": True}}, "DS132", "$.deepspeed_config.zero3_init_flag"),
    ({"deepspeed_config": {"zero_stage": 3}}, "DS045", "$.deepspeed_config.zero3_save_16bit_model"),
    ({"deepspeed_config": {"zero_stage": 2, "gradient_clipping": 0}}, "DS302", "$.deepspeed_config.gradient_clipping"),
)
YAML_RIGHT: tuple[dict[str, Any], ...] = (
    fsdp({f"{PC}dp_shard_size": 8}),
    fsdp({f"{PC}dp_shard_size": 2, f"{PC}tp_size": 4}),
    {"distributed_type": "MULTI_GPU", "deepspeed_config": {}},
    {"distributed_type": "MULTI_GPU", "deepspeed_config": None, "fsdp_config": {}},
    {
        "parallelism_config": {
            f"{PC}sp_size": 4,
            f"{PC}dp_replicate_size": 2,
            f"{PC}sp_seq_length": 8192,
            f"{PC}sp_attn_implementation": "kernels-community/flash-attn2",
        }
    },
    {
        "num_machines": 2,
        "main_process_port": 29500,
        "main_process_ip": "10.0.0.1",
        "deepspeed_config": {"zero_stage": 2, "deepspeed_multinode_launcher": "standard"},
    },
    {"deepspeed_config": {"zero_stage": 3, "zero3_init_flag": True, "zero3_save_16bit_model": True}},
    {"deepspeed_config": {"zero_stage": 2, "gradient_clipping": 1.0}},
)


def found(name: str, base: dict[str, Any], change: dict[str, Any]) -> list[Problem]:
    """A change to None takes the key out."""
    document = {key: value for key, value in {**base, **change}.items() if value is not None}
    return check_text(name, json.dumps(document, indent=1))[1]


def test_a_good_file_has_no_findings() -> None:
    assert found("ds.json", GOOD, {}) == []
    assert found("acc.yaml", YAML, {}) == []


@pytest.mark.parametrize(("change", "rule", "path"), CASES)
def test_deepspeed_rule(change: dict[str, Any], rule: str, path: str) -> None:
    hits = [problem for problem in found("ds.json", GOOD, change) if (problem.rule, problem.path) == (rule, path)]
    assert len(hits) == 1, found("ds.json", GOOD, change)
    assert hits[0].line > 0
    assert hits[0].message
    assert hits[0].fix


@pytest.mark.parametrize(("change", "rule", "path"), YAML_CASES)
def test_accelerate_rule(change: dict[str, Any], rule: str, path: str) -> None:
    assert (rule, path) in {(problem.rule, problem.path) for problem in found("acc.yaml", YAML, change)}


@pytest.mark.parametrize("change", YAML_RIGHT)
def test_accelerate_files_in_order_have_no_findings(change: dict[str, Any]) -> None:
    assert found("acc.yaml", YAML, change) == []


def test_every_rule_has_a_case() -> None:
    tested = {rule for _, rule, _ in (*CASES, *YAML_CASES)}
    elsewhere = {
        "DS001",
        "DS002",
        "DS003",
        "DS004",
        "DS005",
        "DS006",
        "DS051",
        "DS060",
        "DS121",
        "DS201",
        "DS202",
        "DS203",
        "DS204",
    }
    several_files = {rule for rule in RULES if rule >= "DS300"} | {
        "DS068",
        "DS069",
        "DS070",
        "DS071",
        "DS072",
        "DS076",
        "DS133",
    }
    rare = {"DS077", "DS078", "DS079"}  # test_rare_sections
    engine = {"DS034", "DS046", "DS052", "DS073", "DS074", "DS075"}  # test_engine_rules
    assert tested | elsewhere | several_files | engine | rare == set(RULES)  # test_across_rules, test_argument_rules


def test_a_missing_clipping_value_is_mentioned() -> None:
    assert [problem.rule for problem in found("ds.json", GOOD, {"gradient_clipping": None})] == ["DS060"]


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("zero_optimisation", "did you mean `zero_optimization`?"),
        ("train_micro_batch_size", "did you mean `train_micro_batch_size_per_gpu`?"),
        ("reduce_bucket_size", "move it to `zero_optimization`"),
        ("load_universal_checkpoint", "write `checkpoint.load_universal`"),
    ],
)
def test_unknown_keys_come_with_the_right_spelling_or_place(key: str, hint: str) -> None:
    (problem,) = found("ds.json", GOOD, {key: 1})
    assert problem.fix == hint
    assert problem.severity.value == "error"


def test_a_key_that_looks_like_nothing_is_a_warning_and_a_comment_is_nothing() -> None:
    assert [problem.severity.value for problem in found("ds.json", GOOD, {"my_own_note_xyz": 1})] == ["warning"]
    assert found("ds.json", GOOD, {"_comment": "x", "$schema": "y"}) == []


@pytest.mark.parametrize(("value", "expected"), [("3", "warning"), (True, "warning"), ("three", "error"), (2.0, None)])
def test_values_that_deepspeed_converts_are_warnings_only(value: Any, expected: str | None) -> None:
    change = {"zero_optimization": {"stage": value, "stage3_gather_16bit_weights_on_model_save": True}}
    problems = [p.severity.value for p in found("ds.json", GOOD, change) if p.path == "$.zero_optimization.stage"]
    assert problems == ([expected] if expected else [])


def test_auto_is_nothing_where_the_trainer_fills_it() -> None:
    change = {
        **dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"), "auto"),
        "train_batch_size": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
        "optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")},
    }
    assert found("ds.json", GOOD, change) == []


ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    "x",
    "auto",
    [],
    [1],
    {},
    {"enabled": "maybe", "device": 3, "params": 1},
)


@pytest.mark.parametrize("odd", ODD)
def test_no_odd_value_anywhere_makes_a_rule_fail(odd: Any) -> None:
    from planner.check.one_file.schema import load_schema

    for key in load_schema("deepspeed")["properties"]:
        check_text("ds.json", json.dumps({**GOOD, key: odd}))
    for key in load_schema("deepspeed")["$defs"]["zero_optimization"]["properties"]:
        check_text("ds.json", json.dumps({**GOOD, "zero_optimization": {"stage": 2, key: odd}}))
    for key in load_schema("accelerate")["properties"]:
        check_text("a.yaml", json.dumps({**YAML, key: odd}))
    for key in load_schema("accelerate")["$defs"]["deepspeed"]["properties"]:
        check_text("a.yaml", json.dumps({**YAML, "deepspeed_config": {key: odd}}))
