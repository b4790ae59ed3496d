"""The flags of `dsplan check`: what is known of a machine and a model, also where no table holds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.check.context import Reader
from planner.check.given import context_of
from planner.errors import PlannerError


@pytest.mark.parametrize(
    ("gpus", "ranks", "nodes", "name"),
    [
        ("8", 8, None, None),
        (8, 8, None, None),
        ("8 GPUs", 8, None, None),
        ("2x8", 16, None, None),
        ("8xA100-80G", 8, 1, "A100-80G"),
        ("2x8xH100-80G", 16, 2, "H100-80G"),
        ("1x4090", 1, 1, "RTX-4090-24G"),
        ("2xp4d.24xlarge", 16, 2, "A100-40G"),
        ("4xTITAN X (Pascal)", 4, None, "TITAN X (Pascal)"),
        ("TITAN X (Pascal) x 4", 4, None, "TITAN X (Pascal)"),
        ("2x4x1080 Ti", 8, None, "1080 Ti"),
        ("17xA100-80G", 17, None, "A100-80G"),
    ],
)
def test_machines(gpus: Any, ranks: int, nodes: int | None, name: str | None) -> None:
    context = context_of(gpus=gpus)
    assert (context.ranks, context.gpu_name) == (ranks, name)
    assert (context.cluster.nodes if context.cluster else None) == nodes


@pytest.mark.parametrize("gpus", ["", "0", "0x8", "8xA100-800G", "8xA10O-80G", "Foo9000", "x", "-4", "0xA100-80G"])
def test_a_machine_that_means_nothing_is_the_callers_mistake(gpus: str) -> None:
    with pytest.raises(PlannerError) as caught:
        context_of(gpus=gpus)
    assert caught.value.hint


def test_host_memory_is_that_of_the_instance_unless_given() -> None:
    assert context_of(gpus="2xp4d.24xlarge").host_ram_gib == pytest.approx(1152)  # AWS: 1152 GiB
    assert context_of(gpus="2xp4d.24xlarge", host_ram=512).host_ram_gib == 512
    assert context_of(gpus="8").host_ram_gib is None


def test_models(tmp_path: Path) -> None:
    known = context_of(model="meta-llama/Llama-2-7b-hf")
    assert known.model is not None
    assert (known.model.heads, known.model_config and known.model_config["model_type"]) == (32, "llama")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "encoder-decoder", "hidden_size": None}))
    for text in (str(tmp_path), str(tmp_path / "config.json")):
        strange = context_of(model=text)
        assert strange.model is None
        assert strange.model_config == {"model_type": "encoder-decoder", "hidden_size": None}
    (tmp_path / "config.json").write_text("{")
    for text in (str(tmp_path), "lama-7b", str(tmp_path / "absent.json")):
        with pytest.raises(PlannerError):
            context_of(model=text)


@pytest.mark.parametrize(
    ("word", "reader"),
    [("trainer", Reader.TRAINER), ("HF", Reader.TRAINER), ("accelerate", Reader.ACCELERATE), ("none", Reader.DEEPSPEED),
     ("plain", Reader.DEEPSPEED), ("deepspeed", Reader.DEEPSPEED), (None, None)],
)  # fmt: skip
def test_readers(word: str | None, reader: Reader | None) -> None:
    assert context_of(trainer=word).reader is reader


def test_release_launcher_and_length() -> None:
    context = context_of(deepspeed_version="0.16.4", launcher="MPIrun", seq_len="4096")
    assert (context.deepspeed, context.launcher, context.seq_len) == ((0, 16, 4), "mpirun", 4096)
    for wrong in ({"launcher": "torchrum"}, {"deepspeed_version": "x"}, {"seq_len": "0"}, {"host_ram": "inf"}):
        with pytest.raises(PlannerError) as caught:
            context_of(**wrong)
        assert caught.value.hint
