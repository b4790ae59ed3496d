"""Locks that an interrupted compile leaves in torch's cache of extensions.

DeepSpeed compiles its CPU optimizers at first use. torch guards each build with a file called `lock` that the builder
keeps open and deletes at the end; a builder that is ended leaves it, and every later run waits for it for ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

LONGEST_BUILD_S = 1800


class Lock(NamedTuple):
    """One lock file; a later one at the same path is another."""

    path: Path
    made_ns: int


def locks(env: Mapping[str, str]) -> set[Lock]:
    """The locks in the cache that a run with this environment uses."""
    cache = Path(env.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torch_extensions"
    root = Path(env["TORCH_EXTENSIONS_DIR"]) if env.get("TORCH_EXTENSIONS_DIR") else cache
    found = set()
    for path in (*root.glob("*/lock"), *root.glob("*/*/lock")):
        with suppress(FileNotFoundError):
            found.add(Lock(path, path.stat().st_mtime_ns))
    return found


def left_behind(candidates: set[Lock], *, now_ns: int | None = None) -> set[Lock]:
    """Those older than any build: a cache on a shared disk may hold a younger one of another machine."""
    now = time.time_ns() if now_ns is None else now_ns
    return {lock for lock in candidates if now - lock.made_ns > LONGEST_BUILD_S * 10**9}


def remove_abandoned(candidates: set[Lock]) -> set[Lock]:
    """Delete those that no process of this machine holds open; returns what was deleted."""
    held = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            held.add(Path(os.readlink(descriptor)))
    abandoned = {lock for lock in candidates if lock.path.resolve() not in held} if held else set()
    for lock in abandoned:
        lock.path.unlink(missing_ok=True)
    return abandoned
