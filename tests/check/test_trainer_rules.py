"""What transformers refuses among TrainingArguments: the rules say what the installed classes do."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import os
import random
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from planner.check import check, check_text
from planner.check.context import Context
from planner.check.given import context_of
from planner.check.mending.fix import fix_paths
from planner.check.one_file.trainer_facts import DEFAULTS
from planner.check.one_file.trainer_words import FSDP, GONE, REPORTS, SHARDING, WORDS, meant
from planner.check.one_run.across import across_problems
from planner.check.one_run.trainer_rules import SCHEDULES
from planner.check.together import File, Kind, Together
from planner.records.problem import Problem, Severity

E, W = Severity.ERROR, Severity.WARNING
BEST = {"load_best_model_at_end": True}
STEPS = {**BEST, "eval_strategy": "steps"}
WSD = {"lr_scheduler_type": "warmup_stable_decay"}
MIN_LR = {"lr_scheduler_type": "cosine_with_min_lr"}
# Arguments, rule, place; each is refused by TrainingArguments, by the Trainer, or when it builds loader and schedule.
WRONG: tuple[tuple[dict[str, Any], str, str], ...] = (
    (BEST, "DS308", "load_best_model_at_end"),
    ({**BEST, "eval_strategy": "epoch"}, "DS308", "load_best_model_at_end"),
    ({**BEST, "eval_strategy": "steps", "save_strategy": "no"}, "DS308", "load_best_model_at_end"),
    ({**STEPS, "eval_steps": 200}, "DS308", "eval_steps"),
    ({**STEPS, "eval_steps": 200, "save_steps": 300}, "DS308", "save_steps"),
    ({**STEPS, "save_steps": 100}, "DS308", "save_steps"),
    ({**STEPS, "save_steps": 100, "logging_steps": 30}, "DS308", "save_steps"),
    ({**STEPS, "save_steps": 500, "eval_steps": 0.1}, "DS308", "save_steps"),
    ({**STEPS, "save_steps": 0.2, "eval_steps": 0.3}, "DS308", "save_steps"),
    ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "DS308", "lr_scheduler_type"),
    ({"lr_scheduler_type": "greedy", "eval_strategy": "no"}, "DS308", "lr_scheduler_type"),
    ({"save_strategy": "best", "eval_strategy": "epoch"}, "DS308", "save_strategy"),
    ({"dataloader_prefetch_factor": 2}, "DS308", "dataloader_prefetch_factor"),
    ({"dataloader_prefetch_factor": 2, "dataloader_num_workers": 0}, "DS308", "dataloader_prefetch_factor"),
    ({"dataloader_persistent_workers": True}, "DS308", "dataloader_persistent_workers"),
    ({"dataloader_multiprocessing_context": "fork"}, "DS308", "dataloader_multiprocessing_context"),
    ({"dataloader_num_workers": -1}, "DS308", "dataloader_num_workers"),
    ({"warmup_steps": -1}, "DS308", "warmup_steps"),
    ({"learning_rate": -1e-5}, "DS308", "learning_rate"),
    ({"per_device_train_batch_size": 0}, "DS308", "per_device_train_batch_size"),
    ({"torch_empty_cache_steps": 0}, "DS308", "torch_empty_cache_steps"),
    ({"logging_steps": 0}, "DS308", "logging_steps"),
    ({"logging_steps": 1.5}, "DS308", "logging_steps"),
    ({"save_steps": 2.5}, "DS308", "save_steps"),
    ({"eval_strategy": "steps", "eval_steps": 7.5}, "DS308", "eval_steps"),
    ({"logging_strategy": "no", "logging_steps": 0, "eval_strategy": "steps"}, "DS308", "eval_strategy"),
    (MIN_LR, "DS308", "lr_scheduler_type"),
    ({**MIN_LR, "lr_scheduler_kwargs": {"num_cycles": 0.5}}, "DS308", "lr_scheduler_kwargs"),
    ({**MIN_LR, "lr_scheduler_kwargs": {"min_lr": 1e-6, "min_lr_rate": 0.1}}, "DS308", "lr_scheduler_kwargs"),
    ({**MIN_LR, "lr_scheduler_kwargs": {"min_lr_ratio": 0.1}}, "DS308", "lr_scheduler_kwargs"),
    ({"lr_scheduler_type": "cosine_warmup_with_min_lr"}, "DS308", "lr_scheduler_type"),
    (WSD, "DS308", "lr_scheduler_type"),
    ({"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"min_lr": 1e-6}}, "DS308", "lr_scheduler_kwargs"),
    ({"lr_scheduler_kwargs": '{"min_lr": 1e-6}'}, "DS308", "lr_scheduler_kwargs"),
    ({"eval_strategy": "step"}, "DS309", "eval_strategy"),
    ({"save_strategy": "Epoch"}, "DS309", "save_strategy"),
    ({"save_strategy": False}, "DS309", "save_strategy"),
    ({"eval_strategy": None}, "DS309", "eval_strategy"),
    ({"log_level": None}, "DS309", "log_level"),
    ({"logging_strategy": "best"}, "DS309", "logging_strategy"),
    ({"hub_strategy": "always"}, "DS309", "hub_strategy"),
    ({"lr_scheduler_type": "cosin"}, "DS309", "lr_scheduler_type"),
    ({"optim": "adamw"}, "DS309", "optim"),
    ({"debug": "overflow"}, "DS309", "debug"),
    ({"log_level": "warn"}, "DS309", "log_level"),
    ({"report_to": "wand"}, "DS309", "report_to"),
    ({"report_to": "wandb,tensorboard"}, "DS309", "report_to"),
    ({"report_to": ["none", "tensorboard"]}, "DS309", "report_to"),
    ({"fsdp": "full_shrd auto_wrap"}, "DS309", "fsdp"),
    ({"fsdp": ["full_shard", "warp"]}, "DS309", "fsdp"),
    ({"fsdp": "true"}, "DS309", "fsdp"),
)
# As wrong in transformers 5, and right before.
OF_RELEASE_5: tuple[tuple[dict[str, Any], str], ...] = (
    ({"optim": "adamw_hf"}, "optim"),
    ({"optim": "adamw_apex_fused"}, "optim"),
    ({"report_to": None}, "report_to"),
    ({"report_to": ""}, "report_to"),
    ({"fsdp": "hybrid_shard"}, "fsdp"),
    ({"fsdp": "no_shard", "fsdp_config": {"version": 2}}, "fsdp"),
)
RIGHT: tuple[dict[str, Any], ...] = (
    {},
    STEPS,
    {**BEST, "eval_strategy": "epoch", "save_strategy": "epoch"},
    {**BEST, "save_strategy": "no"},
    {**BEST, "save_strategy": "best"},
    {**STEPS, "eval_steps": 250},
    {**STEPS, "save_steps": 100, "logging_steps": 50},
    {**STEPS, "save_steps": 0.3, "eval_steps": 0.1},
    {"load_best_model_at_end": False, "eval_strategy": "epoch"},
    {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
    {"save_strategy": "best", "metric_for_best_model": "loss"},
    {"dataloader_prefetch_factor": 2, "dataloader_num_workers": 2, "dataloader_persistent_workers": True},
    {"dataloader_persistent_workers": False},
    {"warmup_steps": 0.1},
    {"logging_steps": 0.1, "save_steps": 0.25},
    {"logging_strategy": "no", "logging_steps": 0},
    {"save_strategy": "no", "save_steps": 2.5},
    {**MIN_LR, "lr_scheduler_kwargs": {"min_lr": 1e-6}},
    {**MIN_LR, "lr_scheduler_kwargs": '{"min_lr_rate": 0.1}'},
    {**WSD, "lr_scheduler_kwargs": {"num_decay_steps": 5}},
    {"lr_scheduler_type": "constant_with_warmup", "lr_scheduler_kwargs": {"any": 1}},
    {"debug": "underflow_overflow tpu_metrics_debug"},
    {"report_to": ["tensorboard"]},
    {"report_to": "none"},
    {"report_to": ["none"]},
    {"report_to": []},
    {"debug": None},
)
RIGHT_FOR_FSDP: tuple[dict[str, Any], ...] = (
    {"fsdp": True},
    {"fsdp": ""},
    {"fsdp": "full_shard auto_wrap offload"},
    {"fsdp": "hybrid_shard auto_wrap", "fsdp_config": {"version": 1}},
    {"fsdp": "FULL_SHARD", "fsdp_config": {"fsdp_version": 1}},
)
OURS = ("DS308", "DS309")


def found(arguments: dict[str, Any], **more: Any) -> list[Problem]:
    """The findings of these rules on a file of arguments, by itself and in its run."""
    file = File(name="args.json", kind=Kind.TRAINING, text="", document={"output_dir": "out", **arguments})
    alone = check_text("args.json", json.dumps(file.fields), "training-arguments")[1]
    return [
        problem
        for problem in (*alone, *across_problems(Together(training=file, **more), Context()))
        if problem.rule in OURS
    ]


@pytest.mark.parametrize(("arguments", "rule", "name"), WRONG)
def test_what_transformers_refuses_is_an_error_at_its_argument(arguments: dict[str, Any], rule: str, name: str) -> None:
    assert [(p.rule, p.path, p.severity) for p in found(arguments)] == [(rule, f"$.{name}", E)]


@pytest.mark.parametrize(("arguments", "name"), OF_RELEASE_5)
def test_what_release_4_takes_is_a_warning(arguments: dict[str, Any], name: str) -> None:
    assert [(p.rule, p.path, p.severity) for p in found(arguments)] == [("DS309", f"$.{name}", W)]


@pytest.mark.parametrize("arguments", [*RIGHT, *RIGHT_FOR_FSDP])
def test_what_transformers_takes_is_left_alone(arguments: dict[str, Any]) -> None:
    assert found(arguments) == []


def refusal(arguments: dict[str, Any], folder: Path) -> str:
    """The exception of TrainingArguments, the Trainer, its loader or its schedule as text; empty where all are made."""
    import torch
    from transformers import Trainer, TrainingArguments

    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    data: Any = [{"x": torch.zeros(1)}] * 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = TrainingArguments(**{"output_dir": str(folder), "use_cpu": True, "report_to": "none", **arguments})
            if made.fsdp:
                return ""  # wants several processes
            trainer = Trainer(model=torch.nn.Linear(1, 1), args=made, train_dataset=data, eval_dataset=data)
            trainer.get_train_dataloader()
            trainer.create_optimizer_and_scheduler(100)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.transformers
def test_the_installed_trainer_refuses_every_wrong_case_and_takes_every_right_one(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    wrong = [arguments for arguments, *_ in (*WRONG, *OF_RELEASE_5)]
    assert [arguments for arguments in wrong if not refusal(arguments, tmp_path)] == []
    right = [
        arguments for arguments in (*RIGHT, *RIGHT_FOR_FSDP) if "tensorboard" not in arguments.get("report_to", ())
    ]
    assert {refusal(arguments, tmp_path): arguments for arguments in right}.keys() == {""}
    assert len(wrong) >= 55
    assert len(right) >= 28


@pytest.mark.transformers
def test_any_strategies_and_steps_are_judged_as_the_installed_class_does(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    given: dict[str, tuple[Any, ...]] = {
        "load_best_model_at_end": (True, False),
        "save_strategy": ("no", "steps", "epoch", "best", "step"),
        "eval_strategy": ("no", "steps", "epoch", "steps"),
        "logging_strategy": ("no", "steps"),
        "save_steps": (0, 100, 200, 500, 0.2, 0.25, 1.5),
        "eval_steps": (None, 0, 50, 100, 150, 0.1, 0.05, 1.5),
        "logging_steps": (0, 10, 200, 0.05),
        "lr_scheduler_type": ("linear", "reduce_lr_on_plateau", "greedy"),
        "metric_for_best_model": ("loss",),
    }
    chance, refused, pairs = random.Random(308), 0, 500
    for _ in range(pairs):
        arguments = {name: chance.choice(values) for name, values in given.items() if chance.random() < 0.7}
        said = ""
        try:
            transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, **arguments)
        except ValueError as error:
            said = str(error)
        errors = [p for p in found(arguments) if p.severity is E and "metric_for_best_model" not in p.message]
        assert bool(errors) == bool(said), (arguments, said, errors)
        refused += bool(said)
    assert pairs / 4 < refused < pairs * 3 / 4


@pytest.mark.transformers
def test_the_tables_are_those_of_the_installed_package() -> None:
    transformers = pytest.importorskip("transformers")
    from transformers import debug_utils, optimization, trainer_utils, training_args
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    classes = {
        "eval_strategy": trainer_utils.IntervalStrategy,
        "evaluation_strategy": trainer_utils.IntervalStrategy,
        "logging_strategy": trainer_utils.IntervalStrategy,
        "save_strategy": trainer_utils.SaveStrategy,
        "hub_strategy": trainer_utils.HubStrategy,
        "lr_scheduler_type": trainer_utils.SchedulerType,
        "optim": training_args.OptimizerNames,
        "debug": debug_utils.DebugOption,
    }
    for name, kind in classes.items():
        assert set(WORDS[name]) == {member.value for member in kind}, name
    fields = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments)}
    choices = {name: field.metadata["choices"] for name, field in fields.items() if "choices" in field.metadata}
    for name in ("log_level", "log_level_replica", "train_sampling_strategy"):
        assert set(WORDS[name]) == set(choices[name])
    assert set(classes) | set(choices) - {"ddp_backend", "dataloader_multiprocessing_context"} == set(WORDS)
    assert set(REPORTS) == set(INTEGRATION_TO_CALLBACK)
    assert set(FSDP) == {member.value for member in trainer_utils.FSDPOption}
    assert set(GONE.values()) <= set(WORDS["optim"])
    assert {name: fields[name].default for name in DEFAULTS} == DEFAULTS
    assert set(SHARDING) < set(FSDP)
    for name, parameters in SCHEDULES.items():
        function = optimization.TYPE_TO_SCHEDULER_FUNCTION[trainer_utils.SchedulerType(name)]
        own = set(inspect.signature(function).parameters)
        common = {"optimizer", "num_warmup_steps", "num_training_steps", "last_epoch"}
        assert own - common == set(parameters), name


@pytest.mark.parametrize(
    ("arguments", "severity"),
    [
        (BEST, W),  # axolotl and swift evaluate by themselves
        ({**BEST, "eval_strategy": "epoch", "save_strategy": "steps"}, E),
        ({"dataloader_prefetch_factor": 2}, W),
        ({"optim": "muon"}, W),
        ({"optim": "adamw_torc"}, E),
        ({"log_level": "INFO"}, W),
        ({"optim": None}, W),
        (WSD, W),  # LLaMA-Factory fills the steps in
        ({"eval_strategy": False}, E),
    ],
)
def test_among_other_programs_arguments_only_what_is_written_is_sure(
    arguments: dict[str, Any], severity: Severity
) -> None:
    (problem,) = found({"base_model": "m", "micro_batch_size": 1, **arguments})
    assert problem.severity is severity
    (problem,) = found({"model_name_or_path": "m", "dataset_name": "d", **arguments})  # transformers' own scripts
    assert problem.severity is E


def test_a_default_that_trl_has_otherwise_is_a_warning_in_its_scripts() -> None:
    (problem,) = found({"model_name_or_path": "m", **STEPS, "save_steps": 100})
    assert problem.severity is W


@pytest.mark.parametrize(
    "flags",
    [
        "--load_best_model_at_end --eval_strategy $EVAL",
        '--load_best_model_at_end "$@"',
        "--load_best_model_at_end $EXTRA",
        "--load_best_model_at_end --eval_strategy steps --save_steps $SAVE --eval_steps 300",
        "--optim $OPTIM --lr_scheduler_type ${SCHEDULE}",
        "--dataloader_prefetch_factor 2 --dataloader_num_workers $WORKERS",
        "--dataloader_prefetch_factor 2 $ARGS",
        "--save_strategy best $ARGS",
        "--fsdp $FSDP",
        "--report_to $TRACKER",
        "--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs $KWARGS",
        "--lr_scheduler_type cosine_with_min_lr $ARGS",
        "--optim galore_adamw $ARGS",
    ],
)
def test_what_only_the_shell_knows_is_not_judged(flags: str, tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(f"torchrun train.py --per_device_train_batch_size 2 --max_steps 5 --learning_rate 1e-5 {flags}\n")
    assert [p for p in check(path).findings if p.rule in OURS] == []


@pytest.mark.parametrize(
    ("flags", "rule", "path"),
    [
        ("--load_best_model_at_end --eval_strategy epoch", "DS308", "$.load_best_model_at_end"),
        ("--load_best_model_at_end --eval_strategy steps --eval_steps 300 --save_steps 500", "DS308", "$.save_steps"),
        ("--optim adamw_torh", "DS309", "$.optim"),
        ("--fsdp 'full_shard autowrap'", "DS309", "$.fsdp"),
        (
            "--lr_scheduler_type cosine --lr_scheduler_kwargs '{\"min_lr\": 1e-6}'",
            "DS308",
            "$.lr_scheduler_kwargs",
        ),
    ],
)
def test_flags_of_a_launch_line_are_judged_alike(flags: str, rule: str, path: str, tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text(f"torchrun train.py --per_device_train_batch_size 2 --max_steps 5 {flags}\n")
    assert [(p.rule, p.path, p.severity) for p in check(script).findings if p.rule in OURS] == [(rule, path, E)]


def test_slips_and_unquoted_words_are_mended(tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    head = "output_dir: out\nmax_steps: 5\nper_device_train_batch_size: 2\n"
    path.write_text(f"{head}eval_strategy: no\nlr_scheduler_type: cosin\noptim: adamw_hf\nreport_to: wandb,mlflow\n")
    fixed = fix_paths([str(path)], context_of())
    assert fixed.result.findings == ()
    mended = 'eval_strategy: \'no\'\nlr_scheduler_type: cosine\noptim: adamw_torch\nreport_to: ["wandb", "mlflow"]\n'
    assert fixed.texts[str(path)] == head + mended


@pytest.mark.parametrize(
    ("word", "meaning"),
    [("step", "steps"), ("EPOCH", "epoch"), ("epochs", "epoch"), ("none", None), ("best", None)],
)
def test_only_a_slip_has_a_meaning(word: str, meaning: str | None) -> None:
    assert meant(word, WORDS["eval_strategy"]) == meaning
    assert meant("adamw_4bit", WORDS["optim"]) is None


# --- FSDP, the optimizer, and what the launcher says


def fsdp_yaml(**settings: Any) -> dict[str, Any]:
    block = {f"fsdp_{name}": value for name, value in settings.items()}
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": 1,
        "num_processes": 8,
        "fsdp_config": block,
    }


ONLY = {"save_only_model": True}
CHECKPOINTING = {"gradient_checkpointing": True}
FSDP_CASES: tuple[tuple[dict[str, Any], dict[str, Any] | None, str], ...] = (
    (CHECKPOINTING, fsdp_yaml(activation_checkpointing=True), "gradient_checkpointing"),
    (CHECKPOINTING, fsdp_yaml(activation_checkpointing="true"), "gradient_checkpointing"),
    ({"activation_checkpointing": True}, fsdp_yaml(activation_checkpointing=True), "activation_checkpointing"),
    ({**CHECKPOINTING, "activation_checkpointing": False}, fsdp_yaml(activation_checkpointing=True), ""),
    (CHECKPOINTING, fsdp_yaml(activation_checkpointing=False), ""),
    (CHECKPOINTING, fsdp_yaml(), ""),
    ({**CHECKPOINTING, "fsdp": True}, fsdp_yaml(activation_checkpointing=True), "gradient_checkpointing"),
    (
        {**CHECKPOINTING, "fsdp": True, "fsdp_config": {"activation_checkpointing": False}},
        fsdp_yaml(activation_checkpointing=True),
        "",
    ),
    (
        {**CHECKPOINTING, "fsdp": True, "fsdp_config": {"activation_checkpointing": True}},
        None,
        "gradient_checkpointing",
    ),
    ({**CHECKPOINTING, "fsdp_config": {"activation_checkpointing": True}}, None, ""),
    (ONLY, fsdp_yaml(state_dict_type="SHARDED_STATE_DICT"), "save_only_model"),
    (ONLY, fsdp_yaml(state_dict_type="FULL_STATE_DICT"), ""),
    (ONLY, fsdp_yaml(), ""),
    (ONLY, fsdp_yaml(version=1), ""),
    (ONLY, fsdp_yaml(version=2), "save_only_model"),
    (ONLY, fsdp_yaml(version=2, state_dict_type="FULL_STATE_DICT"), ""),
    ({**ONLY, "fsdp": True}, fsdp_yaml(version=2), ""),
    ({**ONLY, "fsdp": True, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}}, None, "save_only_model"),
    ({**ONLY, "fsdp": "full_shard auto_wrap"}, None, ""),
    ({**ONLY, **STEPS}, fsdp_yaml(), "save_only_model"),
    ({**ONLY, **STEPS, "fsdp": True}, None, "save_only_model"),
    ({**ONLY, **STEPS}, None, ""),
)


def beside(yaml: dict[str, Any] | None) -> dict[str, Any]:
    file = File(name="accelerate.yaml", kind=Kind.ACCELERATE, text="", document=yaml)
    return {} if yaml is None else {"accelerate": (file,)}


@pytest.mark.parametrize(("arguments", "yaml", "name"), FSDP_CASES)
def test_arguments_that_fsdp_does_not_bear(arguments: dict[str, Any], yaml: dict[str, Any] | None, name: str) -> None:
    assert [p.path for p in found(arguments, **beside(yaml))] == ([f"$.{name}"] if name else [])


@contextmanager
def launched(yaml: dict[str, Any] | None, folder: Path) -> Iterator[None]:
    """The environment that `accelerate launch` makes of a YAML."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import dataclasses as plugins
    from accelerate.utils import launch

    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {"OMP_NUM_THREADS": "1"}))
        stack.enter_context(patch.object(plugins, "is_cuda_available", lambda: True))
        stack.enter_context(patch("torch.cuda.current_device", lambda: 0))
        if yaml is not None:
            path = folder / "accelerate.yaml"
            path.write_text(json.dumps(yaml))  # JSON is YAML
            parsed, *_ = _validate_launch_command(
                launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
            )
            os.environ.update(launch.prepare_multi_gpu_env(parsed))
        yield


