"""The activations of a model without formulas: goes in, its shape and the run; comes out, the shape with coefficients.

A short stack of the real layers, at their real width, is run at five pairs of micro-batch and length for each way of
checkpointing; the longest is the request's own. Where layers attend through a window that is no wider, lengths below it
and from it on are traced on their own: a mask appears there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from planner.errors import PlannerError
from planner.memory.logits import logits_backward_bytes_per_token, logits_forward_bytes_per_token
from planner.records.candidate import Checkpointing
from planner.records.model import ModelShape
from planner.records.request import Attention
from planner.records.traced import TracedActivations, TracedKind, TracedStack
from planner.trace.build import build, quietly, read_config
from planner.trace.fit import growth_through, points
from planner.trace.layers import chosen_layers, kinds_of_layers, shorten, stack_path
from planner.trace.live import TooManyOperators
from planner.trace.step import StepBytes, run_step

LOOP_LENGTHS = (256, 384, 512)
"""For code that loops over chunks of tokens: several chunks each."""
WINDOW_KEYS = ("sliding_window", "attention_chunk_size", "local_attention", "window_size", "attention_window_size")


@lru_cache(maxsize=16)
def with_activations(shape: ModelShape, *, seq_len: int, attention: Attention, width: int) -> ModelShape:
    """The shape of a traced model with its activations; raises PlannerError for code that no trace can follow."""
    if shape.traced is None:
        return shape
    with quietly():
        return replace(shape, traced=replace(shape.traced, activations=_trace(shape, seq_len, attention, width)))


def _trace(shape: ModelShape, seq_len: int, attention: Attention, width: int) -> TracedActivations:
    try:
        return _activations(shape, seq_len, attention, width, told=True)
    except TooManyOperators:
        raise _cannot(shape, "its layers loop over tokens where a CUDA kernel is missing") from None
    except PlannerError as first:
        try:
            return _activations(shape, seq_len, attention, width, told=False)
        except (PlannerError, TooManyOperators):
            raise first from None


def _activations(shape: ModelShape, seq_len: int, attention: Attention, width: int, *, told: bool) -> TracedActivations:
    config = read_config(shape.model_type, shape.hf_config, "$")
    window = _window(config)
    kernel = "eager" if attention is Attention.EAGER else "sdpa"
    model = build(config, attention=kernel, dtype="float32" if width == 4 else "bfloat16")
    path = stack_path(model, shape.layers)
    kinds = kinds_of_layers(model.get_submodule(path), config)
    chosen = chosen_layers(kinds)
    shorten(model, config, path, chosen, told=told)
    stack = Stack(shape=shape, model=model, path=path, kinds=tuple(kinds[i] for i in chosen), width=width)
    try:
        stacks = _stacks(stack, _lengths(seq_len, window, attention))
    except TooManyOperators:
        # Chunks of tokens in a loop: what they keep grows with the length, so short samples tell it as well.
        stacks = _stacks(stack, [(0, LOOP_LENGTHS)])
    return TracedActivations(attention=attention, width=width, stacks=stacks)


def _window(config: Any) -> int | None:
    """The narrowest window that layers attend through."""
    windows = [getattr(config, key, None) for key in WINDOW_KEYS]
    return min((w for w in windows if type(w) is int and w > 0), default=None)


def _lengths(seq_len: int, window: int | None, attention: Attention) -> list[tuple[int, tuple[int, int, int]]]:
    """The shortest length of each regime, and the three lengths it is traced at."""
    if window is None or seq_len < window:
        return [(0, _three(0, seq_len))]
    below = (0, _three(0, window - 1))
    return [below] if attention is Attention.FLASH else [below, (window, _three(window - 1, seq_len))]


def _three(above: int, longest: int) -> tuple[int, int, int]:
    """Three lengths above a limit, the longest last if there is room for three."""
    last = max(longest, above + 3)
    first = max(above + 1, last // 4)
    return first, max(first + 1, (first + last) // 2), last


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A short stack of a model's layers."""

    shape: ModelShape
    model: Any  # on the meta device, with the short stack in place of all layers
    path: str  # of the stack in the model
    kinds: tuple[int, ...]  # of its layers, from the bottom up
    width: int


