"""TrainingArguments against DeepSpeed file and YAML: the rules say what the installed Trainer and accelerate do."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planner.check.context import Context
from planner.check.one_run.across import across_problems
from planner.check.one_run.argument_rules import DEFAULTS
from planner.check.together import File, Kind, Together
from planner.records.problem import Problem, Severity

STEPS, HIDDEN, WORLD = 100, 64, 8
GIVEN: dict[str, tuple[Any, ...]] = {
    "per_device_train_batch_size": (1, 2, 8),
    "gradient_accumulation_steps": (1, 4),
    "max_grad_norm": (1.0, 0.5, 0),
    "learning_rate": (5e-5, 1e-5),
    "adam_beta1": (0.9, 0.8),
    "adam_beta2": (0.999, 0.95),
    "adam_epsilon": (1e-8, 1e-6),
    "weight_decay": (0.0, 0.1),
    "warmup_steps": (0, 10, 0.1),
    "fp16": (False, True),
    "bf16": (False, True),
    "auto_find_batch_size": (False, True),
    "max_steps": (STEPS,),
}
WRITTEN: dict[str, tuple[Any, ...]] = {
    "train_micro_batch_size_per_gpu": ("auto", 2, 8, "8"),
    "gradient_accumulation_steps": ("auto", 1, 4),
    "train_batch_size": ("auto", 16, 64, 256),
    "gradient_clipping": ("auto", 1.0, 0.5, 0),
    "optimizer.params.lr": ("auto", 5e-5, 1e-5),
    "optimizer.params.betas": ("auto", [0.9, 0.999], [0.9, 0.95]),
    "optimizer.params.eps": ("auto", 1e-8, 1e-6),
    "optimizer.params.weight_decay": ("auto", 0, 0.1),
    "scheduler.params.warmup_max_lr": ("auto", 5e-5, 1e-5),
    "scheduler.params.warmup_num_steps": ("auto", 1, 10, 500),
    "scheduler.params.total_num_steps": ("auto", STEPS, 1000),
    "fp16.enabled": ("auto", False, True),
    "bf16.enabled": ("auto", False, True),
}


def together(document: Any, arguments: dict[str, Any], yaml: dict[str, Any] | None = None) -> Together:
    def file(name: str, kind: Kind, content: Any) -> File:
        return File(name=name, kind=kind, text="", document=content)

    return Together(
        deepspeed=None if document is None else file("ds_config.json", Kind.DEEPSPEED, document),
        accelerate=() if yaml is None else (file("accelerate.yaml", Kind.ACCELERATE, yaml),),
        training=file("training_args.json", Kind.TRAINING, arguments),
    )


def found(rule: str, run: Together, ranks: int | None = WORLD) -> list[Problem]:
    return [problem for problem in across_problems(run, Context(ranks=ranks)) if problem.rule == rule]


def as_arguments(given: dict[str, Any]) -> SimpleNamespace:
    """What `HfTrainerDeepSpeedConfig` reads of TrainingArguments, which themselves need a GPU for bf16."""
    import math

    values = {**DEFAULTS, "fp16": False, "bf16": False, "auto_find_batch_size": False, **given}
    warmup = values["warmup_steps"]
    steps = int(warmup) if warmup >= 1 else math.ceil(STEPS * warmup)
    return SimpleNamespace(
        world_size=WORLD,
        save_on_each_node=False,
        fp16_full_eval=False,
        bf16_full_eval=False,
        get_warmup_steps=lambda _: steps,
        **values,
    )


def mismatches(document: dict[str, Any], given: dict[str, Any]) -> set[str]:
    """The keys that transformers itself lists."""
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    arguments = as_arguments(given)
    config = HfTrainerDeepSpeedConfig(copy.deepcopy(document))
    config.trainer_config_process(arguments, auto_find_batch_size=arguments.auto_find_batch_size)
    try:
        model = SimpleNamespace(config=SimpleNamespace(hidden_size=HIDDEN))
        config.trainer_config_finalize(arguments, model, STEPS)
    except ValueError as error:
        return {f"$.{key}" for key in re.findall(r"- ds ([\w.]+)=", str(error))}
    return set()


def document_of(values: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {"zero_optimization": {"stage": 2}}
    for path, value in values.items():
        *sections, key = path.split(".")
        place = document
        for name in sections:
            place = place.setdefault(name, {})
        place[key] = value
    return document


@pytest.mark.transformers
def test_the_trainer_lists_exactly_the_places_that_the_rule_names() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("deepspeed")
    chance, pairs, mismatched = random.Random(20261130), 400, 0
    for _ in range(pairs):
        given = {name: chance.choice(values) for name, values in GIVEN.items() if chance.random() < 0.6}
        given["max_steps"] = STEPS
        if given.get("fp16") and given.get("bf16"):
            given["bf16"] = False
        written = {path: chance.choice(values) for path, values in WRITTEN.items() if chance.random() < 0.7}
        document = document_of(written)
        expected = mismatches(document, given)
        errors = [p for p in found("DS301", together(document, given)) if p.severity is Severity.ERROR]
        assert {problem.path for problem in errors} == expected, (document, given)
        mismatched += bool(expected)
    assert mismatched > pairs / 2


@pytest.mark.transformers
def test_the_defaults_are_those_of_the_installed_class() -> None:
    transformers = pytest.importorskip("transformers")
    fields = {field.name: field.default for field in dataclasses.fields(transformers.TrainingArguments)}
    assert len(DEFAULTS) == 10
    assert {name: fields[name] for name in DEFAULTS} == DEFAULTS


def worker(yaml: dict[str, Any], given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a process that `accelerate launch` started makes of YAML and arguments; empty where nothing raises."""
    from accelerate.utils import DeepSpeedPlugin
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    for name in list(os.environ):
        if name.startswith("ACCELERATE_"):
            monkeypatch.delenv(name)
    block, mixed = yaml["deepspeed_config"], yaml.get("mixed_precision", "no")
    names = {
        "zero_stage": "DEEPSPEED_ZERO_STAGE",
        "gradient_accumulation_steps": "GRADIENT_ACCUMULATION_STEPS",
        "gradient_clipping": "GRADIENT_CLIPPING",
    }
    for key, value in block.items():
        monkeypatch.setenv(f"ACCELERATE_{names[key]}", str(value))
    fields = [*block, *(["mixed_precision"] if "mixed_precision" in yaml else [])]
    monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", ",".join(fields))
    arguments = as_arguments(given)
    half = "fp16" if arguments.fp16 else "bf16" if arguments.bf16 else mixed
    try:
        if "deepspeed" in given:
            config = HfTrainerDeepSpeedConfig({"zero_optimization": {"stage": 2}})
            config.trainer_config_process(arguments)
            plugin = DeepSpeedPlugin(hf_ds_config=config)
        else:
            plugin = DeepSpeedPlugin()
            plugin.set_mixed_precision(half)
            plugin.hf_ds_config = HfTrainerDeepSpeedConfig(plugin.hf_ds_config.config)
            plugin.hf_ds_config.trainer_config_process(arguments)
        model = SimpleNamespace(config=SimpleNamespace(hidden_size=HIDDEN))
        plugin.hf_ds_config.trainer_config_finalize(arguments, model, STEPS)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.accelerate
