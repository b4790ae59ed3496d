"""The wrapper counts what torch hands out, to the byte, on every thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from planner.errors import PlannerError
from planner.launch.counting_allocator import build

PROGRAM = """
import sys, threading
from pathlib import Path
from planner.launch.counting_allocator import install
counter = install(Path(sys.argv[1]))
import torch
before = counter.alive_bytes()
kept = torch.zeros(1000, dtype=torch.float32)
dropped = torch.ones(300, dtype=torch.bfloat16)
del dropped
print(counter.alive_bytes() - before, counter.take_peak_bytes() - before, counter.take_peak_bytes() - before)
other = threading.Thread(target=lambda: torch.empty(64, dtype=torch.int64))
other.start(); other.join()
print(counter.alive_bytes() - before, counter.take_peak_bytes() - before)
del kept
print(counter.alive_bytes() - before)
"""


@pytest.mark.transformers
def test_bytes_alive_and_at_most_alive_are_those_of_the_tensors(tmp_path):
    pytest.importorskip("torch")
    try:
        library = build(tmp_path)
    except PlannerError as error:
        pytest.skip(error.message)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PROGRAM, str(library)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4000", "4600", "4000", "4000", "4512", "0"]
