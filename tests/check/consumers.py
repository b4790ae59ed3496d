"""What the installed readers say about a configuration: the oracle of the tests beside this file."""

from __future__ import annotations

import copy
import functools
import logging
import math
import os
import socket
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch


@contextmanager
def world(ranks: int) -> Iterator[None]:
    """DeepSpeed believes that so many processes run, on CUDA devices."""
    from deepspeed import comm
    from deepspeed.runtime.swap_tensor import aio_config

    cuda = SimpleNamespace(device_name=lambda index=None: "cuda")
    with ExitStack() as stack:
        stack.enter_context(patch.object(comm, "get_rank", lambda group=None: 0))
        stack.enter_context(patch.object(comm, "get_world_size", lambda group=None: ranks))
        stack.enter_context(patch.object(aio_config, "get_accelerator", lambda: cuda))
        yield


@functools.cache
def _quiet() -> None:
    for name in ("DeepSpeed", "accelerate", "transformers"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def deepspeed_refusal(document: Any, ranks: int = 1) -> str:
    """The exception of DeepSpeed's loader as text; empty where it loads. A text is read as a file with this text."""
    from deepspeed.runtime.config import DeepSpeedConfig

    _quiet()
    with world(ranks), tempfile.TemporaryDirectory() as folder:
        if isinstance(document, str):
            path = Path(folder) / "ds_config.json"
            path.write_text(document, encoding="utf-8")
            document = str(path)
        try:
            DeepSpeedConfig(copy.deepcopy(document))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


@contextmanager
def _inside(folder: str) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def accelerate_refusal(text: str, deepspeed: Any = None, *, json_too: bool = False) -> str:
    """The exception of accelerate's loader, launch merge or plugin as text; empty where all take the YAML.

    `deepspeed` is what the DeepSpeed file that the YAML names holds. Missing `num_processes` come from the command
    line, as the files of a batch system have it. `json_too`: name and all, the file is JSON.
    """
    import yaml
    from accelerate.commands.launch import _validate_launch_command

    _quiet()
    name = "accelerate.json" if json_too else "accelerate.yaml"
    with tempfile.TemporaryDirectory() as folder, _inside(folder), warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")
        Path(name).write_text(text, encoding="utf-8")
        for change in _machine():
            stack.enter_context(change)
        if deepspeed is not None:
            stack.enter_context(_every_file_holds(deepspeed))
        document = yaml.safe_load(text) if text.strip() else None
        given = isinstance(document, dict) and "num_processes" in document
        words = ["--config_file", name, *([] if given else ["--num_processes", "8"]), "train.py"]
        try:
            _start(*_validate_launch_command(_parser().parse_args(words)))
        except (Exception, SystemExit) as error:
            return f"{type(error).__name__}: {error}"
    return ""


def _machine() -> Iterator[Any]:
    """A CUDA machine with fp8 and MPI, and all ports free."""
    import torch
    from accelerate.utils import dataclasses, launch

    yield patch.object(launch, "is_fp8_available", lambda: True)
    yield patch.object(launch, "is_port_in_use", _as_port)
    yield patch.dict(os.environ, {"OMP_NUM_THREADS": "1"})
    yield patch.object(launch, "_get_mpirun_args", lambda: ("mpirun", "--hostfile", "-n", "--npernode", "--bind-to"))
    yield patch.object(dataclasses, "is_cuda_available", lambda: True)
    yield patch.object(torch.cuda, "current_device", lambda: 0)


def _as_port(port: Any) -> bool:
    with socket.socket() as own:
        own.connect_ex(("localhost", port))
    return False


@contextmanager
def _every_file_holds(document: Any) -> Iterator[None]:
    from accelerate.utils import deepspeed

    init = deepspeed.HfDeepSpeedConfig.__init__
    with patch.object(
        deepspeed.HfDeepSpeedConfig,
        "__init__",
        lambda self, source: init(self, copy.deepcopy(document) if isinstance(source, str) and source else source),
    ):
        yield


@functools.cache
def _parser() -> Any:
    from accelerate.commands.launch import launch_command_parser

    return launch_command_parser()


def _start(arguments: Any, defaults: Any, from_file: bool) -> None:
    """What `launch_command` does with the arguments, up to the plugin that the worker makes of the environment."""
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin, launch

    if arguments.use_deepspeed:
        fields = [*defaults.deepspeed_config.keys(), *(["mixed_precision"] if from_file else [])]
        arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, environment = launch.prepare_deepspeed_cmd_env(arguments)
    elif arguments.use_fsdp or arguments.multi_gpu or arguments.use_megatron_lm:
        environment = launch.prepare_multi_gpu_env(arguments)
    else:
        _, environment = launch.prepare_simple_launcher_cmd_env(arguments)
    with patch.dict(os.environ, environment):
        if arguments.use_deepspeed:
            _plugin_loads(environment["ACCELERATE_MIXED_PRECISION"])
        elif arguments.use_fsdp:
            FullyShardedDataParallelPlugin()
        if environment.get("ACCELERATE_USE_PARALLELISM_CONFIG") == "true":
            ParallelismConfig()


def _plugin_loads(mixed_precision: str) -> None:
    """The plugin, and the configuration that it hands on where it makes one itself."""
    from accelerate.utils import DeepSpeedPlugin

    plugin = DeepSpeedPlugin()
    plugin.set_mixed_precision(mixed_precision)
    if os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none") == "none":
        made = {**plugin.deepspeed_config, "train_micro_batch_size_per_gpu": 1}
        del made["train_batch_size"]
        if made["gradient_accumulation_steps"] == "auto":
            made["gradient_accumulation_steps"] = 1
        refusal = deepspeed_refusal(made)
        if refusal:
            raise ValueError(refusal)


HIDDEN, STEPS = 64, 100


def trainer_refusal(document: Any, arguments: dict[str, Any], ranks: int) -> str:
    """The exception of the Trainer's way from file and arguments to the engine's configuration as text; or empty.

    In order: `TrainingArguments.__post_init__`, `trainer_config_finalize`, accelerate's `prepare`, DeepSpeed.
    """
    from accelerate.utils import DeepSpeedPlugin
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    _quiet()
    given = SimpleNamespace(**{**_training_defaults(), **arguments, "world_size": ranks})
    steps = given.max_steps if given.max_steps > 0 else STEPS
    warmup = given.warmup_steps
    given.get_warmup_steps = lambda total: int(warmup) if warmup >= 1 else math.ceil(total * warmup)
    precision = "fp16" if given.fp16 else "bf16" if given.bf16 else "no"
    with warnings.catch_warnings(), world(ranks):
        warnings.simplefilter("ignore")
        for pair in (("fp16", "bf16"), ("fp16_full_eval", "bf16_full_eval")):
            if all(getattr(given, name) for name in pair):  # TrainingArguments._validate_args
                return f"ValueError: At most one of {pair} can be True"
        try:
            read = HfTrainerDeepSpeedConfig(document)
            read.trainer_config_process(given)
            plugin = DeepSpeedPlugin(hf_ds_config=read)
            plugin.set_mixed_precision(precision)
            read.trainer_config_finalize(given, SimpleNamespace(config=SimpleNamespace(hidden_size=HIDDEN)), steps)
            plugin.deepspeed_config_process(must_match=False, **_filled_in_prepare(given))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return deepspeed_refusal(plugin.deepspeed_config, ranks)


def accelerate_json_refusal(document: Any, ranks: int) -> str:
    """The exception of accelerate's way, without the Trainer, from a DeepSpeed file to the engine's configuration."""
    from accelerate.utils import DeepSpeedPlugin

    _quiet()
    given = SimpleNamespace(
        per_device_train_batch_size=2,
        gradient_accumulation_steps=1,
        learning_rate=1e-5,
        weight_decay=0.1,
        world_size=ranks,
    )
    with warnings.catch_warnings(), world(ranks):
        warnings.simplefilter("ignore")
        try:
            plugin = DeepSpeedPlugin(hf_ds_config=copy.deepcopy(document))
            plugin.set_mixed_precision("no")
            filled = _filled_in_prepare(given)
            plugin.fill_match("gradient_accumulation_steps", must_match=False, gradient_accumulation_steps=1)
            if not plugin.is_auto("train_micro_batch_size_per_gpu"):
                filled["train_micro_batch_size_per_gpu"] = plugin.get_value("train_micro_batch_size_per_gpu")
            micro = filled["train_micro_batch_size_per_gpu"]
            if micro is None:
                del filled["train_batch_size"]
            else:
                filled["train_batch_size"] = micro * plugin.get_value("gradient_accumulation_steps") * ranks
            plugin.deepspeed_config_process(must_match=False, **filled)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return deepspeed_refusal(plugin.deepspeed_config, ranks)


@functools.cache
def _training_defaults() -> dict[str, Any]:
    from dataclasses import MISSING, fields

    from transformers import TrainingArguments

    return {one.name: one.default for one in fields(TrainingArguments) if one.default is not MISSING}


def _filled_in_prepare(given: Any) -> dict[str, Any]:
    """`config_kwargs` of `Accelerator._prepare_deepspeed`, with accelerate's dummy optimizer and scheduler."""
    micro, accumulation = given.per_device_train_batch_size, given.gradient_accumulation_steps
    return {
        "gradient_clipping": 1.0,
        "zero_optimization.stage3_gather_16bit_weights_on_model_save": False,
        "train_micro_batch_size_per_gpu": micro,
        "train_batch_size": micro * accumulation * given.world_size,
        "zero_optimization.reduce_bucket_size": HIDDEN**2,
        "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * HIDDEN**2),
        "zero_optimization.stage3_param_persistence_threshold": 10 * HIDDEN,
        "optimizer.params.lr": given.learning_rate,
        "optimizer.params.weight_decay": given.weight_decay,
        "scheduler.params.warmup_min_lr": 0,
        "scheduler.params.warmup_max_lr": given.learning_rate,
        "scheduler.params.warmup_num_steps": 1,
        "scheduler.params.total_num_steps": STEPS,
    }
