"""300 plans across models, clusters and flags, found by the search itself: the real parsers take every file."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from trainer_values import optimizer_arguments

import planner
from planner.check import check_files
from planner.errors import PlannerError

SEED = 20_260
WANTED = 300
MODELS = (
    "7b",
    "13b",
    "llama-3.1-8b",
    "qwen2.5-7b",
    "mistral-7b",
    "gemma-2-9b",
    "opt-13b",
    "pythia-12b",
    "falcon-7b",
    "gpt2-xl",
)
CLUSTERS = (
    "1xA100-80G",
    "4xA100-80G",
    "8xA100-40G",
    "8xH100-80G",
    "2x8xH100-80G",
    "4x8xA100-80G",
    "8xV100-32G",
    "4xRTX-4090",
)


def draw_fields(draw: Random) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "model": draw.choice(MODELS),
        "gpus": draw.choice(CLUSTERS),
        "seq_len": draw.choice((512, 1024, 2048)),
        "host_ram": draw.choice((256, 1024, 2048)),
        "launcher": draw.choice(("accelerate", "deepspeed", "torchrun")),
        "top": 1,
    }
    optional: dict[str, tuple[Any, ...]] = {
        "zero": ("0", "1", "2", "3", "2,3"),
        "tp": ("1", "2", "1,2,4"),
        "offload": ("none", "optimizer", "optimizer+param", "nvme", "none,optimizer"),
        "checkpointing": ("none", "full"),
        "micro_batch": ("1", "2", "1-8"),
        "accumulation": (1, 2, 5),
        "precision": ("auto", "fp16", "fp32", "pure-bf16"),
        "optimizer": ("adamw", "adamw-8bit", "adafactor", "lion", "muon", "sgd"),
        "objective": ("throughput", "memory", "cost"),
    }
    for name, values in optional.items():
        if draw.random() < 0.4:
            fields[name] = draw.choice(values)
    return fields


@pytest.fixture(scope="module")
def rendered() -> list[tuple[dict[str, Any], dict[str, Any], dict[str, str]]]:
    """(fields, plan document, files) of the first 300 requests that have a plan."""
    draw, found, asked = Random(SEED), [], 0
    while len(found) < WANTED:
        asked += 1
        assert asked < 20 * WANTED, f"only {len(found)} of {asked} requests have a plan"
        fields = draw_fields(draw)
        try:
            answer = planner.plan(**fields)
        except PlannerError:
            continue
        if answer.fits:
            found.append((fields, answer.to_dict(), answer.files()))
    return found


@pytest.mark.slow
def test_our_own_check_finds_nothing(rendered: list[tuple[Any, Any, dict[str, str]]]) -> None:
    for fields, _, files in rendered:
        assert check_files(files) == [], fields
    assert len(rendered) == WANTED


@pytest.mark.slow
@pytest.mark.deepspeed
def test_deepspeed_reads_every_file_as_the_plan_says(
    rendered: list[tuple[Any, dict[str, Any], dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("deepspeed")
    import deepspeed.comm as dist
    from deepspeed.runtime.config import DeepSpeedConfig

    stages = set()
    for fields, document, files in rendered:
        best = document["plans"][0]
        monkeypatch.setattr(dist, "get_rank", lambda: 0)
        monkeypatch.setattr(dist, "get_world_size", lambda group=None, size=best["tp"] * best["dp"]: size)
        read = DeepSpeedConfig(json.loads(files["ds_config.json"]))
        assert read.zero_optimization_stage == best["zero_stage"], fields
        assert read.train_micro_batch_size_per_gpu == best["micro_batch"], fields
        assert read.gradient_accumulation_steps == best["accumulation"], fields
        assert max(1, read.tensor_parallel_config.autotp_size) == best["tp"], fields
        assert read.bfloat16_config.enabled is (best["precision"] in ("bf16", "pure-bf16")), fields
        assert read.float16_config.enabled is (best["precision"] == "fp16"), fields
        offload = read.zero_config.offload_optimizer
        assert (offload is not None) is (best["offload"] != "none"), fields
        stages.add(best["zero_stage"])
    assert stages == {0, 1, 2, 3}


@pytest.mark.slow
@pytest.mark.accelerate
def test_accelerate_reads_every_file(
    rendered: list[tuple[Any, dict[str, Any], dict[str, str]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file

    path = tmp_path_factory.mktemp("accelerate") / "accelerate.yaml"
    for fields, document, files in rendered:
        path.write_text(files["accelerate.yaml"], encoding="utf-8")
        read = load_config_from_file(str(path))
        best = document["plans"][0]
        assert read.num_processes == best["tp"] * best["dp"], fields
        assert read.num_machines == document["cluster"]["nodes"], fields
        assert str(read.distributed_type) == "DistributedType.DEEPSPEED", fields
        assert read.deepspeed_config["zero3_init_flag"] is (best["zero_stage"] == 3), fields


@pytest.mark.slow
@pytest.mark.transformers
def test_the_trainer_fills_nothing_in(rendered: list[tuple[Any, dict[str, Any], dict[str, str]]]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("deepspeed")
    pytest.importorskip("accelerate")
    from types import SimpleNamespace

    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    for fields, document, files in rendered:
        config, best = json.loads(files["ds_config.json"]), document["plans"][0]
        arguments = SimpleNamespace(
            world_size=best["tp"] * best["dp"],
            per_device_train_batch_size=best["micro_batch"],
            gradient_accumulation_steps=best["accumulation"],
            max_grad_norm=config["gradient_clipping"],
            **optimizer_arguments(document, config),
            save_on_each_node=False,
            fp16=best["precision"] == "fp16",
            bf16=best["precision"] in ("bf16", "pure-bf16"),
            fp16_full_eval=False,
            bf16_full_eval=False,
            get_warmup_steps=lambda steps: 0,
        )
        read = HfTrainerDeepSpeedConfig(json.loads(files["ds_config.json"]))
        read.trainer_config_process(arguments)
        model = SimpleNamespace(config=SimpleNamespace(hidden_size=document["model"]["hidden"]))
        read.trainer_config_finalize(arguments, model, 100)
        assert read.config == config, fields
