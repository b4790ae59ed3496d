"""Files to findings.

In: file names and texts, of one file or of a whole plan folder. Out: Problems, with lines. Answers, before anything is
written and for what others wrote: will the readers accept these files, and do they say the same?
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from planner.check.one_file.accelerate_rules import pair_problems
from planner.check.one_file.deepspeed_rules import section
from planner.check.one_run.plan_rules import plan_problems
from planner.check.rules import finding
from planner.check.single import Looked, look_at
from planner.check.together import Kind
from planner.errors import CheckFailed
from planner.records.problem import Problem, Severity

LAUNCH = "launch.sh"
PLAN_FILES = ("ds_config.json", "accelerate.yaml", LAUNCH, "plan.json")
KINDS = {
    "ds_config.json": Kind.DEEPSPEED,
    "accelerate.yaml": Kind.ACCELERATE,
    "plan.json": Kind.PLAN,
    "smoke.json": Kind.SMOKE,
    "training_args.json": Kind.TRAINING,
}


def check_files(files: Mapping[str, str]) -> list[Problem]:
    """Everything wrong with a plan folder: each file by itself, then across files; missing files too."""
    return plan_findings(looked_in(files))


def looked_in(files: Mapping[str, str]) -> dict[str, Looked]:
    """The files of a plan folder, read, by name."""
    return {name: look_at(name, text, KINDS.get(name)) for name, text in files.items() if name in (*KINDS, LAUNCH)}


def plan_findings(looked: Mapping[str, Looked]) -> list[Problem]:
    """What `check_files` says, of files that were read before."""
    problems = [
        finding("DS204", "$", f"`{name}` is missing", fix="plan again", file=name)
        for name in PLAN_FILES
        if name not in looked
    ]
    problems += [problem for one in looked.values() for problem in one.problems]
    documents = {name: one.files[0].document if one.files else None for name, one in looked.items()}
    plan, deepspeed, accelerate = (documents.get(name) for name in ("plan.json", "ds_config.json", "accelerate.yaml"))
    across: list[Problem] = []
    if isinstance(plan, Mapping) and isinstance(deepspeed, Mapping):
        training = documents.get("training_args.json")
        across += plan_problems(
            plan,
            deepspeed,
            accelerate if isinstance(accelerate, Mapping) else None,
            training if isinstance(training, Mapping) else None,
        )
    if isinstance(accelerate, Mapping):
        across += named_file_problems(accelerate, looked, documents)
    return problems + [_placed(problem, looked) for problem in across]


def _placed(problem: Problem, looked: Mapping[str, Looked]) -> Problem:
    return looked[problem.file].located([problem])[0] if problem.file in looked else problem


def require_valid(files: Mapping[str, str]) -> None:
    """Nothing if the files of a plan are in order; raises CheckFailed with the first error otherwise."""
    errors = [problem for problem in check_files(files) if problem.severity is Severity.ERROR]
    if errors:
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise CheckFailed(f"`{first.file}` is wrong: {first.message} @ {first.path}{more}", hint=first.fix)


def named_file_problems(
    accelerate: Mapping[str, Any],
    files: Collection[str],
    documents: Mapping[str, Any],
) -> list[Problem]:
    """Does the DeepSpeed file that the YAML names lie beside it, and do both go together?"""
    named = section(accelerate, "deepspeed_config").get("deepspeed_config_file")
    if not isinstance(named, str):
        return []
    name = named.removeprefix("./")
    if name not in files:
        path, message = "$.deepspeed_config.deepspeed_config_file", f"there is no file `{named}` beside it"
        return [finding("DS121", path, message, fix="give the right path", file="accelerate.yaml")]
    deepspeed = documents.get(name)
    return pair_problems(accelerate, deepspeed, name) if isinstance(deepspeed, Mapping) else []
