"""The parts of `launch.sh` that every launcher shares.

In: the plan and one launcher's commands. Out: shell text. Answers: which script runs with which arguments, on which
port, with how many CPU threads, on which node? What the user typed enters only through `shlex`, as data.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import Template

from planner.errors import PlannerError
from planner.records.candidate import Offload
from planner.records.plan import Plan
from planner.render.integrations import accelerator_environment
from planner.resources import read_text

SMOKE_SCRIPT = "DSPLAN_SMOKE_SCRIPT"  # set by the dry run: this script instead of the plan's
SMOKE_RANKS = "DSPLAN_SMOKE_RANKS"  # and this many ranks on this machine
OWN_SCRIPT = "train.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """What one launcher contributes: the command up to the training script, the same for the dry run, extra files."""

    command: Sequence[str]  # shell words, already quoted
    smoke_command: Sequence[str]
    needs_node_rank: bool = True
    files: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()  # lines for the README


class _ShellTemplate(Template):
    """`%name`: `$` and `@` both have a meaning in shell text."""

    delimiter = "%"


def launch_script(plan: Plan, launcher: Launcher) -> str:
    """The text of `launch.sh`."""
    blocks = [
        *thread_lines(plan),
        *accelerator_lines(plan),
        script_line(plan),
        smoke_lines(launcher),
        node_lines(plan, launcher),
        f'exec {" ".join(launcher.command)} "${{train[@]}}"',
    ]
    return _ShellTemplate(read_text("templates", "launch.sh")).substitute(launch="\n\n".join(blocks))


def script_line(plan: Plan) -> str:
    """The training script and its arguments as a bash array; a relative script is relative to the caller's folder."""
    request = plan.request
    words = [quoted(argument) for argument in request.script_arguments]
    if request.script is None:
        script = OWN_SCRIPT
    elif request.script.startswith("/"):
        script = quoted(request.script)
    else:
        script = f'"$OLDPWD"/{quoted(request.script)}'
    comment = (
        "" if request.script is None else "# The script's path is relative to the folder this script is called from.\n"
    )
    return f'{comment}train=({" ".join([script, *words])} "$@")'


def quoted(argument: str) -> str:
    """One shell word that stands for exactly this text."""
    if "\0" in argument or any("\ud800" <= character <= "\udfff" for character in argument):
        raise PlannerError(
            f"the script argument `{argument}` cannot be written into a shell script",
            hint="leave out the NUL character or the bytes that are not UTF-8",
        )
    return shlex.quote(argument)


def known_threads(plan: Plan) -> int | None:
    """CPU threads of one rank where the optimizer steps on the CPU and the core count is known."""
    cluster = plan.request.cluster
    if plan.ranked[0].candidate.offload is Offload.NONE or cluster.cpu_cores is None:
        return None
    return max(1, cluster.cpu_cores // cluster.gpus_per_node)


def thread_lines(plan: Plan) -> list[str]:
    """`OMP_NUM_THREADS` for plans whose optimizer steps on the CPU; launchers set one thread unless told otherwise."""
    if plan.ranked[0].candidate.offload is Offload.NONE:
        return []
    cluster, threads = plan.request.cluster, known_threads(plan)
    ranks = cluster.gpus_per_node
    why = "# The optimizer steps on the CPU with OpenMP; launchers give each rank one thread unless told otherwise.\n"
    if threads is not None:
        cores = f"# {cluster.cpu_cores} physical cores / {ranks} ranks"
        return [f'{why}export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{threads}}}" {cores}']
    return [
        f"{why}cores=$(lscpu -p=CORE,SOCKET 2>/dev/null | grep -v '^#' | sort -u | wc -l) || cores=0\n"
        "if ((cores == 0)); then cores=$(nproc); fi\n"
        f'export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-$((cores > {ranks} ? cores / {ranks} : 1))}}"'
    ]


def accelerator_lines(plan: Plan) -> list[str]:
    """The environment of a script with `Accelerator` that `accelerate launch` does not start."""
    exports = [f"export {name}={value}" for name, value in accelerator_environment(plan).items()]
    return ["\n".join(["# What `accelerate launch` would tell `Accelerator`.", *exports])] if exports else []


def ssh_environment(plan: Plan) -> dict[str, str]:
    """What a launcher over ssh has to carry to the other nodes: launch.sh exports it on each node by itself."""
    threads = known_threads(plan)
    allocator = dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "expandable_segments:True")
    known = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    return {**allocator, **known, **accelerator_environment(plan)}


def smoke_lines(launcher: Launcher) -> str:
    """The dry run: the same files and environment, another script, and ranks on this machine's CPU."""
    return (
        "# `dsplan smoke` runs its own script on this machine's CPU, with the same files and environment.\n"
        f'if [[ -n "${{{SMOKE_SCRIPT}:-}}" ]]; then\n'
        '  export MASTER_PORT="${MASTER_PORT:-$(free_port)}"\n'
        f'  exec {" ".join(launcher.smoke_command)} "${SMOKE_SCRIPT}"\n'
        "fi"
    )


def node_lines(plan: Plan, launcher: Launcher) -> str:
    """One node: a free port. Several: what has to be set on every node, and the port they share."""
    nodes = plan.request.cluster.nodes
    if nodes == 1:
        return '# Set MASTER_PORT to choose the port.\nexport MASTER_PORT="${MASTER_PORT:-$(free_port)}"'
    needed = {"MASTER_ADDR": "the name or address of the first node"}
    if launcher.needs_node_rank:
        needed["NODE_RANK"] = f"the number of this node, 0 to {nodes - 1}; 0 is MASTER_ADDR"
    checks = "".join(
        f'if [[ -z "${{{variable}:-}}" ]]; then\n'
        f'  echo "error: this plan runs on {nodes} nodes and {variable} is not set" >&2\n'
        f'  echo "hint: run this script on each node with {variable}={meaning}" >&2\n'
        "  exit 2\n"
        "fi\n"
        for variable, meaning in needed.items()
    )
    return f'{checks}export MASTER_PORT="${{MASTER_PORT:-{shared_port(plan)}}}" # the same on every node'


def shared_port(plan: Plan) -> int:
    """A port that all nodes derive alike and other plans seldom share: 20000-29499, never the launchers' 29500."""
    from zlib import crc32

    words = f"{plan.request.model.name} {plan.request.cluster.gpu.name} {plan.ranked[0].candidate.label}"
    return 20000 + crc32(words.encode("utf-8", "surrogatepass")) % 9500
