"""The programs that read the files accept them: their own parsers, with the command lines that launch.sh gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from handmade_plans import make_cluster, make_plan, random_plans
from launching import launch
from trainer_values import after_the_trainer, filled

from planner.records.candidate import Offload
from planner.records.model import Precision
from planner.records.plan import Plan
from planner.records.request import Integration, Launcher, Loss, Optimizer
from planner.render.deepspeed_json import deepspeed_config
from planner.render.integrations import accelerator_environment
from planner.render.script_arguments import training_arguments

PLANS = [
    make_plan(zero=0),
    make_plan(zero=1, tp=2),
    make_plan(zero=2, precision=Precision.FP16, offload=Offload.OPTIMIZER),
    make_plan(zero=3, tp=2, cluster=make_cluster(nodes=2, gpus_per_node=8)),
    make_plan(zero=3, offload=Offload.OPTIMIZER_AND_PARAMS, precision=Precision.FP32),
    make_plan(zero=3, offload=Offload.NVME),
    *(make_plan(zero=zero, optimizer=optimizer) for optimizer in Optimizer for zero in (1, 3)),
    make_plan(zero=2, precision=Precision.PURE_BF16),
    make_plan(zero=3, loss=Loss.FUSED),
    make_plan(zero=3, tp=2, integration=Integration.ACCELERATE),
    make_plan(zero=2, integration=Integration.DEEPSPEED),
]


def rendered(plan: Plan) -> dict[str, Any]:
    return deepspeed_config(plan.request, plan.ranked[0].candidate)


def world(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """What DeepSpeedConfig asks torch.distributed for, as the launched ranks would answer."""
    import deepspeed.comm as dist

    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: size)


@pytest.mark.slow
@pytest.mark.deepspeed
def test_deepspeed_reads_every_plan_as_it_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig

    plans = [*PLANS, *random_plans(100, seed=11)]
    for plan in plans:
        candidate = plan.ranked[0].candidate
        world(monkeypatch, candidate.degrees.world_size)
        read = DeepSpeedConfig(rendered(plan))
        assert read.zero_optimization_stage == int(candidate.zero)
        assert read.train_micro_batch_size_per_gpu == candidate.micro_batch
        assert read.gradient_accumulation_steps == candidate.accumulation
        assert read.gradient_clipping == 1.0
        precision = plan.request.workload.precision
        assert read.bfloat16_config.enabled is (precision in (Precision.BF16, Precision.PURE_BF16))
        assert read.bfloat16_config.bf16_optimizer_states is (precision is Precision.PURE_BF16)
        assert read.float16_config.enabled is (plan.request.workload.precision is Precision.FP16)
        if read.float16_config.enabled:
            assert read.float16_config.loss_scale == 0
        assert max(1, read.tensor_parallel_config.autotp_size) == candidate.degrees.tp
        zero = read.zero_config
        for block, device in (
            (zero.offload_optimizer, candidate.offload.optimizer_device),
            (zero.offload_param, candidate.offload.param_device),
        ):
            assert (block.device if block else "none") == device
            assert block is None or block.pin_memory is candidate.settings.pin_memory
        assert zero.overlap_comm is candidate.settings.overlap_comm
        assert zero.reduce_bucket_size == candidate.settings.reduce_bucket_elements
    assert len(plans) == 122


@pytest.mark.slow
@pytest.mark.transformers
def test_the_trainer_agrees_with_every_number() -> None:
    """`finalize` raises where an argument and the file differ; the arguments are those of training_args.json."""
    pytest.importorskip("transformers")
    pytest.importorskip("deepspeed")
    pytest.importorskip("accelerate")
    plans = [plan for plan in PLANS if plan.request.integration is Integration.TRAINER]
    for plan in plans:
        config, candidate = rendered(plan), plan.ranked[0].candidate
        arguments = training_arguments(plan.request, candidate, config)
        read = after_the_trainer(config, arguments, world_size=candidate.degrees.world_size, hidden=5120)
        assert read.config == filled(config, arguments), "the Trainer filled in something else"
        assert "'auto'" not in str(read.config)
        assert read.is_zero3() is (int(candidate.zero) == 3)
    assert len(plans) == 20


@pytest.mark.slow
@pytest.mark.transformers
@pytest.mark.parametrize(
    ("argument", "wrong"),
    [
        ("per_device_train_batch_size", 3),
        ("gradient_accumulation_steps", 3),
        ("max_grad_norm", 0.5),
        ("bf16", False),
    ],
)
def test_the_trainer_refuses_an_argument_that_is_not_the_plans(argument: str, wrong: Any) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("deepspeed")
    pytest.importorskip("accelerate")
    plan = make_plan()
    arguments = training_arguments(plan.request, plan.ranked[0].candidate, rendered(plan)) | {argument: wrong}
    with pytest.raises(ValueError, match="mismatch TrainingArguments"):
        after_the_trainer(rendered(plan), arguments, world_size=4, hidden=5120)


@pytest.mark.slow
@pytest.mark.accelerate
@pytest.mark.parametrize("launcher", [Launcher.DEEPSPEED, Launcher.TORCHRUN])
@pytest.mark.parametrize("zero", [2, 3])
def test_other_launchers_tell_accelerator_what_accelerate_launch_tells_it(
    tmp_path: Path, launcher: Launcher, zero: int
) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    plan = make_plan(launcher=launcher, integration=Integration.ACCELERATE, zero=zero)
    seen = launch(plan, tmp_path / "plan")
    told = accelerator_environment(plan)
    assert {name: seen.env[name] for name in told} == told
    words = ["--config_file", str(tmp_path / "plan" / "accelerate.yaml"), "train.py"]
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    arguments.deepspeed_fields_from_accelerate_config = "deepspeed_config_file,zero3_init_flag"
    _, environment = prepare_deepspeed_cmd_env(arguments)
    assert {name: environment[name] for name in told} == told
    assert len(told) == 3
    assert accelerator_environment(make_plan(launcher=launcher)) == {}


@pytest.mark.slow
@pytest.mark.accelerate
@pytest.mark.parametrize("smoke", [False, True], ids=["run", "dry run"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_accelerate_launch_merges_file_and_command_line(tmp_path: Path, nodes: int, smoke: bool) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    folder = tmp_path / "plan"
    plan = make_plan(cluster=make_cluster(nodes=nodes, gpus_per_node=8), zero=3)
    env = {"DSPLAN_SMOKE_SCRIPT": "smoke.py", "DSPLAN_SMOKE_RANKS": "2"} if smoke else {"MASTER_ADDR": "10.0.0.7"}
    seen = launch(plan, folder, "--epochs", "2", NODE_RANK="1", MASTER_PORT="23457", **env)
    loaded = load_config_from_file(str(folder / "accelerate.yaml"))
    assert (loaded.num_processes, loaded.num_machines) == (nodes * 8, nodes)
    words = [str(folder / word) if word == "accelerate.yaml" else word for word in seen.argv[2:]]
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    arguments.deepspeed_fields_from_accelerate_config = ",".join(loaded.deepspeed_config)  # as launch_command does
    command, environment = prepare_deepspeed_cmd_env(arguments)
    assert command is None, "torch's launcher in this process, not pdsh"
    assert arguments.use_deepspeed
    assert environment["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == "ds_config.json"
    assert environment["ACCELERATE_DEEPSPEED_ZERO3_INIT"] == "true"
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"
    assert arguments.nproc_per_node == ("2" if smoke else "8")
    assert arguments.training_script == ("smoke.py" if smoke else "train.py")
    assert arguments.training_script_args == ([] if smoke else ["--epochs", "2"])
    if nodes == 2 and not smoke:
        assert (arguments.nnodes, arguments.node_rank, arguments.rdzv_backend) == ("2", 1, "static")
        assert arguments.rdzv_endpoint == "10.0.0.7:23457"
    else:
        assert arguments.master_port == "23457"


@pytest.mark.slow
@pytest.mark.accelerate
@pytest.mark.parametrize("index", range(len(PLANS)))
def test_the_accelerate_plugin_takes_the_deepspeed_file(
    tmp_path: Path, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("deepspeed")
    from accelerate.utils import DeepSpeedPlugin

    launch(PLANS[index], tmp_path / "plan", NODE_RANK="0", MASTER_ADDR="head")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", "deepspeed_config_file,zero3_init_flag")
    plugin = DeepSpeedPlugin(hf_ds_config=str(tmp_path / "plan" / "ds_config.json"))
    assert plugin.zero_stage == int(PLANS[index].ranked[0].candidate.zero)
    # accelerate itself replaces steps_per_print
    assert plugin.deepspeed_config == {**rendered(PLANS[index]), "steps_per_print": float("inf")}


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize("smoke", [False, True], ids=["run", "dry run"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_deepspeed_launcher_reads_command_line_and_host_file(tmp_path: Path, nodes: int, smoke: bool) -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.launcher.runner import fetch_hostfile, parse_args, parse_inclusion_exclusion

    plan = make_plan(launcher=Launcher.DEEPSPEED, cluster=make_cluster(nodes=nodes, gpus_per_node=8))
    env = {"DSPLAN_SMOKE_SCRIPT": "smoke.py", "DSPLAN_SMOKE_RANKS": "2"} if smoke else {"MASTER_ADDR": "10.0.0.7"}
    seen = launch(plan, tmp_path / "plan", "--epochs", "2", NODE_RANK="1", MASTER_PORT="23457", **env)
    arguments = parse_args(seen.argv[1:])
    assert arguments.master_port == 23457
    assert arguments.no_local_rank
    assert arguments.user_script == ("smoke.py" if smoke else "train.py")
    assert arguments.user_args == ([] if smoke else ["--epochs", "2"])
    if smoke:
        assert (arguments.num_gpus, arguments.include, arguments.no_ssh) == (2, "", False)
    elif nodes == 1:
        chosen = parse_inclusion_exclusion({"localhost": 8}, arguments.include, arguments.exclude)
        assert chosen == {"localhost": list(range(8))}
    else:
        assert (arguments.no_ssh, arguments.node_rank, arguments.master_addr) == (True, 1, "10.0.0.7")
        assert fetch_hostfile(str(tmp_path / "plan" / arguments.hostfile)) == {"node-0": 8, "node-1": 8}


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize("smoke", [False, True], ids=["run", "dry run"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_torchrun_reads_the_command_line(tmp_path: Path, nodes: int, smoke: bool) -> None:
    pytest.importorskip("torch")
    from torch.distributed.run import config_from_args, parse_args

    plan = make_plan(launcher=Launcher.TORCHRUN, cluster=make_cluster(nodes=nodes, gpus_per_node=8))
    env = {"DSPLAN_SMOKE_SCRIPT": "smoke.py", "DSPLAN_SMOKE_RANKS": "2"} if smoke else {"MASTER_ADDR": "10.0.0.7"}
    seen = launch(plan, tmp_path / "plan", "--epochs", "2", MASTER_PORT="23457", **env)
    config, _, words = config_from_args(parse_args(seen.argv[1:]))
    assert config.min_nodes == config.max_nodes == (1 if smoke else nodes)
    assert config.nproc_per_node == (2 if smoke else 8)
    assert config.rdzv_backend == "c10d"
    assert config.rdzv_endpoint == ("10.0.0.7:23457" if nodes == 2 and not smoke else "127.0.0.1:23457")
    assert words[-3:] == ["train.py", "--epochs", "2"] if not smoke else words[-1] == "smoke.py"
