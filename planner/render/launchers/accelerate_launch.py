"""`accelerate launch`: the same line on every node, only the rank differs."""

from __future__ import annotations

from planner.records.plan import Plan
from planner.render.launchers.shell import SMOKE_RANKS, Launcher


def accelerate_launch(plan: Plan) -> Launcher:
    """Counts and the DeepSpeed file come from accelerate.yaml; port, address and rank from the environment."""
    base = ["accelerate", "launch", "--config_file", "accelerate.yaml"]
    port = ["--main_process_port", '"$MASTER_PORT"']
    nodes = (
        ["--machine_rank", '"$NODE_RANK"', "--main_process_ip", '"$MASTER_ADDR"']
        if plan.request.cluster.nodes > 1
        else []
    )
    smoke = ["--num_processes", f'"${SMOKE_RANKS}"', "--num_machines", "1", "--machine_rank", "0"]
    return Launcher(command=[*base, *nodes, *port], smoke_command=[*base, *smoke, *port])
