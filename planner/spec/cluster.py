"""The machine: goes in, a text; comes out, a Cluster with notes on what was assumed. What does `2x8xH100-80G` mean?

Grammar (case, spaces, hyphens and underscores inside names do not matter; `x`, `*` and `×` are the same sign):

    cluster   = "auto"                        this machine, asked through nvidia-smi
              | path ending in ".toml"        a cluster file, see planner.spec.cluster_file
              | [count "x"] name              4xA100-80G   A100-80G   2xp4d.24xlarge   8卡3090   8 A100
              | count "x" count "x" name      2x8xH100-80G: nodes x GPUs per node
              | name "x" count                V100 32G x 8   A10 (4* 24GB)
    count     = 1..100000 ["nodes" | "machines" | "servers" | "台" | "机" | "gpus" | "cards" | "卡" | "张" | ...]
    name      = GPU [memory] | instance       memory may stand anywhere: `6 machine x 8 card x V100 16GB`
    memory    = number ("G" | "GB" | "GiB")   the size in the product name; GB and GiB are not told apart

What is decided here, always with a note in `Cluster.notes`:

* A name without memory that several cards share (`A100`, `V100`) means the smallest. Memory in the text decides; a size
  that no such card has is an error.
* One count with an instance is nodes. One count with a GPU is GPUs: up to the usual box of that card (8; 4 for GB200,
  1 for GH200) they share a node; beyond that whole boxes are taken as nodes, so `32xA100-80G` is 4 nodes of 8. PCIe
  cards may fill one box of up to 16. What divides neither way is an error.
* Two bare counts after the name (`A100 x 8 x 2`) are an error, because nobody can tell which are the nodes.
* Several nodes named by GPU only get the network that is usual for that class (a row of links.toml).
* Host memory is known for an instance or given; otherwise it stays None.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from planner.errors import PlannerError
from planner.records.machine import Cluster
from planner.spec.cluster_file import read_cluster_file
from planner.spec.cluster_named import named_cluster
from planner.spec.cluster_words import checked_text
from planner.units import GIB


def parse_cluster(text: str, *, host_ram_gib: float | None = None, folder: Path | None = None) -> Cluster:
    """The cluster that a text means; `host_ram_gib` overrides the instance, `folder` anchors a relative path."""
    if text.strip().casefold().endswith(".toml"):
        return with_host_ram(read_cluster_file((folder or Path()) / text.strip()), host_ram_gib)
    plain = checked_text(text)
    if plain.casefold() == "auto":
        from planner.spec.this_machine import read_this_machine  # it loads subprocess, and few runs ask for it

        cluster = read_this_machine()
    else:
        cluster = named_cluster(plain)
    return with_host_ram(cluster, host_ram_gib)


def with_host_ram(cluster: Cluster, host_ram_gib: float | None) -> Cluster:
    """The same cluster with that much host memory per node; None leaves it as it is."""
    if host_ram_gib is None:
        return cluster
    if not (math.isfinite(host_ram_gib) and 0 < host_ram_gib < 1e6):
        raise PlannerError(
            f"`{host_ram_gib:g}` GiB is no size of host memory", hint="give the GiB of one node, e.g. 512"
        )
    return dataclasses.replace(cluster, host_memory_bytes=int(host_ram_gib * GIB))
