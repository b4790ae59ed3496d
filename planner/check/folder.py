"""Files to findings.

In: file names and texts, of one file or of a whole plan folder. Out: Problems, with lines. Answers, before anything is
written and for what others wrote: will the readers accept these files, and do they say the same?
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.check.accelerate_rules import accelerate_problems, pair_problems
from planner.check.cross import plan_problems
from planner.check.deepspeed_rules import deepspeed_problems, section
from planner.check.read import locate, read_document
from planner.check.rules import finding
from planner.check.schema import schema_problems
from planner.check.training_rules import training_problems
from planner.errors import CheckFailed
from planner.records.problem import Problem, Severity

PLAN_FILES = ("ds_config.json", "accelerate.yaml", "launch.sh", "plan.json")
ACCELERATE_KEYS = {"distributed_type", "deepspeed_config", "compute_environment", "num_machines", "fsdp_config"}
PLAN_KEYS = {"dsplan_version", "plans"}
SMOKE_KEYS = {"passed", "checks"}


def check_files(files: Mapping[str, str]) -> list[Problem]:
    """Everything wrong with a plan folder: each file by itself, then across files; missing files too."""
    problems = [
        finding("DS204", "$", f"`{name}` is missing", fix="plan again", file=name)
        for name in PLAN_FILES
        if name not in files
    ]
    documents: dict[str, Any] = {}
    for name, text in files.items():
        kind = kind_by_name(name)
        if kind:
            documents[name], found = check_text(name, text, kind)
            problems += found
    plan, deepspeed, accelerate = (documents.get(name) for name in ("plan.json", "ds_config.json", "accelerate.yaml"))
    across: list[Problem] = []
    if isinstance(plan, Mapping) and isinstance(deepspeed, Mapping):
        across += plan_problems(plan, deepspeed, accelerate if isinstance(accelerate, Mapping) else None)
    if isinstance(accelerate, Mapping):
        across += named_file_problems(accelerate, files, documents)
    for problem in across:
        problems += locate([problem], problem.file, files.get(problem.file, ""))
    return problems


def require_valid(files: Mapping[str, str]) -> None:
    """Nothing if the files of a plan are in order; raises CheckFailed with the first error otherwise."""
    errors = [problem for problem in check_files(files) if problem.severity is Severity.ERROR]
    if errors:
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise CheckFailed(f"`{first.file}` is wrong: {first.message} @ {first.path}{more}", hint=first.fix)


def kind_by_name(name: str) -> str:
    """The kind of a plan folder's file; empty for those without a document."""
    known = {"ds_config.json": "deepspeed", "accelerate.yaml": "accelerate", "plan.json": "plan", "smoke.json": "smoke"}
    return known.get(name, "")


def kind_of(name: str, document: Any) -> str:
    """What a file from somewhere is: told by its keys, since names vary."""
    keys = set(document) if isinstance(document, Mapping) else set()
    if keys & PLAN_KEYS == PLAN_KEYS:
        return "plan"
    if keys & SMOKE_KEYS == SMOKE_KEYS:
        return "smoke"
    if keys & ACCELERATE_KEYS or name.endswith((".yaml", ".yml")):
        return "accelerate"
    return "deepspeed"


def check_text(name: str, text: str, kind: str = "") -> tuple[Any, list[Problem]]:
    """One file by itself: its document and its problems, with lines; `kind` is told by its keys unless given."""
    document, problems = read_document(name, text)
    if document is not None or not problems:
        kind = kind or kind_of(name, document)
        if isinstance(document, Mapping) and not _is_sagemaker(document):
            problems += schema_problems(document, kind)
        if kind == "deepspeed":
            problems += deepspeed_problems(document)
            problems += training_problems(document) if isinstance(document, Mapping) else []
        elif kind == "accelerate":
            problems += accelerate_problems(document)
    return document, locate(problems, name, text)


def named_file_problems(
    accelerate: Mapping[str, Any],
    files: Mapping[str, str],
    documents: Mapping[str, Any],
    *,
    file: str = "accelerate.yaml",
) -> list[Problem]:
    """Does the DeepSpeed file that the YAML names lie beside it, and do both go together?"""
    named = section(accelerate, "deepspeed_config").get("deepspeed_config_file")
    if not isinstance(named, str):
        return []
    name = named.removeprefix("./")
    if name not in files:
        path = "$.deepspeed_config.deepspeed_config_file"
        return [finding("DS121", path, f"there is no file `{named}` beside it", fix="give the right path", file=file)]
    deepspeed = documents.get(name)
    return pair_problems(accelerate, deepspeed, name) if isinstance(deepspeed, Mapping) else []


def _is_sagemaker(document: Mapping[str, Any]) -> bool:
    """SageMaker files have a form of their own, which is not checked here."""
    return bool(document.get("compute_environment") == "AMAZON_SAGEMAKER")
