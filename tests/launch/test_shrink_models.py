"""Every architecture of the catalogue has a small twin that Hugging Face builds and that trains."""

from __future__ import annotations

import math

import pytest

from planner.catalog.models import model_rows
from planner.launch.shrink import VOCAB, shrink
from planner.spec.model import row_shape

# The first and the last model of each architecture: all of them take a minute.
ROWS = {
    (row.model_type, end): row for end, rows in (("last", model_rows()), ("first", model_rows()[::-1])) for row in rows
}


@pytest.mark.transformers
@pytest.mark.slow
def test_each_small_twin_is_the_same_class_and_has_a_finite_gradient():
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tried = set()
    for row in {row.name: row for row in ROWS.values()}.values():
        shape = row_shape(row)
        small = shrink(shape.hf_config, tp=2)
        fields = {key: value for key, value in small.items() if key != "model_type"}
        config = transformers.AutoConfig.for_model(shape.model_type, **fields)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.activation_checkpointing_enable({"use_reentrant": False})
        model.train()
        tokens = torch.randint(VOCAB, (1, 16))
        loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        parameters = sum(p.numel() for p in model.parameters())
        assert 1e5 < parameters < 4e7, row.name
        assert math.isfinite(loss.item()), row.name
        assert math.isfinite(sum(p.grad.sum().item() for p in model.parameters() if p.grad is not None)), row.name
        tried.add(shape.model_type)
    assert len(tried) >= 20
