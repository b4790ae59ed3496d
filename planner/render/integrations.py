"""Who hands `ds_config.json` to the engine: the files that go with each choice.

In: the integration, the request, the candidate, the rendered `ds_config.json`. Out: the training script with what it
reads. Answers: which train.py, and with which arguments beside it? Any launcher starts any of them: a launcher only
makes processes, and what `accelerate launch` would tell `Accelerator` the others are told by launch.sh.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.records.candidate import Candidate, ZeroStage
from planner.records.plan import Plan
from planner.records.request import Integration, Launcher, Request
from planner.render.json_text import json_text
from planner.render.script_arguments import loop_arguments, training_arguments
from planner.resources import read_text

SCRIPTS: Mapping[Integration, str] = {
    Integration.TRAINER: "train.py",
    Integration.ACCELERATE: "train_accelerate.py",
    Integration.DEEPSPEED: "train_deepspeed.py",
}
SHARED_BY_ALL = "model_and_data.py"
SHARED_BY_LOOPS = "loop_parts.py"


def script_files(request: Request, candidate: Candidate, engine: Mapping[str, Any]) -> dict[str, str]:
    """`train.py`, the modules it imports, and the file of arguments that it reads."""
    files = {
        "train.py": read_text("templates", SCRIPTS[request.integration]),
        SHARED_BY_ALL: read_text("templates", SHARED_BY_ALL),
    }
    if request.integration is Integration.TRAINER:
        arguments = training_arguments(request, candidate, engine)
        return {**files, "training_args.json": json_text(arguments, sort_keys=False)}
    return {
        **files,
        SHARED_BY_LOOPS: read_text("templates", SHARED_BY_LOOPS),
        "loop_args.json": json_text(loop_arguments(request, candidate), sort_keys=False),
    }


def accelerator_environment(plan: Plan) -> dict[str, str]:
    """What `accelerate launch` exports from accelerate.yaml, where another launcher starts a script with `Accelerator`.

    Source: accelerate/utils/launch.py `prepare_deepspeed_cmd_env` (1.15).
    """
    request = plan.request
    if request.integration is not Integration.ACCELERATE or request.launcher is Launcher.ACCELERATE:
        return {}
    at_stage_three = plan.ranked[0].candidate.zero is ZeroStage.PARAMETERS
    return {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": "ds_config.json",
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": str(at_stage_three).lower(),
    }
