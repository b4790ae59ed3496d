"""A launch line in a batch script of Slurm.

In: the files and the context. Out: Problems. Answers: does the launcher start once on every node, and does each node
get its own rank? Source: slurm.schedmd.com/sbatch.html (the script itself runs on the first node only) and
https://github.com/huggingface/accelerate/issues/2816.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from planner.check.context import Context
from planner.check.one_file.deepspeed_rules import section
from planner.check.rules import finding
from planner.check.together import Together
from planner.records.problem import Problem

ONE_A_NODE = ("torchrun", "accelerate")
"""They start the processes of a node themselves."""
SPREADERS = re.compile(r"\b(srun|mpirun|mpiexec|pdsh|clush|ssh|parallel-ssh|pssh)\b")
NODES = re.compile(r"^#SBATCH\s+(?:--nodes[= ]|-N\s*)(\d+)", re.MULTILINE)
TASKS = re.compile(r"^#SBATCH\s+--ntasks-per-node[= ](\d+)", re.MULTILINE)
OWN_TASKS = re.compile(r"--ntasks|-n[ \d=]|\$")
"""Options of srun that may set other tasks, one in a variable too."""
RANK_FLAGS = ("node_rank", "machine_rank")
RANK_OF_A_TASK = re.compile(r"\$\{?SLURM_(?:PROCID|NODEID)\}?")


def launcher_starts_once_on_every_node(together: Together, context: Context) -> Iterator[Problem]:
    launch = together.launch
    launcher = launch.fields.get("launcher") if launch is not None else None
    if launch is None or launcher not in ONE_A_NODE:
        return
    nodes, tasks = NODES.search(launch.text), TASKS.search(launch.text)
    commands = re.sub(r"^\s*#.*$", "", launch.text, flags=re.MULTILINE)
    if nodes is not None and int(nodes[1]) > 1 and not SPREADERS.search(commands):
        message = f"Slurm runs the script on the first of {nodes[1]} nodes only: the others never start"
        yield finding("DS313", "$.launcher", message, fix="put `srun` before it", file=launch.name)
    started = re.search(rf"\bsrun\b(.*?)\b{launcher}\b", commands, re.DOTALL)
    if tasks is not None and int(tasks[1]) > 1 and started and not OWN_TASKS.search(started[1]):
        message = f"`srun` starts `{launcher}` {tasks[1]} times on a node, and each starts a process for every GPU"
        yield finding("DS313", "$.launcher", message, fix="write `#SBATCH --ntasks-per-node=1`", file=launch.name)


def rank_is_expanded_on_its_node(together: Together, context: Context) -> Iterator[Problem]:
    launch = together.launch
    flags = section(launch.fields, "launcher_flags") if launch is not None else {}
    if launch is None or "srun" not in launch.text or flags.get("rdzv_backend") == "c10d":
        return
    nodes = NODES.search(launch.text)
    told = [nodes[1] if nodes else None, flags.get("nnodes"), flags.get("num_machines")]
    if any(str(number) == "1" for number in told):
        return
    for name in RANK_FLAGS:
        value = flags.get(name)
        if not isinstance(value, str) or not RANK_OF_A_TASK.search(value):
            continue
        if not _is_deferred(launch.text, value):
            message = f"the batch shell fills in `{value}` before `srun` starts: every node gets rank 0"
            fix = f"start it as `srun bash -c '... --{name} {value} ...'`, in single quotes"
            yield finding("DS313", f"$.launcher_flags.{name}", message, fix=fix, file=launch.name)


def _is_deferred(text: str, value: str) -> bool:
    """Whether some place of the value is left to a shell on the node: in single quotes, escaped, or in a file."""
    for match in re.finditer(re.escape(value), text):
        before = re.sub(r"^\s*#.*$", "", text[: match.start()], flags=re.MULTILINE)
        if before.count("'") % 2 or before.endswith("\\") or "<<" in before:
            return True
    return False


RULES = (launcher_starts_once_on_every_node, rank_is_expanded_on_its_node)
