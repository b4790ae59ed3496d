"""All files of a plan: complete, deterministic, and free of anything a name could smuggle in."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from handmade_plans import MODEL, make_cluster, make_document, make_plan

from planner.errors import PlannerError
from planner.records.candidate import Offload
from planner.records.model import Precision
from planner.records.request import Integration, Launcher, Loss
from planner.render.bundle import render_files

ROOT = Path(__file__).parents[2]
HASHED = """
import sys, hashlib
sys.path[:0] = [{root!r}, {here!r}]
from handmade_plans import make_document, random_plans
from planner.render.bundle import render_files
digest = hashlib.sha256()
for plan in random_plans(20, seed=3):
    for name, text in render_files(plan, make_document(plan)).items():
        digest.update(name.encode() + text.encode())
print(digest.hexdigest())
"""


PROMISED = {"ds_config.json", "accelerate.yaml", "launch.sh", "train.py", "plan.json", "README.md"}
BESIDE = {
    Integration.TRAINER: ("train.py", {"model_and_data.py", "training_args.json"}),
    Integration.ACCELERATE: ("train_accelerate.py", {"model_and_data.py", "loop_parts.py", "loop_args.json"}),
    Integration.DEEPSPEED: ("train_deepspeed.py", {"model_and_data.py", "loop_parts.py", "loop_args.json"}),
}
SCHEMAS = {"ds_config.schema.json": "deepspeed.schema.json", "accelerate.schema.json": "accelerate.schema.json"}


@pytest.mark.parametrize("integration", Integration)
def test_the_folder_is_complete_and_scripts_and_schemas_are_those_of_the_package(integration: Integration) -> None:
    plan = make_plan(integration=integration)
    files = render_files(plan, make_document(plan))
    script, beside = BESIDE[integration]
    assert set(files) == PROMISED | beside | set(SCHEMAS)
    assert files["train.py"] == (ROOT / "templates" / script).read_text(encoding="utf-8")
    for name in beside:
        if name.endswith(".py"):
            assert files[name] == (ROOT / "templates" / name).read_text(encoding="utf-8")
    for name, original in SCHEMAS.items():
        assert json.loads(files[name]) == json.loads((ROOT / "schemas" / original).read_text(encoding="utf-8"))
    assert json.loads(files["plan.json"]) == make_document(plan)
    for name in files:
        if name != "README.md":
            assert f"`{name}`" in files["README.md"], name


def test_editors_find_the_schemas_beside_the_files() -> None:
    plan = make_plan()
    files = render_files(plan, make_document(plan))
    named = [json.loads(files["ds_config.json"])["$schema"], files["accelerate.yaml"].splitlines()[0].partition("=")[2]]
    assert named == list(SCHEMAS)
    for document, schema in (
        (json.loads(files["ds_config.json"]), named[0]),
        (yaml.safe_load(files["accelerate.yaml"]), named[1]),
    ):
        jsonschema.Draft202012Validator(json.loads(files[schema])).validate(document)


def test_the_same_plan_gives_the_same_bytes_under_any_hash_seed() -> None:
    code = HASHED.format(root=str(ROOT), here=str(Path(__file__).parent))
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_a_plan_without_candidates_is_refused() -> None:
    with pytest.raises(PlannerError, match="there is no plan to write"):
        render_files(replace(make_plan(), ranked=()), {})


def test_the_readme_says_what_was_chosen_how_to_start_and_what_was_assumed() -> None:
    plan = make_plan(offload=Offload.NVME, cluster=make_cluster(nodes=2, gpus_per_node=8))
    text = render_files(plan, make_document(plan))["README.md"]
    for part in (
        *("ZeRO-3", "local NVMe", "micro-batch 2 per GPU x 4 accumulation x 16 = 128 samples a step", "/local_nvme"),
        *("NODE_RANK=0 bash launch.sh", "--data", "host memory from the test", "fastest of 12 plans that fit"),
    ):
        assert part in text, part


def test_a_line_break_in_a_name_starts_no_line_in_any_file() -> None:
    plan = make_plan(model=replace(MODEL, name="x\n# rm -rf"))
    files = render_files(plan, make_document(plan))
    for name in ("launch.sh", "README.md", "accelerate.yaml", "ds_config.json"):
        assert "\n# rm -rf" not in files[name], name


def test_launch_sh_is_valid_bash() -> None:
    for nodes in (1, 2):
        plan = make_plan(cluster=make_cluster(nodes=nodes), offload=Offload.OPTIMIZER)
        text = render_files(plan, make_document(plan))["launch.sh"]
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)


@pytest.mark.parametrize(
    ("choices", "said", "not_said"),
    [
        ({"zero": 3}, "whole weights in bf16, gathered from the ZeRO-3 ranks", "tensor-parallel ranks"),
        ({"zero": 1, "tp": 2}, "whole weights in bf16, gathered from the tensor-parallel ranks", "zero_to_fp32"),
        ({"zero": 2, "precision": Precision.FP16}, "whole weights in fp16, in Hugging Face's format", "gathered"),
        ({"zero": 2}, "the fp32 master weights are in the checkpoints, where `zero_to_fp32.py`", "gathered"),
        ({"zero": 0}, "whole weights in bf16, in Hugging Face's format |", "zero_to_fp32"),
        ({"zero": 2, "precision": Precision.FP32}, "whole weights in fp32", "zero_to_fp32"),
        ({"loss": Loss.FUSED}, "`liger-kernel`", "DummyOptim"),
    ],
)
def test_the_readme_says_what_is_saved_and_in_which_precision(
    choices: dict[str, Any], said: str, not_said: str
) -> None:
    plan = make_plan(**choices)
    text = render_files(plan, make_document(plan))["README.md"]
    assert said in text
    assert not_said not in text


@pytest.mark.parametrize(
    ("integration", "said"),
    [
        (Integration.TRAINER, 'parse_json_file("training_args.json")'),
        (Integration.ACCELERATE, "finds `ds_config.json` by what `launch.sh` tells it"),
        (Integration.DEEPSPEED, 'deepspeed.initialize(config="ds_config.json", ...)'),
    ],
)
@pytest.mark.parametrize("launcher", Launcher)
def test_the_readme_tells_an_own_script_how_it_gets_the_plan(
    integration: Integration, said: str, launcher: Launcher
) -> None:
    plan = make_plan(integration=integration, launcher=launcher, script="mine.py")
    assert said in render_files(plan, make_document(plan))["README.md"]