def _stacks(stack: Stack, regimes: Sequence[tuple[int, tuple[int, int, int]]]) -> tuple[TracedStack, ...]:
    return tuple(
        _traced(stack, checkpointing, shortest, lengths)
        for checkpointing in Checkpointing
        for shortest, lengths in regimes
    )


def _traced(stack: Stack, checkpointing: Checkpointing, shortest: int, lengths: tuple[int, int, int]) -> TracedStack:
    checkpointed, kinds = checkpointing is Checkpointing.FULL, stack.kinds
    measured = {
        (batch, length): _run(stack, batch, length, checkpointed=checkpointed) for batch, length in points(lengths)
    }
    tokens = {point: point[0] * point[1] for point in measured}
    forward = logits_forward_bytes_per_token(stack.shape.vocab, stack.width, capped=False)
    backward = logits_backward_bytes_per_token(stack.shape.vocab, stack.width, capped=False)
    whole = {point: _kept_below(step, kinds, len(kinds)) for point, step in measured.items()}
    return TracedStack(
        checkpointing=checkpointing,
        shortest=shortest,
        kinds=tuple(_kind(measured, kinds, kind) for kind in sorted(set(kinds))),
        at_loss=growth_through({p: s.loss_peak - whole[p] - forward * tokens[p] for p, s in measured.items()}),
        at_head=growth_through({p: s.head_peak - whole[p] - backward * tokens[p] for p, s in measured.items()}),
    )


def _kind(measured: Mapping[tuple[int, int], StepBytes], kinds: Sequence[int], kind: int) -> TracedKind:
    return TracedKind(
        kept=growth_through({p: _kept(step, kinds, kind) for p, step in measured.items()}),
        in_forward=growth_through({p: _beyond(s.forward_peaks, s, kinds, kind) for p, s in measured.items()}),
        in_backward=growth_through({p: _beyond(s.backward_peaks, s, kinds, kind) for p, s in measured.items()}),
    )


def _kept(step: StepBytes, kinds: Sequence[int], kind: int) -> int:
    """What a layer of that kind keeps, measured on one that is not the first."""
    place = kinds.index(kind, 1)
    return step.at_entry[place + 1] - step.at_entry[place]


def _kept_below(step: StepBytes, kinds: Sequence[int], layers: int) -> int:
    """What the lowest layers keep, each counted as its kind."""
    return sum(_kept(step, kinds, kind) for kind in kinds[:layers])


def _beyond(peaks: Sequence[int], step: StepBytes, kinds: Sequence[int], kind: int) -> int:
    """The highest peak of a kind beyond what the layers below and itself keep."""
    return max(peaks[i] - _kept_below(step, kinds, i + 1) for i, other in enumerate(kinds) if other == kind)


def _run(stack: Stack, micro_batch: int, seq_len: int, *, checkpointed: bool) -> StepBytes:
    """One step of a copy of the stack; whatever the model's code cannot do without values becomes one clear error."""
    model = deepcopy(stack.model)
    try:
        return run_step(model, stack.path, micro_batch=micro_batch, seq_len=seq_len, checkpointed=checkpointed)
    except TooManyOperators:
        raise
    except Exception as error:  # whatever the code of that model raises on tensors without values
        first_line = (str(error).strip() or "-").splitlines()[0][:120]
        raise _cannot(stack.shape, f"{type(error).__name__}: {first_line}") from None


def _cannot(shape: ModelShape, reason: str) -> PlannerError:
    return PlannerError(
        f"the activations of `{shape.model_type}` cannot be traced: {reason}",
        hint="dsplan has no formulas for that type either; `dsplan show models` lists models whose types it has",
    )
