"""All files of a plan.

In: the plan and its document. Out: {file name: text}, the same bytes for the same plan. Answers: what has to lie in
the folder so that `launch.sh` trains exactly the best plan?
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from planner.errors import PlannerError
from planner.records.plan import Plan
from planner.records.request import Launcher as LauncherName
from planner.render import accelerate_yaml, deepspeed_json
from planner.render.accelerate_yaml import accelerate_text
from planner.render.deepspeed_json import deepspeed_config
from planner.render.integrations import script_files
from planner.render.json_text import json_text
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
    if not plan.ranked:
        raise PlannerError("there is no plan to write", hint="nothing fits; see the suggested changes")
    request, candidate = plan.request, plan.ranked[0].candidate
    launcher = LAUNCHERS[request.launcher](plan)
    engine = deepspeed_config(request, candidate)
    return {
        "ds_config.json": json_text(engine, sort_keys=True),
        "accelerate.yaml": accelerate_text(request.cluster, candidate),
        "launch.sh": launch_script(plan, launcher),
        **script_files(request, candidate, engine),
        "plan.json": json_text(document, sort_keys=False),
        "README.md": readme(plan, document, launcher),
        **launcher.files,
        deepspeed_json.SCHEMA_FILE: read_text("schemas", "deepspeed.schema.json"),
        accelerate_yaml.SCHEMA_FILE: read_text("schemas", "accelerate.schema.json"),
    }
