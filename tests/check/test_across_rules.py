"""Rules that need the machine, the model, the launch line or the files of other nodes: each finds its fault at its
place, and says nothing of the nearest right case."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from planner.check import RULES
from planner.check.context import Context, Reader
from planner.check.given import context_of
from planner.check.one_run.across import across_problems, settled
from planner.check.one_run.cards import capability_of
from planner.check.one_run.known_models import BUILT_IN_LEAVES, parameters_of, type_of
from planner.check.one_run.run_facts import half_precision, ranks_of, zero_stage
from planner.check.together import File, Kind, Together
from planner.records.problem import Problem, Severity

GOOD: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 50_000_000, "allgather_bucket_size": 50_000_000},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
}
YAML: dict[str, Any] = {
    "distributed_type": "DEEPSPEED",
    "num_machines": 1,
    "num_processes": 8,
    "deepspeed_config": {"deepspeed_config_file": "ds_config.json"},
}
ZERO, TP = "$.zero_optimization", "$.tensor_parallel.autotp_size"
STAGE_3 = {"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}}
FP16 = {"bf16": {"enabled": False}, "fp16": {"enabled": True}}
NVME = {"device": "nvme", "nvme_path": "/nvme"}


def zero(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True, **keys}}


# what is laid over GOOD, the flags, the rule, the place; then the same that is right
CASES: tuple[tuple[dict[str, Any], dict[str, Any], str, str, dict[str, Any], dict[str, Any]], ...] = (
    ({}, {"gpus": "4xTITAN X (Pascal)"}, "DS401", "$.bf16.enabled", {}, {"gpus": "4x3090"}),
    ({}, {"gpus": "8xV100-32G"}, "DS401", "$.bf16.enabled", FP16, {"gpus": "8xV100-32G"}),
    ({}, {"gpus": "2xT4"}, "DS401", "$.bf16.enabled", {}, {"gpus": "2xL4"}),
    (FP16, {"gpus": "2xP100"}, "DS401", "$.fp16.enabled", FP16, {"gpus": "2x2080Ti"}),
    (
        {"train_batch_size": 8},
        {"gpus": "4"},
        "DS021",
        "$.train_batch_size",
        {"train_batch_size": 32},
        {"gpus": "4"},
    ),
    (
        {"train_batch_size": 32, "tensor_parallel": {"autotp_size": 2}},
        {"gpus": "8xA100-80G"},
        "DS021",
        "$.train_batch_size",
        {"train_batch_size": 64, "tensor_parallel": {"autotp_size": 2}},
        {"gpus": "8xA100-80G"},
    ),
    (
        {"train_batch_size": 10, "train_micro_batch_size_per_gpu": None},
        {"gpus": "4"},
        "DS021",
        "$.train_batch_size",
        {"train_batch_size": 32, "train_micro_batch_size_per_gpu": None},
        {"gpus": "4"},
    ),
    (
        {"tensor_parallel": {"autotp_size": 4}},
        {"gpus": "6"},
        "DS051",
        TP,
        {"tensor_parallel": {"autotp_size": 3}},
        {"gpus": "6"},
    ),
    (
        {"tensor_parallel": {"autotp_size": 16}},
        {"gpus": "2x8xA100-80G"},
        "DS403",
        TP,
        {"tensor_parallel": {"autotp_size": 8}},
        {"gpus": "2x8xA100-80G"},
    ),
    (
        zero(zero_hpz_partition_size=6),
        {"gpus": "8"},
        "DS404",
        f"{ZERO}.zero_hpz_partition_size",
        STAGE_3,
        {"gpus": "2x8xA100-80G"},
    ),
    (
        {**FP16, "zero_optimization": {"stage": 2, "reduce_bucket_size": 500_000_000, "allgather_bucket_size": 1000}},
        {"gpus": "8xV100-16G"},
        "DS405",
        f"{ZERO}.reduce_bucket_size",
        {"zero_optimization": {"stage": 2}},
        {"gpus": "8xA100-80G"},
    ),
    (
        {"sequence_parallel_size": 3},
        {"gpus": "8"},
        "DS406",
        "$.sequence_parallel_size",
        {"sequence_parallel_size": 4},
        {"gpus": "8"},
    ),
    (
        zero(offload_param={**NVME, "buffer_count": 50, "buffer_size": 500_000_000}),
        {"gpus": "8xA100-80G", "host_ram": 256},
        "DS407",
        f"{ZERO}.offload_param.buffer_size",
        zero(offload_param={**NVME, "buffer_count": 5, "buffer_size": 100_000_000}),
        {"gpus": "8xA100-80G", "host_ram": 256},
    ),
    (
        {"tensor_parallel": {"autotp_size": 8}},
        {"model": "Qwen/Qwen2.5-7B"},
        "DS410",
        TP,
        {"tensor_parallel": {"autotp_size": 4}},
        {"model": "Qwen/Qwen2.5-7B"},
    ),
    (
        {"tensor_parallel": {"autotp_size": 2}},
        {"model": "mistralai/Mixtral-8x7B-v0.1"},
        "DS411",
        TP,
        {"tensor_parallel": {"autotp_size": 2}},
        {"model": "meta-llama/Llama-2-7b-hf"},
    ),
    (
        {"tensor_parallel": {"autotp_size": 2}},
        {"model": "gpt2"},
        "DS411",
        TP,
        {"tensor_parallel": {"autotp_size": 2}},
        {"model": "mistralai/Mixtral-8x7B-v0.1", "deepspeed_version": "0.18.2"},
    ),
    (
        FP16,
        {"model": "Qwen/Qwen2.5-7B", "gpus": "8xA100-80G"},
        "DS412",
        "$.fp16.enabled",
        FP16,
        {"model": "facebook/opt-6.7b", "gpus": "8xA100-80G"},
    ),
    (FP16, {"model": "t5/t5-11b"}, "DS412", "$.fp16.enabled", FP16, {"model": "EleutherAI/pythia-6.9b"}),
    (
        STAGE_3,
        {"model": "deepseek-ai/DeepSeek-V3"},
        "DS414",
        f"{ZERO}.leaf_module",
        zero(leaf_module={"classes": ["transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3MoE"]}),
        {"model": "deepseek-ai/DeepSeek-V3"},
    ),
    (
        zero(leaf_module={"classes": ["SomeOther"]}),
        {"model": "mistralai/Mixtral-8x7B-v0.1"},
        "DS414",
        f"{ZERO}.leaf_module",
        STAGE_3,
        {"model": "mistralai/Mixtral-8x7B-v0.1"},
    ),
    (
        STAGE_3,
        {"model": "allenai/OLMoE-1B-7B-0924"},
        "DS414",
        f"{ZERO}.leaf_module",
        {},
        {"model": "allenai/OLMoE-1B-7B-0924"},
    ),
    (
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
        {"model": "THUDM/chatglm-6b", "host_ram": 125},
        "DS415",
        f"{ZERO}.offload_optimizer.device",
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
        {"model": "THUDM/chatglm-6b", "host_ram": 256},
    ),
    (
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
        {"model": "meta-llama/Llama-2-13b-hf", "gpus": "8xA100-80G", "host_ram": 128},
        "DS415",
        f"{ZERO}.offload_optimizer.device",
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
        {"model": "meta-llama/Llama-2-13b-hf", "gpus": "8xA100-80G", "host_ram": 1024},
    ),
    (
        {},
        {"model": "meta-llama/Llama-2-13b-hf", "gpus": "4xA100-40G"},
        "DS416",
        f"{ZERO}.stage",
        zero(offload_optimizer={"device": "cpu"}),
        {"model": "meta-llama/Llama-2-13b-hf", "gpus": "4xA100-80G"},
    ),
    (
        {"sequence_parallel_size": 4},
        {"model": "Qwen/Qwen2.5-7B"},
        "DS076",
        "$.sequence_parallel_size",
        {"sequence_parallel_size": 4},
        {"trainer": "deepspeed"},
    ),
    (
        {"sequence_parallel_size": 8},
        {"model": "Qwen/Qwen2.5-7B"},
        "DS417",
        "$.sequence_parallel_size",
        {"sequence_parallel_size": 4},
        {"model": "Qwen/Qwen2.5-7B"},
    ),
    (
        {"sequence_parallel_size": 4},
        {"seq_len": 1022},
        "DS417",
        "$.sequence_parallel_size",
        {"sequence_parallel_size": 4},
        {"seq_len": 1024},
    ),
    (
        zero(offload_param={**NVME, "buffer_size": 1_000_000}),
        {"model": "meta-llama/Llama-2-13b-hf", "gpus": "8xA100-80G"},
        "DS418",
        f"{ZERO}.offload_param.buffer_size",
        zero(offload_param={**NVME, "buffer_size": 200_000_000}),
        {"model": "meta-llama/Llama-2-13b-hf", "gpus": "8xA100-80G"},
    ),
    (
        zero(leaf_module={"classes": ["A"]}),
        {"deepspeed_version": "0.17.6"},
        "DS501",
        f"{ZERO}.leaf_module",
        zero(leaf_module={"classes": ["A"]}),
        {"deepspeed_version": "0.18.0"},
    ),
    (
        {"tensor_parallel": {"autotp_size": 2}},
        {"deepspeed_version": "0.14.0"},
        "DS501",
        "$.tensor_parallel",
        {"tensor_parallel": {"autotp_size": 2}},
        {"deepspeed_version": "0.16.4"},
    ),
    (
        {**STAGE_3, "tensor_parallel": {"autotp_size": 2}},
        {"deepspeed_version": "0.18.9"},
        "DS501",
        TP,
        {**STAGE_3, "tensor_parallel": {"autotp_size": 2}},
        {"deepspeed_version": "0.19.4"},
    ),
    (
        {
            "optimizer": {"type": "Lion", "params": {"lr": 1e-5}},
            "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        },
        {"deepspeed_version": "0.17.0"},
        "DS501",
        "$.optimizer.type",
        {"optimizer": {"type": "Lion", "params": {"lr": 1e-5}}},
        {"deepspeed_version": "0.17.0"},
    ),
    ({}, {"deepspeed_version": "0.25.0"}, "DS502", "$", {}, {"deepspeed_version": "0.19.8"}),
    (
        {"train_batch_size": 64},
        {"launcher": "mpirun"},
        "DS311",
        "$.train_batch_size",
        {"train_batch_size": 64},
        {"launcher": "torchrun"},
    ),
    (
        {"zero_optimization": None},
        {"trainer": "accelerate"},
        "DS069",
        ZERO,
        {"zero_optimization": None},
        {"trainer": "deepspeed"},
    ),
    (
        {"activation_checkpointing": {"cpu_checkpointing": True}},
        {"trainer": "trainer"},
        "DS070",
        "$.activation_checkpointing",
        {"activation_checkpointing": {"cpu_checkpointing": False}},
        {"trainer": "trainer"},
    ),
    (
        {"optimizer": None, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
        {"trainer": "deepspeed"},
        "DS071",
        f"{ZERO}.offload_optimizer.device",
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
        {"trainer": "deepspeed"},
    ),
    (
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 10}}},
        {},
        "DS072",
        "$.scheduler.params.warmup_max_lr",
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-5, "warmup_num_steps": 10}}},
        {},
    ),
    (
        {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_max_lr": "auto"}}},
        {"trainer": "accelerate"},
        "DS068",
        "$.scheduler.params.total_num_steps",
        {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 100, "warmup_max_lr": "auto"}}},
        {"trainer": "accelerate"},
    ),
)
ELSEWHERE = {"DS413": "test_auto_sizes", "DS014": "test_reader_rules", "DS013": "test_differential"}


def file(name: str, kind: Kind, document: Any) -> File:
    return File(name=name, kind=kind, text="", document=document)


def deepspeed(change: dict[str, Any]) -> Together:
    document = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    return Together(deepspeed=file("ds_config.json", Kind.DEEPSPEED, document))


def at(run: Together, context: Context, rule: str, path: str | None = None) -> list[Problem]:
    found = settled(across_problems(run, context), context)
    return [p for p in found if p.rule == rule and path in (None, p.path)]


@pytest.mark.parametrize(("wrong", "flags", "rule", "path", "right", "right_flags"), CASES)
def test_the_fault_is_found_and_the_right_case_is_left_alone(
    wrong: dict[str, Any],
    flags: dict[str, Any],
    rule: str,
    path: str,
    right: dict[str, Any],
    right_flags: dict[str, Any],
) -> None:
    (problem,) = at(deepspeed(wrong), context_of(**flags), rule, path)
    assert problem.message
    assert problem.fix
    assert problem.file == "ds_config.json"
    assert at(deepspeed(right), context_of(**right_flags), rule) == []


def with_yaml(change: dict[str, Any], *, files: bool = True, **others: Any) -> Together:
    yaml = {key: value for key, value in {**YAML, **change}.items() if value is not None}
    given = {"deepspeed": file("ds_config.json", Kind.DEEPSPEED, GOOD)} if files else {}
    return Together(accelerate=(file("a.yaml", Kind.ACCELERATE, yaml),), **given, **others)


def launched(flags: dict[str, Any], launcher: str = "accelerate") -> File:
    line = {"launcher": launcher, "launcher_flags": flags, "script": "train.py", "script_flags": {}}
    return file("launch.sh", Kind.LAUNCH, line)


@pytest.mark.parametrize(
    ("run", "flags", "rule", "path"),
    [
        (with_yaml({}, launch=launched({"zero_stage": "3"})), {}, "DS310", "$.launcher_flags.zero_stage"),
        (with_yaml({}, launch=launched({"mixed_precision": "fp16"})), {}, "DS310", "$.launcher_flags.mixed_precision"),
        (with_yaml({}, launch=launched({})), {}, "DS312", "$.launcher_flags.config_file"),
        (with_yaml({"num_processes": 4}), {"gpus": "8"}, "DS123", "$.num_processes"),
        (with_yaml({"num_processes": 8, "num_machines": 2}), {"gpus": "2x8xA100-80G"}, "DS123", "$.num_processes"),
        (with_yaml({"num_machines": 1}), {"gpus": "2x4xA100-80G"}, "DS123", "$.num_machines"),
    ],
)
def test_launch_line_and_counts(run: Together, flags: dict[str, Any], rule: str, path: str) -> None:
    assert len(at(run, context_of(**flags), rule, path)) == 1


def test_flags_of_accelerate_launch_are_judged_like_a_yaml() -> None:
    flags = {"use_deepspeed": True, "zero_stage": "2", "offload_param_device": "cpu", "num_machines": "2"}
    run = Together(launch=launched(flags))
    found = {(problem.rule, problem.path) for problem in across_problems(run, Context())}
    launcher = "$.launcher_flags.deepspeed_multinode_launcher"
    assert {("DS125", "$.launcher_flags.offload_param_device"), ("DS122", launcher)} <= found
    right = Together(launch=launched({"use_deepspeed": True, "zero_stage": "3", "zero3_save_16bit_model": "true"}))
    assert across_problems(right, Context()) == []


def test_a_launch_line_that_names_its_file_and_nothing_twice_is_fine() -> None:
    run = with_yaml({}, launch=launched({"config_file": "a.yaml", "num_processes": "8"}))
    found = across_problems(run, context_of(gpus="8xA100-80G"))
    assert [problem for problem in found if problem.rule in ("DS310", "DS312", "DS123")] == []


def test_the_files_of_two_machines_have_to_go_together() -> None:
    def nodes(**second: Any) -> Together:
        base = {**YAML, "num_machines": 2, "num_processes": 16, "machine_rank": 0, "main_process_ip": "10.0.0.1"}
        return Together(
            accelerate=(
                file("n0.yaml", Kind.ACCELERATE, base),
                file("n1.yaml", Kind.ACCELERATE, {**base, "machine_rank": 1, **second}),
            )
        )

    assert at(nodes(), Context(), "DS314") == []
    for change, path in (
        ({"machine_rank": 0}, "$.machine_rank"),
        ({"num_processes": 8}, "$.num_processes"),
        ({"main_process_ip": "10.0.0.2"}, "$.main_process_ip"),
        ({"deepspeed_config": {"zero_stage": 3}}, "$.deepspeed_config.zero_stage"),
    ):
        assert {problem.path for problem in at(nodes(**change), Context(), "DS314")} >= {path}
        assert all(problem.file == "n1.yaml" for problem in at(nodes(**change), Context(), "DS314"))


def test_the_trainer_does_not_see_tensor_parallelism_through_the_yaml() -> None:
    document = {**GOOD, "tensor_parallel": {"autotp_size": 2}}
    yaml = file("a.yaml", Kind.ACCELERATE, YAML)
    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "bf16": True}
    for named, expected in (({}, 1), ({"deepspeed": "ds_config.json"}, 0)):
        training = file("args.json", Kind.TRAINING, {**arguments, **named})
        run = Together(
            deepspeed=file("ds_config.json", Kind.DEEPSPEED, document), accelerate=(yaml,), training=training
        )
        assert len(at(run, Context(), "DS315")) == expected


@pytest.mark.parametrize(
    ("config", "trainer", "found"),
    [
        ({"model_type": "encoder-decoder", "hidden_size": None}, "trainer", True),
        ({"model_type": "vision-encoder-decoder"}, "accelerate", True),
        ({"model_type": "llava", "text_config": {"hidden_size": 4096}}, "accelerate", True),
        ({"model_type": "llava", "text_config": {"hidden_size": 4096}}, "trainer", False),
        ({"model_type": "made_up", "hidden_size": 64}, "trainer", False),
        ({"model_type": "gpt2", "n_embd": 768}, "accelerate", False),
        ({"model_type": "encoder-decoder"}, "deepspeed", False),
    ],
)
def test_auto_sizes_need_a_width_that_the_reader_finds(config: dict[str, Any], trainer: str, found: bool) -> None:
    keys = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    run = deepspeed({"zero_optimization": {"stage": 3, **dict.fromkeys(keys, "auto")}})
    context = dataclasses.replace(context_of(trainer=trainer), model_config=config)
    problems = at(run, context, "DS413")
    assert [problem.path for problem in problems] == ([f"{ZERO}.{key}" for key in keys] if found else [])


def test_every_rule_of_several_files_has_a_case() -> None:
    here = {case[2] for case in CASES} | {"DS310", "DS312", "DS123", "DS314", "DS315", *ELSEWHERE}
    arguments = {"DS301", "DS302", "DS303", "DS304", "DS305", "DS306", "DS320", "DS321", "DS322"}
    alone = {"DS320", "DS321", "DS322"}  # test_arguments_file.py
    line = {"DS313", "DS316", "DS317", "DS318", "DS319", "DS324", "DS325", "DS326"}  # test_launcher_rules.py
    facts = {"DS307", "DS323", "DS419"}  # test_facts.py
    trainer = {"DS308", "DS309"}  # test_trainer_rules.py
    assert {rule for rule in RULES if rule >= "DS300"} <= here | arguments | alone | line | facts | trainer


def test_a_yaml_alone_decides_stage_and_precision() -> None:
    change = {"mixed_precision": "bf16", "deepspeed_config": {"zero_stage": 3}}
    run = with_yaml(change, files=False)
    stage, half = zero_stage(run), half_precision(run)
    assert (stage and stage.value, half and half.value) == (3, "bf16")
    assert ranks_of(run, Context()) == 8
    (problem,) = at(run, context_of(gpus="8xV100-32G"), "DS401")
    assert (problem.file, problem.path) == ("a.yaml", "$.mixed_precision")
    (problem,) = at(run, context_of(model="deepseek-ai/DeepSeek-V3"), "DS414")
    assert problem.path == "$.deepspeed_config.deepspeed_moe_layer_cls_names"


def test_an_argument_that_fills_auto_is_the_place_of_the_finding() -> None:
    document = {**GOOD, "bf16": {"enabled": "auto"}}
    training = file("args.json", Kind.TRAINING, {"bf16": True})
    run = Together(deepspeed=file("ds.json", Kind.DEEPSPEED, document), training=training)
    (problem,) = at(run, context_of(gpus="8xV100-32G"), "DS401")
    assert (problem.file, problem.path) == ("args.json", "$.bf16")


def test_the_estimate_warns_and_never_is_an_error() -> None:
    context = context_of(model="70b", gpus="8xA100-80G", host_ram=64)
    change = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    found = [p for p in across_problems(deepspeed(change), context) if p.rule in ("DS415", "DS416")]
    assert {problem.severity for problem in found} == {Severity.WARNING}
    assert {problem.rule for problem in found} == {"DS415", "DS416"}


def test_training_arguments_decide_whether_layers_are_checkpointed() -> None:
    context = context_of(model="7b", gpus="8xA100-80G")
    for on, expected in ((True, 0), (False, 1)):
        training = file("args.json", Kind.TRAINING, {"gradient_checkpointing": on, "bf16": True})
        document = {**GOOD, "train_micro_batch_size_per_gpu": 8}
        run = Together(deepspeed=file("ds.json", Kind.DEEPSPEED, document), training=training)
        assert len(at(run, context, "DS416")) == expected


@pytest.mark.parametrize(
    ("name", "capability"),
    # https://developer.nvidia.com/cuda-gpus and https://developer.nvidia.com/cuda-legacy-gpus
    [
        ("TITAN X (Pascal)", (6, 1)),
        ("GeForce GTX TITAN X", (5, 2)),
        ("NVIDIA TITAN Xp", (6, 1)),
        ("TITAN V", (7, 0)),
        ("NVIDIA TITAN RTX", (7, 5)),
        ("Tesla V100-SXM2-32GB", (7, 0)),
        ("Tesla P100-PCIE-16GB", (6, 0)),
        ("Tesla P40", (6, 1)),
        ("Tesla P4", (6, 1)),
        ("GeForce GTX 1080 Ti", (6, 1)),
        ("GeForce GTX 1660 Ti", (7, 5)),
        ("NVIDIA GeForce RTX 2080 Ti", (7, 5)),
        ("T4", (7, 5)),
        ("Quadro RTX 8000", (7, 5)),
        ("NVIDIA A100-SXM4-80GB", (8, 0)),
        ("A30", (8, 0)),
        ("NVIDIA A10G", (8, 6)),
        ("NVIDIA RTX A6000", (8, 6)),
        ("3090", (8, 6)),
        ("NVIDIA L40S", (8, 9)),
        ("RTX 6000 Ada", (8, 9)),
        ("RTX 4090", (8, 9)),
        ("H100 PCIe", (9, 0)),
        ("GH200", (9, 0)),
        ("B200", (10, 0)),
        ("RTX 5090", (12, 0)),
        ("Tesla M40", (5, 2)),
        ("Tesla K80", (3, 7)),
        ("MI300X", None),
        ("nothing", None),
    ],
)
def test_compute_capability_by_name(name: str, capability: tuple[int, int] | None) -> None:
    assert capability_of(name) == capability
    assert capability_of(f"8x{name}") == capability


def test_catalogue_and_table_agree_on_bf16() -> None:
    from planner.catalog import tables

    compared = 0
    for name in tables.gpu_names():
        capability = capability_of(name)
        if capability is not None:
            gpu = tables.gpu_record(tables.identify_gpu(name)[0])
            assert (capability >= (8, 0)) == gpu.has_bf16, name
            compared += 1
    assert compared >= 40


@pytest.mark.parametrize(
    ("name", "model_type", "parameters"),
    [
        ("deepseek-ai/DeepSeek-V3", "deepseek_v3", None),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2", 7_000_000_000),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "llama", 70_000_000_000),
        ("google/flan-t5-xxl", "t5", None),
        ("THUDM/chatglm-6b", "chatglm", 6_000_000_000),
        ("some/model", None, None),
    ],
)
def test_what_a_name_alone_tells(name: str, model_type: str | None, parameters: int | None) -> None:
    context = Context(model_name=name, reader=Reader.TRAINER)
    assert (type_of(context), parameters_of(context)) == (model_type, parameters)


@pytest.mark.deepspeed
def test_the_built_in_leaves_are_those_of_the_installed_deepspeed() -> None:
    module = pytest.importorskip("deepspeed.runtime.zero.leaf_module_config")
    assert list(BUILT_IN_LEAVES) == module.DEFAULT_LEAF_MODULE_CLASSES


@pytest.mark.transformers
@pytest.mark.slow
def test_the_tables_of_model_types_are_those_of_the_installed_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1] / "oracles"))
    from build_check_models import TABLE, tables

    from planner import toml

    shipped = toml.loads(TABLE.read_text(encoding="utf-8"))
    if not transformers.__version__.startswith(shipped["transformers"]):
        pytest.skip("the tables are of another transformers")
    fresh = toml.loads(tables())
    assert {key: shipped[key] for key in fresh} == fresh
    assert len(shipped["blocks"]) > 60


@pytest.mark.parametrize(
    ("model", "gpus", "others"),
    [
        ("7b", "4xA100-80G", {}),
        ("7b", "8xV100-32G", {}),
        ("13b", "2x8xH100-80G", {}),
        ("7b", "1x4090", {"method": "lora"}),
        ("mixtral-8x7b", "2x8xH100-80G", {}),
        ("qwen2.5-7b", "8xA100-80G", {"tp": "2", "integration": "accelerate"}),
        ("7b", "8xA100-80G", {"zero": "3", "integration": "deepspeed", "launcher": "torchrun"}),
        ("13b", "4xA100-40G", {"host_ram": 512}),
    ],
)
def test_a_plan_has_no_findings_with_its_own_machine_and_model(
    model: str, gpus: str, others: dict[str, Any], tmp_path: Path
) -> None:
    from planner import plan
    from planner.check import check

    answer = plan(model=model, gpus=gpus, out=tmp_path / "plan", **others)
    assert answer.fits
    known = {"model": model, "gpus": gpus, **({"host_ram": others["host_ram"]} if "host_ram" in others else {})}
    assert check(tmp_path / "plan", **known).findings == ()
    assert check(tmp_path / "plan").findings == ()
