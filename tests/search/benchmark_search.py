"""Time of a search against the size of its space: `python tests/search/benchmark_search.py`. A benchmark, not a test.

Every line is a larger space of one model on 1,024 GPUs: more micro-batches of the same strategies, then more
strategies. A candidate is a strategy at a micro-batch; each one stands for its whole ladder of settings. The cost of a
candidate should not grow with their number.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from functools import _lru_cache_wrapper

from planner.catalog.speed import speed_constants
from planner.records.request import Request
from planner.search.search import search
from planner.search.space import strategies
from planner.search.variants import settings_variants
from planner.spec.request import build_request

CLUSTER = {"model": "70b", "gpus": "128x8xH100-80G", "checkpointing": "full", "host_ram": 2048}
SPACES = (
    *(
        {"zero": "3", "tp": "1", "offload": "none", "micro_batch": f"1-{highest}"}
        for highest in (8, 16, 32, 64, 128, 256)
    ),
    *({"zero": "3", "tp": tp, "offload": "none", "micro_batch": "1-64"} for tp in ("1,2", "1,2,4", "1,2,4,8")),
    *(
        {"zero": zero, "tp": "1,2,4,8", "offload": "none,optimizer", "micro_batch": "1-64"}
        for zero in ("3", "2,3", "1,2,3")
    ),
)
RUNS = 3


def forget() -> None:
    """Empties every cache of dsplan, so that each search starts as the first of a process does."""
    for found in gc.get_objects():
        if isinstance(found, _lru_cache_wrapper) and found.__module__.startswith("planner."):
            found.cache_clear()


def seconds_of(request: Request) -> tuple[int, float]:
    """Candidates and the least processor time of several searches."""
    taken, candidates = [], 0
    for _ in range(RUNS):
        forget()
        constants = speed_constants()
        start = time.process_time()
        plan = search(request, constants)
        taken.append(time.process_time() - start)
        candidates = len(plan.ranked) + len(plan.rejected)
    return candidates, min(taken)


def main() -> int:
    """Prints one line a space."""
    print(f"{'strategies':>10} {'settings':>9} {'candidates':>11} {'seconds':>8} {'us a candidate':>15}")
    for space in SPACES:
        request = build_request({**CLUSTER, **space})
        walked = list(strategies(request))
        rungs = sum(len(list(itertools.chain(*settings_variants(request, s)))) for s in walked)
        candidates, seconds = seconds_of(request)
        each = seconds / candidates * 1e6
        print(f"{len(walked):>10} {rungs:>9} {candidates:>11} {seconds:>8.3f} {each:>15.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
