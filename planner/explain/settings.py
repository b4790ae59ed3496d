"""Settings in words: what the search changed of dsplan's usual settings, and what each change does.

In: a request, a candidate, the usual settings of its strategy, speed constants. Out: one sentence for each change, with
its effect on GPU memory and on the step where it has one: the candidate against the same one without this change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from planner.memory.estimate import estimate_memory
from planner.records.candidate import Candidate, ZeroSettings
from planner.records.request import Request
from planner.speed.constants import SpeedConstants
from planner.speed.estimate import step_seconds
from planner.units import GIB, gib_text

WORTH_SAYING_BYTES = GIB // 20
WORTH_SAYING_SHARE = 0.01

Words = Callable[[ZeroSettings, ZeroSettings], str]


def settings_words(
    request: Request, candidate: Candidate, usual: ZeroSettings, constants: SpeedConstants
) -> tuple[str, ...]:
    """One sentence for each change, and one for several together; empty where the settings are the usual ones."""
    chosen = candidate.settings
    sentences = [
        words(chosen, usual) + _effect(request, candidate, back, constants)
        for fields, words in CHANGES.items()
        if (back := _without(chosen, usual, fields)) != chosen
    ]
    together = _effect(request, candidate, usual, constants) if len(sentences) > 1 else ""
    return (*sentences, f"these {len(sentences)} settings together{together}") if together else tuple(sentences)


def _without(chosen: ZeroSettings, usual: ZeroSettings, fields: tuple[str, ...]) -> ZeroSettings:
    """The chosen settings with some of them as usual."""
    return replace(chosen, **{field: getattr(usual, field) for field in fields})


def _effect(request: Request, candidate: Candidate, back: ZeroSettings, constants: SpeedConstants) -> str:
    """What a change saves and costs."""
    model, cluster, workload = request.model, request.cluster, request.workload
    without = replace(candidate, settings=back)
    saved = (
        estimate_memory(model, cluster, workload, without).gpu_total_bytes
        - estimate_memory(model, cluster, workload, candidate).gpu_total_bytes
    )
    mine, theirs = step_seconds(model, cluster, workload, [candidate, without], constants=constants)
    parts = []
    if abs(saved) >= WORTH_SAYING_BYTES:
        parts.append(f"{'saves' if saved > 0 else 'takes'} {gib_text(abs(saved))} of GPU memory")
    gained = theirs / mine - 1
    if abs(gained) >= WORTH_SAYING_SHARE:
        parts.append(f"{abs(gained):.0%} {'faster' if gained > 0 else 'slower'}")
    return f": {', '.join(parts)}" if parts else ""


def millions(elements: int) -> str:
    """Elements as `50 M`."""
    return f"{elements / 1e6:,.0f} M" if elements >= 1e7 else f"{elements / 1e6:.1f} M"


def _buckets(chosen: ZeroSettings, usual: ZeroSettings) -> str:
    return (
        f"reduce bucket of {millions(chosen.reduce_bucket_elements)} elements instead of "
        f"{millions(usual.reduce_bucket_elements)}"
    )


def _prefetch(chosen: ZeroSettings, usual: ZeroSettings) -> str:
    return (
        f"prefetch bucket of {millions(chosen.prefetch_bucket_elements)} elements instead of "
        f"{millions(usual.prefetch_bucket_elements)}"
    )


def _kept(chosen: ZeroSettings, usual: ZeroSettings) -> str:
    more = chosen.max_live_parameters > usual.max_live_parameters
    return (
        f"{'more' if more else 'fewer'} parameters stay gathered between their uses: stage3_max_live_parameters "
        f"{millions(chosen.max_live_parameters)} instead of {millions(usual.max_live_parameters)}, "
        f"stage3_max_reuse_distance {millions(chosen.max_reuse_distance)} instead of "
        f"{millions(usual.max_reuse_distance)}"
    )


def _sub_groups(chosen: ZeroSettings, usual: ZeroSettings) -> str:
    return (
        f"sub-groups of {millions(chosen.sub_group_elements)} elements instead of {millions(usual.sub_group_elements)}"
    )


def _overlap(chosen: ZeroSettings, usual: ZeroSettings) -> str:
    return "overlap_comm on" if chosen.overlap_comm else "overlap_comm off: communication and compute take turns"


def _node_copies(chosen: ZeroSettings, usual: ZeroSettings) -> str:
    return (
        f"hpZ over {chosen.hpz_partition_size} GPUs: a second copy of the weights in every node, so that backward "
        "gathers stay in the node"
    )


def _ratio(chosen: ZeroSettings, usual: ZeroSettings) -> str:
    return (
        f"offload_optimizer.ratio {chosen.optimizer_offload_ratio:g}, so that the GPU updates "
        f"{1 - chosen.optimizer_offload_ratio:.0%} of the sub-groups"
    )


CHANGES: Mapping[tuple[str, ...], Words] = {
    ("reduce_bucket_elements", "allgather_bucket_elements"): _buckets,
    ("prefetch_bucket_elements",): _prefetch,
    ("max_live_parameters", "max_reuse_distance"): _kept,
    ("sub_group_elements",): _sub_groups,
    ("overlap_comm",): _overlap,
    ("hpz_partition_size",): _node_copies,
    ("optimizer_offload_ratio",): _ratio,
}
"""Settings that the search changes, together where they change together."""
