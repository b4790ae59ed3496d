"""Counts and sizes of parameter tensors, against the transformers models on the meta device and AutoTP's own shards."""

from __future__ import annotations

from collections import Counter
from math import prod

import pytest

from planner.catalog.models import family_names, model_rows
from planner.geometry.params import (
    active_parameter_count,
    largest_tensor_numel,
    layer_numel,
    parameter_count,
    parameter_tensors,
    rank_numel,
    rank_parameter_count,
)
from planner.records.model import ModelShape
from planner.spec.hf_config import shape_from_config
from planner.spec.model import resolve_model, row_shape


def meta_tensors(model_type: str, fields: dict[str, object]) -> Counter[int]:
    """Sizes of all parameters of the transformers model, each distinct tensor once."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(model_type, **fields)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return Counter(parameter.numel() for parameter in model.parameters())


def our_tensors(shape: ModelShape) -> Counter[int]:
    sizes: Counter[int] = Counter()
    for tensor in parameter_tensors(shape):
        sizes[tensor.numel] += tensor.count
    return sizes


@pytest.mark.transformers
@pytest.mark.slow
def test_every_catalogue_model_has_exactly_the_tensors_of_transformers() -> None:
    compared: dict[tuple[str, str], Counter[int]] = {}
    rows = model_rows()
    for row in rows:
        shape = row_shape(row)
        key = (shape.model_type, repr(sorted(shape.hf_config.items())))
        if key not in compared:
            compared[key] = meta_tensors(shape.model_type, dict(shape.hf_config))
        assert our_tensors(shape) == compared[key], row.name
        assert row.parameters == sum(size * count for size, count in compared[key].items()), row.name
    assert len(rows) >= 60
    assert len(compared) >= 60
