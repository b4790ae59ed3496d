"""The optimizer of a plan as DeepSpeed reads it.

In: the request. Out: the keys of `ds_config.json` that name it. Answers: which class steps, with which values, and who
holds them? With the Hugging Face Trainer its arguments do, and the file says "auto" for what it fills.
"""

from __future__ import annotations

from typing import Any

from planner.catalog.optimizers import OptimizerRow, optimizer_rows
from planner.geometry.params import parameter_count
from planner.records.request import Integration, Request

LARGE_MODEL = 30_000_000_000
FILLED_BY_THE_TRAINER = ("lr", "betas", "eps", "weight_decay")  # transformers/integrations/deepspeed.py (5.24)


def optimizer_keys(request: Request) -> dict[str, Any]:
    """`optimizer`, but for one that the training script builds, and `zero_allow_untested_optimizer` where needed."""
    row = optimizer_rows()[request.workload.optimizer]
    keys: dict[str, Any] = {"zero_allow_untested_optimizer": True} if row.untested else {}
    if row.type is not None:
        keys["optimizer"] = {"type": row.type, "params": written_values(request)}
    return keys


def written_values(request: Request) -> dict[str, Any]:
    """`optimizer.params` as the file holds them."""
    values = optimizer_values(request)
    if request.integration is Integration.TRAINER:
        values |= {name: "auto" for name in FILLED_BY_THE_TRAINER if name in values}
    return values


def optimizer_values(request: Request) -> dict[str, Any]:
    """The optimizer's constructor arguments, as numbers."""
    row = optimizer_rows()[request.workload.optimizer]
    return {**learning_rates(request, row), **row.params}


def learning_rates(request: Request, row: OptimizerRow) -> dict[str, float]:
    """`lr`, and `muon_lr` for the matrices that Muon updates."""
    adamw = adamw_learning_rate(request)
    rates = {"lr": row.learning_rate if row.learning_rate is not None else _times(adamw, row.learning_rate_factor)}
    if row.matrix_learning_rate_factor is not None:
        rates["muon_lr"] = _times(adamw, row.matrix_learning_rate_factor)
    return rates


def adamw_learning_rate(request: Request) -> float:
    """A usual start for AdamW: 1e-5 where every weight is trained; 2e-4 for adapters, 1e-4 beside 33B and more.

    Source: Dettmers et al. 2023, arXiv:2305.14314, appendix B.2.
    """
    if request.workload.adapter is None:
        return 1e-5
    return 2e-4 if parameter_count(request.model) < LARGE_MODEL else 1e-4


def _times(rate: float, factor: float | None) -> float:
    """The product without the digits that binary fractions add."""
    return float(f"{rate * (factor or 1.0):.6g}")
