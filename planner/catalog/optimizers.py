"""`data/optimizers.toml` to rows: how DeepSpeed is asked for each optimizer. Read on first use, checked, kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from planner import toml
from planner.records.request import Optimizer
from planner.resources import read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerRow:
    """One optimizer."""

    type: str | None  # DeepSpeed's name or a class of torch.optim; None: the training script builds it
    params: Mapping[str, Any]  # all but the learning rate
    learning_rate: float | None  # None: a multiple of AdamW's
    learning_rate_factor: float | None
    matrix_learning_rate_factor: float | None  # Muon's own rate, for matrices
    untested: bool  # DeepSpeed wants `zero_allow_untested_optimizer`
    source: str


@lru_cache(maxsize=1)
def optimizer_rows() -> Mapping[Optimizer, OptimizerRow]:
    """Every optimizer of a request; raises ValueError if a row is missing or has no source or no learning rate."""
    document = toml.loads(read_table("catalog", "optimizers.toml"))
    rows = {
        Optimizer(name): OptimizerRow(
            type=row.get("type"),
            params=row.get("params", {}),
            learning_rate=row.get("learning_rate"),
            learning_rate_factor=row.get("learning_rate_factor"),
            matrix_learning_rate_factor=row.get("matrix_learning_rate_factor"),
            untested=row["untested"],
            source=row["source"],
        )
        for name, row in document.items()
    }
    rates = [(row.learning_rate is None) != (row.learning_rate_factor is None) for row in rows.values()]
    if set(rows) != set(Optimizer) or not all(rates) or not all(row.source for row in rows.values()):
        raise ValueError("optimizers.toml: every optimizer needs one row with a source and one learning rate")
    return rows
