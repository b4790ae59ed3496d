"""All files of a plan.

In: the plan and its document. Out: {file name: text}, the same bytes for the same plan. Answers: what has to lie in
the folder so that `launch.sh` trains exactly the best plan?
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from planner.errors import PlannerError
from planner.records.plan import Plan
from planner.records.request import Launcher as LauncherName
from planner.render.accelerate_yaml import accelerate_config
from planner.render.deepspeed_json import deepspeed_config
from planner.render.launchers.accelerate_launch import accelerate_launch
from planner.render.launchers.deepspeed_run import deepspeed_run
from planner.render.launchers.shell import Launcher, launch_script
from planner.render.launchers.torchrun import torchrun
from planner.render.readme import readme
from planner.resources import read_text

LAUNCHERS: Mapping[LauncherName, Callable[[Plan], Launcher]] = {
    LauncherName.ACCELERATE: accelerate_launch,
    LauncherName.DEEPSPEED: deepspeed_run,
    LauncherName.TORCHRUN: torchrun,
}


def render_files(plan: Plan, document: Mapping[str, Any]) -> dict[str, str]:
    """The files of the best plan; `document` is the plan document and becomes plan.json as it is."""
    import yaml

    if not plan.ranked:
        raise PlannerError("there is no plan to write", hint="nothing fits; see the suggested changes")
    candidate = plan.ranked[0].candidate
    launcher = LAUNCHERS[plan.request.launcher](plan)
    return {
        "ds_config.json": json_text(deepspeed_config(plan.request, candidate), sort_keys=True),
        "accelerate.yaml": yaml.safe_dump(accelerate_config(plan.request.cluster, candidate), sort_keys=False),
        "launch.sh": launch_script(plan, launcher),
        "train.py": read_text("templates", "train.py"),
        "plan.json": json_text(document, sort_keys=False),
        "README.md": readme(plan, document, launcher),
        **launcher.files,
    }


def json_text(document: Mapping[str, Any], *, sort_keys: bool) -> str:
    """Strict JSON, indented, with a final newline."""
    return json.dumps(document, indent=2, sort_keys=sort_keys, allow_nan=False) + "\n"
