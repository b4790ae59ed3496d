"""A cluster file: goes in, the path of a TOML file; comes out, a Cluster. How to plan for a machine no table knows?

    gpus = "4x8xA100-80G"            required: any spelling of planner.spec.cluster but another file
    name = "lab cluster"             shown as the source of the figures

    host_ram_gib = 1007              per node
    cpu_cores = 64                   physical, per node
    network_gbit_per_s = 400         nominal, all GPU ports of one node together
    fabric = "ib"                    "ib", "roce", "efa", "gpudirect-tcpx" or "ethernet": the share of it that arrives
    bus_gb_per_s = 229               NCCL bus bandwidth inside a node, or [[2, 22.5], [4, 85.0], [8, 134.0]] by ranks
    nvme_tb = 8                      local drives of one node, and their rates together
    nvme_read_gb_per_s = 10
    nvme_write_gb_per_s = 5
    usd_per_hour = 21.6              per node

    memory_gib = 39.5                of one GPU, as torch reports it
    bf16_tflop_per_s = 312           dense peak; also fp16_ and fp32_tflop_per_s, hbm_gb_per_s, host_link_gb_per_s
    gemm_efficiency = 0.78           share of the peak; also attention_efficiency

Every key but `gpus` overrides what the tables say. A key that is not in this list is an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner import toml
from planner.catalog import tables
from planner.errors import PlannerError, nearest
from planner.records.machine import Cluster, Gpu, Link
from planner.spec.cluster_named import named_cluster
from planner.units import GIB

MAX_BYTES = 1_000_000

GPU_KEYS: Mapping[str, tuple[str, float]] = {
    "bf16_tflop_per_s": ("bf16_flop_per_s", 1e12),
    "fp16_tflop_per_s": ("fp16_flop_per_s", 1e12),
    "fp32_tflop_per_s": ("fp32_flop_per_s", 1e12),
    "hbm_gb_per_s": ("hbm_bytes_per_s", 1e9),
    "host_link_gb_per_s": ("host_link_bytes_per_s", 1e9),
    "gemm_efficiency": ("gemm_efficiency", 1.0),
    "attention_efficiency": ("attention_efficiency", 1.0),
}
"""Key of the file: field of Gpu and its unit."""

NODE_KEYS: Mapping[str, tuple[str, float]] = {
    "nvme_read_gb_per_s": ("nvme_read_bytes_per_s", 1e9),
    "nvme_write_gb_per_s": ("nvme_write_bytes_per_s", 1e9),
}
"""Key of the file: field of Cluster and its unit; the other keys of a node have a rule of their own."""

OTHER_KEYS = (
    *("gpus", "name", "memory_gib", "host_ram_gib", "cpu_cores", "network_gbit_per_s", "fabric"),
    *("bus_gb_per_s", "nvme_tb", "usd_per_hour"),
)
TEXT_KEYS = ("gpus", "name", "fabric")
KEYS = (*OTHER_KEYS, *GPU_KEYS, *NODE_KEYS)


def read_cluster_file(path: Path) -> Cluster:
    """The cluster that a file describes; raises PlannerError for a file that cannot be read or holds a wrong key."""
    fields = _read(path)
    _check_keys(path, fields)
    numbers = {key: _number(path, key, fields[key]) for key in fields if key not in (*TEXT_KEYS, "bus_gb_per_s")}
    text = fields["gpus"]
    if text.strip().casefold().endswith(".toml") or text.strip().casefold() == "auto":
        raise PlannerError(f"`{path}`: `gpus` is `{text}`", hint="name GPUs or an instance there, e.g. `8xA100-80G`")
    cluster = named_cluster(text)
    changes: dict[str, Any] = {
        "gpu": _gpu(cluster.gpu, numbers),
        "source": fields.get("name") or f"cluster file {path.name}",
    }
    changes |= {field: numbers[key] * unit for key, (field, unit) in NODE_KEYS.items() if key in numbers}
    if "host_ram_gib" in numbers:
        changes["host_memory_bytes"] = int(numbers["host_ram_gib"] * GIB)
    if "cpu_cores" in numbers:
        changes["cpu_cores"] = int(numbers["cpu_cores"])
    if "nvme_tb" in numbers:
        changes["nvme_bytes"] = int(numbers["nvme_tb"] * 1e12)
    if "usd_per_hour" in numbers:
        changes["usd_per_hour"] = numbers["usd_per_hour"] * cluster.nodes
    if "bus_gb_per_s" in fields:
        changes["intra_node"] = _link(path, fields["bus_gb_per_s"])
    return dataclasses.replace(cluster, **changes, **_network(path, cluster, fields, numbers))


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise PlannerError(f"`{path}` is larger than {MAX_BYTES} bytes", hint="a cluster file has a dozen lines")
        return toml.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PlannerError(
            f"cannot read the cluster file `{path}`: {reason}", hint="give the path of a TOML file"
        ) from None
    except (ValueError, RecursionError) as error:
        raise PlannerError(
            f"`{path}` is not valid TOML: {error}", hint='the smallest one is gpus = "8xA100-80G"'
        ) from None


def _check_keys(path: Path, fields: Mapping[str, Any]) -> None:
    """Raises for unknown keys (all of them at once), for a missing `gpus`, and for text keys that hold no text."""
    unknown = [key for key in fields if key not in KEYS]
    if unknown:
        near = nearest(unknown[0], KEYS)
        hint = f"did you mean `{near[0]}`?" if near else f"the keys are {', '.join(KEYS)}"
        raise PlannerError(f"`{path}` has unknown keys: {', '.join(f'`{key}`' for key in unknown)}", hint=hint)
    if "gpus" not in fields:
        raise PlannerError(f"`{path}` does not say `gpus`", hint='add a line such as gpus = "8xA100-80G"')
    for key in TEXT_KEYS:
        if key in fields and not isinstance(fields[key], str):
            raise PlannerError(f"`{path}`: `{key}` is `{_shown(fields[key])}`, not text", hint=f'write {key} = "..."')


def _number(path: Path, key: str, value: Any) -> float:
    """A positive number; a share is at most 1. The comparison also refuses `nan` and `inf`."""
    limit = 1.0 if key.endswith("efficiency") else 1e9
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 < value <= limit) or (key == "cpu_cores" and value != int(value)):
        what = "a share between 0 and 1" if limit == 1.0 else "a positive number"
        hint = f"correct `{key}` or leave it out"
        raise PlannerError(f"`{path}`: `{key}` is `{_shown(value)}`, not {what}", hint=hint)
    return float(value)


def _shown(value: Any) -> str:
    """The value as it stands in a message, cut to a legible length."""
    try:
        text = str(value)
    except ValueError:  # an integer of more than 4300 digits
        text = "a very large number"
    return text if len(text) <= 60 else f"{text[:60]}..."


def _gpu(gpu: Gpu, numbers: Mapping[str, float]) -> Gpu:
    changes: dict[str, Any] = {field: numbers[key] * unit for key, (field, unit) in GPU_KEYS.items() if key in numbers}
    if "memory_gib" in numbers:
        changes["memory_bytes"] = int(numbers["memory_gib"] * GIB)
    return dataclasses.replace(gpu, **changes) if changes else gpu


def _link(path: Path, value: Any) -> Link:
    """One figure for every group, or rows of ranks and bandwidth."""
    rows = value if isinstance(value, list) else [[2, value]]
    if not rows or not all(isinstance(row, list) and len(row) == 2 for row in rows):
        hint = "write 229 or [[2, 22.5], [8, 134.0]]"
        raise PlannerError(
            f"`{path}`: `bus_gb_per_s` is `{_shown(value)}`, not a number or rows of ranks and GB/s", hint=hint
        )
    pairs = sorted((_number(path, "bus_gb_per_s", ranks), _number(path, "bus_gb_per_s", rate)) for ranks, rate in rows)
    bus = tuple((int(ranks), rate * 1e9) for ranks, rate in pairs)
    return Link(name="cluster file", bus_bytes_per_s=bus, source=f"cluster file {path.name}")


def _network(path: Path, cluster: Cluster, fields: Mapping[str, Any], numbers: Mapping[str, float]) -> dict[str, Any]:
    """What changes when the file names the network: the rate, its name, and the note that it was assumed."""
    if "network_gbit_per_s" not in numbers:
        if "fabric" in fields:
            raise PlannerError(
                f"`{path}`: `fabric` without `network_gbit_per_s`", hint="give the rate of one node as well"
            )
        return {}
    fabric = fields.get("fabric", "ethernet")
    if fabric not in tables.fabric_names():
        hint = f"one of {', '.join(tables.fabric_names())}"
        raise PlannerError(f"`{path}`: `fabric` is `{fabric}`", hint=hint)
    network = tables.network_on(fabric, numbers["network_gbit_per_s"], source=f"cluster file {path.name}")
    notes = tuple(note for note in cluster.notes if not note.startswith("network "))
    if "fabric" not in fields:
        notes = (*notes, f"`{path.name}` names no fabric: Ethernet assumed, the slowest")
    if cluster.nodes == 1:
        return {}
    return {"network_bytes_per_s": network.bytes_per_s, "network_name": network.name, "notes": notes}
