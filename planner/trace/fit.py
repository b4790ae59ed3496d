"""From measured points to a polynomial: goes in, bytes at five points; comes out, a `Growth` through all of them."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from planner.records.traced import Growth

MICRO_BATCHES = (2, 4)
"""One sample alone is no good point: some code skips a copy there that every larger batch pays."""


def points(lengths: tuple[int, int, int]) -> tuple[tuple[int, int], ...]:
    """The (micro-batch, length) pairs to measure: all lengths at the smaller batch, the longer two at the larger."""
    few, many = MICRO_BATCHES
    return (*((few, length) for length in lengths), *((many, length) for length in lengths[1:]))


def growth_through(measured: Mapping[tuple[int, int], int]) -> Growth:
    """The polynomial through the points of `points`.

    The batch's share follows from the two batches at two lengths; what is left is a parabola through three lengths.
    """
    few, many = MICRO_BATCHES
    lengths = sorted({length for batch, length in measured if batch == many})
    slopes = [Fraction(measured[many, s] - measured[few, s], (many - few) * s) for s in lengths]
    per_token_and_position = (slopes[1] - slopes[0]) / (lengths[1] - lengths[0])
    per_token = slopes[0] - per_token_and_position * lengths[0]
    shared = {
        s: size - few * s * (per_token + per_token_and_position * s)
        for (batch, s), size in measured.items()
        if batch == few
    }
    (a, at_a), (b, at_b), (c, at_c) = sorted(shared.items())
    first, second = (at_b - at_a) / (b - a), (at_c - at_b) / (c - b)
    pair = (second - first) / (c - a)
    per_position = first - pair * (a + b)
    return Growth(
        fixed=at_a - per_position * a - pair * a * a,
        per_position=per_position,
        per_position_pair=pair,
        per_token=per_token,
        per_token_and_position=per_token_and_position,
    )
