"""1,000 plans across models, clusters and flags, found by the search itself: every reader takes every file as meant.

The first 150 run in the fast suite, the others with the slow tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from trainer_values import after_the_trainer, filled

import planner
from planner.check import check, check_files
from planner.errors import PlannerError

SEED = 20_260
FIRST, ALL = 150, 1_000
PARTS = [pytest.param("first", id="150"), pytest.param("others", id="850", marks=pytest.mark.slow)]
CHOICES: dict[str, tuple[Any, ...]] = {
    "model": (
        *("7b", "13b", "llama-3.1-8b", "qwen2.5-7b", "mistral-7b", "gemma-2-9b", "opt-13b", "pythia-12b"),
        *("falcon-7b", "gpt2-xl", "qwen2.5-0.5b"),
    ),
    "gpus": (
        *("1xA100-80G", "4xA100-80G", "8xA100-40G", "8xH100-80G", "2x8xH100-80G", "4x8xA100-80G", "8xV100-32G"),
        *("4xRTX-4090", "p4d.24xlarge", "2xp4d.24xlarge", "p5.48xlarge"),
    ),
    "seq_len": (512, 1024),
    "host_ram": (256, 1024, 2048),
    "launcher": ("accelerate", "deepspeed", "torchrun"),
    "integration": ("trainer", "accelerate", "deepspeed"),
    "zero": ("0", "1", "2", "3", "2,3"),
    "tp": ("1", "1", "2", "4", "1,2"),
    "offload": ("none", "none", "optimizer", "optimizer+param", "nvme"),
    "checkpointing": ("none", "full", "none,full"),
    "micro_batch": ("1", "2", "4", "1-8"),
}
SOMETIMES: dict[str, tuple[Any, ...]] = {
    "accumulation": (1, 2, 5),
    "precision": ("auto", "fp16", "fp32", "pure-bf16"),
    "optimizer": ("adamw", "adamw-8bit", "adafactor", "lion", "muon", "sgd"),
    "method": ("lora", "qlora"),
    "loss": ("fused",),
    "objective": ("memory", "cost"),
}


@dataclass(frozen=True, kw_only=True)
class Rendered:
    fields: Mapping[str, Any]
    document: Mapping[str, Any]
    files: Mapping[str, str]

    @property
    def best(self) -> Mapping[str, Any]:
        return self.document["plans"][0]

    @property
    def world_size(self) -> int:
        return self.best["tp"] * self.best["dp"]

    def engine(self) -> dict[str, Any]:
        return json.loads(self.files["ds_config.json"])


def drawn(draw: Random) -> Iterator[Rendered]:
    """Plans without end; requests that are refused or have no plan are passed over."""
    asked, found = 0, 0
    while True:
        asked += 1
        assert asked < 100 + 20 * found, f"only {found} of {asked} requests have a plan"
        fields = {name: draw.choice(values) for name, values in CHOICES.items()}
        fields |= {name: draw.choice(values) for name, values in SOMETIMES.items() if draw.random() < 0.3}
        try:
            answer = planner.plan(**fields, top=1)
        except PlannerError:
            continue
        if answer.fits:
            found += 1
            yield Rendered(fields=fields, document=answer.to_dict(), files=answer.files())


@pytest.fixture(scope="module")
def source() -> Iterator[Rendered]:
    return drawn(Random(SEED))


@pytest.fixture(scope="module")
def first(source: Iterator[Rendered]) -> list[Rendered]:
    return [next(source) for _ in range(FIRST)]


@pytest.fixture(scope="module")
def others(source: Iterator[Rendered], first: list[Rendered]) -> list[Rendered]:
    return [next(source) for _ in range(ALL - len(first))]


@pytest.fixture
def plans(request: pytest.FixtureRequest) -> list[Rendered]:
    return request.getfixturevalue(request.param)


in_parts = pytest.mark.parametrize("plans", PARTS, indirect=True)


@in_parts
def test_our_own_check_finds_nothing(plans: list[Rendered]) -> None:
    for plan in plans:
        assert check_files(plan.files) == [], plan.fields
    assert len(plans) in (FIRST, ALL - FIRST)


@in_parts
def test_dsplan_check_finds_nothing_in_the_folder(plans: list[Rendered], tmp_path: Path) -> None:
    """Every tenth plan, written: with the rules between files, and those that need GPUs, model and host memory."""
    for number, plan in enumerate(plans[::10]):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in plan.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        known = {name: plan.fields[name] for name in ("gpus", "model", "seq_len", "host_ram")}
        findings = check(folder, **known).findings
        if plan.best["precision"] == "fp16":  # asked for, or all that the card has: that bf16 would be safer is true
            findings = tuple(found for found in findings if found.rule != "DS412")
        assert findings == (), plan.fields
        assert check(folder).findings == (), plan.fields
    assert number + 1 == len(plans) // 10


@in_parts
def test_the_plans_are_of_every_kind(plans: list[Rendered]) -> None:
    def seen(name: str, where: str = "request") -> set[Any]:
        return {(plan.best if where == "plan" else plan.document[where])[name] for plan in plans}

    assert seen("zero_stage", "plan") == {0, 1, 2, 3}
    assert seen("tp", "plan") == {1, 2, 4}
    assert seen("offload", "plan") == {"none", "optimizer", "optimizer+param", "nvme"}
    assert seen("checkpointing", "plan") == {"none", "full"}
    assert seen("precision", "plan") == {"bf16", "fp16", "fp32", "pure-bf16"}
    assert seen("optimizer") == set(SOMETIMES["optimizer"])
    assert seen("method") == {"full", "lora", "qlora"}
    assert seen("launcher") == set(CHOICES["launcher"])
    assert seen("integration") == set(CHOICES["integration"])
    assert seen("loss") == {"standard", "fused"}
    assert seen("nodes", "cluster") == {1, 2, 4}


@in_parts
@pytest.mark.deepspeed
def test_deepspeed_reads_every_file_as_the_plan_says(plans: list[Rendered], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed")
    import deepspeed.comm as dist
    from deepspeed.runtime.config import DeepSpeedConfig

    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    for plan in plans:
        best, fields = plan.best, plan.fields
        monkeypatch.setattr(dist, "get_world_size", lambda group=None, size=plan.world_size: size)
        read = DeepSpeedConfig(plan.engine())
        assert read.zero_optimization_stage == best["zero_stage"], fields
        assert read.train_micro_batch_size_per_gpu == best["micro_batch"], fields
        assert read.gradient_accumulation_steps == best["accumulation"], fields
        assert max(1, read.tensor_parallel_config.autotp_size) == best["tp"], fields
        assert read.bfloat16_config.enabled is (best["precision"] in ("bf16", "pure-bf16")), fields
        assert read.float16_config.enabled is (best["precision"] == "fp16"), fields
        offload = read.zero_config.offload_optimizer
        assert (offload is not None) is (best["offload"] != "none"), fields
        gathers = best["zero_stage"] == 3 or best["tp"] > 1
        assert read.zero_config.gather_16bit_weights_on_model_save is gathers, fields


@in_parts
@pytest.mark.accelerate
def test_accelerate_reads_every_file(plans: list[Rendered], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.utils import DeepSpeedPlugin

    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    yaml, engine, handed_over = tmp_path / "accelerate.yaml", tmp_path / "ds_config.json", 0
    for plan in plans:
        yaml.write_text(plan.files["accelerate.yaml"], encoding="utf-8")
        read, best, fields = load_config_from_file(str(yaml)), plan.best, plan.fields
        assert read.num_processes == plan.world_size, fields
        assert read.num_machines == plan.document["cluster"]["nodes"], fields
        assert str(read.distributed_type) == "DistributedType.DEEPSPEED", fields
        assert read.deepspeed_config["zero3_init_flag"] is (best["zero_stage"] == 3), fields
        if fields["integration"] != "accelerate":
            continue
        engine.write_text(plan.files["ds_config.json"], encoding="utf-8")
        monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", ",".join(read.deepspeed_config))
        monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO3_INIT", str(read.deepspeed_config["zero3_init_flag"]).lower())
        plugin = DeepSpeedPlugin(hf_ds_config=str(engine))
        # accelerate itself replaces steps_per_print
        assert plugin.deepspeed_config == {**plan.engine(), "steps_per_print": float("inf")}, fields
        assert plugin.zero3_init_flag is (best["zero_stage"] == 3), fields
        handed_over += 1
    assert handed_over > len(plans) // 5


@in_parts
@pytest.mark.transformers
def test_the_trainer_fills_the_optimizers_values_and_nothing_else(plans: list[Rendered]) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("deepspeed")
    pytest.importorskip("accelerate")
    read_by_trainer = [plan for plan in plans if plan.fields["integration"] == "trainer"]
    for plan in read_by_trainer:
        arguments = json.loads(plan.files["training_args.json"])
        hidden = plan.document["model"]["hidden"]
        read = after_the_trainer(plan.engine(), arguments, world_size=plan.world_size, hidden=hidden)
        assert read.config == filled(plan.engine(), arguments), plan.fields
        assert '"auto"' not in json.dumps(read.config), plan.fields
        assert arguments["activation_checkpointing"] is (plan.best["checkpointing"] == "full"), plan.fields
    assert len(read_by_trainer) > len(plans) // 5


@in_parts
def test_without_the_trainer_nothing_is_left_to_be_filled(plans: list[Rendered]) -> None:
    read_by_loops = [plan for plan in plans if plan.fields["integration"] != "trainer"]
    for plan in read_by_loops:
        assert '"auto"' not in plan.files["ds_config.json"], plan.fields
        assert "training_args.json" not in plan.files, plan.fields
    assert len(read_by_loops) > len(plans) // 3
