"""The optimizer's values as train.py hands them to the Trainer, over the Trainer's own defaults."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

DEFAULTS = {
    "learning_rate": 5e-5,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
}


@cache
def train_script() -> Any:
    spec = importlib.util.spec_from_file_location(
        "train_template", Path(__file__).parents[2] / "templates" / "train.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def optimizer_arguments(document: Mapping[str, Any], engine: Mapping[str, Any]) -> dict[str, Any]:
    return DEFAULTS | train_script().optimizer_arguments(document, engine)
