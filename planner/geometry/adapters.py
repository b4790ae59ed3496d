"""The tensors that low-rank adapters add to a model, and what stays frozen.

In: model shape and adapter. Out: tensors, counted like those of the model itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.geometry.params import parameter_tensors
from planner.records.model import Adapter, ModelShape, ParameterTensor, Split

ALL_LINEAR = "all-linear"


def adapter_tensors(shape: ModelShape, adapter: Adapter) -> tuple[ParameterTensor, ...]:
    """Two matrices beside every targeted linear layer: rank x inputs and outputs x rank.

    Formula: r * (inputs + outputs) parameters for each target.
    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
    Leaves out: biases, which peft does not train by default.
    """
    return tuple(_pairs(shape, adapter))


def _pairs(shape: ModelShape, adapter: Adapter) -> Iterator[ParameterTensor]:
    for tensor in parameter_tensors(shape):
        if is_target(tensor, adapter):
            for part, rows, columns in (("a", adapter.rank, tensor.columns), ("b", tensor.rows, adapter.rank)):
                yield ParameterTensor(
                    name=f"{tensor.name}/lora_{part}", rows=rows, columns=columns, count=tensor.count,
                    split=Split.REPLICATED,
                )  # fmt: skip


def is_target(tensor: ParameterTensor, adapter: Adapter) -> bool:
    """Whether the adapter sits beside that tensor: a matrix of a layer that the targets name."""
    if not tensor.name.startswith("layer/") or tensor.columns == 1:
        return False
    part = tensor.name.rsplit("/", 1)[-1]
    return ALL_LINEAR in adapter.targets or any(target.removesuffix("_proj") == part for target in adapter.targets)
