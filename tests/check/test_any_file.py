"""Whatever lies in a file, `check` answers: findings or a PlannerError, never a traceback."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import (
    ARGUMENTS,
    BASES,
    JSON_SUPPLY,
    PLAN,
    TRAINER_BASES,
    YAML_BASES,
    YAML_SUPPLY,
    Supply,
    mutated,
)

from planner.check import check
from planner.check.given import context_of
from planner.check.mending.fix import fix_paths
from planner.check.sarif import sarif
from planner.errors import PlannerError

NAMES = ("ds_config.json", "accelerate.yaml", "training_args.json", "training_args", "launch.sh", "plan.json", "a.txt")
CONTEXTS: tuple[dict[str, Any], ...] = (
    {},
    {"trainer": "trainer", "gpus": "2x8xA100-80G"},
    {"trainer": "accelerate", "gpus": "4xTITAN X (Pascal)"},
    {"trainer": "deepspeed", "gpus": "8", "launcher": "torchrun"},
    {"gpus": "8xV100-32G", "model": "7b", "seq_len": 2048, "host_ram": 128},
    {"deepspeed_version": "0.14.4"},
)
ALMOST = settings(derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
)
KEYS = sorted({key for base in (*BASES, *YAML_BASES, ARGUMENTS, PLAN) for key in base})
SECTION_KEYS = sorted(
    {
        key
        for base in (*BASES, *YAML_BASES)
        for part in base.values()
        for key in (part if isinstance(part, dict) else ())
    }
)
documents = st.dictionaries(
    st.sampled_from(KEYS), values | st.dictionaries(st.sampled_from(SECTION_KEYS), values, max_size=5), max_size=8
)
PIECES = (
    *("{", "}", "[", "]", ":", ",", '"', "'", "\n", "  ", "- ", "# ", "//", "/*", "*/", "&a ", "*a", "<<: ", "!!x "),
    *("null", "true", "1e999", "1" * 5000, "0x1F", "\\u0000", "\ufeff", "\x00", "|", ">", "%", "@", "`", "---\n"),
    *("zero_optimization", "stage", "deepspeed_config", "accelerate launch ", "deepspeed ", "torchrun ", "--bf16 "),
    *(
        "--config_file a.yaml ",
        "--deepspeed a.json ",
        "train.py ",
        "\\\n",
        "$(",
        "$X",
        "<<EOF\n",
        "EOF\n",
        "&& ",
        "'''",
    ),
)
texts = st.lists(st.sampled_from(PIECES), max_size=25).map("".join) | st.text(max_size=60)


def looked_at(files: dict[str, bytes], context: dict[str, Any]) -> Counter[str]:
    """Every way to ask about these files; how many findings, and errors of the caller."""
    seen: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in files]
        for path, content in zip(paths, files.values(), strict=True):
            path.write_bytes(content)
        for targets in (paths, [folder]):
            try:
                result = check(*targets, **context)
                json.dumps([result.to_dict(), sarif(result)])
                fix_paths([str(target) for target in targets], context_of(**context))
                seen["findings"] += len(result.findings)
            except PlannerError:
                seen["refused"] += 1
    return seen


@pytest.mark.parametrize("examples", [60, pytest.param(800, marks=pytest.mark.slow)])
def test_bytes_and_texts(examples: int) -> None:
    seen: Counter[str] = Counter()

    @settings(ALMOST, max_examples=examples)
    @given(st.sampled_from(NAMES), st.binary(max_size=200) | texts.map(lambda text: text.encode("utf-8", "replace")))
    def answers(name: str, content: bytes) -> None:
        seen.update(looked_at({name: content}, {}))

    answers()
    assert seen["findings"] > examples / 4


@pytest.mark.parametrize("examples", [60, pytest.param(800, marks=pytest.mark.slow)])
def test_documents_with_anything_anywhere(examples: int) -> None:
    seen: Counter[str] = Counter()

    @settings(ALMOST, max_examples=examples)
    @given(st.sampled_from(NAMES), documents, documents, st.sampled_from(CONTEXTS))
    def answers(name: str, one: Any, other: Any, context: dict[str, Any]) -> None:
        both = {name: json.dumps(one).encode(), "other.json": json.dumps(other).encode()}
        seen.update(looked_at(both, context))

    answers()
    assert seen["findings"] > examples


@pytest.mark.parametrize("examples", [60, pytest.param(800, marks=pytest.mark.slow)])
def test_runs_of_broken_files(examples: int) -> None:
    """DeepSpeed, Accelerate, arguments and plan together, broken as the differential tests break them."""
    seen: Counter[str] = Counter()

    @settings(ALMOST, max_examples=examples)
    @given(st.randoms(use_true_random=False))
    def answers(random: Random) -> None:
        files = {
            "ds_config.json": mutated(random.choice((*BASES, *TRAINER_BASES)), JSON_SUPPLY, random),
            "accelerate.yaml": mutated(random.choice(YAML_BASES), YAML_SUPPLY, random),
            "training_args.json": mutated(
                ARGUMENTS, Supply(bases=(ARGUMENTS,), keys=KEYS, values=JSON_SUPPLY.values), random
            ),
            "plan.json": mutated(PLAN, Supply(bases=(PLAN,), keys=KEYS, values=JSON_SUPPLY.values), random),
        }
        chosen = {
            name: json.dumps(files[name], indent=1).encode() for name in files if random.choice((True, True, False))
        }
        seen.update(looked_at(chosen or {"a.json": b"{}"}, random.choice(CONTEXTS)))

    answers()
    assert seen["findings"] > examples


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 50_000,
        '{"zero_optimization":' * 500 + "1" + "}" * 500,
        "a: " * 2000,
        "- " * 20_000,
        "{a: " * 20_000,
        '{"train_batch_size": ' + "9" * 100_000 + "}",
        '{"train_batch_size": 1e99999999}',
        "num_processes: " + "9" * 50_000,
        "a: &a [x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: [*c,*c]",
        "? [a, b]\n: c",
        "1: 2\nnull: 3\ntrue: 4\n",
        "",
        "\n",
        "\ufeff",
        "\ufeff{}",
        '"text"',
        "[]",
        "0",
        '{"\ud800": 1}',
    ],
    ids=range(20),
)
@pytest.mark.parametrize("name", ["ds_config.json", "accelerate.yaml", "training_args", "launch.sh"])
def test_deep_huge_and_empty_texts(name: str, text: str) -> None:
    looked_at({name: text.encode("utf-8", "surrogatepass")}, {})
