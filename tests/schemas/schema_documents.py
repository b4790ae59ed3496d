"""Documents that dsplan really gives, for the tests of the schemas."""

from __future__ import annotations

from functools import cache
from typing import Any

REQUESTS: tuple[dict[str, Any], ...] = (
    {"model": "13b", "gpus": "4xA100-80G", "tokens": "1e9"},
    {"model": "70b", "gpus": "2xRTX-4090", "host_ram": 64},  # nothing fits: remedies and near misses
    {"model": "7b", "gpus": "2x8xH100-80G", "method": "qlora", "lora_rank": 8, "host_ram": 512, "objective": "cost"},
    {"model": "Qwen/Qwen2.5-7B", "gpus": "p4d.24xlarge", "global_batch": 64, "zero": "2,3", "tp": [1, 2], "top": 2},
    {"model": "8x7b", "gpus": "8xH100-80G", "precision": "pure-bf16", "checkpointing": "full", "offload": "none,nvme"},
    {"model": "gpt2", "gpus": "1xV100-32G", "seq_len": 512, "optimizer": "sgd", "integration": "deepspeed"},
)


@cache
def answers() -> tuple[Any, ...]:
    """An answer of `planner.plan` for each request."""
    from planner import plan

    return tuple(plan(**request) for request in REQUESTS)


def plan_documents() -> list[Any]:
    """Their documents."""
    return [answer.to_dict() for answer in answers()]
