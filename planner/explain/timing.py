"""Where the step time goes, in shares.

In: a time estimate. Out: the terms with what each adds to the step, and one sentence.
"""

from __future__ import annotations

from math import fsum

from planner.records.estimate import TimeEstimate

NAMED = 5  # terms that the sentence names, if they reach LEAST; the others are summed
LEAST = 0.005


def shares(time: TimeEstimate) -> tuple[tuple[str, float], ...]:
    """The share of the step that each term adds after overlap, largest first; together they are 1."""
    added = ((term.name, (term.seconds - term.hidden_seconds) / time.step_seconds) for term in time.terms)
    return tuple(sorted(added, key=lambda item: (-item[1], item[0])))


def time_sentence(time: TimeEstimate) -> str:
    """`gemm 58 %, recompute 19 %, ...`: the largest terms by name, the rest together."""
    visible = shares(time)
    named = [(term_words(name), share) for name, share in visible[:NAMED] if share >= LEAST]
    rest = fsum(share for _, share in visible[len(named) :])
    if rest >= LEAST:
        named.append(("others", rest))
    return f"where the step time goes: {', '.join(f'{name} {100 * share:.0f} %' for name, share in named)}"


def term_words(name: str) -> str:
    """`compute/gemm` as `gemm`, `communication/tensor_parallel` as `tensor parallel`, `optimizer/step` whole."""
    return name.removeprefix("compute/").removeprefix("communication/").replace("/", " ").replace("_", " ")
