"""Launch lines and TrainingArguments: what they say, as a shell and transformers' own parser read them."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from planner.check.one_file.training_names import BY_KIND, KINDS
from planner.check.one_run.launcher_rules import _known_flags
from planner.check.reading.arguments import (
    SWITCHES,
    document_of,
    names_in_launch,
    read_flags,
    read_launch,
    training_flags,
    typed,
)
from planner.check.reading.nodes import Lines, places
from planner.check.reading.shell_text import commands
from planner.check.single import look_at
from planner.check.together import Kind

SCRIPT = r"""#!/bin/bash
#SBATCH --nodes=2
# accelerate launch old.py --bf16
export NCCL_DEBUG=INFO
BS=4
OUT="out/$RUN_NAME"
DS='configs/ds z3.json'
ARGS=(
  --bf16 True # really
  --learning_rate 5e-5
)
CUDA_VISIBLE_DEVICES=0,1 nohup accelerate launch --config_file=acc.yaml --num_processes 8 \
  --use_deepspeed train.py \
  --deepspeed "$DS" --per_device_train_batch_size $BS --gradient_accumulation_steps ${GA:-2} \
  --output_dir "$OUT" --betas 0.9 0.95 --no_remove_unused_columns "${ARGS[@]}" \
  --report_to none > log.txt 2>&1 &