def trainer_refuses(arguments: dict[str, Any], yaml: dict[str, Any] | None, folder: Path) -> str:
    """What `Trainer.create_accelerator_and_postprocess` says; only the Accelerator, which wants GPUs, is not real."""
    import transformers.trainer
    from accelerate.utils import FullyShardedDataParallelPlugin
    from transformers import Trainer, TrainingArguments

    def accelerator(fsdp_plugin: Any = None, **_: Any) -> SimpleNamespace:
        if fsdp_plugin is None and os.environ.get("ACCELERATE_USE_FSDP") == "true":  # Accelerator.__init__
            fsdp_plugin = FullyShardedDataParallelPlugin()
        state = SimpleNamespace(fsdp_plugin=fsdp_plugin, deepspeed_plugin=None)
        return SimpleNamespace(state=state, gather_for_metrics=lambda data: data)

    given = {"output_dir": str(folder), "use_cpu": True, **json.loads(json.dumps(arguments))}
    trainer: Any = SimpleNamespace(args=TrainingArguments(**given), _build_accelerator_args=lambda **given: given)
    with launched(yaml, folder), patch.object(transformers.trainer, "Accelerator", accelerator):
        try:
            Trainer.create_accelerator_and_postprocess(trainer)
        except ValueError as error:
            return str(error)
    return ""


