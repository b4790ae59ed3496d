"""`training_args.json` as the Trainer would hold it: over the installed TrainingArguments' own defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any


def trainer_arguments(arguments: Mapping[str, Any], *, world_size: int) -> Any:
    """What HfTrainerDeepSpeedConfig reads of TrainingArguments; raises TypeError for a key that is no argument."""
    from transformers import TrainingArguments

    defaults = {
        field.name: field.default_factory() if callable(field.default_factory) else field.default
        for field in dataclasses.fields(TrainingArguments)
    }
    unknown = set(arguments) - set(defaults)
    if unknown:
        raise TypeError(f"TrainingArguments has no {sorted(unknown)}")
    given = SimpleNamespace(**{**defaults, **arguments}, world_size=world_size)
    given.get_warmup_steps = lambda steps: TrainingArguments.get_warmup_steps(given, steps)
    return given


def after_the_trainer(engine: dict[str, Any], arguments: Mapping[str, Any], *, world_size: int, hidden: int) -> Any:
    """`engine` as the Trainer hands it to DeepSpeed; raises ValueError where a value and an argument differ."""
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    given = trainer_arguments(arguments, world_size=world_size)
    read = HfTrainerDeepSpeedConfig(engine)
    read.trainer_config_process(given)
    read.trainer_config_finalize(given, SimpleNamespace(config=SimpleNamespace(hidden_size=hidden)), 100)
    return read


def filled(engine: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`engine` with the optimizer's "auto" replaced by hand."""
    values = {
        "lr": arguments["learning_rate"],
        "betas": [arguments.get("adam_beta1"), arguments.get("adam_beta2")],
        "eps": arguments.get("adam_epsilon"),
        "weight_decay": arguments["weight_decay"],
    }
    if "optimizer" not in engine:
        return dict(engine)
    params = engine["optimizer"]["params"]
    written = {name: values[name] if value == "auto" else value for name, value in params.items()}
    return {**engine, "optimizer": {**engine["optimizer"], "params": written}}
