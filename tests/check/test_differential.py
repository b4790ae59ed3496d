"""`check` against the readers themselves, on configurations that were broken at random.

Whenever a reader refuses a file while it loads it, `check` reports an error; whenever `check` says that a file is
refused while it is loaded, the reader refuses it.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from consumers import accelerate_json_refusal, accelerate_refusal, deepspeed_refusal, trainer_refusal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import BASES, JSON_SUPPLY, TRAINER_BASES, YAML_BASES, YAML_SUPPLY, mutated, mutated_text, other_arguments

import planner
from planner.check.context import Context, Reader
from planner.check.one_run.across import across_problems, settled
from planner.check.single import look_at
from planner.check.together import Kind, Together
from planner.records.problem import Problem, Severity

NAMED_FILE = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2},
}
FILE_NAMES = {
    Kind.DEEPSPEED: "ds_config.json",
    Kind.ACCELERATE: "accelerate.yaml",
    Kind.TRAINING: "training_args.json",
}
NO_NUMBERS = ("NaN", "Infinity")
# What accelerate fills in alone, without the betas and eps of the Trainer.
WITHOUT_TRAINER = tuple(
    {**base, "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}}} for base in TRAINER_BASES
)
CLEAN = Path(__file__).parents[2].parent / "shared" / "data" / "config_clean.jsonl"


def rendered() -> Iterator[dict[str, str]]:
    """Plans of dsplan, each stage and reader once."""
    for zero, integration, offload, tp in (
        ("3", "trainer", "optimizer+param", "1"),
        ("3", "deepspeed", "none", "2"),
        ("2", "accelerate", "optimizer", "1"),
        ("2", "deepspeed", "none", "1"),
        ("1", "deepspeed", "none", "2"),
        ("0", "trainer", "none", "1"),
    ):
        asked = {"zero": zero, "integration": integration, "offload": offload, "tp": tp}
        answer = planner.plan(model="qwen2.5-0.5b", gpus="4xA100-80G", seq_len=512, top=1, **asked)
        assert answer.fits, asked
        yield answer.files()


@functools.cache
def bases() -> tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]:
    """DeepSpeed and Accelerate documents to break: made by hand, rendered, and known to be correct."""
    yaml = pytest.importorskip("yaml")
    sets: list[dict[str, Any]] = list(rendered())
    if CLEAN.is_file():
        sets += [json.loads(line)["files"] for line in CLEAN.read_text(encoding="utf-8").splitlines()]
    found: dict[str, list[dict[str, Any]]] = {"ds_config.json": list(BASES), "accelerate.yaml": list(YAML_BASES)}
    for files in sets:
        for name, known in found.items():
            if name in files:
                known.append(files[name] if isinstance(files[name], dict) else yaml.safe_load(files[name]))
    return tuple(found["ds_config.json"]), tuple(found["accelerate.yaml"])


def errors(texts: dict[Kind, str], context: Context) -> list[Problem]:
    """What `check` reports about these files, read together."""
    looked = {kind: look_at(FILE_NAMES[kind], text, kind) for kind, text in texts.items()}
    files = {kind: one.files[0] for kind, one in looked.items() if one.files}
    together = Together(
        deepspeed=files.get(Kind.DEEPSPEED),
        accelerate=tuple(files[kind] for kind in (Kind.ACCELERATE,) if kind in files),
        training=files.get(Kind.TRAINING),
    )
    problems = [problem for one in looked.values() for problem in one.problems]
    problems = settled([*problems, *across_problems(together, context)], context)
    return [problem for problem in problems if problem.severity is Severity.ERROR]


def fuzz(examples: int, one: Callable[[Random], tuple[str, list[Problem], Any]]) -> Counter[str]:
    """Both directions for so many examples; `one` gives the reader's refusal, the errors found, and the input."""
    seen: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def both_agree(random: Random) -> None:
        refusal, found, document = one(random)
        seen["refused" if refusal else "loaded"] += 1
        seen["errors"] += bool(found)
        assert found or not refusal, f"not found: {refusal}\n{document}"
        early = [problem for problem in found if problem.bites == "config"]
        assert refusal or not early, f"loads, but: {early[0]}\n{document}"

    both_agree()
    print(dict(seen))
    return seen


def deepspeed_case(random: Random) -> tuple[str, list[Problem], Any]:
    ranks = random.choice((1, 2, 4))
    document = mutated(random.choice(bases()[0]), JSON_SUPPLY, random)
    text = json.dumps(document, indent=1)
    refusal = deepspeed_refusal(document, ranks)
    if not refusal and any(word in text for word in NO_NUMBERS):  # a file with them is read differently
        refusal = deepspeed_refusal(text, ranks)
    return refusal, errors({Kind.DEEPSPEED: text}, Context(ranks=ranks, reader=Reader.DEEPSPEED)), document


