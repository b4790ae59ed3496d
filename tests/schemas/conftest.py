"""The examples and functions beside these tests, and the generator of tests/oracles."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "oracles")]
