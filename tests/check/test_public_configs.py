"""Public configurations: what their reader does with each file, against what `check` says about it.

The manifest beside the files says what DeepSpeed 0.19.8 and accelerate 1.15 did with them; the slow tests run both
again. `corpus_notes.toml` says why each error that is left on a file that loads is true.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from consumers import accelerate_refusal, deepspeed_refusal

from planner.check import check
from planner.records.problem import Problem, Severity
from planner.toml import loads

SHARED = Path(__file__).parents[2].parent / "shared"
CORPUS = SHARED / "corpus"
pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason="the collected configurations are not beside the checkout")
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
# Refused on the machine where it was tried, for want of fp8 there; no fault of the file.
NOT_THE_FILE = {"accelerate/accelerate__tests__test_configs__0_34_0_fp8.yaml"}
# Words that a reader's message says its cause with, where it names no key.
CAUSE_IN_WORDS = {
    "SageMakerConfig": "compute_environment",
    "Mixture-of-Quantization": "quantize_training",
    "Apex AMP": "amp",
    "compression library": "compression_training",
    "deepspeed_config_file": "deepspeed_config_file",
    "HjsonDecodeError": "text after the end",
}


def manifest(kind: str) -> list[dict[str, str]]:
    with (CORPUS / "manifest.tsv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file, delimiter="\t") if row["kind"] == kind]


def loads_there(row: dict[str, str]) -> bool:
    """Whether the reader takes the file, apart from batch sizes that come from elsewhere."""
    if row["kind"] == "deepspeed":
        return row["structural"] == "ok"
    return (row["as_is"] == "ok" and row["launch"] == "ok") or row["file"] in NOT_THE_FILE


def errors(row: dict[str, str]) -> list[Problem]:
    findings = check(CORPUS / row["file"]).findings
    return [problem for problem in findings if problem.severity is Severity.ERROR]


def notes() -> dict[tuple[str, str], dict[str, str]]:
    read = loads((Path(__file__).parent / "corpus_notes.toml").read_text(encoding="utf-8"))["note"]
    return {(note["rule"], note["path"]): note for note in read}


def errors_on_files_that_load() -> list[tuple[dict[str, str], Problem]]:
    rows = [row for kind in ("deepspeed", "accelerate") for row in manifest(kind) if loads_there(row)]
    return [(row, problem) for row in rows for problem in errors(row)]


def test_every_error_on_a_file_that_loads_is_true() -> None:
    known, used = notes(), Counter[tuple[str, str]]()
    loaded = {kind: sum(map(loads_there, manifest(kind))) for kind in ("deepspeed", "accelerate")}
    for row, problem in errors_on_files_that_load():
        assert (problem.rule, problem.path) in known, (row["file"], problem)
        used[problem.rule, problem.path] += 1
    print(f"loaded: {loaded}; errors on them: {used.total()}, all justified by {len(used)} notes")
    assert loaded == {"deepspeed": 187, "accelerate": 113}
    assert set(used) == set(known), "a note that nothing needs"
    assert used.total() == 40


def causes(row: dict[str, str]) -> set[str]:
    """The keys that the reader's message names."""
    error = row["error"]
    for words, cause in CAUSE_IN_WORDS.items():
        if words in error:
            return {cause}
    if "unknown keys" in error:
        return set(re.findall(r"'(\w+)'", error))
    if error.startswith("ValidationError"):
        return set(re.findall(r"/ (\w+) /", error))
    return set(re.findall(r"'([\w.]+)'", error.partition("has been removed")[0]))


def test_every_refused_file_has_an_error_that_names_the_cause() -> None:
    rows = [row for kind in ("deepspeed", "accelerate") for row in manifest(kind) if not loads_there(row)]
    named = 0
    for row in rows:
        wanted = causes(row)
        said = [f"{problem.path} {problem.message}" for problem in errors(row)]
        assert wanted, row["error"]
        assert any(re.search(rf"\b{re.escape(cause)}\b", words) for cause in wanted for words in said), (row, said)
        named += 1
    print(f"refused: {len(rows)}; causes named: {named}")
    assert (len(rows), named) == (46, 46)


def test_every_ignored_key_is_mentioned() -> None:
    rows = [row for row in manifest("deepspeed") if row["ignored_keys"].strip() and row["structural"] == "ok"]
    for row in rows:
        paths = {problem.path for problem in check(CORPUS / row["file"]).findings}
        for key in row["ignored_keys"].strip().split(","):
            assert f"$.{key}" in paths or key in ("comment", "_comment"), (row["file"], key)
    assert len(rows) == 15


