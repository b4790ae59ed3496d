"""What this machine allows a process to use: memory of its control group, page-locked memory, shared memory.

In: /proc, /sys/fs/cgroup and the limits of this process. Out: bytes and sentences. Question: can a job started here
have all of the machine's RAM, and may it lock it?
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from planner.units import GIB, MIB, gib_text

UNLIMITED_BYTES = 2**60
"""Control groups of the first version write a huge number where there is no limit."""

SHARED_MEMORY_BYTES = GIB
"""NCCL and data-loader workers pass buffers through /dev/shm; a container's default of 64 MiB is too little."""


def host_ram_bytes(root: Path = Path("/")) -> int | None:
    """Memory of this host, or of its control group where that is less; None where the system does not say."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    return min((total, *group_limits_bytes(root)))


def group_limits_bytes(root: Path = Path("/")) -> tuple[int, ...]:
    """The memory limits of this process's control group and of the groups around it."""
    found = (_number(path) for path in _limit_files(root))
    return tuple(limit for limit in found if limit is not None and limit < UNLIMITED_BYTES)


def _limit_files(root: Path) -> Iterator[Path]:
    """`memory.max` (version 2) and `memory.limit_in_bytes` (version 1), from this process's group outwards."""
    mount = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in ("0::/", "0:memory:/", *lines):
        match = re.fullmatch(r"\d+:([^:]*):(/.*)", line)
        if match is None:
            continue
        controllers, group = match.groups()
        if controllers not in ("", "memory"):
            continue
        base, file = (mount, "memory.max") if not controllers else (mount / "memory", "memory.limit_in_bytes")
        here = Path(group.lstrip("/"))
        for folder in (here, *here.parents):
            yield base / folder / file


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdecimal() else None


def locked_memory_limit_bytes() -> int | None:
    """What `ulimit -l` allows; None where it is unlimited or unknown."""
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else int(soft)


def shared_memory_bytes(folder: Path = Path("/dev/shm")) -> int | None:
    """The size of shared memory; None where there is none."""
    try:
        found = os.statvfs(folder)
    except (AttributeError, OSError):
        return None
    return found.f_frsize * found.f_blocks


def limit_notes(*, total: int | None, groups: tuple[int, ...], locked: int | None, shared: int | None) -> list[str]:
    """What a user has to know about these limits."""
    notes = []
    if total is not None and groups and min(groups) <= total:
        notes.append(f"the control group of this process may use {gib_text(min(groups))} of RAM, and that counts")
    if locked is not None:
        notes.append(
            f"`ulimit -l` allows {locked // MIB} MiB of locked memory here: offload to NVMe, and pinning on some "
            "systems, need `ulimit -l unlimited`"
        )
    if shared is not None and shared < SHARED_MEMORY_BYTES:
        notes.append(f"/dev/shm holds {shared // MIB} MiB: NCCL and data loaders want more (`--shm-size=16g`)")
    return notes
