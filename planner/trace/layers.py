"""The decoder layers of a model: goes in, the model without storage; comes out, kinds of layers and a short copy.

A short stack that holds every kind stands for the whole model: what each layer keeps is measured, and multiplied.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from planner.errors import PlannerError

POSITION_WORDS = ("idx", "index", "layer_id", "layer_num")
"""Attributes whose names hold these say where a layer stands, not what it is."""


def stack_path(model: Any, count: int) -> str:
    """Where in the model its list of decoder layers stands."""
    from torch.nn import ModuleList

    for path, module in model.named_modules():
        if isinstance(module, ModuleList) and len(module) == count:
            return str(path)
    raise PlannerError(
        f"`{type(model).__name__}` cannot be traced: it holds no list of its {count} decoder layers",
        hint="dsplan plans decoder models of equal or repeating layers",
    )


def kinds_of_layers(layers: Sequence[Any], config: Any) -> list[int]:
    """For every layer the number of its kind, in the order in which kinds first occur."""
    numbers: dict[Hashable, int] = {}
    lists = sorted(name for name, value in vars(config).items() if is_list_by_layer(value, len(layers)))
    return [
        numbers.setdefault((_code(layer), *(repr(getattr(config, name)[i]) for name in lists)), len(numbers))
        for i, layer in enumerate(layers)
    ]


def is_list_by_layer(value: Any, layers: int) -> bool:
    """Whether a field of a configuration holds one value a layer; a list of layer numbers does not."""
    if not isinstance(value, (list, tuple)) or len(value) != layers:
        return False
    return layers == 1 or not (all(type(item) is int for item in value) and len(set(value)) == layers)


def _code(layer: Any) -> Hashable:
    """What a layer is made of: its modules, their plain attributes, and the shapes of its parameters."""
    parts = []
    for name, module in layer.named_modules():
        plain = tuple(
            (key, value if isinstance(value, (bool, str, type(None))) else type(value).__name__)
            for key, value in sorted(vars(module).items())
            if isinstance(value, (bool, str, int, float, type(None))) and not any(w in key for w in POSITION_WORDS)
        )
        shapes = tuple((key, tuple(p.shape), str(p.dtype)) for key, p in module.named_parameters(recurse=False))
        parts.append((name, type(module).__name__, plain, shapes))
    return tuple(parts)


def chosen_layers(kinds: Sequence[int]) -> list[int]:
    """Which layers make the short stack: the first, one of every kind, the last.

    A kind is measured on a layer that is neither the first nor the last: those two hold the stack's own ends.
    """
    return [0, *(kinds.index(kind) for kind in range(max(kinds) + 1)), len(kinds) - 1]


def shorten(model: Any, config: Any, path: str, chosen: Sequence[int], *, told: bool) -> None:
    """Leave copies of the chosen layers in the model, and cut the configuration's lists to them.

    `told`: the configuration gives the new number of layers too. Some code counts layers by it, other code sizes what
    it keeps for all layers by it.
    """
    from copy import deepcopy

    from torch.nn import ModuleList

    layers = model.get_submodule(path)
    count = len(layers)
    short = ModuleList(deepcopy(layers[i]) for i in chosen)
    for place, layer in enumerate(short):
        for module in layer.modules():
            if "layer_idx" in vars(module):
                module.layer_idx = place
    model.set_submodule(path, short)
    for key, value in list(vars(config).items()):
        if is_list_by_layer(value, count):
            setattr(config, key, [value[i] for i in chosen])
    if told:
        config.num_hidden_layers = len(chosen)
