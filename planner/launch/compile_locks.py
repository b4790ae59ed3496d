"""Locks that an interrupted compile leaves in torch's cache of extensions.

DeepSpeed compiles its CPU optimizers at first use. torch guards each build with a file called `lock` that the builder
keeps open and deletes at the end; a builder that is ended leaves it, and every later run waits for it for ever.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def locks(env: Mapping[str, str]) -> set[Path]:
    """The lock files in the cache that a run with this environment uses."""
    cache = Path(env.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torch_extensions"
    root = Path(env["TORCH_EXTENSIONS_DIR"]) if env.get("TORCH_EXTENSIONS_DIR") else cache
    return {*root.glob("*/lock"), *root.glob("*/*/lock")}


def remove_abandoned(candidates: set[Path]) -> set[Path]:
    """Delete those that no process of this machine holds open; returns what was deleted."""
    held = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            held.add(Path(os.readlink(descriptor)))
    abandoned = {lock for lock in candidates if lock.resolve() not in held} if held else set()
    for lock in abandoned:
        lock.unlink(missing_ok=True)
    return abandoned
