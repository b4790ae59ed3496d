"""Tensor bytes of a dry run, phase by phase: what one rank held at most while it loaded, started and trained.

`smoke_train.py` starts the count before the model exists, and says when a phase ends. The training phases are those of
the last optimizer step, over all its micro-batches: Adam's states exist from the second step on, and stage 3 prefetches
from the third.
"""

from __future__ import annotations

from typing import Any


class Phases:
    """The peaks of each phase; without a counter, nothing is counted."""

    def __init__(self, counter: Any | None) -> None:
        self.counter = counter
        self.peaks: dict[str, int] = {}
        self.in_step = False

    def end(self, phase: str) -> None:
        """All that was alive since the last call belongs to this phase."""
        if self.counter is not None:
            self.peaks[phase] = max(self.peaks.get(phase, 0), self.counter.take_peak_bytes())

    def forget(self, *_: Any) -> None:
        """What was alive since the last call belongs to no phase: batches being drawn, numbers being logged."""
        if self.counter is not None:
            self.counter.take_peak_bytes()

    def begin_step(self) -> None:
        """An optimizer step begins: the earlier ones are no longer of interest."""
        for phase in ("forward", "backward", "step"):
            self.peaks.pop(phase, None)

    def follow(self, engine: Any) -> None:
        """Tell the phases of training apart: forward lasts until the loss is handed back to the engine."""
        backward, step = engine.backward, engine.step

        def followed_backward(*arguments: Any, **options: Any) -> Any:
            self.end("forward")
            result = backward(*arguments, **options)
            self.end("backward")
            return result

        def followed_step(*arguments: Any, **options: Any) -> Any:
            self.in_step = True
            result = step(*arguments, **options)
            self.in_step = False
            self.end("step")
            return result

        engine.register_forward_pre_hook(self.forget)
        engine.backward, engine.step = followed_backward, followed_step
        self._leave_out_staging()

    def _leave_out_staging(self) -> None:
        """Gloo copies what it gathers, NCCL gathers in place: the copies of the updated weights are not counted."""
        from deepspeed.comm import comm

        gather = comm.cdb.all_gather_function

        def gather_uncounted(*arguments: Any, **options: Any) -> Any:
            if not self.in_step:
                return gather(*arguments, **options)
            self.end("step")
            handle = gather(*arguments, **options)
            self.forget()
            return handle

        comm.cdb.all_gather_function = gather_uncounted
