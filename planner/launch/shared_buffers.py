"""Shared memory that DeepSpeed's CPU ranks leave behind: 66 MiB a rank and run, until the machine starts again.

Source: deepspeed/ops/csrc/cpu/comm/shm.cpp (0.19.8): `deepspeed_allreduce_buffer_<user>_<address>_<port>_<rank>`,
made by every rank and never unlinked.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

FOLDER = Path("/dev/shm")


def remove_shared_buffers(port: int | str, *, folder: Path = FOLDER) -> int:
    """Delete the buffers of the run that met on that port, which has ended; returns how many there were."""
    removed = 0
    for buffer in folder.glob(f"deepspeed_allreduce_buffer_*_{port}_*"):
        with suppress(OSError):
            buffer.unlink()
            removed += 1
    return removed
