"""`deepspeed`: on several nodes the same line on every node, without ssh; the host file counts nodes and slots."""

from __future__ import annotations

from planner.records.plan import Plan
from planner.render.launchers.shell import SMOKE_RANKS, Launcher, ssh_environment


def deepspeed_run(plan: Plan) -> Launcher:
    """One node: the GPUs by number. Several: `hostfile`, and `.deepspeed_env` for those who launch over ssh."""
    cluster = plan.request.cluster
    # Scripts read LOCAL_RANK from the environment; not all of them accept a --local_rank argument.
    tail = ["--master_port", '"$MASTER_PORT"', "--no_local_rank"]
    smoke_command = ["deepspeed", "--num_accelerators", f'"${SMOKE_RANKS}"', *tail]
    if cluster.nodes == 1:
        gpus = ",".join(str(gpu) for gpu in range(cluster.gpus_per_node))
        return Launcher(command=["deepspeed", "--include", f"localhost:{gpus}", *tail], smoke_command=smoke_command)
    nodes = ["--hostfile", "hostfile", "--no_ssh", "--node_rank", '"$NODE_RANK"', "--master_addr", '"$MASTER_ADDR"']
    return Launcher(
        command=["deepspeed", *nodes, *tail],
        smoke_command=smoke_command,
        files={
            "hostfile": "# node and its GPUs; launch.sh counts the lines and does not contact these names\n"
            + "".join(f"node-{node} slots={cluster.gpus_per_node}\n" for node in range(cluster.nodes)),
            ".deepspeed_env": "".join(f"{name}={value}\n" for name, value in ssh_environment(plan).items()),
        },
        notes=(
            "launch.sh starts the processes of its own node only, so the names in hostfile do not matter. To start all "
            "nodes from one over ssh instead, put the real host names into hostfile and run "
            "`deepspeed --hostfile hostfile --no_local_rank` with the training script; .deepspeed_env carries the "
            "environment to the other nodes, which ssh would not.",
        ),
    )
