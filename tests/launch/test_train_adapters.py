"""train.py builds the adapters and the 4-bit weights that the plan counted; no engine, tiny models on the CPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import planner
from planner.geometry.adapters import adapter_tensors, linear_tensors
from planner.geometry.params import parameter_count
from planner.launch.shrink import shrink
from planner.memory.quantized import packed_elements
from planner.records.model import Adapter, Method, ModelShape
from planner.spec.hf_config import shape_from_config

pytestmark = [pytest.mark.transformers, pytest.mark.filterwarnings("ignore")]
TEMPLATES = Path(__file__).parents[2] / "templates"
MODELS = ("llama-3.2-1b", "qwen2.5-7b", "gpt2", "gemma-2-9b", "phi-3-mini")


@pytest.fixture(scope="module")
def train() -> Any:
    for package in ("torch", "transformers", "peft"):
        pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location("planned_model", TEMPLATES / "model_and_data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["planned_model"] = module
    spec.loader.exec_module(module)
    return module


def small_document(name: str, **fields: Any) -> tuple[dict[str, Any], ModelShape]:
    """A plan document whose model is a shrunken one, and the shape of that."""
    document = planner.estimate(model=name, gpus="1xA100-80G", **fields).to_dict()
    model = document["model"]
    model["config"] = shrink(model["config"], tp=1)
    shape = shape_from_config({**model["config"], "model_type": model["model_type"]}, name=name, source="test")
    return document, shape


def adapter_of(document: dict[str, Any]) -> Adapter:
    request = document["request"]
    return Adapter(method=Method.LORA, rank=request["lora_rank"], targets=tuple(request["lora_targets"]))


@pytest.mark.parametrize("name", MODELS)
def test_lora_trains_what_the_plan_counts_in_the_run_s_dtype(train: Any, name: str) -> None:
    document, shape = small_document(name, method="lora", lora_rank=4)
    model = train.build_model(document, SimpleNamespace(model=None))
    trained = [p for p in model.parameters() if p.requires_grad]
    counted = adapter_tensors(shape, adapter_of(document))
    assert sum(p.numel() for p in trained) == sum(t.numel * t.count for t in counted)
    assert {str(p.dtype) for p in model.parameters()} == {"torch.bfloat16"}
    assert sum(p.numel() for p in model.parameters() if not p.requires_grad) == parameter_count(shape)


@pytest.mark.parametrize("name", MODELS)
def test_qlora_packs_what_the_plan_counts_and_trains(train: Any, name: str) -> None:
    torch = pytest.importorskip("torch")
    bitsandbytes = pytest.importorskip("bitsandbytes")
    document, shape = small_document(name, method="qlora")
    model = train.build_model(document, SimpleNamespace(model=None))
    packed = [p for p in model.parameters() if isinstance(p, bitsandbytes.nn.Params4bit)]
    matrices = linear_tensors(shape)
    assert len(packed) == sum(t.count for t in matrices)
    assert sum(p.numel() for p in packed) == sum(packed_elements(t.numel, 2) * t.count for t in matrices)
    assert {str(p.dtype) for p in model.parameters()} == {"torch.bfloat16"}
    tokens = torch.randint(shape.vocab, (1, 32))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_full_training_builds_no_adapters(train: Any) -> None:
    document, shape = small_document("llama-3.2-1b")
    model = train.build_model(document, SimpleNamespace(model=None))
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == parameter_count(shape)


def test_random_4_bit_models_own_their_memory(train: Any) -> None:
    """They are drawn as views of a few numbers: a collective that writes into one must not reach beyond it."""
    pytest.importorskip("bitsandbytes")
    document, _ = small_document("llama-3.2-1b", method="qlora")
    model = train.build_model(document, SimpleNamespace(model=None))
    weights = list(model.parameters())
    assert all(weight.is_contiguous() for weight in weights)
    assert len({weight.data_ptr() for weight in weights}) == len(weights)
