"""This machine: goes in, what nvidia-smi and the kernel say; comes out, a one-node Cluster. What is `--gpus auto`?"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from planner.catalog import tables
from planner.errors import PlannerError, UnknownName
from planner.records.machine import Cluster
from planner.spec import host_limits
from planner.spec.cluster_named import named_cluster
from planner.units import GIB, MIB

QUERY = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
TIMEOUT_S = 15
HINT = "name the cluster, e.g. `4xA100-80G`, or describe it in a .toml file"


def read_this_machine() -> Cluster:
    """The GPUs of this machine; raises PlannerError where there are none or nvidia-smi cannot say."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise PlannerError("`auto` found no nvidia-smi on this machine", hint=HINT)
    try:
        result = subprocess.run([program, *QUERY], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise PlannerError(f"`auto`: nvidia-smi did not answer within {TIMEOUT_S} s", hint=HINT) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PlannerError(f"`auto`: nvidia-smi did not run: {error}", hint=HINT) from None
    if result.returncode != 0:
        said = (result.stdout + result.stderr).strip()[:200]
        raise PlannerError(f"`auto`: nvidia-smi failed with `{said}`", hint=HINT)
    cluster = cluster_from_listing(result.stdout, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    ram = host_limits.host_ram_bytes()
    notes = host_limits.limit_notes(
        total=ram,
        groups=host_limits.group_limits_bytes(),
        locked=host_limits.locked_memory_limit_bytes(),
        shared=host_limits.shared_memory_bytes(),
    )
    return dataclasses.replace(
        cluster, host_memory_bytes=ram, cpu_cores=physical_cores(), notes=(*cluster.notes, *notes)
    )


def cluster_from_listing(listing: str, *, visible: str | None = None) -> Cluster:
    """One node from the lines `name, MiB` of nvidia-smi; of several kinds the smallest card stands for all.

    `visible` is CUDA_VISIBLE_DEVICES, which training obeys and nvidia-smi does not.
    """
    cards = sorted(_visible(_cards(listing), visible), key=lambda card: card[1])
    if not cards:
        raise PlannerError("`auto`: nvidia-smi lists no GPU that this process may use", hint=HINT)
    name, memory_mib = cards[0]
    try:
        row, _ = tables.identify_gpu(_sized(name, memory_mib))
    except UnknownName as error:
        raise PlannerError(
            f"`auto` found `{name}`, which is not in the catalogue", hint=f"{error.hint}; or {HINT}"
        ) from None
    cluster = named_cluster(f"1x{len(cards)}x{row['name']}")
    notes = [*cluster.notes, f"`auto` found {len(cards)} x {name}"]
    kinds = sorted({n for n, _ in cards})
    if len(kinds) > 1:
        notes.append(f"this machine mixes {', '.join(kinds)}: every rank is planned as {row['name']}, the smallest")
    gpu = cluster.gpu
    if memory_mib * MIB < gpu.memory_bytes:
        gpu = dataclasses.replace(gpu, memory_bytes=memory_mib * MIB)
        notes.append(f"nvidia-smi reports {memory_mib} MiB, less than the catalogue, and that counts")
    return dataclasses.replace(cluster, gpu=gpu, notes=tuple(notes), usd_per_hour=None)


def _cards(listing: str) -> list[tuple[str, int]]:
    """Name and MiB of each line; raises for a line of another form."""
    cards = []
    for line in listing.splitlines():
        name, _, memory = line.rpartition(",")
        if not line.strip():
            continue
        if not memory.strip().isdecimal():
            raise PlannerError(
                f"`auto`: nvidia-smi says `{line.strip()[:100]}`, which is not a name and MiB", hint=HINT
            )
        cards.append((name.strip(), int(memory)))
    return cards


def _visible(cards: list[tuple[str, int]], visible: str | None) -> list[tuple[str, int]]:
    """The cards that CUDA_VISIBLE_DEVICES leaves; identifiers that are no index count as the first cards."""
    if visible is None:
        return cards
    wanted = [w.strip() for w in visible.split(",") if w.strip()]
    if all(w.isdecimal() for w in wanted):
        return [cards[int(w)] for w in dict.fromkeys(wanted) if int(w) < len(cards)]
    return cards[: len(wanted)]


def _sized(name: str, memory_mib: int) -> str:
    """The name with its memory size where the family has several and the driver leaves it out (`NVIDIA V100`)."""
    row, notes = tables.identify_gpu(name)
    if not notes:
        return name
    sizes = {int(r["marketed_gb"]) for r in tables.gpu_rows() if set(r["families"]) & set(row["families"])}
    return f"{name} {min(sizes, key=lambda gb: abs(gb * GIB - memory_mib * MIB))}GB"


def physical_cores() -> int | None:
    """Physical cores from /proc/cpuinfo: distinct pairs of socket and core."""
    try:
        lines: Sequence[str] = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    values = {
        key: [v.partition(":")[2].strip() for v in lines if v.startswith(key)] for key in ("physical id", "core id")
    }
    return len(set(zip(values["physical id"], values["core id"], strict=False))) or os.cpu_count()
