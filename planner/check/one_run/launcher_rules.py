"""The line that starts the run, by itself: its launcher, its flags, the environment it sets.

In: the files and the context. Out: Problems. Answers: does the launcher take these flags together, start one process
for each GPU, and find the other machines? Source: deepspeed 0.19.8 launcher/runner.py, torch 2.13 distributed/run.py,
accelerate 1.15 commands/launch.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from planner import toml
from planner.check.context import Context
from planner.check.one_file.deepspeed_rules import section
from planner.check.one_run.run_facts import launch_flag, offload_device, whole
from planner.check.reading.arguments import REST
from planner.check.reading.nodes import Lines
from planner.check.reading.shell_text import commands, without_data
from planner.check.rules import finding
from planner.check.together import File, Together
from planner.errors import nearest, one_line
from planner.records.problem import Problem, Severity
from planner.resources import read_table

FLAGS = "$.launcher_flags"
SELECTING = ("include", "exclude")
COUNTING = ("num_gpus", "num_nodes")
ONLY_ITS_OWN: Mapping[str, tuple[str, ...]] = {
    "deepspeed": (*SELECTING, *COUNTING, "hostfile", "master_port", "no_ssh", "bind_cores_to_rank"),
    "torchrun": ("nproc_per_node", "nnodes", "node_rank", "rdzv_endpoint", "rdzv_backend", "standalone", "master_port"),
    "accelerate": ("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port"),
}
"""Flags that are the launcher's, whatever the script is."""
ONE_THREAD = ("torchrun", "accelerate")
"""They set OMP_NUM_THREADS to 1 where it is not set and several processes start."""
LEFT_OVER = {
    "CUDA_LAUNCH_BLOCKING": "every kernel is waited for: the run is slower, and a hang looks different",
    "NCCL_TIMEOUT": "neither torch nor DeepSpeed nor the Trainer reads it",
}
OF_THE_OLD_MODULE = ("use_env",)
"""Of `python -m torch.distributed.launch`, which is torchrun otherwise."""
OFF = ("", "0", "false")
LOST = re.compile(r"--?[A-Za-z][\w-]*(?![\w-]*\s*[)|])")
"""A flag where a command should be; `--help)` is a pattern of `case`."""
NOT_CONTINUED = re.compile(r"^[ \t]*[^\s#][^\n]*\\[ \t]+\n[ \t]*([^\s#]\S*)", re.MULTILINE)
"""A backslash with a blank behind it, and the first word of the next line."""
OTHER_STARTERS = ("srun", "mpirun", "mpiexec", "horovodrun", "ray ")


def flags_of_accelerate_go_together(together: Together, context: Context) -> Iterator[Problem]:
    launch, flags = _started_by(together, "accelerate")
    kinds = [name for name in ("use_deepspeed", "use_fsdp", "multi_gpu", "cpu", "tpu") if flags.get(name) is True]
    if launch is not None and len(kinds) > 1:
        message = f"`--{kinds[0]}` beside `--{kinds[1]}`: accelerate takes one of them and raises ValueError"
        path, fix = f"{FLAGS}.{kinds[1]}", f"leave `--{kinds[1]}` out"
        yield finding("DS316", path, message, fix=fix, bites="launch", file=launch.name)
    if launch is not None and kinds == ["multi_gpu"] and whole(flags.get("num_processes")) == 1:
        message = "`--multi_gpu` with one process: accelerate wants at least two and raises ValueError"
        path, fix = f"{FLAGS}.num_processes", "write the number of GPUs, or leave `--multi_gpu` out"
        yield finding("DS316", path, message, fix=fix, bites="launch", file=launch.name)


def script_is_one(together: Together, context: Context) -> Iterator[Problem]:
    """The launchers put `python -u` before the script themselves."""
    launch = together.launch
    launcher = launch.fields.get("launcher") if launch is not None else None
    if launch is None or launcher not in ONLY_ITS_OWN or launch_flag(together, "no_python") is not None:
        return
    program = str(launch.fields.get("script", "")).rpartition("/")[2]
    if re.fullmatch(r"python[\d.]*|bash|sh", program):
        message = f"`{launcher}` starts Python itself: it runs `python {program} ...`, and there is no such script"
        yield finding("DS326", "$.script", message, fix=f"leave `{program}` out", file=launch.name)