def test_the_yaml_and_the_arguments_agree_where_the_worker_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    chance, pairs, refused = random.Random(7), 200, 0
    for _ in range(pairs):
        block = {"zero_stage": 2}
        if chance.random() < 0.6:
            block["gradient_accumulation_steps"] = chance.choice((1, 4))
        if chance.random() < 0.6:
            block["gradient_clipping"] = chance.choice((1.0, 0.5, 0))
        yaml = {"distributed_type": "DEEPSPEED", "num_processes": WORLD, "deepspeed_config": block}
        if chance.random() < 0.5:
            yaml["mixed_precision"] = chance.choice(("bf16", "fp16"))
        given = {name: chance.choice(GIVEN[name]) for name in GIVEN if chance.random() < 0.5}
        given = {key: value for key, value in given.items() if key != "auto_find_batch_size"}
        if given.get("fp16") and given.get("bf16"):
            given["bf16"] = False
        document = None
        if chance.random() < 0.3:
            given["deepspeed"], document = "ds_config.json", {"zero_optimization": {"stage": 2}}
        said = worker(yaml, given, monkeypatch)
        run = together(document, given, yaml)
        problems = [p for rule in ("DS303", "DS120") for p in found(rule, run) if p.bites != "silently"]
        errors = [p for p in problems if p.severity is Severity.ERROR]
        assert bool(errors) == bool(said), (yaml, given, said, errors)
        refused += bool(said)
    assert pairs / 4 < refused < pairs


