"""One training step of a short stack on tensors without storage: what is alive when?

In: a model on the meta device, its layers, micro-batch, length, checkpointing. Out: `StepBytes`. Token ids, weights and
their gradients are not counted, so what remains is activations, logits and the loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from planner.trace.build import give_fake_storage
from planner.trace.kernels import fused_attention
from planner.trace.live import Timeline, watching


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBytes:
    """Bytes of one step, layers from the bottom up."""

    at_entry: tuple[int, ...]  # alive when a layer starts its forward
    forward_peaks: tuple[int, ...]  # highest while a layer runs forward
    loss_peak: int  # highest from the last layer's end to the loss
    head_peak: int  # highest from the loss until its gradient leaves the head
    backward_peaks: tuple[int, ...]  # highest while a layer is differentiated, recomputation included


def run_step(model: Any, path: str, *, micro_batch: int, seq_len: int, checkpointed: bool) -> StepBytes:
    """Forward and backward, as transformers' Trainer runs them: only the loss is held in between.

    `path` names the list of decoder layers in the model.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    timeline = Timeline()
    entries: list[int] = []
    exits: list[int] = []
    left: dict[int, int] = {}  # layer -> when the gradient left it towards the layer below
    with FakeTensorMode(), _unmasked(), fused_attention():
        give_fake_storage(model)
        if checkpointed:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        for tensor in (*model.parameters(), *model.buffers()):
            timeline.ignore(tensor)

        def drop(parameter: Any) -> None:
            timeline.is_gradient(parameter.grad)
            parameter.grad = None

        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(drop)
        layers = model.get_submodule(path)

        def enter(module: Any, args: Any, kwargs: Any) -> None:
            place = len(entries)
            if place < len(layers) and module is layers[place]:  # the first call only: a checkpointed layer runs again
                entries.append(timeline.now())
                hidden = args[0] if args else kwargs["hidden_states"]
                hidden.register_hook(lambda _: left.__setitem__(place, timeline.now()))

        def leave(module: Any, args: Any, output: Any) -> None:
            if not exits:
                exits.append(timeline.now())
                hidden = output[0] if isinstance(output, tuple) else output
                hidden.register_hook(lambda _: left.__setitem__(len(layers), timeline.now()))

        for layer in layers:
            layer.register_forward_pre_hook(enter, with_kwargs=True)
        layers[-1].register_forward_hook(leave)
        tokens = torch.randint(0, 100, (micro_batch, seq_len))
        timeline.ignore(tokens)
        with watching(timeline):
            start = timeline.now()
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
            forward_end = timeline.now()
            loss.backward()
    levels = timeline.levels()
    base = levels[start]

    def peak(first: int, last: int) -> int:
        return max(levels[first : last + 1]) - base

    bounds = [*entries, exits[0]]
    return StepBytes(
        at_entry=tuple(levels[entry] - base for entry in entries),
        forward_peaks=tuple(peak(*pair) for pair in pairwise(bounds)),
        loss_peak=peak(exits[0], forward_end),
        head_peak=peak(forward_end, left[len(layers)]),
        backward_peaks=tuple(peak(left[i + 1], left[i]) for i in range(len(layers))),
    )


@contextmanager
def _unmasked() -> Iterator[None]:
    """Without the mask of packed samples.

    Tensors without storage cannot prove that no sample is packed, so a mask would be kept in every layer.
    """
    import transformers.masking_utils as masking

    usual = masking.find_packed_sequence_indices
    masking.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking.find_packed_sequence_indices = usual