@pytest.mark.transformers
@pytest.mark.accelerate
def test_the_installed_trainer_refuses_the_same_under_fsdp(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    for arguments, yaml, name in FSDP_CASES:
        said = trainer_refuses(arguments, yaml, tmp_path)
        assert bool(said) == bool(name), (arguments, yaml, said)
        assert name.rpartition("_")[2] in said


@pytest.mark.parametrize(
    ("launcher", "script", "paths"),
    [
        ("--use_fsdp --fsdp_activation_checkpointing true", "--gradient_checkpointing", ["$.gradient_checkpointing"]),
        ("--use_fsdp --fsdp_activation_checkpointing $AC", "--gradient_checkpointing", []),
        ("--use_fsdp --fsdp_version 2", "--save_only_model", ["$.save_only_model"]),
        ("--use_fsdp --fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT", "--save_only_model", []),
        ("--use_fsdp", "--save_only_model", []),
        ("--fsdp_version 2", "--save_only_model", []),
    ],
)
def test_flags_of_the_launcher_set_fsdp_up_too(launcher: str, script: str, paths: list[str], tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(f"accelerate launch {launcher} train.py --max_steps 5 --learning_rate 1e-5 --bf16 {script}\n")
    assert [p.path for p in check(path).findings if p.rule in OURS] == paths


LOW_RANK = {"optim": "galore_adamw_layerwise", "optim_target_modules": ["attn"]}


@pytest.mark.parametrize(
    ("arguments", "paths"),
    [
        (LOW_RANK, []),
        ({"optim": "apollo_adamw"}, ["$.optim"]),
        ({**LOW_RANK, "gradient_accumulation_steps": 4}, ["$.gradient_accumulation_steps"]),
        ({**LOW_RANK, "optim": "galore_adamw", "gradient_accumulation_steps": 4}, []),
        ({"optim": "adafactor", "gradient_accumulation_steps": 4}, []),
    ],
)
@pytest.mark.transformers
def test_low_rank_optimizers_want_layers_and_by_layer_no_accumulation(
    arguments: dict[str, Any], paths: list[str], tmp_path: Path
) -> None:
    assert [problem.path for problem in found(arguments)] == paths
    pytest.importorskip("transformers")
    import torch
    from transformers import TrainingArguments
    from transformers.trainer_optimizer import _setup_low_rank_optimizer

    if not arguments["optim"].startswith(("galore", "apollo")):
        return
    model = torch.nn.ModuleDict({"attn": torch.nn.Linear(2, 2)})
    made = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, **arguments)
    adam, name = torch.optim.AdamW, arguments["optim"]
    said = ""
    try:
        _setup_low_rank_optimizer(made, model, name, {name: lambda group, **_: adam(group["params"])}, {}, {})
    except ValueError as error:
        said = str(error)
    except TypeError:  # past the refusals: torch's optimizer is not GaLore's
        said = ""
    assert bool(said) == bool(paths), said


@pytest.mark.parametrize("kind", ["DEEPSPEED", "FSDP", "MULTI_GPU"])
def test_the_arguments_overrule_the_precision_of_the_yaml(kind: str) -> None:
    yaml = {"distributed_type": kind, "num_processes": 8, "mixed_precision": "bf16"}
    for arguments, paths in (
        ({"fp16": True}, ["$.mixed_precision"]),
        ({"fp16": True, "bf16": "$BF16"}, ["$.mixed_precision"]),
        ({"bf16": True}, []),
    ):
        file = File(name="args.json", kind=Kind.TRAINING, text="", document={"output_dir": "o", **arguments})
        problems = across_problems(Together(training=file, **beside(yaml)), Context())
        silent = [p for p in problems if p.rule == "DS303" and p.bites == "silently"]
        assert [(p.file, p.path) for p in silent] == [("accelerate.yaml", path) for path in paths]


@pytest.mark.transformers
@pytest.mark.accelerate
def test_the_installed_plugin_gets_the_arguments_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("deepspeed")
    from accelerate.utils import DeepSpeedPlugin
    from transformers import Trainer, TrainingArguments

    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    made = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, fp16=True)
    assert made.mixed_precision == "fp16"
    trainer: Any = SimpleNamespace(args=made, model=None)
    assert Trainer._build_accelerator_args(trainer)["mixed_precision"] == "fp16"
    plugin = DeepSpeedPlugin()
    plugin.set_mixed_precision(made.mixed_precision)
    assert plugin.deepspeed_config["fp16"]["enabled"] is True
    assert not plugin.deepspeed_config.get("bf16", {}).get("enabled")
    # nothing of transformers' 5.24 that would switch bf16 on again
    assert made.bf16 is False


@pytest.mark.parametrize(
    ("optim", "device", "stage", "named"),
    [
        ("adamw_bnb_8bit", "cpu", 2, True),
        ("adafactor", "cpu", 3, True),
        ("adamw_torch", "cpu", 2, False),
        ("adamw_bnb_8bit", "none", 2, False),
        ("adamw_bnb_8bit", "cpu", 0, False),
    ],
)
def test_offload_in_the_yaml_replaces_the_optimizer(optim: str, device: str, stage: int, named: bool) -> None:
    yaml = {
        "distributed_type": "DEEPSPEED",
        "num_processes": 8,
        "deepspeed_config": {"zero_stage": stage, "offload_optimizer_device": device},
    }
    file = File(name="args.json", kind=Kind.TRAINING, text="", document={"output_dir": "o", "optim": optim})
    problems = across_problems(Together(training=file, **beside(yaml)), Context())
    assert [p.path for p in problems if p.rule == "DS307"] == (["$.optim"] if named else [])
