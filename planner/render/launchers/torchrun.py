"""`torchrun`: every node joins at MASTER_ADDR, where the ranks are dealt out, so no node needs a number."""

from __future__ import annotations

from planner.records.plan import Plan
from planner.records.request import Integration
from planner.render.launchers.shell import SMOKE_RANKS, Launcher


def torchrun(plan: Plan) -> Launcher:
    """The counts are on the command line; the training script or launch.sh names ds_config.json."""
    cluster = plan.request.cluster
    named = "launch.sh" if plan.request.integration is Integration.ACCELERATE else "the training script"
    address = "$MASTER_ADDR" if cluster.nodes > 1 else "127.0.0.1"
    return Launcher(
        command=_command(str(cluster.nodes), str(cluster.gpus_per_node), address),
        smoke_command=_command("1", f'"${SMOKE_RANKS}"', "127.0.0.1"),
        needs_node_rank=False,
        notes=(f"torchrun does not read accelerate.yaml; {named} names ds_config.json.",),
    )


def _command(nodes: str, ranks: str, address: str) -> list[str]:
    rendezvous = ["--rdzv-backend=c10d", "--rdzv-id=dsplan", f'--rdzv-endpoint="{address}:$MASTER_PORT"']
    return ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={ranks}", *rendezvous]