def flags_go_together(together: Together, context: Context) -> Iterator[Problem]:
    launch, flags = _started_by(together, "deepspeed")
    if launch is None:
        return
    counting = [name for name in COUNTING if name in flags]
    selecting = [name for name in SELECTING if name in flags]
    if counting and selecting:
        message = f"`--{counting[0]}` beside `--{selecting[0]}`: the launcher raises ValueError"
        path, fix = f"{FLAGS}.{counting[0]}", "leave one of them out"
        yield finding("DS316", path, message, fix=fix, bites="launch", file=launch.name)
    narrowed = selecting or [name for name in counting if name == "num_gpus" or (whole(flags[name]) or 0) > 1]
    shown = str(section(launch.fields, "environment").get("CUDA_VISIBLE_DEVICES", ""))
    first = [str(n) for n in range(len(shown.split(",")))]
    the_same = shown.split(",") == first and whole(flags.get("num_gpus")) == len(first)
    if shown and narrowed and "hostfile" not in flags and not the_same:
        message = f"the launcher does not look at it beside `--{narrowed[0]}`, and takes the first GPUs of the machine"
        path, fix = "$.environment.CUDA_VISIBLE_DEVICES", f"write `--include localhost:{shown}`, and leave both out"
        warning = Severity.WARNING
        yield finding("DS316", path, message, fix=fix, severity=warning, bites="silently", file=launch.name)


def flags_stand_before_the_script(together: Together, context: Context) -> Iterator[Problem]:
    """What stands after the script is the script's."""
    launch = together.launch
    if launch is None:
        return
    for name in ONLY_ITS_OWN.get(str(launch.fields.get("launcher")), ()):
        if name in section(launch.fields, "script_flags") and name not in section(launch.fields, "launcher_flags"):
            message = f"it stands after the script, which gets it; `{launch.fields['launcher']}` does not see it"
            yield finding(
                "DS317", f"$.script_flags.{name}", message, fix="write it before the script", file=launch.name
            )


def processes_are_as_many_as_gpus(together: Together, context: Context) -> Iterator[Problem]:
    """Of torchrun and deepspeed; accelerate's count may stand in its file too."""
    for launcher, name, machines in (("torchrun", "nproc_per_node", "nnodes"), ("deepspeed", "num_gpus", "num_nodes")):
        launch, flags = _started_by(together, launcher)
        each, nodes = whole(flags.get(name)), whole(flags.get(machines, 1))
        if launch is None or each is None or nodes is None or context.ranks in (None, each * nodes):
            continue
        severity = Severity.ERROR if each * nodes > (context.ranks or 0) else Severity.WARNING
        bites = "engine init" if severity is Severity.ERROR else "silently"
        message = f"{each * nodes} processes for {context.ranks} GPUs"
        fix = "write one process for each GPU"
        path = f"{FLAGS}.{name}"
        yield finding("DS123", path, message, fix=fix, severity=severity, bites=bites, file=launch.name)


def machines_meet(together: Together, context: Context) -> Iterator[Problem]:
    launch, flags = _started_by(together, "torchrun")
    several = (whole(str(flags.get("nnodes", 1)).rpartition(":")[2]) or 1) > 1
    told = {"rdzv_endpoint", "master_addr", "standalone", REST} & set(flags)
    meets = told or any(name.startswith("PET_") for name in section(launch.fields if launch else {}, "environment"))
    if launch is not None and several and not meets:
        message = "every machine waits for the others at its own 127.0.0.1"
        fix = "add `--rdzv-backend=c10d --rdzv-endpoint=HOST:PORT`, the same on all"
        yield finding("DS130", f"{FLAGS}.nnodes", message, fix=fix, file=launch.name)
    launch, flags = _started_by(together, "deepspeed")
    if launch is not None and (whole(flags.get("num_nodes")) or 1) > 1 and not {"hostfile", REST} & set(flags):
        message = "no `--hostfile`: the launcher looks for /job/hostfile, and raises ValueError where there is none"
        path, fix = f"{FLAGS}.num_nodes", "name the host file"
        warning = Severity.WARNING
        yield finding("DS130", path, message, fix=fix, severity=warning, bites="launch", file=launch.name)


