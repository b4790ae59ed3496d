"""From a config.json to the transformers model without storage: what does this model type consist of?"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from planner.errors import PlannerError, nearest

EXTRA = "pip install 'dsplan[launch]'"
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Rotary settings that read the positions' values, which a tensor without storage has not; the sizes are the same."""


ENCODER_TASKS = ("MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ")
"""A type that also serves one of these is an encoder or has one: its causal class is half a model."""


def require_transformers(model_type: str, path: str, formulas: Sequence[str]) -> None:
    """Raise PlannerError unless torch and transformers are installed."""
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise PlannerError(
            f"dsplan has no formulas for model type `{model_type}`, and tracing it needs "
            f"`{error.name or 'transformers'}` @ {path}.model_type",
            hint=f"{_meant(model_type, formulas)}`{EXTRA}` lets dsplan trace any model of transformers",
        ) from None
    del torch


def versions() -> str:
    """The releases that the trace speaks for."""
    import torch
    import transformers

    return f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}"


@contextmanager
def quietly() -> Iterator[None]:
    """Without the notes and progress bars of transformers."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


def read_config(model_type: str, fields: Mapping[str, Any], path: str, formulas: Sequence[str] = ()) -> Any:
    """The configuration of the causal language model; raises PlannerError if transformers has none of that type."""
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    encoders = {name for task in ENCODER_TASKS for name in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")}
    decoders = [name for name in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in encoders]
    if model_type not in decoders or model_type not in CONFIG_MAPPING_NAMES:
        known = dict.fromkeys((*formulas, *decoders))
        raise PlannerError(
            f"`{model_type}` is no causal language model that dsplan or transformers knows @ {path}.model_type",
            hint=f"{_meant(model_type, known)}a model whose code is not part of transformers cannot be planned",
        )
    given = {key: value for key, value in fields.items() if key != "model_type"}
    try:
        return AutoConfig.for_model(model_type, **given)
    except Exception as error:  # whatever the class of that type makes of a bad value
        raise PlannerError(
            f"transformers refuses this `{model_type}` config: {_first_line(error)} @ {path}",
            hint="give the model's own config.json",
        ) from None


def build(config: Any, *, attention: str, dtype: str) -> Any:
    """The model on the meta device: modules and shapes, no storage."""
    import torch
    from transformers import AutoModelForCausalLM

    config.use_cache = False
    for holder in (getattr(config, "rope_parameters", None), getattr(config, "rope_scaling", None)):
        if isinstance(holder, dict) and holder.get("rope_type") in LENGTH_DEPENDENT_ROPE:
            holder["rope_type"] = "default"
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=getattr(torch, dtype))
    except Exception as error:  # whatever the constructor of that type raises
        raise PlannerError(
            f"`{config.model_type}` cannot be built: {_first_line(error)}", hint="give the model's own config.json"
        ) from None
    return model.train()


def give_fake_storage(model: Any) -> None:
    """Replace every tensor by an empty one on the CPU; inside FakeTensorMode it has no storage either.

    A head that is tied to the embedding gets a weight of its own: the gradient of the tied one would live through the
    whole backward, and it is counted with the gradients.
    """
    import torch

    inner, outer = model.get_input_embeddings(), model.get_output_embeddings()
    if outer is not None and outer.weight is inner.weight:
        outer.weight = torch.nn.Parameter(torch.empty(inner.weight.shape, dtype=inner.weight.dtype))
    made: dict[int, Any] = {}

    def fake(tensor: Any) -> Any:
        if id(tensor) not in made:
            new = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            is_weight = isinstance(tensor, torch.nn.Parameter)
            made[id(tensor)] = torch.nn.Parameter(new, requires_grad=tensor.requires_grad) if is_weight else new
        return made[id(tensor)]

    kept_alive = []
    for module in model.modules():
        for holder in (module._parameters, module._buffers, vars(module)):
            for key, value in list(holder.items()):
                if isinstance(value, torch.Tensor):
                    kept_alive.append(value)
                    holder[key] = fake(value)


def _meant(model_type: str, known: Iterable[str]) -> str:
    near = nearest(model_type, known)
    return f"did you mean {' or '.join(f'`{n}`' for n in near)}? " if near else ""


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]