"""


def document(text: str) -> Any:
    tree = read_launch(text)
    return None if tree is None else document_of(tree)


def test_a_script_is_read_as_its_shell_would() -> None:
    assert document(SCRIPT) == {
        "launcher": "accelerate",
        "launcher_flags": {"config_file": "acc.yaml", "num_processes": 8, "use_deepspeed": True},
        "script": "train.py",
        "script_flags": {
            "bf16": True,
            "learning_rate": 5e-5,
            "deepspeed": "configs/ds z3.json",
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": "${GA:-2}",  # only the shell knows them
            "output_dir": "$OUT",
            "betas": [0.9, 0.95],
            "remove_unused_columns": False,
            "report_to": "none",
        },
        "environment": {"NCCL_DEBUG": "INFO", "BS": "4", "DS": "configs/ds z3.json", "CUDA_VISIBLE_DEVICES": "0,1"},
    }


def test_every_flag_is_shown_where_it_is_written() -> None:
    tree = read_launch(SCRIPT)
    assert tree is not None
    at, lines = places(tree), SCRIPT.splitlines()
    for flag in ("bf16", "learning_rate", "deepspeed", "per_device_train_batch_size", "report_to"):
        line, column = Lines(SCRIPT).at(at[f"$.script_flags.{flag}"].start)
        assert lines[line - 1][column - 1 :].startswith(f"--{flag}")


@pytest.mark.parametrize(
    ("line", "launcher", "flags", "script", "script_flags"),
    [
        ("deepspeed --num_gpus 8 train.py --deepspeed --deepspeed_config ds.json --lr 1e-4", "deepspeed",
         {"num_gpus": 8}, "train.py", {"deepspeed": True, "deepspeed_config": "ds.json", "lr": 1e-4}),
        ("torchrun --standalone --nproc_per_node=8 -m pkg.train --bf16 --max_grad_norm .5", "torchrun",
         {"standalone": True, "nproc_per_node": 8, "m": True}, "pkg.train", {"bf16": True, "max_grad_norm": 0.5}),
        ('srun --jobid 1 bash -c "accelerate launch --config_file a.yaml t.py --deepspeed x.json --max-steps 5"',
         "accelerate", {"config_file": "a.yaml"}, "t.py", {"deepspeed": "x.json", "max_steps": 5}),
        ("python -m torch.distributed.run --nproc_per_node 2 t.py", "torchrun", {"nproc_per_node": 2}, "t.py", {}),
        ("/opt/bin/python3 -u train.py --fp16 False --learning_rate=-1", "python", {}, "train.py",
         {"fp16": False, "learning_rate": -1.0}),
        ("accelerate launch --zero_stage 3 $SCRIPT --bf16 $X --fp16", "accelerate", {"zero_stage": 3}, "$SCRIPT",
         {"bf16": "$X", "fp16": True, "$": "$X"}),
        ("accelerate launch -m axolotl.cli.train config.yml", "accelerate", {"m": True}, "axolotl.cli.train", {}),
        ("accelerate launch -m --config_file a.yaml --num_processes $((N * (M + 1))) pkg.train", "accelerate",
         {"m": True, "config_file": "a.yaml", "num_processes": "$((N * (M + 1)))"}, "pkg.train", {}),
        ("srun --label torchrun --nproc_per_node 8 t.py", "torchrun", {"nproc_per_node": 8}, "t.py", {}),
        ("srun --nodes=2 accelerate launch --multi_gpu t.py", "accelerate", {"multi_gpu": True}, "t.py", {}),
        ('A="--bf16 --max_steps 3"\npython t.py $A', "python", {}, "t.py", {"bf16": True, "max_steps": 3}),
    ],
)  # fmt: skip
def test_launchers(line: str, launcher: str, flags: Any, script: str, script_flags: Any) -> None:
    read = document(line)
    del read["environment"]
    assert read == {
        "launcher": launcher,
        "launcher_flags": flags,
        "script": script,
        "script_flags": script_flags,
    }


@pytest.mark.parametrize(
    ("flags", "read"),
    [
        ("--lr $LR", {"lr": "$LR"}),
        ("--lr=$LR -x `date`", {"lr": "$LR", "x": "`date`"}),
        ('--max_steps 5 "$@"', {"max_steps": 5, "$": "$@"}),
        ("--max_steps 5 $MORE --bf16", {"max_steps": 5, "$": "$MORE", "bf16": True}),
        ("--bf16 $MORE", {"bf16": "$MORE", "$": "$MORE"}),  # its value, or more flags
        ("--$NAME 3", {}),
    ],
)
def test_what_only_the_shell_knows_stands_as_it_is_written(flags: str, read: dict[str, Any]) -> None:
    assert document(f"python t.py {flags}")["script_flags"] == read


@pytest.mark.parametrize("line", ["", "bash foo.sh", "accelerate config", "echo hello", 'x="', "$(", "a=(", "))", "\\"])
def test_a_line_that_starts_no_training_is_none(line: str) -> None:
    assert read_launch(line) is None


def test_the_names_of_configurations_are_found_in_any_position() -> None:
    line = "llamafactory-cli train a/sft.yaml\npython t.py --deepspeed=ds.json cfg.yml $X.json"
    assert names_in_launch(line) == ["a/sft.yaml", "ds.json", "cfg.yml"]


def test_flags_alone_are_training_arguments() -> None:
    looked = look_at("args.txt", "--bf16 --deepspeed ds.json\n--max_grad_norm 0.3\n")
    assert looked.kind is Kind.TRAINING
    assert looked.files[0].document == {"bf16": True, "deepspeed": "ds.json", "max_grad_norm": 0.3}


def test_only_the_trainers_own_flags_make_training_arguments() -> None:
    trainer = read_launch("deepspeed t.py --deepspeed ds.json --per_device_train_batch_size 2")
    own = read_launch("deepspeed t.py --deepspeed --deepspeed_config ds.json --per_device_train_batch_size 2")
    other = read_launch("deepspeed t.py --seed 1 --lr 2")
    assert trainer is not None
    assert own is not None
    assert other is not None
    assert training_flags(trainer) is not None
    assert training_flags(own) is None
    assert training_flags(other) is None


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_words_are_those_of_bash() -> None:
    lines = [
        "a 'b c' \"d  e\" f\\ g",
        "x=1; echo $x \"$x y\" '${x}'",
        "v='p q'; echo $v \"$v\"",
        "A=(1 '2 3'); echo \"${A[@]}\" z",
        "echo a\\\n b",
        'echo "a\\"b"x',
        "echo a#b # c",
        "echo --x=\"1 2\" --y='3'",
    ]
    for line in lines:
        shown = line.replace("echo", "printf '%s\\n'") if "echo" in line else f"printf '%s\\n' {line}"
        ran = subprocess.run(["bash", "-c", shown], capture_output=True, text=True, check=True).stdout.splitlines()
        words = [word.value for word in commands(line)[-1]]
        assert (words[1:] if "echo" in line else words) == ran, line


@pytest.mark.deepspeed
@pytest.mark.accelerate
def test_switches_are_those_of_the_installed_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = pytest.importorskip("accelerate.commands.launch")
    runner = pytest.importorskip("deepspeed.launcher.runner")
    from torch.distributed.run import get_args_parser

    parsers = [launch.launch_command_parser(), get_args_parser()]

    def keep(self: argparse.ArgumentParser, *arguments: Any, **keywords: Any) -> None:
        parsers.append(self)
        raise SystemExit

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", keep)
    with pytest.raises(SystemExit):
        runner.parse_args([])
    found = {
        option.lstrip("-").replace("-", "_")
        for parser in parsers
        for action in parser._actions
        if action.nargs == 0
        for option in action.option_strings
    }
    assert found - {"h", "help"} == SWITCHES
    assert len(parsers) == 3
    for launcher, parser in zip(("accelerate", "torchrun", "deepspeed"), parsers, strict=True):
        options = [option for action in parser._actions for option in action.option_strings]
        long = {option[2:].replace("-", "_") for option in options if option.startswith("--")}
        assert set(_known_flags()[launcher]) == long


@pytest.mark.transformers
def test_names_and_kinds_are_those_of_the_installed_training_arguments() -> None:
    transformers = pytest.importorskip("transformers")
    import dataclasses
    import typing

    hints = typing.get_type_hints(transformers.TrainingArguments)
    fields = [field.name for field in dataclasses.fields(transformers.TrainingArguments)]
    for name in fields:
        kinds = set(typing.get_args(hints[name])) or {hints[name]}
        kinds -= {type(None)}
        alone = {bool: "bool", int: "int", float: "float"}
        if len(kinds) == 1 and next(iter(kinds)) in alone:
            assert KINDS[name] == alone[next(iter(kinds))], name
        else:
            assert KINDS[name] in ("text", "other"), name
    assert sorted(KINDS) == sorted(fields)
    assert len(fields) >= 110


@pytest.mark.transformers
def test_values_are_those_of_transformers_own_parser(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    lines = [
        "--bf16 --learning_rate 5e-5 --max_steps 3",
        "--bf16 False --gradient_checkpointing true --deepspeed ds.json --per_device_train_batch_size 2",
        "--no_remove_unused_columns --max_grad_norm 1 --adam-beta2 0.95 --seed 7 --lr_scheduler_type cosine",
        "--logging_steps 10 --save_strategy no --report_to none --warmup_steps 0.1",
    ]
    checked = 0
    for line in lines:
        namespace = vars(parser.parse_args(shlex.split(f"--output_dir {tmp_path} {line}")))
        tree = read_flags(line)
        assert tree is not None
        for name, value in document_of(tree).items():
            expected = getattr(namespace[name], "value", namespace[name])
            assert value == expected, name
            assert type(value) is type(expected), name
            checked += 1
    assert checked == 16


def test_unknown_flags_are_read_as_they_look() -> None:
    assert [typed(text, "") for text in ("3", "1e-4", "true", "x", "1.2.3")] == [3, 1e-4, True, "x", "1.2.3"]
    assert typed("no", KINDS["save_strategy"]) == "no"
    assert len(BY_KIND) == 5
