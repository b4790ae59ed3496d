"""One candidate to the Accelerate configuration that starts it.

In: the cluster and the candidate. Out: the dict of `accelerate.yaml`. Answers: how many processes on how many
machines, and where is the DeepSpeed file? Accelerate refuses every setting that also lies in that file (stage,
offload devices, accumulation, clipping, mixed precision), so none of them is here. Port, address and rank of a node
come from the command line in `launch.sh`. The first line names the schema for editors.
"""

from __future__ import annotations

from typing import Any

from planner.records.candidate import Candidate, ZeroStage
from planner.records.machine import Cluster
from planner.render.overlay import overlay
from planner.resources import read_text

SCHEMA_FILE = "accelerate.schema.json"  # lies beside the file, so that editors find it offline
FIRST_LINE = f"# yaml-language-server: $schema={SCHEMA_FILE}\n"


def accelerate_text(cluster: Cluster, candidate: Candidate) -> str:
    """The text of `accelerate.yaml`."""
    import yaml

    return FIRST_LINE + str(yaml.safe_dump(accelerate_config(cluster, candidate), sort_keys=False))


def accelerate_config(cluster: Cluster, candidate: Candidate) -> dict[str, Any]:
    """The whole document: the template's fixed keys and the plan's own."""
    import yaml

    deepspeed: dict[str, Any] = {"zero3_init_flag": candidate.zero is ZeroStage.PARAMETERS}
    if cluster.nodes > 1:
        # The default launcher, pdsh, needs ssh and a host file; without one it silently trains on one node.
        deepspeed["deepspeed_multinode_launcher"] = "standard"
    planned = {"num_machines": cluster.nodes, "num_processes": cluster.world_size, "deepspeed_config": deepspeed}
    return overlay(yaml.safe_load(read_text("templates", "accelerate.yaml")), planned)
