"""Adapter counts and linear modules against peft on the transformers models, built without weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from test_params import TINY, VARIANTS

from planner.errors import PlannerError
from planner.geometry.adapter_modules import MODULES
from planner.geometry.adapters import adapter_tensors, linear_tensors, resolved_targets, target_tensors
from planner.geometry.params import parameter_count
from planner.records.model import Adapter, Method, ModelShape
from planner.spec.hf_config import shape_from_config
from planner.spec.model import resolve_model

EXPLICIT = {
    "gpt2": ("mlp.c_proj", "c_attn"), "gpt_bigcode": ("c_proj",), "gpt_neox": ("dense",), "bloom": ("dense",),
    "falcon": ("dense_4h_to_h",), "mpt": ("Wqkv", "up_proj"), "phi3": ("qkv_proj", "o_proj"),
    "gptj": ("fc_in", "k_proj"), "gpt_neo": ("out_proj",), "opt": ("fc1", "v_proj"), "phi": ("dense", "fc2"),
}  # fmt: skip
"""Targets beside `all-linear`; the other types: query and value."""


def meta_model(model_type: str, fields: dict[str, Any]) -> Any:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    config = transformers.AutoConfig.for_model(model_type, **fields, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def trained_by_peft(model: Any, targets: tuple[str, ...], rank: int) -> Counter[int]:
    """Sizes of the tensors that peft makes trainable."""
    import peft
    import torch

    wanted: Any = targets[0] if targets == ("all-linear",) else list(targets)
    with torch.device("meta"):
        wrapped = peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules=wanted))
    return Counter(p.numel() for p in wrapped.parameters() if p.requires_grad)


def ours(shape: ModelShape, targets: tuple[str, ...], rank: int) -> Counter[int]:
    sizes: Counter[int] = Counter()
    for tensor in adapter_tensors(shape, Adapter(method=Method.LORA, rank=rank, targets=targets)):
        sizes[tensor.numel] += tensor.count
    return sizes


CASES = [(model_type, {}) for model_type in MODULES] + VARIANTS


def test_every_model_type_has_a_row_of_linear_modules() -> None:
    assert set(MODULES) == set(TINY)


@pytest.mark.transformers
@pytest.mark.filterwarnings("ignore")
def test_trainable_tensors_are_those_that_peft_makes() -> None:
    compared = 0
    for model_type, change in CASES:
        fields = {**TINY[model_type], **change}
        shape = shape_from_config({"model_type": model_type, **fields}, name="tiny", source="test")
        for targets in (("all-linear",), EXPLICIT.get(model_type, ("q_proj", "v_proj"))):
            for rank in (8, 3):
                expected = trained_by_peft(meta_model(model_type, fields), resolved_targets(shape, targets), rank)
                assert ours(shape, targets, rank) == expected, (model_type, change, targets, rank)
                compared += 1
    assert compared >= 4 * 50


@pytest.mark.transformers
def test_linear_tensors_are_what_bitsandbytes_would_replace() -> None:
    """transformers 5.24 integrations/bitsandbytes.py: every nn.Linear and Conv1D but the output head."""
    torch = pytest.importorskip("torch")
    conv = pytest.importorskip("transformers.pytorch_utils").Conv1D
    for model_type, change in CASES:
        fields = {**TINY[model_type], **change}
        model = meta_model(model_type, fields)
        head = model.get_output_embeddings()
        expected = Counter(
            module.weight.numel()
            for module in model.modules()
            if isinstance(module, (torch.nn.Linear, conv)) and module is not head
        )
        shape = shape_from_config({"model_type": model_type, **fields}, name="tiny", source="test")
        found: Counter[int] = Counter()
        for tensor in linear_tensors(shape):
            found[tensor.numel] += tensor.count
        assert found == expected, (model_type, change)


@pytest.mark.parametrize(
    ("model", "rank", "targets", "expected"),
    [
        ("llama-2-7b", 8, ("q_proj", "v_proj"), 4_194_304),
        ("llama-2-7b", 16, ("all-linear",), 39_976_960),
        ("llama-3-8b", 8, ("q_proj", "v_proj"), 3_407_872),
        ("llama-3-8b", 16, ("all-linear",), 41_943_040),
    ],
)
def test_published_counts(model: str, rank: int, targets: tuple[str, ...], expected: int) -> None:
    """`print_trainable_parameters` of peft, as posted in many fine-tuning logs of these models."""
    assert sum(size * count for size, count in ours(resolve_model(model), targets, rank).items()) == expected


def test_twice_the_rank_is_twice_the_parameters_and_every_target_adds() -> None:
    shape = resolve_model("llama-3-8b")
    one, two = (sum(s * n for s, n in ours(shape, ("all-linear",), rank).items()) for rank in (8, 16))
    assert two == 2 * one
    modules = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert sum((ours(shape, (module,), 8) for module in modules), Counter()) == ours(shape, ("all-linear",), 8)


def test_linear_matrices_are_all_of_a_dense_model_but_embedding_head_and_norms() -> None:
    shape = resolve_model("llama-3-8b")
    linear = sum(t.numel * t.count for t in linear_tensors(shape))
    assert parameter_count(shape) - linear == 2 * 128256 * 4096 + 65 * 4096


def test_routed_experts_are_no_linear_modules() -> None:
    shape = resolve_model("mixtral-8x7b")
    assert {t.name for t in linear_tensors(shape)} == {f"layer/attention/{part}" for part in "qkvo"}


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe", "olmoe"])
def test_all_linear_means_attention_where_peft_would_adapt_stacked_experts(model_type: str) -> None:
    shape = shape_from_config({"model_type": model_type, **TINY[model_type]}, name="tiny", source="test")
    assert resolved_targets(shape, ("all-linear",)) == ("q_proj", "k_proj", "v_proj", "o_proj")
    with pytest.raises(PlannerError, match="`down_proj` is no linear module"):
        target_tensors(shape, ("down_proj",))


def test_an_unknown_target_is_an_error_that_names_the_modules() -> None:
    shape = resolve_model("llama-3-8b")
    with pytest.raises(PlannerError, match="`qproj` is no linear module in a layer of") as raised:
        target_tensors(shape, ("q_proj", "qproj"))
    assert "did you mean `q_proj`?" in raised.value.hint
    assert "gate_proj" in raised.value.hint


def test_a_type_without_a_row_is_an_error() -> None:
    with pytest.raises(PlannerError, match="linear modules of model type `llama9` are not known") as raised:
        linear_tensors(replace(resolve_model("llama-3-8b"), model_type="llama9"))
    assert "--method full" in raised.value.hint
