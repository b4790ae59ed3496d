"""Where the constants of `planner/memory/overhead.py` and the default margin come from.

In: scored points. Out: `Derived` values with the rule, and the rows and sources behind each. Question: what would the
constants be if they were read off the shipped points today?

What an allocator holds beyond tensors grows with what comes and goes in a step, not with what stays: weights and
optimizer states are packed once. So every rule looks at dynamic bytes, the peak less the lasting terms, which also
covers stages and sequence lengths.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from planner.accuracy.run import run_of
from planner.accuracy.score import Scored, false_fit, fit_figures
from planner.accuracy.words import Engine
from planner.memory import overhead as constants
from planner.spec.request import DEFAULT_MARGIN
from planner.units import GIB, MIB

SHORT_TOKENS = 1024
"""Up to here a run's activations are small beside a CUDA context."""
DYNAMIC_SHARE = 0.9
"""From here on, what comes and goes is so much of the peak that an error in the rest does not matter."""
FALSE_FIT_MEAN, FALSE_FIT_POOLED = 0.02, 0.04
"""Of runs that failed, how many may be called fitting: as a mean over sources, and twice that over all rows, most of
which are of one source."""
MARGINS = tuple(percent / 100 for percent in range(31))


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """One constant: its value, how it is rounded, and what it rests on."""

    name: str
    value: float
    in_use: float
    unit: str
    rows: int
    sources: int
    rule: str


def derive(scored: Sequence[Scored]) -> tuple[Derived, ...]:
    """Every constant, in the order in which one rests on the other."""
    share, constant, rows, sources = fragmentation(scored)
    both = "reserved over allocated against dynamic bytes, where a source prints both: Theil-Sen"
    return (
        Derived(name="FRAGMENTED_PER_MILLE", value=1000 * share, in_use=constants.FRAGMENTED_PER_MILLE,
                unit="per mille", rows=rows, sources=sources, rule=f"{both} slope"),
        Derived(name="FRAGMENTED_BYTES", value=constant / MIB, in_use=constants.FRAGMENTED_BYTES / MIB, unit="MiB",
                rows=rows, sources=sources, rule=f"{both} intercept"),
        _packed(scored),
        _context(scored, share, constant),
        _margin(scored),
    )  # fmt: skip


def fragmentation(scored: Sequence[Scored]) -> tuple[float, float, int, int]:
    """Slope, intercept in bytes, distinct rows and sources of the line through reserved less allocated.

    Theil-Sen: the median of the slopes of all pairs, then the median of what is left; outliers do not pull it.
    """
    points: dict[tuple[float, float], str] = {}
    for row in scored:
        point = row.point
        if row.prediction is not None and point.reserved_gib and point.measured_peak_gib and point.firm:
            dynamic = point.measured_peak_gib * GIB - row.prediction.lasting_bytes
            points[dynamic, (point.reserved_gib - point.measured_peak_gib) * GIB] = point.source_name
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2) if a[0] != b[0]]
    slope = statistics.median(slopes) if slopes else 0.0
    rest = statistics.median(gap - slope * dynamic for dynamic, gap in points) if points else 0.0
    return slope, rest, len(points), len(set(points.values()))


def _dynamic_bytes(row: Scored) -> int:
    return 0 if row.prediction is None else row.prediction.tensor_bytes - row.prediction.lasting_bytes


def _packed(scored: Sequence[Scored]) -> Derived:
    """What a recent DeepSpeed run holds beyond its predicted tensors, as a share of what comes and goes."""
    shares: dict[str, list[float]] = {}
    for row in scored:
        point, found = row.point, row.prediction
        if found is None or not point.firm or point.counter_class != "reserved" or not point.measured_peak_gib:
            continue
        dynamic = _dynamic_bytes(row)
        if run_of(point).engine is Engine.DEEPSPEED and dynamic >= DYNAMIC_SHARE * found.tensor_bytes:
            excess = point.measured_peak_gib * GIB - found.tensor_bytes - found.stranded_bytes
            shares.setdefault(point.source_name, []).append(excess / dynamic)
    return Derived(
        name="SLACK_PER_MILLE",
        value=1000 * _median_of_medians(shares),
        in_use=constants.SLACK_PER_MILLE,
        unit="per mille",
        rows=sum(len(found) for found in shares.values()),
        sources=len(shares),
        rule="reserved over predicted tensors and gathers' blocks of DeepSpeed runs, as a share of dynamic bytes, "
        f"where these are at least {DYNAMIC_SHARE:.0%} of the peak: median",
    )


def _context(scored: Sequence[Scored], share: float, constant: float) -> Derived:
    """What nvidia-smi shows on one card beyond tensors and the allocator's blocks."""
    rests: dict[str, list[float]] = {}
    for row in scored:
        point, found = row.point, row.prediction
        if found is None or not point.firm or point.counter_class != "nvidia_smi" or not point.measured_peak_gib:
            continue
        tuning = run_of(point).tuning
        plain = not tuning.full and not tuning.quantized and not tuning.embeddings
        if plain and point.gpu_count == 1 and (point.seq_len or 0) <= SHORT_TOKENS:
            held = found.tensor_bytes + constant + share * _dynamic_bytes(row)
            rests.setdefault(point.source_name, []).append(point.measured_peak_gib * GIB - held)
    return Derived(
        name="CONTEXT_BYTES",
        value=_median_of_medians(rests) / MIB,
        in_use=constants.CONTEXT_BYTES / MIB,
        unit="MiB",
        rows=sum(len(found) for found in rests.values()),
        sources=len(rests),
        rule="nvidia-smi less tensors and fragmented blocks, LoRA beside 16-bit weights on one GPU, at most "
        f"{SHORT_TOKENS} tokens: median",
    )


def _margin(scored: Sequence[Scored]) -> Derived:
    """The smallest whole percent that accepts few enough of the runs that ran out of memory."""
    chosen = MARGINS[-1]
    for margin in MARGINS:
        share = false_fit(fit_figures(scored, margin).values())
        if share is None or (share.mean <= FALSE_FIT_MEAN and share.pooled <= FALSE_FIT_POOLED):
            chosen = margin
            break
    found = false_fit(fit_figures(scored, chosen).values())
    return Derived(
        name="DEFAULT_MARGIN",
        value=chosen,
        in_use=DEFAULT_MARGIN,
        unit="share",
        rows=found.rows if found else 0,
        sources=found.sources if found else 0,
        rule=f"the smallest whole percent with at most {FALSE_FIT_MEAN:.0%} false fits as a mean over sources and "
        f"{FALSE_FIT_POOLED:.0%} over all rows",
    )


def _median_of_medians(by_source: dict[str, list[float]]) -> float:
    return statistics.median(statistics.median(found) for found in by_source.values()) if by_source else 0.0
