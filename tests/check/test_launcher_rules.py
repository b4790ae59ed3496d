"""The line that starts a run: what its launcher refuses, overlooks or leaves at one thread.

Expected: the launchers' own parsers and sources (deepspeed 0.19.8 launcher/runner.py, torch 2.13 distributed/run.py,
accelerate 1.15 commands/launch.py); the first test runs the deepspeed launcher itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.check import check
from planner.records.problem import Severity

E, W = Severity.ERROR, Severity.WARNING
DS: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2},
}
OFFLOADED = {**DS, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
REST = (
    "train.py --deepspeed ds_config.json --bf16 True --per_device_train_batch_size 2 --gradient_accumulation_steps 4 "
    "--output_dir out"
)
EIGHT, TWO_NODES = {"gpus": "8xA100-80G"}, {"gpus": "2x8xA100-80G"}
# rule, severity, path, wrong line, flags, right line
LINES: tuple[tuple[str, Severity, str, str, dict[str, Any], str], ...] = (
    ("DS316", E, "$.num_gpus", "deepspeed --num_gpus 2 --include localhost:0,1", {}, "deepspeed --num_gpus 2"),
    ("DS316", E, "$.num_nodes", "deepspeed --num_nodes 1 --exclude host:0", {}, "deepspeed --exclude host:0"),
    (
        "DS316",
        W,
        "$.CUDA_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES=2,3 deepspeed --num_gpus 2",
        {},
        "CUDA_VISIBLE_DEVICES=2,3 deepspeed",
    ),
    ("DS123", E, "$.nproc_per_node", "torchrun --nproc_per_node 16", EIGHT, "torchrun --nproc_per_node 8"),
    ("DS123", W, "$.nproc_per_node", "torchrun --nproc-per-node=4", EIGHT, "torchrun --nproc-per-node=$GPUS"),
    ("DS123", W, "$.num_gpus", "deepspeed --num_gpus 8", TWO_NODES, "deepspeed --num_gpus 8 --num_nodes 2"),
    (
        "DS130",
        E,
        "$.nnodes",
        "torchrun --nnodes 2 --nproc_per_node 8",
        {},
        "torchrun --nnodes 2 --nproc_per_node 8 --rdzv-endpoint=$HEAD:29500",
    ),
    ("DS130", E, "$.nnodes", "torchrun --nnodes=1:4 --nproc_per_node 8", {}, "torchrun --nnodes=1 --nproc_per_node 8"),
    ("DS130", W, "$.num_nodes", "deepspeed --num_nodes 2", {}, "deepspeed --num_nodes 2 --hostfile hosts"),
    ("DS311", W, "$.launcher", "python", {}, "srun python"),
    (
        "DS316",
        E,
        "$.multi_gpu",
        "accelerate launch --use_deepspeed --multi_gpu",
        {},
        "accelerate launch --use_deepspeed",
    ),
    (
        "DS316",
        E,
        "$.num_processes",
        "accelerate launch --multi_gpu --num_processes 1",
        {},
        "accelerate launch --multi_gpu --num_processes 2",
    ),
    ("DS326", E, "$.script", "accelerate launch --config_file a.yaml python3", {}, "torchrun --no_python python3"),
    ("DS325", E, "$.num_gpu_per_node", "deepspeed --num_gpu_per_node 8", {}, "deepspeed --num_gpus 8"),
    ("DS325", E, "$.nproc_per_nodes", "torchrun --nproc_per_nodes 8", {}, "torchrun --nproc-per-nod 8"),
    (
        "DS325",
        E,
        "$.num_processses",
        "accelerate launch --config_file a.yaml --num_processses 8",
        {},
        "accelerate launch --config_file a.yaml --num-processes 8",
    ),
    ("DS319", W, "$.CUDA_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING=1 deepspeed", {}, "CUDA_LAUNCH_BLOCKING=0 deepspeed"),
    ("DS319", W, "$.NCCL_TIMEOUT", "export NCCL_TIMEOUT=3600\ndeepspeed", {}, "export NCCL_DEBUG=INFO\ndeepspeed"),
)


def found(folder: Path, line: str, document: dict[str, Any] = DS, **flags: Any) -> list[tuple[str, Severity, str]]:
    (folder / "launch.sh").write_text(f"#!/bin/bash\n{line}\n")
    (folder / "ds_config.json").write_text(json.dumps(document))
    result = check(folder / "launch.sh", folder / "ds_config.json", **flags)
    return [(problem.rule, problem.severity, problem.path) for problem in result.findings if problem.line]


@pytest.mark.parametrize(("rule", "severity", "path", "wrong", "flags", "right"), LINES)
def test_a_line_is_found_and_the_nearest_right_one_is_not(
    tmp_path: Path, rule: str, severity: Severity, path: str, wrong: str, flags: dict[str, Any], right: str
) -> None:
    assert (rule, severity, path) in found(tmp_path, f"{wrong} {REST}", **flags)
    assert rule not in {one[0] for one in found(tmp_path, f"{right} {REST}", **flags)}


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("deepspeed train.py --num_gpus 4 --deepspeed ds_config.json", "$.num_gpus"),
        ("accelerate launch --config_file a.yaml train.py --num_processes 4", "$.num_processes"),
        ("torchrun train.py --nproc_per_node 4", "$.nproc_per_node"),
    ],
)
def test_a_flag_after_the_script(tmp_path: Path, line: str, path: str) -> None:
    assert ("DS317", W, path) in found(tmp_path, line)
    first, script, *rest = line.partition("train.py")
    flag = rest[0].split(" --deepspeed")[0]
    assert "DS317" not in {one[0] for one in found(tmp_path, f"{first.strip()} {flag} {script}")}


@pytest.mark.parametrize(
    ("lines", "at"),
    [
        (["torchrun train.py --bf16 True", "  --deepspeed ds_config.json"], 3),
        (["torchrun train.py \\", "  --bf16 True \\ ", "  --deepspeed ds_config.json"], 4),
        (["torchrun --nproc_per_node 8 \\ ", "  train.py --deepspeed ds_config.json"], 3),
        (["torchrun train.py \\", "  # --fp16 True \\", "  --deepspeed ds_config.json"], 4),
    ],
)
def test_a_line_that_lost_its_command(tmp_path: Path, lines: list[str], at: int) -> None:
    (tmp_path / "launch.sh").write_text("\n".join(["#!/bin/bash", *lines, "echo done", ""]))
    lost = [problem for problem in check(tmp_path / "launch.sh").findings if problem.rule == "DS324"]
    assert [(problem.line, problem.severity) for problem in lost] == [(at, E)]
    whole = " \\\n".join(line.strip().rstrip("\\ ") for line in lines if "#" not in line)
    assert "DS324" not in {one[0] for one in found(tmp_path, whole)}


@pytest.mark.parametrize(
    "text",
    [
        'case "$1" in\n  --ds-config) DS=$2 ;;\n  -h|--help)\n    exit ;;\nesac\ntorchrun train.py',
        "cat << EOF\nUsage: run.sh\n  --help  shows this\nEOF\ntorchrun train.py",
        ": '\naccelerate launch --bogus_flag 3 train.py\n'\ntorchrun train.py",
        'cat << EOF > ds.json\n{"a": "don\'t"}\nEOF\ntorchrun train.py',
        'L=${L:-"--a ${N} --b 1"}\ntorchrun $L train.py',
        "deepspeed --launcher_args '--world_info \"{}\"' --no_local_rank train.py",
    ],
)
def test_flags_that_are_no_lost_lines(tmp_path: Path, text: str) -> None:
    assert not {"DS324", "DS325"} & {one[0] for one in found(tmp_path, text)}


def test_cpu_adam_gets_threads(tmp_path: Path) -> None:
    line = f"torchrun --nproc_per_node 8 {REST}"
    assert ("DS318", W, "$.launcher") in found(tmp_path, line, OFFLOADED)
    for other, document in (
        (line, DS),
        (f"OMP_NUM_THREADS=8 {line}", OFFLOADED),
        (f"export OMP_NUM_THREADS=$CORES\n{line}", OFFLOADED),
        (line.replace("8", "1", 1), OFFLOADED),
        (line.replace("torchrun --nproc_per_node", "deepspeed --num_gpus"), OFFLOADED),
        (f"accelerate launch --config_file a.yaml --num_cpu_threads_per_process 8 {REST}", OFFLOADED),
    ):
        assert "DS318" not in {one[0] for one in found(tmp_path, other, document)}, other


BATCH = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node={tasks}\n"
MEETING = "--nnodes 2 --nproc_per_node 8 --rdzv-endpoint=$HEAD:29500"


@pytest.mark.parametrize(
    ("wrong", "tasks", "path", "right", "right_tasks"),
    [
        (f"torchrun {MEETING} {REST}", 1, "$.launcher", f"srun torchrun {MEETING} {REST}", 1),
        (f"srun torchrun {MEETING} {REST}", 8, "$.launcher", f"srun --ntasks-per-node=1 torchrun {MEETING} {REST}", 8),
        (
            f"srun accelerate launch --config_file a.yaml --machine_rank $SLURM_NODEID {REST}",
            1,
            "$.machine_rank",
            f"srun bash -c 'accelerate launch --config_file a.yaml --machine_rank $SLURM_NODEID {REST}'",
            1,
        ),
        (
            f'srun bash -c "torchrun {MEETING} --node_rank $SLURM_PROCID {REST}"',
            1,
            "$.node_rank",
            f'srun bash -c "torchrun {MEETING} --node_rank \\$SLURM_PROCID {REST}"',
            1,
        ),
        (
            f"srun torchrun {MEETING} {REST}",
            8,
            "$.launcher",
            f"OPTIONS='--ntasks-per-node=1'\nsrun $OPTIONS torchrun {MEETING} {REST}",
            8,
        ),
        (
            f"srun torchrun {MEETING} --node_rank $SLURM_NODEID {REST}",
            1,
            "$.node_rank",
            f"srun torchrun --nnodes 1 --nproc_per_node 8 --node_rank $SLURM_NODEID {REST}",
            1,
        ),
        (
            f"srun torchrun {MEETING} --node_rank $SLURM_PROCID {REST}",
            1,
            "$.node_rank",
            f"srun torchrun {MEETING} --rdzv-backend c10d --node_rank $SLURM_PROCID {REST}",
            1,
        ),
    ],
)
def test_slurm_starts_one_launcher_on_every_node_with_its_own_rank(
    tmp_path: Path, wrong: str, tasks: int, path: str, right: str, right_tasks: int
) -> None:
    assert ("DS313", E, path) in found(tmp_path, BATCH.format(tasks=tasks) + wrong)
    assert "DS313" not in {one[0] for one in found(tmp_path, BATCH.format(tasks=right_tasks) + right)}


def test_what_only_the_shell_knows_is_no_default(tmp_path: Path) -> None:
    """`$LR` is not the 5e-5 of the Trainer, and `"$@"` may hold any flag."""
    document = {**DS, "train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
    line = "torchrun train.py --deepspeed ds_config.json --bf16 True --gradient_accumulation_steps 4 --save_steps 5"
    sure = found(tmp_path, line, document)
    assert ("DS301", E, "$.optimizer.params.lr") in sure
    assert ("DS301", E, "$.train_micro_batch_size_per_gpu") in sure
    twice = 'BATCH=2\nif [ "$1" ]; then BATCH=4\nLR=1e-5; fi\n'
    found_now = found(tmp_path, f"{twice}{line} --learning_rate $LR --per_device_train_batch_size $BATCH", document)
    assert [one for one in found_now if one[0] in ("DS301", "DS322", "DS309")] == [
        ("DS301", E, "$.optimizer.params.lr")  # LR is set once, BATCH twice
    ]
    for more in ('"$@"', "$EXTRA", "${EXTRA[@]}", "--learning_rate $LR --per_device_train_batch_size ${BATCH:-4}"):
        assert "DS301" not in {one[0] for one in found(tmp_path, f"{line} {more}", document)}, more
    told = found(tmp_path, f"{line} --learning_rate 1e-5 $EXTRA", document)
    assert [one[2] for one in told if one[0] == "DS301"] == ["$.optimizer.params.lr"]


def test_a_file_that_only_the_shell_knows_is_named(tmp_path: Path) -> None:
    assert "DS312" in {one[0] for one in found(tmp_path, "accelerate launch train.py")}
    assert "DS312" not in {one[0] for one in found(tmp_path, "accelerate launch --config_file $CONFIG train.py")}
    assert "DS121" not in {one[0] for one in found(tmp_path, "torchrun train.py --deepspeed $CONFIG --bf16 True")}


@pytest.mark.deepspeed
def test_the_deepspeed_launcher_refuses_the_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.launcher import runner

    with pytest.raises(ValueError, match="Cannot specify num_nodes/gpus with include/exclude"):
        runner.main(["--num_gpus", "2", "--include", "localhost:0,1", "train.py"])
    with pytest.raises(ValueError, match="no extra nodes available via hostfile"):
        runner.main(["--num_nodes", "2", "train.py"])
