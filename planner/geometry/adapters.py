"""The tensors that low-rank adapters add to a model, and which of its own are linear modules.

In: model shape and adapter. Out: tensors, counted like those of the model itself. Question: how many parameters does
LoRA train, and which matrices may carry an adapter or be stored in 4 bits?
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from planner.errors import PlannerError, nearest
from planner.geometry.adapter_modules import MODULES, linear_modules
from planner.geometry.params import parameter_tensors
from planner.records.model import Adapter, Method, ModelShape, ParameterTensor, Split

ALL_LINEAR = "all-linear"
DEFAULT_RANK = 16
"""trl's and unsloth's default; peft's own is 8."""
DEFAULT_TARGETS = (ALL_LINEAR,)
"""As Dettmers et al. 2023, arXiv:2305.14314, section 4: adapters on all linear layers match full training."""
STACKED_TYPES = ("mixtral", "qwen3_moe", "olmoe")
"""Types whose MLP names peft redirects to the stacked tensors of the routed experts, where an adapter makes a whole
copy of them in every forward: here only attention carries adapters. Source: peft 0.21,
utils/transformers_weight_conversion.py `_convert_peft_config_moe`, tuners/lora/layer.py `ParamWrapper`."""


@lru_cache(maxsize=256)
def adapter_tensors(shape: ModelShape, adapter: Adapter) -> tuple[ParameterTensor, ...]:
    """Two matrices beside every targeted linear module: rank x inputs and outputs x rank.

    Formula: r * (inputs + outputs) parameters for each target.
    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1; peft 0.21, tuners/lora/layer.py `update_layer`.
    Leaves out: biases, which peft does not train by default.
    """
    return tuple(_pairs(shape, adapter))


def adapter_parameter_count(shape: ModelShape, adapter: Adapter) -> int:
    """All parameters that LoRA trains.

    Formula: sum of numel * count over the adapters' tensors.
    Source: peft 0.21, `PeftModel.get_nb_trainable_parameters`.
    Leaves out: nothing.
    """
    return sum(tensor.numel * tensor.count for tensor in adapter_tensors(shape, adapter))


def _pairs(shape: ModelShape, adapter: Adapter) -> Iterator[ParameterTensor]:
    targets = target_tensors(shape, adapter.targets)
    for tensor in linear_tensors(shape):
        if tensor.name in targets:
            for part, rows, columns in (("a", adapter.rank, tensor.columns), ("b", tensor.rows, adapter.rank)):
                yield ParameterTensor(
                    name=f"{tensor.name}/lora_{part}", rows=rows, columns=columns, count=tensor.count,
                    split=Split.REPLICATED,
                )  # fmt: skip


@lru_cache(maxsize=256)
def linear_tensors(shape: ModelShape) -> tuple[ParameterTensor, ...]:
    """The weight of every linear module but the output head, which neither `all-linear` nor bitsandbytes takes."""
    modules = linear_modules(shape.model_type)
    return tuple(tensor for tensor in parameter_tensors(shape) if tensor.name in modules)


@lru_cache(maxsize=256)
def target_tensors(shape: ModelShape, targets: tuple[str, ...]) -> frozenset[str]:
    """The names of the tensors that `targets` mean: a target matches a module's path, or the end of it.

    Source: peft 0.21, tuners/tuners_utils.py `check_target_module_exists`, `_maybe_include_all_linear_layers`.
    """
    paths = adaptable_modules(shape)
    if targets == (ALL_LINEAR,):
        return frozenset(paths)
    found: set[str] = set()
    for target in targets:
        matched = {name for name, path in paths.items() if path == target or path.endswith(f".{target}")}
        if not matched:
            raise _no_target(shape, target, paths)
        found |= matched
    return frozenset(found)


def adaptable_modules(shape: ModelShape) -> dict[str, str]:
    """The linear modules that may carry an adapter: tensor name to module path."""
    modules = linear_modules(shape.model_type)
    only_attention = shape.model_type in STACKED_TYPES
    return {
        tensor.name: modules[tensor.name]
        for tensor in linear_tensors(shape)
        if not (only_attention and tensor.name.startswith("layer/mlp/"))
    }


def resolved_targets(shape: ModelShape, targets: tuple[str, ...]) -> tuple[str, ...]:
    """The targets to hand to peft: `all-linear` itself, or the modules that it stands for where peft means more."""
    if targets == (ALL_LINEAR,) and shape.model_type in STACKED_TYPES:
        return tuple(dict.fromkeys(path.rsplit(".", 1)[-1] for path in adaptable_modules(shape).values()))
    return targets


def default_adapter(shape: ModelShape, method: Method) -> Adapter | None:
    """The adapter of a request that names none of its settings; None where the type's linear modules are not known."""
    if shape.model_type not in MODULES:
        return None
    return Adapter(method=method, rank=DEFAULT_RANK, targets=resolved_targets(shape, DEFAULT_TARGETS))


def _no_target(shape: ModelShape, target: str, paths: Mapping[str, str]) -> PlannerError:
    known = sorted({path.rsplit(".", 1)[-1] for path in paths.values()})
    near = nearest(target, known)
    suggestion = f"did you mean `{near[0]}`? " if near else ""
    return PlannerError(
        f"`{target}` is no linear module in a layer of `{shape.name}`",
        hint=f"{suggestion}the modules are {', '.join(known)}, or all of them: {ALL_LINEAR}",
    )