def text_case(random: Random) -> tuple[str, list[Problem], Any]:
    # of a path, unlike of a dict, DeepSpeed does not read `sequence_parallel_size`
    document = random.choice([base for base in bases()[0] if "sequence_parallel_size" not in base])
    text = mutated_text(json.dumps(document, indent=random.choice((1, 2, 4))), random)
    context = Context(ranks=4, reader=Reader.DEEPSPEED)
    return deepspeed_refusal(text, 4), errors({Kind.DEEPSPEED: text}, context), text


def accelerate_case(random: Random) -> tuple[str, list[Problem], Any]:
    yaml = pytest.importorskip("yaml")
    text = yaml.safe_dump(mutated(random.choice(bases()[1]), YAML_SUPPLY, random), sort_keys=False)
    return accelerate_refusal(text, NAMED_FILE), errors({Kind.ACCELERATE: text}, Context()), text


def accelerate_json_case(random: Random) -> tuple[str, list[Problem], Any]:
    ranks = random.choice((1, 2, 4))
    document = mutated(random.choice((*bases()[0], *WITHOUT_TRAINER)), JSON_SUPPLY, random)
    document.pop("bfloat16", None)  # accelerate's own `bf16` takes its place, whatever it says
    if "auto" in (document.get("train_micro_batch_size_per_gpu"), document.get("gradient_accumulation_steps")):
        document["train_batch_size"] = "auto"  # a number depends on the data loader
    context = Context(ranks=ranks, reader=Reader.ACCELERATE)
    found = errors({Kind.DEEPSPEED: json.dumps(document, indent=1)}, context)
    return accelerate_json_refusal(document, ranks), found, (ranks, document)


def trainer_case(random: Random) -> tuple[str, list[Problem], Any]:
    ranks = random.choice((1, 2, 8))
    document, arguments = random.choice(TRAINER_BASES), other_arguments(random)
    if random.choice((True, True, False)):
        document = mutated(document, JSON_SUPPLY, random)
    refusal = trainer_refusal(document, arguments, ranks)
    texts = {Kind.DEEPSPEED: json.dumps(document, indent=1), Kind.TRAINING: json.dumps(arguments, indent=1)}
    return refusal, errors(texts, Context(ranks=ranks, reader=Reader.TRAINER)), (document, arguments)


@pytest.mark.deepspeed
@pytest.mark.parametrize("examples", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_deepspeed_refuses_what_check_refuses(examples: int) -> None:
    pytest.importorskip("deepspeed")
    seen = fuzz(examples, deepspeed_case)
    assert seen["refused"] > examples / 4
    assert seen["loaded"] > examples / 4


@pytest.mark.deepspeed
@pytest.mark.parametrize("examples", [300, pytest.param(5_000, marks=pytest.mark.slow)])
def test_deepspeed_refuses_the_same_texts(examples: int) -> None:
    """Slips in the notation: DeepSpeed reads its file as Hjson."""
    pytest.importorskip("deepspeed")
    seen = fuzz(examples, text_case)
    assert seen["refused"] > examples / 5
    assert seen["loaded"] > examples / 5


@pytest.mark.accelerate
@pytest.mark.parametrize("examples", [200, pytest.param(2_000, marks=pytest.mark.slow)])
def test_accelerate_refuses_what_check_refuses(examples: int) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    seen = fuzz(examples, accelerate_case)
    assert seen["refused"] > examples / 5
    assert seen["loaded"] > examples / 5


@pytest.mark.accelerate
@pytest.mark.parametrize("examples", [200, pytest.param(3_000, marks=pytest.mark.slow)])
def test_accelerate_refuses_the_same_deepspeed_files(examples: int) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    seen = fuzz(examples, accelerate_json_case)
    assert seen["refused"] > examples / 5
    assert seen["loaded"] > examples / 10


@pytest.mark.transformers
@pytest.mark.parametrize("examples", [200, pytest.param(3_000, marks=pytest.mark.slow)])
def test_the_trainer_refuses_what_check_refuses(examples: int) -> None:
    for name in ("transformers", "accelerate", "deepspeed"):
        pytest.importorskip(name)
    seen = fuzz(examples, trainer_case)
    assert seen["refused"] > examples / 5
    assert seen["loaded"] > examples / 10


@pytest.mark.parametrize("base", BASES)
def test_the_unbroken_configurations_load_and_have_no_error(base: dict[str, Any]) -> None:
    pytest.importorskip("deepspeed")
    assert deepspeed_refusal(base, 4) == ""
    assert errors({Kind.DEEPSPEED: json.dumps(base)}, Context(ranks=4)) == []


@pytest.mark.parametrize("base", YAML_BASES)
def test_the_unbroken_accelerate_files_load_and_have_no_error(base: dict[str, Any]) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    assert accelerate_refusal(json.dumps(base), NAMED_FILE) == ""
    assert errors({Kind.ACCELERATE: json.dumps(base)}, Context()) == []