def cpu_optimizer_has_threads(together: Together, context: Context) -> Iterator[Problem]:
    """DeepSpeed's CPU Adam is parallel over OMP_NUM_THREADS."""
    launch, device = together.launch, offload_device(together, "offload_optimizer")
    if launch is None or launch.fields.get("launcher") not in ONE_THREAD or device is None or device.value == "none":
        return
    set_here = "OMP_NUM_THREADS" in launch.text or launch_flag(together, "num_cpu_threads_per_process") is not None
    alone = context.ranks == 1 or 1 in (launch_flag(together, "nproc_per_node"), launch_flag(together, "num_processes"))
    if not set_here and not alone:
        message = (
            f"`{launch.fields['launcher']}` sets OMP_NUM_THREADS to 1, and the CPU optimizer runs on one core a rank"
        )
        fix = "export OMP_NUM_THREADS: physical cores of the machine over its ranks"
        yield finding("DS318", "$.launcher", message, fix=fix, file=launch.name)


def environment_of_debugging(together: Together, context: Context) -> Iterator[Problem]:
    launch = together.launch
    for name, value in section(launch.fields if launch else {}, "environment").items():
        if launch is not None and name in LEFT_OVER and str(value).lower() not in OFF:
            path, fix = f"$.environment.{name}", "take it out"
            yield finding("DS319", path, LEFT_OVER[name], fix=fix, file=launch.name)


def ranks_come_from_somewhere(together: Together, context: Context) -> Iterator[Problem]:
    """`python train.py --deepspeed ...`: no launcher, and none around it in the script."""
    launch, _ = _started_by(together, "python")
    if launch is None or context.launcher or any(word in launch.text for word in OTHER_STARTERS):
        return
    if "deepspeed" in section(launch.fields, "script_flags") and "RANK" not in launch.text:
        message = "`python` sets no RANK, WORLD_SIZE and MASTER_ADDR: DeepSpeed asks mpi4py, one process, or fails"
        fix = "start with deepspeed, torchrun or accelerate, also on one GPU"
        yield finding("DS311", "$.launcher", message, fix=fix, severity=Severity.WARNING, file=launch.name)


def launcher_knows_its_flags(together: Together, context: Context) -> Iterator[Problem]:
    """All three parse with argparse, which takes the beginning of a flag for the flag."""
    launch = together.launch
    launcher = str(launch.fields.get("launcher")) if launch is not None else ""
    known = _known_flags().get(launcher)
    if launch is None or known is None:
        return
    for name in section(launch.fields, "launcher_flags"):
        if len(name) > 1 and name != REST and not any(one.startswith(name) for one in (*known, *OF_THE_OLD_MODULE)):
            near = nearest(name, known, limit=1)
            fix = f"did you mean `--{near[0]}`?" if near else "take it out, or write it behind the script"
            message = f"`{launcher}` has no flag `--{name}`, and refuses the line"
            yield finding("DS325", f"{FLAGS}.{name}", message, fix=fix, file=launch.name)


@cache
def _known_flags() -> Mapping[str, tuple[str, ...]]:
    return {
        launcher: tuple(text.split()) for launcher, text in toml.loads(read_table("check", "launchers.toml")).items()
    }


def commands_are_whole(together: Together, context: Context) -> Iterator[Problem]:
    """A command that starts with a flag is the rest of the one before; so is what follows a backslash and a blank."""
    launch = together.launch
    if launch is None:
        return
    text = without_data(launch.text)
    lost = [command[0] for command in commands(launch.text)[1:] if LOST.match(launch.text, command[0].start)]
    places = {word.start: one_line(word.value) for word in lost}
    places |= {match.start(1): one_line(match[1]) for match in NOT_CONTINUED.finditer(text)}
    if places:
        start = min(places)
        message = f"the shell takes `{places[start]}` for a command: the line before does not go on"
        fix = "end the line before with a backslash and nothing behind it, and take comments out of the command"
        line, column = Lines(launch.text).at(start)
        yield replace(finding("DS324", "$.script", message, fix=fix, file=launch.name), line=line, column=column)


def _started_by(together: Together, launcher: str) -> tuple[File | None, Mapping[str, Any]]:
    """The launch line and its launcher's flags, if that launcher starts the run."""
    launch = together.launch
    if launch is None or launch.fields.get("launcher") != launcher:
        return None, {}
    return launch, section(launch.fields, "launcher_flags")


RULES = (
    flags_of_accelerate_go_together,
    script_is_one,
    flags_go_together,
    flags_stand_before_the_script,
    processes_are_as_many_as_gpus,
    machines_meet,
    cpu_optimizer_has_threads,
    environment_of_debugging,
    ranks_come_from_somewhere,
    commands_are_whole,
    launcher_knows_its_flags,
)
