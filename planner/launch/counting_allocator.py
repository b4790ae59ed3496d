"""A wrapper around torch's CPU allocator that counts: how many tensor bytes are alive, and how many were at most?

    library = build(folder)         once, in any process: compiles templates/counting_allocator.cpp
    counter = install(library)      in the process to be measured, before its first tensor
    counter.take_peak_bytes()       the most since the last call

Every allocation on every thread is seen, but what gloo's own threads stage; tensors made before `install` are not. It
needs a C++ compiler and the headers that come with torch; torch itself is loaded by the measured process only.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from planner.errors import PlannerError
from planner.resources import read_text

COMPILERS = ("c++", "g++", "clang++")
BUILD_LIMIT_S = 300
COLLECTIVES = (
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "reduce",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """The counts of this process."""

    functions: ctypes.CDLL

    def alive_bytes(self) -> int:
        """Bytes of all tensors that exist now."""
        return int(self.functions.alive_bytes())

    def take_peak_bytes(self) -> int:
        """The most bytes that were alive at once since the last call; starts again from what is alive now."""
        return int(self.functions.take_peak_bytes())

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """What this thread allocates meanwhile is not counted, nor its release later."""
        self.functions.pause_this_thread()
        try:
            yield
        finally:
            self.functions.resume_this_thread()


def build(folder: Path) -> Path:
    """Compile the wrapper for the torch of this Python; raises PlannerError where that is impossible."""
    compiler = _compiler()
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        raise PlannerError("counting tensor bytes needs `torch`", hint='pip install "dsplan[launch]"')
    torch = Path(next(iter(found.submodule_search_locations)))
    source, library = folder / "counting_allocator.cpp", folder / "counting_allocator.so"
    source.write_text(read_text("templates", source.name), encoding="utf-8")
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", f"-I{torch / 'include'}"]
    command = [compiler, *flags, str(source), f"-L{torch / 'lib'}", "-lc10", "-o", str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PlannerError(f"`{compiler}` cannot be run: {error}", hint="set CXX to a C++20 compiler") from None
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), f"exit code {done.returncode}")
        raise PlannerError(
            f"`{compiler}` cannot compile the counting allocator: {said.strip()}", hint="set CXX to a C++20 compiler"
        )
    return library


def install(library: Path) -> Counter:
    """Count from now on: torch is loaded, and every later tensor of this process passes through the wrapper."""
    import torch  # noqa: F401 - the library needs torch's own to be loaded

    functions = ctypes.CDLL(str(library))
    functions.alive_bytes.restype = functions.take_peak_bytes.restype = ctypes.c_int64
    functions.install()
    return Counter(functions=functions)


def leave_out_staging(counter: Counter) -> None:
    """Gloo stages copies of what it gathers and scatters on the calling thread too, where NCCL works in place: they are
    not counted. To be called before DeepSpeed looks the collectives up."""
    from torch import distributed

    for name in COLLECTIVES:
        setattr(distributed, name, _uncounted(counter, getattr(distributed, name)))


def _uncounted(counter: Counter, collective: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(collective)
    def run(*arguments: Any, **options: Any) -> Any:
        with counter.uncounted():
            return collective(*arguments, **options)

    return run


def _compiler() -> str:
    """$CXX, else the first of the usual names that is on the path."""
    named = os.environ.get("CXX", "").split()
    found = next((path for name in (*named[:1], *COMPILERS) if (path := shutil.which(name))), None)
    if found is None:
        raise PlannerError("there is no C++ compiler", hint="install g++, or set CXX to a C++20 compiler")
    return found
