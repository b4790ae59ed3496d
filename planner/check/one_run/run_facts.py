"""What the files of one run say together: ranks, ZeRO stage, offload, precision, and where each is written.

In: the files and the context. Out: values, with the file and path that decide them. None: nobody says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from planner.check.context import Context, Reader
from planner.check.one_file.deepspeed_rules import device_of, is_on, section, stage_of, tp_of
from planner.check.one_file.trainer_facts import ON
from planner.check.reading.arguments import REST, is_told
from planner.check.together import File, Together

MOST_DIGITS = 18
DEFAULT_YAML_STAGE = 2
"""Source: accelerate 1.15, utils/dataclasses.py, DeepSpeedPlugin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A value, and the place that decides it."""

    value: Any
    file: str
    path: str


def whole(value: Any) -> int | None:
    """A positive whole number, also one written as text; None for everything else, and beyond anything that exists."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < MOST_DIGITS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 10**MOST_DIGITS:
        return None
    return int(value) if value == int(value) else None


def number(value: Any) -> float | None:
    """A finite number, also one written as text; None for everything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if isfinite(found) else None


def yaml_of(together: Together) -> File | None:
    """The Accelerate file of the first node."""
    return together.accelerate[0] if together.accelerate else None


def deepspeed_yaml(together: Together) -> File | None:
    """The Accelerate file, if it starts DeepSpeed."""
    file = yaml_of(together)
    return file if file is not None and file.fields.get("distributed_type") == "DEEPSPEED" else None


def lone_yaml(together: Together) -> File | None:
    """The Accelerate file, if it alone sets DeepSpeed up: it names no DeepSpeed file."""
    file = deepspeed_yaml(together)
    if file is None or together.deepspeed is not None or named_file(file.fields) is not None:
        return None
    return file


def named_file(accelerate: Mapping[str, Any]) -> Any:
    """The DeepSpeed file that an Accelerate document names."""
    return section(accelerate, "deepspeed_config").get("deepspeed_config_file")


def launch_flag(together: Together, name: str) -> Any:
    """A flag of the launcher on the launch line."""
    return section(together.launch.fields, "launcher_flags").get(name) if together.launch is not None else None


def launcher_of(together: Together, context: Context) -> str | None:
    """The program that starts the run."""
    if context.launcher:
        return context.launcher
    found = together.launch.fields.get("launcher") if together.launch is not None else None
    return found if isinstance(found, str) else None


def nodes_of(together: Together, context: Context) -> int | None:
    """Machines of the run."""
    if context.cluster is not None:
        return context.cluster.nodes
    file = yaml_of(together)
    return whole(file.fields.get("num_machines")) if file is not None else None


def node_size_of(together: Together, context: Context) -> int | None:
    """Processes of one machine."""
    ranks, nodes = ranks_of(together, context), nodes_of(together, context)
    return ranks // nodes if ranks and nodes and ranks % nodes == 0 else None


def ranks_of(together: Together, context: Context) -> int | None:
    """Processes of the whole run: as told, else as the Accelerate file or the launch line says."""
    if context.ranks is not None:
        return context.ranks
    file = yaml_of(together)
    given = whole(launch_flag(together, "num_processes"))
    if given is None and file is not None:
        given = whole(file.fields.get("num_processes"))
    if given is not None:
        return given
    per_node, nodes = whole(launch_flag(together, "nproc_per_node")), whole(launch_flag(together, "nnodes") or 1)
    if per_node is not None and nodes is not None:
        return per_node * nodes
    gpus = whole(launch_flag(together, "num_gpus"))
    return gpus * (whole(launch_flag(together, "num_nodes") or 1) or 1) if gpus is not None else None


def zero_stage(together: Together) -> Said | None:
    """The ZeRO stage of the run."""
    file = together.deepspeed
    if file is not None:
        return Said(value=stage_of(file.fields), file=file.name, path="$.zero_optimization.stage")
    file = lone_yaml(together)
    if file is None:
        return None
    stage = section(file.fields, "deepspeed_config").get("zero_stage", DEFAULT_YAML_STAGE)
    return Said(value=whole(stage) or 0, file=file.name, path="$.deepspeed_config.zero_stage")


def offload_device(together: Together, block: str) -> Said | None:
    """The device of `offload_optimizer` or `offload_param`."""
    file = together.deepspeed
    if file is not None:
        old = {"offload_optimizer": "cpu_offload", "offload_param": "cpu_offload_param"}[block]
        is_old = section(file.fields, "zero_optimization").get(old) is True
        path = f"$.zero_optimization.{old}" if is_old else f"$.zero_optimization.{block}.device"
        return Said(value=device_of(file.fields, block), file=file.name, path=path)
    file = lone_yaml(together)
    if file is None:
        return None
    device = section(file.fields, "deepspeed_config").get(f"{block}_device")
    return Said(value=str(device or "none").lower(), file=file.name, path=f"$.deepspeed_config.{block}_device")


def tensor_parallel(together: Together) -> int:
    """The degree of AutoTP; 1 where it is off."""
    return tp_of(together.deepspeed.fields) if together.deepspeed is not None else 1


def argument(together: Together, name: str, default: Any = None) -> Any:
    """A training argument as given."""
    return together.training.fields.get(name, default) if together.training is not None else default


def argument_is_on(together: Together, *names: str) -> bool:
    """Whether one of these training arguments is switched on."""
    return any(argument(together, name) in ON for name in names)


def fsdp_is_argued(together: Together) -> bool:
    """Whether the training arguments themselves switch FSDP on."""
    given = argument(together, "fsdp")
    return given not in (None, "", [], False) and is_told(given)


def argument_is_told(together: Together, *names: str) -> bool:
    """Whether the values of these training arguments are known, those that are not given too: free words of the shell
    (`"$@"`, `$EXTRA`) may hold any."""
    given = [argument(together, name) for name in names]
    if all(value is None for value in given) and argument(together, REST) is not None:
        return False
    return all(is_told(value) for value in given)


def half_precision(together: Together) -> Said | None:
    """`bf16` or `fp16`, and the place that switches it on; None for fp32 or where nobody says it."""
    file = together.deepspeed
    if file is not None:
        for name, kind in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")):
            if is_on(file.fields, name):
                return Said(value=kind, file=file.name, path=f"$.{name}.enabled")
        waits = [name for name in ("bf16", "fp16") if section(file.fields, name).get("enabled") in ("auto", None)]
        return _filled(together, tuple(waits))
    return _filled(together, ("bf16", "fp16")) if lone_yaml(together) is not None else None


def _filled(together: Together, names: tuple[str, ...]) -> Said | None:
    for name in names:
        if together.training is not None and argument_is_on(together, name, f"{name}_full_eval"):
            return Said(value=name, file=together.training.name, path=f"$.{name}")
    yaml = deepspeed_yaml(together)
    if yaml is not None and yaml.fields.get("mixed_precision") in names:
        return Said(value=yaml.fields["mixed_precision"], file=yaml.name, path="$.mixed_precision")
    flag = launch_flag(together, "mixed_precision")
    if together.launch is not None and flag in names:
        return Said(value=flag, file=together.launch.name, path="$.launcher_flags.mixed_precision")
    return None


def reader_of(together: Together, context: Context) -> Reader | None:
    """Who reads the DeepSpeed file: as told, else the Trainer where its arguments are there, else accelerate where a
    YAML names the file; None where nothing tells. Scripts of transformers' examples say it in their names."""
    if context.reader is not None:
        return context.reader
    script = together.launch.fields.get("script") if together.launch is not None else None
    if isinstance(script, str) and "no_trainer" in script:
        return Reader.ACCELERATE
    if together.training is not None:
        return Reader.TRAINER
    if any(named_file(file.fields) is not None for file in together.accelerate):
        return Reader.ACCELERATE
    return None
