""" "auto" by reader: what accelerate and the Trainer refuse or fill is what the rules say."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from planner.check.context import Context, Reader
from planner.check.one_file.schema import load_schema
from planner.check.one_run.across import across_problems, reader_of, settled
from planner.check.one_run.reader_rules import UNCHOSEN
from planner.check.rules import finding
from planner.check.together import File, Kind, Together
from planner.records.problem import Problem, Severity

# What `_prepare_deepspeed` hands to `deepspeed_config_process` with DummyOptim, DummyScheduler and a dataloader.
FILLED_BY_PREPARE = {
    "gradient_clipping": 1.0,
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": False,
    "train_micro_batch_size_per_gpu": 2,
    "train_batch_size": 2,
    "zero_optimization.reduce_bucket_size": 4096,
    "zero_optimization.stage3_prefetch_bucket_size": 3686,
    "zero_optimization.stage3_param_persistence_threshold": 640,
    "optimizer.params.lr": 1e-3,
    "optimizer.params.weight_decay": 0.0,
    "scheduler.params.warmup_min_lr": 0,
    "scheduler.params.warmup_max_lr": 1e-3,
    "scheduler.params.warmup_num_steps": 1,
    "scheduler.params.total_num_steps": 10,
}


def run_of(document: dict[str, Any]) -> Together:
    return Together(deepspeed=File(name="ds.json", kind=Kind.DEEPSPEED, text="", document=document))


def errors(document: dict[str, Any], reader: Reader, rule: str = "DS014") -> list[Problem]:
    found = across_problems(run_of(document), Context(reader=reader))
    return [problem for problem in found if problem.rule == rule and problem.severity is Severity.ERROR]


def keys_of_the_schema() -> Iterator[str]:
    schema = load_schema("deepspeed")

    def below(part: dict[str, Any], path: str) -> Iterator[str]:
        for option in (part, *part.get("anyOf", ())):
            resolved = schema["$defs"][option["$ref"].removeprefix("#/$defs/")] if "$ref" in option else option
            for key, value in resolved.get("properties", {}).items():
                name = f"{path}.{key}" if path else key
                yield name
                yield from below(value, name)

    names = [name for name in below(schema, "") if name.count(".") < 3 and not name.startswith(("$", "_", "comment"))]
    return iter(sorted({*names, "scheduler.params.warmup_num_steps", "scheduler.params.cos_min_ratio"}))


def with_auto(path: str) -> dict[str, Any]:
    document: dict[str, Any] = {"gradient_accumulation_steps": 1, "zero_optimization": {"stage": 3}}
    *sections, key = path.split(".")
    place = document
    for name in sections:
        place = place.setdefault(name, {})
    place[key] = "auto"
    return document


@pytest.mark.accelerate
def test_accelerate_refuses_auto_exactly_where_the_rule_has_an_error() -> None:
    pytest.importorskip("deepspeed")
    utils = pytest.importorskip("accelerate.utils")
    tried, refused = 0, 0
    for path in keys_of_the_schema():
        document = with_auto(path)
        if not isinstance(document["zero_optimization"], dict):
            continue
        try:
            plugin = utils.DeepSpeedPlugin(hf_ds_config=copy.deepcopy(document))
            plugin.set_mixed_precision("no")
            plugin.fill_match("gradient_accumulation_steps", must_match=False, gradient_accumulation_steps=1)
            filled = dict(FILLED_BY_PREPARE)
            if "train_micro_batch_size_per_gpu" not in document:  # the total is computed from it
                del filled["train_batch_size"]
            plugin.deepspeed_config_process(must_match=False, **filled)
            raises = False
        except (ValueError, TypeError, AttributeError):
            raises = True
        if path in ("fp16", "bf16", "zero_optimization.offload_optimizer", "zero_optimization.offload_param"):
            continue  # a section that is a word; other rules refuse it
        found = [problem for problem in errors(document, Reader.ACCELERATE) if problem.path not in UNCHOSEN]
        assert bool(found) == raises, path
        tried, refused = tried + 1, refused + raises
    assert tried > 150
    assert refused > tried / 2


@pytest.mark.accelerate
def test_accelerate_fills_stage_and_devices_with_a_default_of_its_own() -> None:
    pytest.importorskip("deepspeed")
    utils = pytest.importorskip("accelerate.utils")
    defaults = {}
    for path in UNCHOSEN:
        plugin = utils.DeepSpeedPlugin(hf_ds_config=with_auto(path.removeprefix("$.")))
        defaults[path] = plugin.get_value(path.removeprefix("$."))
        for reader in (Reader.ACCELERATE, Reader.TRAINER):
            assert [(one.path, one.bites) for one in errors(with_auto(path.removeprefix("$.")), reader)] == [
                (path, "silently")
            ]
    offload = "$.zero_optimization.offload"
    assert defaults == {
        "$.zero_optimization.stage": 2,
        f"{offload}_optimizer.device": "none",
        f"{offload}_param.device": "none",
    }


def test_the_trainer_fills_betas_and_eps_too() -> None:
    for key in ("betas", "eps"):
        document = with_auto(f"optimizer.params.{key}")
        assert errors(document, Reader.ACCELERATE) != []
        assert errors(document, Reader.TRAINER) == []


@pytest.mark.parametrize(
    ("path", "bites"),
    [
        ("train_micro_batch_size_per_gpu", "config"),
        ("gradient_clipping", "first step"),
        ("scheduler.params.warmup_max_lr", "engine init"),
        ("optimizer.params.lr", "engine init"),
        ("bf16.enabled", "silently"),
        ("zero_optimization.reduce_bucket_size", "silently"),
    ],
)
def test_nothing_fills_auto_for_a_plain_script(path: str, bites: str) -> None:
    (problem,) = errors(with_auto(path), Reader.DEEPSPEED)
    assert (problem.path, problem.bites) == (f"$.{path}", bites)
    assert errors(with_auto(path), Reader.TRAINER) == []


def test_without_a_reader_auto_is_left_to_the_file_rules() -> None:
    found = across_problems(run_of(with_auto("gradient_clipping")), Context())
    assert [problem.rule for problem in found if problem.rule == "DS014"] == []


def test_zenflows_own_auto_is_a_value_for_deepspeed_and_refused_by_accelerate() -> None:
    document = with_auto("zero_optimization.zenflow.select_strategy")
    assert errors(document, Reader.DEEPSPEED) == []
    assert len(errors(document, Reader.ACCELERATE)) == 1


def test_the_total_of_dummyscheduler_is_named_under_accelerate_only() -> None:
    document = with_auto("scheduler.params.total_num_steps")
    for reader, expected in ((Reader.ACCELERATE, 1), (Reader.TRAINER, 0)):
        found = across_problems(run_of(document), Context(reader=reader))
        assert len([problem for problem in found if problem.rule == "DS068"]) == expected


def test_the_reader_is_told_by_the_files() -> None:
    file = File(name="ds.json", kind=Kind.DEEPSPEED, text="", document={})
    arguments = File(name="args.json", kind=Kind.TRAINING, text="", document={})
    yaml = {"deepspeed_config": {"deepspeed_config_file": "ds.json"}}
    accelerate = File(name="a.yaml", kind=Kind.ACCELERATE, text="", document=yaml)
    alone = File(name="a.yaml", kind=Kind.ACCELERATE, text="", document={"deepspeed_config": {"zero_stage": 2}})
    assert reader_of(Together(deepspeed=file), Context()) is None
    assert reader_of(Together(deepspeed=file, accelerate=(accelerate,)), Context()) is Reader.ACCELERATE
    assert reader_of(Together(accelerate=(alone,)), Context()) is None
    assert (
        reader_of(Together(deepspeed=file, accelerate=(accelerate,), training=arguments), Context()) is Reader.TRAINER
    )
    line = {"launcher": "accelerate", "launcher_flags": {}, "script": "run_clm_no_trainer.py", "script_flags": {}}
    launch = File(name="launch.sh", kind=Kind.LAUNCH, text="", document=line)
    assert reader_of(Together(deepspeed=file, training=arguments, launch=launch), Context()) is Reader.ACCELERATE
    plain = Context(reader=Reader.DEEPSPEED)
    assert reader_of(Together(deepspeed=file, training=arguments), plain) is Reader.DEEPSPEED


def test_of_two_findings_with_one_rule_and_place_the_worse_one_stays() -> None:
    mild = finding("DS014", "$.a", "x", fix="y", severity=Severity.WARNING, file="f")
    hard = finding("DS014", "$.a", "z", fix="y", file="f")
    other = finding("DS014", "$.b", "x", fix="y", file="f")
    assert settled([mild, other, hard], Context()) == [hard, other]
    assert settled([hard, mild], Context()) == [hard]


def test_the_init_flag_of_the_yaml_needs_stage_three_in_the_file() -> None:
    block = {"deepspeed_config_file": "ds.json", "zero3_init_flag": True}
    yaml = {"distributed_type": "DEEPSPEED", "deepspeed_config": block}
    accelerate = File(name="a.yaml", kind=Kind.ACCELERATE, text="", document=yaml)
    for stage, expected in ((2, ["a.yaml"]), (3, [])):
        file = File(name="ds.json", kind=Kind.DEEPSPEED, text="", document={"zero_optimization": {"stage": stage}})
        found = across_problems(Together(deepspeed=file, accelerate=(accelerate,)), Context())
        assert [problem.file for problem in found if problem.rule == "DS132"] == expected