def verdict(refusal: str) -> str:
    return refusal.partition(":")[0] or "ok"


@pytest.mark.slow
@pytest.mark.deepspeed
def test_deepspeed_still_does_what_the_manifest_says() -> None:
    pytest.importorskip("deepspeed")
    hjson = pytest.importorskip("hjson")
    seen: Counter[str] = Counter()
    for row in manifest("deepspeed"):
        text = (CORPUS / row["file"]).read_text(encoding="utf-8")
        as_is = filled = structural = verdict(deepspeed_refusal(text))
        if as_is != "HjsonDecodeError":
            document = hjson.loads(text)
            filled = verdict(deepspeed_refusal(with_numbers(document)))
            plain = {key: value for key, value in document.items() if key not in BATCH}
            structural = verdict(deepspeed_refusal({**plain, BATCH[1]: 1}))
        assert (as_is, filled, structural) == (row["as_is"], row["auto_resolved"], row["structural"]), row["file"]
        seen[structural] += 1
    assert (seen.total(), seen["ok"]) == (227, 187)


def with_numbers(document: dict[str, Any]) -> dict[str, Any]:
    """Each "auto" of the batch sizes as the Trainer would fill it on one rank."""
    micro, accumulation = (document.get(key, 1) for key in BATCH[1:])
    micro, accumulation = (1 if value == "auto" else value for value in (micro, accumulation))
    numbers = {BATCH[0]: micro * accumulation, BATCH[1]: micro, BATCH[2]: accumulation, "gradient_clipping": 1.0}
    filled = {key: numbers[key] if value == "auto" and key in numbers else value for key, value in document.items()}
    return filled if set(BATCH[:2]) & set(filled) else {**filled, BATCH[1]: 1}


@pytest.mark.slow
@pytest.mark.accelerate
def test_accelerate_still_does_what_the_manifest_says() -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    refused = set()
    for row in manifest("accelerate"):
        text = (CORPUS / row["file"]).read_text(encoding="utf-8")
        if accelerate_refusal(text, {BATCH[1]: "auto", "zero_optimization": {"stage": 2}}):
            refused.add(row["file"])
    assert refused == {row["file"] for row in manifest("accelerate") if not loads_there(row)}
    assert len(refused) == 6


@pytest.mark.slow
@pytest.mark.deepspeed
def test_what_the_notes_say_is_so() -> None:
    """Each note that the installed packages can show is shown for each of its files."""
    pytest.importorskip("deepspeed")
    pytest.importorskip("accelerate")
    shown: Counter[str] = Counter()
    for row, problem in errors_on_files_that_load():
        text = (CORPUS / row["file"]).read_text(encoding="utf-8")
        if problem.bites == "config":
            assert deepspeed_refusal(text), row["file"]
        elif problem.rule == "DS111":
            assert problem.path.rpartition(".")[2] not in launch_arguments()
        elif problem.bites == "engine init" and problem.path.startswith("$.optimizer"):
            assert optimizer_refusal(json.loads(text)["optimizer"]), row["file"]
        elif problem.rule == "DS063":
            refused, top = scheduler_outcome(json.loads(text)["scheduler"])
            assert refused or top == 0.001, row["file"]
        else:
            continue
        shown[problem.rule] += 1
    assert shown == {"DS013": 2, "DS020": 11, "DS111": 13, "DS062": 2, "DS066": 1, "DS063": 2}


def launch_arguments() -> set[str]:
    from accelerate.commands.launch import launch_command_parser

    return set(vars(launch_command_parser().parse_args(["train.py"])))


def optimizer_refusal(block: dict[str, Any]) -> bool:
    """Whether the engine fails to build this optimizer, with its own method."""
    from deepspeed.runtime.engine import DeepSpeedEngine

    engine = SimpleNamespace(optimizer_name=lambda: block["type"], optimizer_params=lambda: block.get("params"))
    try:
        DeepSpeedEngine._configure_basic_optimizer(engine, [])
    except (ValueError, AttributeError) as error:
        return "max_grad_norm" in str(error) or block["type"] in str(error)
    return False


def scheduler_outcome(block: dict[str, Any]) -> tuple[bool, float]:
    """Whether the scheduler refuses its numbers; else the learning rate at which its warm-up ends."""
    import torch
    from deepspeed.runtime import lr_schedules

    numbers = {key: 100 if value == "auto" else value for key, value in block["params"].items()}
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=2e-5)
    try:
        schedule = getattr(lr_schedules, block["type"])(optimizer, **numbers)
    except ValueError:
        return True, 0.0
    return False, max(schedule.max_lrs)
