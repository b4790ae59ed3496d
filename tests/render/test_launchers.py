"""`launch.sh` really run, with launchers that only write down what they get."""

from pathlib import Path

import pytest
from handmade_plans import make_cluster, make_document, make_plan
from launching import launch

from planner.errors import PlannerError
from planner.records.candidate import Offload
from planner.records.request import Launcher
from planner.render.bundle import render_files

HOSTILE = (
    "a b",
    "it's",
    '"quoted"',
    "$(touch pwned)",
    "`touch pwned`",
    "line\nbreak",
    "*",
    "; touch pwned",
    "",
    "ä",
    "\\",
)


@pytest.mark.parametrize("launcher", list(Launcher))
@pytest.mark.parametrize("nodes", [1, 2])
def test_hostile_names_and_arguments_arrive_as_they_are(tmp_path: Path, launcher: Launcher, nodes: int) -> None:
    script = "my 'train'\n$(touch pwned).py"
    cluster = make_cluster(nodes=nodes, gpus_per_node=2)
    plan = make_plan(launcher=launcher, cluster=cluster, script=script, script_arguments=HOSTILE)
    folder = tmp_path / "plan $(touch pwned) folder"
    seen = launch(plan, folder, "--more", "x y", NODE_RANK="1", MASTER_ADDR="head")
    assert seen.returncode == 0, seen.stderr
    assert seen.argv[-len(HOSTILE) - 2 :] == [*HOSTILE, "--more", "x y"]
    assert seen.argv[-len(HOSTILE) - 3] == f"{tmp_path}/{script}"
    assert seen.cwd == str(folder)
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("launcher", list(Launcher))
def test_the_plans_own_script_gets_the_arguments_of_launch_sh(tmp_path: Path, launcher: Launcher) -> None:
    seen = launch(make_plan(launcher=launcher), tmp_path / "plan", "--data", "a b.jsonl")
    assert seen.argv[-3:] == ["train.py", "--data", "a b.jsonl"]
    assert seen.env["PYTORCH_CUDA_ALLOC_CONF"] == seen.env["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.parametrize("launcher", list(Launcher))
def test_one_node_takes_a_free_port_or_the_one_asked_for(tmp_path: Path, launcher: Launcher) -> None:
    plan = make_plan(launcher=launcher)
    port = launch(plan, tmp_path / "plan").env["MASTER_PORT"]
    assert port is not None
    assert 1024 < int(port) < 65536
    assert port != "29500"
    asked = launch(plan, tmp_path / "plan", MASTER_PORT="23456")
    assert any("23456" in argument for argument in asked.argv)


@pytest.mark.parametrize("launcher", list(Launcher))
def test_several_nodes_without_their_numbers_are_a_clear_error(tmp_path: Path, launcher: Launcher) -> None:
    plan = make_plan(launcher=launcher, cluster=make_cluster(nodes=2, gpus_per_node=8))
    seen = launch(plan, tmp_path / "plan")
    assert seen.returncode == 2
    assert "error: this plan runs on 2 nodes and MASTER_ADDR is not set" in seen.stderr
    assert "hint: " in seen.stderr
    assert seen.argv == []
    if launcher is not Launcher.TORCHRUN:
        assert "NODE_RANK is not set" in launch(plan, tmp_path / "plan", MASTER_ADDR="head").stderr


@pytest.mark.parametrize("launcher", list(Launcher))
def test_all_nodes_derive_the_same_port(tmp_path: Path, launcher: Launcher) -> None:
    plan = make_plan(launcher=launcher, cluster=make_cluster(nodes=2, gpus_per_node=8))
    ports = {
        launch(plan, tmp_path / "plan", MASTER_ADDR="head", NODE_RANK=rank).env["MASTER_PORT"] for rank in ("0", "1")
    }
    assert len(ports) == 1
    assert ports != {"29500"}


@pytest.mark.parametrize("launcher", list(Launcher))
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_dry_run_replaces_the_script_and_the_ranks_only(tmp_path: Path, launcher: Launcher, nodes: int) -> None:
    cluster = make_cluster(nodes=nodes, gpus_per_node=8, cpu_cores=64)
    plan = make_plan(
        launcher=launcher, cluster=cluster, offload=Offload.OPTIMIZER, script="x.py", script_arguments=("y",)
    )
    smoke = tmp_path / "smoke it.py"
    seen = launch(plan, tmp_path / "plan", DSPLAN_SMOKE_SCRIPT=str(smoke), DSPLAN_SMOKE_RANKS="2")
    assert seen.returncode == 0, seen.stderr
    assert seen.argv[-1] == str(smoke)
    assert "y" not in seen.argv
    assert seen.cwd == str(tmp_path / "plan")
    assert seen.env["OMP_NUM_THREADS"] == "8"
    assert not any("include" in argument or "hostfile" in argument for argument in seen.argv)


@pytest.mark.parametrize(
    ("cores", "gpus", "threads"),
    [(64, 8, "8"), (6, 4, "1"), (1, 8, "1")],
    ids=["whole", "rounded down", "at least one"],
)
def test_offload_plans_share_the_cores_among_the_ranks(tmp_path: Path, cores: int, gpus: int, threads: str) -> None:
    cluster = make_cluster(gpus_per_node=gpus, cpu_cores=cores)
    plan = make_plan(offload=Offload.OPTIMIZER, cluster=cluster)
    assert launch(plan, tmp_path / "plan").env["OMP_NUM_THREADS"] == threads
    assert launch(plan, tmp_path / "plan", OMP_NUM_THREADS="3").env["OMP_NUM_THREADS"] == "3"


def test_unknown_cores_are_counted_where_the_script_runs(tmp_path: Path) -> None:
    plan = make_plan(offload=Offload.OPTIMIZER, cluster=make_cluster(gpus_per_node=1, cpu_cores=None))
    threads = launch(plan, tmp_path / "plan").env["OMP_NUM_THREADS"]
    assert threads is not None
    assert int(threads) >= 1


def test_plans_without_offload_leave_the_threads_alone(tmp_path: Path) -> None:
    assert launch(make_plan(), tmp_path / "plan").env["OMP_NUM_THREADS"] is None


def test_a_script_argument_that_no_shell_can_hold_is_refused() -> None:
    plan = make_plan(script_arguments=("a\0b",))
    with pytest.raises(PlannerError, match="cannot be written into a shell script"):
        render_files(plan, make_document(plan))


def test_the_script_is_found_from_any_folder_and_despite_cdpath(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "plan"
    elsewhere.mkdir(parents=True)
    seen = launch(make_plan(), tmp_path / "plan", caller=tmp_path, CDPATH=str(tmp_path / "elsewhere"))
    assert seen.cwd == str(tmp_path / "plan")


def test_the_deepspeed_launcher_brings_a_host_file_for_several_nodes() -> None:
    plan = make_plan(launcher=Launcher.DEEPSPEED, cluster=make_cluster(nodes=3, gpus_per_node=8, cpu_cores=64))
    files = render_files(plan, make_document(plan))
    assert [line for line in files["hostfile"].splitlines() if not line.startswith("#")] == [
        "node-0 slots=8",
        "node-1 slots=8",
        "node-2 slots=8",
    ]
    assert all("=" in line for line in files[".deepspeed_env"].splitlines())
    single = make_plan(launcher=Launcher.DEEPSPEED)
    assert "hostfile" not in render_files(single, make_document(single))
