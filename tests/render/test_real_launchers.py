"""The real launchers, on this machine's CPU: `launch.sh` starts the ranks it says, on one node and on two."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from handmade_plans import make_cluster, make_document, make_plan

from planner.records.candidate import Offload
from planner.records.request import Launcher
from planner.render.bundle import render_files

SCRIPT = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS", "ACCELERATE_DEEPSPEED_CONFIG_FILE")
record = {name: os.environ.get(name) for name in names} | {"argv": sys.argv[1:], "cwd": os.getcwd()}
open(os.path.join(os.environ["RECORDS"], os.environ["RANK"] + ".json"), "w").write(json.dumps(record))
"""
HOSTILE = "a $(touch pwned)\nb"
TIMEOUT_S = 180


def run_nodes(folder: Path, *, nodes: int, env: dict[str, str]) -> None:
    """Start launch.sh once a node; each in a session of its own, which is ended whatever happens."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    common = {**os.environ, "PATH": path, "DS_ACCELERATOR": "cpu", **env}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "OMP_NUM_THREADS"):
        common.pop(name, None)
    started = [
        subprocess.Popen(
            ["bash", str(folder / "launch.sh"), "more"],
            cwd=folder.parent,
            env={**common, **({"NODE_RANK": str(node), "MASTER_ADDR": "127.0.0.1"} if nodes > 1 else {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for node in range(nodes)
    ]
    try:
        for process in started:
            output, _ = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, output[-3000:]
    finally:
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.accelerate
@pytest.mark.parametrize("smoke", [False, True], ids=["two nodes", "dry run of two nodes"])
@pytest.mark.parametrize("launcher", list(Launcher))
def test_launch_sh_starts_two_ranks_with_the_arguments_as_they_are(
    tmp_path: Path, launcher: Launcher, smoke: bool
) -> None:
    pytest.importorskip("deepspeed")
    pytest.importorskip("accelerate")
    script = tmp_path / "my script.py"
    script.write_text(SCRIPT)
    records = tmp_path / "records"
    records.mkdir()
    plan = make_plan(
        launcher=launcher,
        cluster=make_cluster(nodes=2, gpus_per_node=1, cpu_cores=1),
        offload=Offload.OPTIMIZER,
        script=script.name,
        script_arguments=(HOSTILE,),
    )
    folder = tmp_path / "plan"
    folder.mkdir()
    for name, text in render_files(plan, make_document(plan)).items():
        (folder / name).write_text(text, encoding="utf-8")
    env = {"RECORDS": str(records)}
    if smoke:
        env |= {"DSPLAN_SMOKE_SCRIPT": str(script), "DSPLAN_SMOKE_RANKS": "2"}
    run_nodes(folder, nodes=1 if smoke else 2, env=env)
    found = [json.loads(path.read_text()) for path in sorted(records.iterdir())]
    assert [record["RANK"] for record in found] == ["0", "1"]
    for record in found:
        assert record["WORLD_SIZE"] == "2"
        assert record["OMP_NUM_THREADS"] == "1"
        assert record["argv"] == ([] if smoke else [HOSTILE, "more"])
        assert record["cwd"] == str(folder)
        expected = "ds_config.json" if launcher is Launcher.ACCELERATE else None
        assert record["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == expected
    assert not list(tmp_path.rglob("pwned"))
