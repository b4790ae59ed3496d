"""Many independent pieces of work on every core, the results in the order of the work.

In: a function that can be pickled, a list of items. Out: a generator of results, each as soon as it and all before it
are ready. One process when the list is short or there is one core; the results are the same.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import TypeVar

from planner.errors import PlannerError

Item = TypeVar("Item")
Result = TypeVar("Result")

LEAST_CHUNKS = 4  # fewer do not pay for the start of processes
MOST_WORKERS = 16  # each holds its own catalogue and the evaluations of one search: some 100 MB
AHEAD = 4  # chunks a worker, finished or not, that wait for their turn: this bounds the memory of the results


def usable_cores() -> int:
    """The cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_order(work: Callable[[Item], Result], items: Sequence[Item], *, chunk: int) -> Generator[Result, None, None]:
    """`work` of every item, in their order; `chunk` items go to a process at once.

    Raises what `work` raises, and PlannerError when a process is ended from outside. Closing the generator ends the
    processes.
    """
    workers = min(usable_cores(), MOST_WORKERS, len(items) // chunk)
    if workers < 2 or len(items) < LEAST_CHUNKS * chunk:
        yield from map(work, items)
        return
    waiting: deque[Future[list[Result]]] = deque()
    answered = 0
    pool = ProcessPoolExecutor(workers, mp_context=_start_method(), initializer=_as_worker)
    try:
        for start in range(0, len(items), chunk):
            waiting.append(pool.submit(_all, work, items[start : start + chunk]))
            if len(waiting) < workers * AHEAD:
                continue
            for result in waiting.popleft().result():
                answered += 1
                yield result
        while waiting:
            for result in waiting.popleft().result():
                answered += 1
                yield result
    except BrokenProcessPool:
        raise PlannerError(
            f"a worker process was ended from outside before request {answered + 1} of {len(items)} was answered",
            hint="the answers before it are complete; did the machine run out of memory?",
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _all(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [work(item) for item in items]


def _start_method() -> multiprocessing.context.BaseContext:
    """A fork has everything imported already; only on Linux is it safe with the system's own libraries."""
    return multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")


def _as_worker() -> None:
    """Ctrl-C is the first process's to handle; a worker ends with it, however it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
