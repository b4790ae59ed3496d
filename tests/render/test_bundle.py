"""All files of a plan: complete, deterministic, and free of anything a name could smuggle in."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from handmade_plans import MODEL, make_cluster, make_document, make_plan

from planner.errors import PlannerError
from planner.records.candidate import Offload
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


def test_the_folder_is_complete_and_train_py_is_the_template() -> None:
    plan = make_plan()
    files = render_files(plan, make_document(plan))
    assert list(files) == ["ds_config.json", "accelerate.yaml", "launch.sh", "train.py", "plan.json", "README.md"]
    assert files["train.py"] == (ROOT / "templates" / "train.py").read_text(encoding="utf-8")
    assert json.loads(files["plan.json"]) == make_document(plan)
    assert all(text.endswith("\n") for text in files.values())


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
