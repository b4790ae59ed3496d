"""Tensor bytes of a dry run, phase by phase: what one rank held at most while it loaded, started and trained.

`smoke_train.py` starts the count before the model exists, and says when a phase ends. The training phases are those of
the last optimizer step, over all its micro-batches: Adam's states exist from the second step on, and stage 3 prefetches
from the third.
"""

from __future__ import annotations

import time
from typing import Any

PATIENCE_S = 1.0  # a thread of gloo lets go within milliseconds, on a busy machine later


class Phases:
    """The peaks of each phase; without a counter, nothing is counted."""

    def __init__(self, counter: Any | None) -> None:
        self.counter = counter
        self.peaks: dict[str, int] = {}

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

    def leave_out_random_weights(self) -> None:
        """At stage 3 transformers gathers module by module to fill it with random numbers; a file's weights need none
        of that."""
        from transformers.integrations import deepspeed as integration

        fill = integration.initialize_weights_zero3

        def fill_uncounted(model: Any) -> None:
            self.end("load")
            fill(model)
            self.forget()

        integration.initialize_weights_zero3 = fill_uncounted

    def leave_out_what_gloo_holds(self) -> None:
        """A thread of gloo lets go of the tensor after it has told that it is done, so while zero.Init builds one
        parameter after another, earlier ones may stay whole, which NCCL's do not: wait until it has."""
        from torch import distributed

        broadcast = distributed.broadcast

        def broadcast_and_let_go(tensor: Any, src: Any = None, group: Any = None, *more: Any, **options: Any) -> Any:
            held = tensor._use_count()
            handle = broadcast(tensor, src, group, *more, **options)
            end = time.monotonic() + PATIENCE_S
            while handle is None and tensor._use_count() > held and time.monotonic() < end:
                time.sleep(0.0005)
            return handle

        if self.counter is not None:
            distributed.broadcast = broadcast_and_let_go

    def follow(self, engine: Any) -> None:
        """Tell the phases of training apart: forward lasts until the loss is handed back to the engine."""
        backward, step = engine.backward, engine.step

        def followed_backward(*arguments: Any, **options: Any) -> Any:
            self.end("forward")
            result = backward(*arguments, **options)
            self.end("backward")
            return result

        def followed_step(*arguments: Any, **options: Any) -> Any:
            result = step(*arguments, **options)
            self.end("step")
            return result

        engine.register_forward_pre_hook(self.forget)
        engine.backward, engine.step = followed_backward, followed_step
