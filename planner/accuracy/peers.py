"""What others would have answered: DeepSpeed's own estimators, and the rule of thumb that plans used to be made with.

In: a run's shape, candidate and tokens. Out: bytes of one GPU. Question: how far are they from what was measured, on
the same runs?
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.accuracy.run import run_of
from planner.accuracy.score import Scored, error_of, signed_error
from planner.memory.sizes import rank_sizes
from planner.records.candidate import Candidate, Offload, ZeroStage
from planner.records.model import ModelShape
from planner.units import GIB

PEERS = ("DeepSpeed's estimators", "16 bytes + 15sbhL")


def zero2_estimate_bytes(total: int, gpus: int, *, cpu_offload: bool) -> int:
    """GPU memory of `estimate_zero2_model_states_mem_needs`.

    Formula: 2P with optimizer offload, else 2P + 18P / G.
    Source: deepspeed/runtime/zero/stage_1_and_2.py (0.19.8).
    Leaves out: activations, buckets and what the step holds for a moment; it has no stage 0 and no stage 1.
    """
    return 2 * total if cpu_offload else 2 * total + int(18 * total / gpus)


def zero3_estimate_bytes(
    total: int, largest_module: int, gpus: int, *, cpu_offload: bool, cpu_offload_params: bool
) -> int:
    """GPU memory of `estimate_zero3_model_states_mem_needs`.

    Formula: 4 * largest module, + 2P / G with optimizer offload alone, + 18P / G without offload.
    Source: deepspeed/runtime/zero/stage3.py (0.19.8).
    Leaves out: as above, and prefetched and reused parameters.
    """
    largest = 4 * largest_module
    if cpu_offload:
        return largest if cpu_offload_params else largest + int(2 * total / gpus)
    return largest + int(18 * total / gpus)


def sixteen_bytes_rule_bytes(
    total: int, gpus: int, stage: ZeroStage, *, offloaded: bool, tokens: int, hidden: int, layers: int
) -> int:
    """16 bytes a parameter, shared out by stage, and 15 bytes a token, width and layer.

    Formula: 2P + 2P + 12P with what the stage shares divided by G, 12P in host memory with offload; + 15 s b h L.
    Source: arXiv:1910.02054, figure 1 (2 + 2 + 12); the 15 of common sizing notes, against 34 in arXiv:2205.05198.
    Leaves out: checkpointing, logits, buckets, the step.
    """
    weights = 2 * total // (gpus if stage >= ZeroStage.PARAMETERS else 1)
    gradients = 2 * total // (gpus if stage >= ZeroStage.GRADIENTS else 1)
    states = 0 if offloaded else 12 * total // (gpus if stage >= ZeroStage.OPTIMIZER else 1)
    return weights + gradients + states + 15 * tokens * hidden * layers


def peer_bytes(shape: ModelShape, candidate: Candidate, tokens: int) -> tuple[int, int]:
    """The answers of both for one run of `tokens` a micro-batch on each GPU, in the order of `PEERS`.

    They are given what they do not ask for: the parameters of one tensor-parallel rank and the ranks that share them.
    A stage below 2 gets the ZeRO-2 estimate, the nearest there is.
    """
    sizes, gpus = rank_sizes(shape, candidate.degrees.tp), candidate.degrees.dp
    stage, offload = candidate.zero, candidate.offload
    offloaded = offload is not Offload.NONE
    if stage is ZeroStage.PARAMETERS:
        largest = max(sizes.embedding, sizes.head, sizes.layer_largest_tensor)
        estimator = zero3_estimate_bytes(
            sizes.total, largest, gpus, cpu_offload=offloaded, cpu_offload_params=offload.param_device != "none"
        )
    else:
        shared = gpus if stage is not ZeroStage.DISABLED else 1
        estimator = zero2_estimate_bytes(sizes.total, shared, cpu_offload=offloaded)
    rule = sixteen_bytes_rule_bytes(
        sizes.total, gpus, stage, offloaded=offloaded, tokens=tokens, hidden=shape.hidden, layers=shape.layers
    )
    return estimator, rule


def compared(scored: Scored) -> bool:
    """Whether a row is fair to all three: full fine-tuning of a known stage, memory measured, nothing left open."""
    point = scored.point
    measured = "memory" in point.for_scoring and point.counter_class not in (None, "unknown")
    return scored.prediction is not None and measured and point.firm and run_of(point).tuning.full


def peer_errors(scored: Iterable[Scored]) -> dict[str, dict[str, list[float]]]:
    """Signed errors of this planner and of both others by source, on the rows fair to all three."""
    errors: dict[str, dict[str, list[float]]] = {name: {} for name in ("dsplan", *PEERS)}
    for row in filter(compared, scored):
        own, run = signed_error(row), run_of(row.point)
        if own is None:
            continue
        others = (error_of(row, size / GIB) for size in peer_bytes(run.shape, run.candidate, run.tokens))
        for name, error in zip(errors, (own, *others), strict=True):
            if error is not None:
                errors[name].setdefault(row.point.source_name, []).append(error)
    return errors