@pytest.mark.parametrize(
    ("norm", "absent", "release", "named"),
    [
        (0.3, True, (), True),
        (1.0, True, (), False),
        (0.3, False, (), False),
        (1.0, True, (0, 18, 9), True),
        (0, True, (0, 18, 9), False),
    ],
)
def test_an_absent_clipping_value_is_named_where_the_arguments_want_another(
    norm: float, absent: bool, release: tuple[int, ...], named: bool
) -> None:
    document = {"zero_optimization": {"stage": 2}, **({} if absent else {"gradient_clipping": "auto"})}
    run = together(document, {"max_grad_norm": norm})
    problems = [p for p in across_problems(run, Context(deepspeed=release)) if p.rule == "DS302"]
    assert bool(problems) == named
    assert all(problem.edits for problem in problems)


@pytest.mark.parametrize(
    ("arguments", "stage", "path"),
    [
        ({"auto_find_batch_size": True}, 3, "$.auto_find_batch_size"),
        ({"auto_find_batch_size": True}, 2, ""),
        ({"save_only_model": True, "load_best_model_at_end": True}, 2, "$.save_only_model"),
        ({"do_train": False, "do_eval": True}, 2, "$.do_eval"),
        ({"do_train": False, "do_eval": True}, 3, ""),
    ],
)
def test_arguments_that_deepspeed_does_not_bear(arguments: dict[str, Any], stage: int, path: str) -> None:
    run = together({"zero_optimization": {"stage": stage}}, {"deepspeed": "ds_config.json", **arguments})
    assert [problem.path for problem in found("DS305", run)] == ([path] if path else [])


def test_fsdp_and_deepspeed_exclude_each_other() -> None:
    run = together({"zero_optimization": {"stage": 2}}, {"deepspeed": "ds_config.json", "fsdp": "full_shard"})
    assert [problem.path for problem in found("DS304", run)] == ["$.fsdp"]
    run = together(None, {"deepspeed": "ds_config.json"}, {"distributed_type": "FSDP"})
    assert [problem.path for problem in found("DS304", run)] == ["$.distributed_type"]


def test_a_fixed_number_of_steps_without_max_steps_is_a_warning() -> None:
    document = document_of({"scheduler.params.total_num_steps": 1000, "scheduler.params.warmup_num_steps": 1})
    problems = found("DS301", together(document, {"num_train_epochs": 3}))
    assert [(p.path, p.severity) for p in problems] == [("$.scheduler.params.total_num_steps", Severity.WARNING)]


def test_a_total_that_no_number_of_ranks_can_give_is_an_error_without_the_ranks() -> None:
    document, given = document_of({"train_batch_size": 10}), {"per_device_train_batch_size": 4}
    assert [problem.path for problem in found("DS301", together(document, given), None)] == ["$.train_batch_size"]
    document = document_of({"train_batch_size": 12})
    assert found("DS301", together(document, given), None) == []


def test_the_whole_command_places_the_finding(tmp_path: Path) -> None:
    from planner.check import check

    (tmp_path / "ds_config.json").write_text(json.dumps(document_of({"optimizer.params.lr": 1e-4}), indent=1))
    (tmp_path / "training_args.json").write_text(json.dumps({"deepspeed": "ds_config.json", "learning_rate": 1e-5}))
    result = check(tmp_path / "ds_config.json", tmp_path / "training_args.json")
    (problem,) = [p for p in result.findings if p.rule == "DS301"]
    assert (Path(problem.file).name, problem.path) == ("ds_config.json", "$.optimizer.params.lr")
    assert problem.line > 1
