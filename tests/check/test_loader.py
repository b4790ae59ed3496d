"""What the loaders refuse and what becomes of the rest: every key with every odd value, against the loaders."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from consumers import accelerate_refusal, deepspeed_refusal
from mutations import JSON_SUPPLY, YAML_BASES, YAML_SUPPLY

from planner.check.loader import refusals
from planner.check.loader.kept import outcome_of
from planner.check.loader.launching import launch_refusals
from planner.check.loader.typed import resolved
from planner.check.one_file.key_names import REMOVED_IN
from planner.check.one_file.schema import load_schema
from planner.records.problem import Severity

BASE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
}
RANKS = 2


def places(schema: Mapping[str, Any], part: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key that the schema knows, sections inside sections too."""
    part = resolved(schema, part)
    for option in part.get("anyOf", (part,)):
        for key, inner in option.get("properties", {}).items():
            yield (*path, key)
            if len(path) < 4:
                yield from places(schema, inner, (*path, key))


def with_value(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    document = copy.deepcopy(BASE)
    section = document
    for key in path[:-1]:
        section = section.setdefault(key, {})
    section[path[-1]] = value
    return document


@pytest.mark.slow
@pytest.mark.deepspeed
def test_every_key_with_every_odd_value_is_refused_where_deepspeed_refuses_it() -> None:
    pytest.importorskip("deepspeed")
    schema, seen = load_schema("deepspeed"), Counter[str]()
    for path in dict.fromkeys(places(schema, schema)):
        if path[-1] in REMOVED_IN.get("$", ()):
            continue
        for value in JSON_SUPPLY.values:
            document = with_value(path, value)
            refused = deepspeed_refusal(document, RANKS)
            found = refusals(document, schema, RANKS)
            if "auto" in (document.get("train_batch_size"), document["train_micro_batch_size_per_gpu"]):
                continue
            if document.get("gradient_accumulation_steps") == "auto":
                continue
            assert bool(refused) == bool(found), (document, refused, found)
            seen["refused" if refused else "loads"] += 1
    print(dict(seen))
    assert seen["refused"] > 5_000
    assert seen["loads"] > 5_000


@pytest.mark.slow
@pytest.mark.accelerate
def test_every_value_in_an_accelerate_file_is_refused_where_accelerate_refuses_it() -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    yaml = pytest.importorskip("yaml")
    seen: Counter[str] = Counter()
    named = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}
    for base in YAML_BASES:
        keys = [(key,) for key in base]
        keys += [(key, inner) for key, value in base.items() if isinstance(value, dict) for inner in value]
        for number, (path, value) in enumerate((path, value) for path in keys for value in YAML_SUPPLY.values):
            if number % 3 == 0:  # a third of them; the random tests draw from all
                document = copy.deepcopy(base)
                section = document[path[0]] if len(path) == 2 else document
                section[path[-1]] = value
                text = yaml.safe_dump(document)
                refused = accelerate_refusal(text, named)
                found = launch_refusals(yaml.safe_load(text))
                assert bool(refused) == bool(found), (path, value, refused, found)
                seen["refused" if refused else "loads"] += 1
    print(dict(seen))
    assert min(seen["refused"], seen["loads"]) > 1_000


BOOLEAN = {"type": "boolean"}
# place, value, what the schema wants, how bad, when
KEPT: tuple[tuple[str, Any, dict[str, Any], Severity, str], ...] = (
    ("$.dump_state", "false", BOOLEAN, Severity.ERROR, "silently"),
    ("$.dump_state", "true", BOOLEAN, Severity.WARNING, "silently"),
    ("$.prescale_gradients", 0, BOOLEAN, Severity.WARNING, "silently"),
    ("$.activation_checkpointing.partition_activations", "auto", BOOLEAN, Severity.ERROR, "silently"),
    ("$.fp16.enabled", "yes", BOOLEAN, Severity.WARNING, "silently"),
    ("$.gradient_clipping", "1.0", {"type": "number"}, Severity.ERROR, "first step"),
    ("$.gradient_clipping", -1, {"type": "number"}, Severity.WARNING, "silently"),
    ("$.train_micro_batch_size_per_gpu", 2.0, {"type": "integer"}, Severity.WARNING, "silently"),
    ("$.train_micro_batch_size_per_gpu", 2.5, {"type": "integer"}, Severity.ERROR, "silently"),
    ("$.optimizer.params.lr", "1e-5", {"type": "number"}, Severity.ERROR, "engine init"),
    ("$.log_level", "loud", {"enum": []}, Severity.ERROR, "engine init"),
)


@pytest.mark.parametrize(("path", "value", "wanted", "severity", "bites"), KEPT)
def test_a_kept_value_bites_later(
    path: str, value: Any, wanted: dict[str, Any], severity: Severity, bites: str
) -> None:
    outcome = outcome_of(path, value, wanted)
    assert outcome is not None
    assert (outcome.severity, outcome.bites) == (severity, bites)


def test_a_word_in_another_case_is_what_was_meant() -> None:
    assert outcome_of("$.communication_data_type", "FP32", {}) is None
    assert outcome_of("$.log_level", "INFO", {}) is None


@pytest.mark.slow
@pytest.mark.deepspeed
def test_deepspeed_reads_switches_as_the_outcomes_say() -> None:
    """A plain switch is only asked whether it is true; a typed one is converted."""
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig

    config = DeepSpeedConfig({**BASE, "dump_state": "false", "fp16": {"enabled": "no"}, "gradient_clipping": "1.0"})
    assert bool(config.dump_state) is True
    assert config.float16_config.enabled is False
    assert config.gradient_clipping == "1.0"


WORDS = (
    *("5", "5.", "5.0", " 5 ", "+5", "-0", "1_0", "1__0", "_1", "5e3", "0x5", "٣", "05", ".0", "1e0", "5.0.0", ""),
    *("0.5", "0.5\n", "nan", "inf", ".5", "0x1p-1", "½", "٠.٥", "TRUE", " true", "t", "On", "y", "no", "None", "2"),
    *(0.0, 1.0, 2, -1, 1.5, True, False, None, 10**30, float("nan"), float("inf"), [], {}),
)


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("zero", "reduce_bucket_size"),
        ("zero", "stage"),
        ("zero", "overlap_comm"),
        ("offload", "ratio"),
        ("fp16", "hysteresis"),
    ],
)
def test_words_are_converted_as_pydantic_converts_them(section: str, key: str) -> None:
    pytest.importorskip("deepspeed")
    blocks: dict[str, Any] = {
        "zero": lambda value: {"zero_optimization": {key: value}},
        "offload": lambda value: {"zero_optimization": {"stage": 3, "offload_optimizer": {key: value}}},
        "fp16": lambda value: {"fp16": {key: value}},
    }
    schema = load_schema("deepspeed")
    for word in WORDS:
        document = {"train_micro_batch_size_per_gpu": 1, **blocks[section](word)}
        assert bool(refusals(document, schema, RANKS)) == bool(deepspeed_refusal(document, RANKS)), (key, word)
