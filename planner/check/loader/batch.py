"""The three batch sizes: does micro-batch x accumulation x ranks come to the total?

In: the document, and the number of ranks if it is known. Out: places with reasons.
Source: deepspeed/runtime/config.py of DeepSpeed 0.19.8, DeepSpeedConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.check.loader.typed import Refusals


def batch_refusals(config: Mapping[str, Any], ranks: int | None) -> Refusals:
    """The three batch keys; "auto" stands for what fits, for its reader replaces it."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    total, micro, accumulation = (config.get(name) for name in names)
    parallel = config.get("sequence_parallel_size", 1)
    if not isinstance(parallel, (int, float)) or parallel == 0:
        yield "$.sequence_parallel_size", "a number above 0 is needed"
        return
    if total is None and micro is None:
        yield "$.train_micro_batch_size_per_gpu", "no batch size"
        return
    wrong = [
        (f"$.{name}", "a number above 0 is needed")
        for name, value in zip(names, (total, micro, accumulation), strict=True)
        if value not in (None, "auto") and not (isinstance(value, (int, float)) and value > 0)
    ]
    yield from wrong
    if wrong or "auto" in (total, micro, accumulation):
        return
    if ranks:
        worlds = [ranks / parallel if "sequence_parallel_size" in config else ranks]
    else:  # at least some number of ranks should do
        worlds = [1, (total or 1) // ((micro or 1) * (accumulation or 1))]
    if not any(batch_loads(total, micro, accumulation, world) for world in worlds):
        yield f"$.{names[0] if total is not None else names[1]}", "not micro-batch x accumulation x ranks"


def batch_loads(total: Any, micro: Any, accumulation: Any, world: float) -> bool:
    """DeepSpeedConfig._set_batch_related_parameters and _batch_assertion, for numbers."""
    if not world:
        return False
    try:
        if total is not None and micro is not None:
            accumulation = total // micro // world if accumulation is None else accumulation
        elif total is not None:
            accumulation = 1 if accumulation is None else accumulation
            micro = total // world // accumulation
        else:
            accumulation = 1 if accumulation is None else accumulation
            total = micro * accumulation * world
    except OverflowError:
        return False
    return bool(total > 0 and micro > 0 and accumulation > 0 and total == micro * accumulation * world)
