"""Shapes read off the transformers model: counts against published ones and transformers' own, and every refusal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from planner import estimate
from planner.errors import PlannerError
from planner.geometry.flops import forward_flop, model_work
from planner.geometry.params import (
    active_parameter_count,
    largest_tensor_numel,
    layer_numel,
    parameter_count,
    parameter_tensors,
)
from planner.memory.sizes import rank_sizes
from planner.records.model import AutoTP, ModelShape
from planner.spec.hf_config import shape_from_config
from planner.spec.model import resolve_model

needs_transformers = pytest.mark.transformers


def shape(model_type: str, **fields: Any) -> ModelShape:
    pytest.importorskip("transformers")
    return shape_from_config({"model_type": model_type, **fields}, name=model_type, source="test")


@needs_transformers
def test_deepseek_v3_has_671_billion_parameters_of_which_a_token_uses_37() -> None:
    """DeepSeek-AI 2024, arXiv:2412.19437, abstract; the embedding is counted among the active ones."""
    model = shape("deepseek_v3")
    assert parameter_count(model) / 1e9 == pytest.approx(671, abs=0.5)
    assert active_parameter_count(model) / 1e9 == pytest.approx(37.5, rel=0.02)
    assert (model.experts, model.experts_per_token, model.layers) == (256, 8, 61)


@needs_transformers
def test_gpt_oss_20b_has_the_parameters_of_its_model_card() -> None:
    """OpenAI 2025, arXiv:2508.10925, table 1: 20.91 billion, 3.61 billion active (without the embedding)."""
    model = shape("gpt_oss", num_hidden_layers=24, num_local_experts=32)
    assert parameter_count(model) / 1e9 == pytest.approx(20.91, abs=0.01)
    assert (active_parameter_count(model) - model.vocab * model.hidden) / 1e9 == pytest.approx(3.61, rel=0.02)


SMALL: dict[str, dict[str, Any]] = {
    "persimmon": {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 1024},
    "biogpt": {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 1024},
    "codegen": {"n_embd": 256, "n_layer": 3, "n_head": 8, "vocab_size": 1024, "rotary_dim": 16},
    "granitemoe": {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 1024},
    "exaone4": {"hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 8, "vocab_size": 1024},
    "cohere2": {"hidden_size": 256, "num_hidden_layers": 5, "num_attention_heads": 8, "vocab_size": 1024},
}


@needs_transformers
@pytest.mark.parametrize("model_type", SMALL)
def test_the_tensors_are_those_of_the_model(model_type: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(model_type, **SMALL[model_type])
        )
    sizes = sorted(p.numel() for p in model.parameters())
    found = shape(model_type, **SMALL[model_type])
    assert sorted(t.numel for t in parameter_tensors(found) for _ in range(t.count)) == sizes
    assert parameter_count(found) == sum(sizes)
    assert largest_tensor_numel(found, 1) == sizes[-1]
    assert found.tied_embeddings is (model.get_input_embeddings().weight is model.get_output_embeddings().weight)
    counted = rank_sizes(found, 1)
    assert counted.total == sum(sizes)
    assert counted.divided == 0
    assert counted.embedding == model.get_input_embeddings().weight.numel()
    stack = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == found.layers)
    assert layer_numel(found, 1) == max(sum(p.numel() for p in layer.parameters()) for layer in stack)


@needs_transformers
def test_compute_is_two_flop_for_each_matrix_element_and_attention_by_heads() -> None:
    model = shape("persimmon", **SMALL["persimmon"])
    matrices = sum(t.numel * t.count for t in parameter_tensors(model) if t.columns > 1 and t.name != "embedding")
    attention = 3 * 2 * 512 * 256
    assert forward_flop(model, 512, 1024) == 1024 * (2 * matrices + attention)
    assert sum(kind.layers for kind in model_work(model).kinds) == 3


@needs_transformers
def test_of_a_token_s_experts_only_the_chosen_ones_compute() -> None:
    model = shape("granitemoe", **SMALL["granitemoe"], num_local_experts=8, num_experts_per_tok=2)
    (kind,) = model_work(model).kinds
    routed = sum(t.numel for t in parameter_tensors(model) if t.name.startswith("layer/mlp/expert/"))
    assert routed > 0
    assert kind.held_elements - kind.active_elements == routed - routed // 4


@needs_transformers
def test_kinds_of_layers_say_how_many_follow_them() -> None:
    """EXAONE 4: three layers with a window, then one without."""
    model = shape("exaone4", **SMALL["exaone4"], sliding_window=512, sliding_window_pattern=4)
    assert model.traced is not None
    assert [(kind.layers, kind.layers_after) for kind in model.traced.kinds] == [(6, (0, 1)), (2, (0, 0))]


@needs_transformers
def test_a_multimodal_config_is_planned_as_its_language_model() -> None:
    text = {"model_type": "persimmon", **SMALL["persimmon"]}
    model = shape("fuyu", text_config=text, vision_config={})
    assert model.model_type == "persimmon"
    assert any("only the language model of fuyu is planned" in note for note in model.notes)
    assert shape("llava", text_config={"model_type": "llama", "hidden_size": 4096}).traced is None


@needs_transformers
def test_tensor_parallelism_is_refused_and_the_notes_say_what_was_traced() -> None:
    model = shape("persimmon", **SMALL["persimmon"])
    assert model.autotp is AutoTP.REFUSED
    (note,) = model.notes
    assert "no formulas for `persimmon`" in note
    assert "traced with transformers" in note
    assert "torch" in note


def refusal(config: dict[str, Any]) -> PlannerError:
    with pytest.raises(PlannerError) as raised:
        shape_from_config(config, name="m", source="test")
    return raised.value


def test_without_transformers_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    error = refusal({"model_type": "persimmon"})
    assert error.message == (
        "dsplan has no formulas for model type `persimmon`, and tracing it needs `torch` @ $.model_type"
    )
    assert "pip install 'dsplan[launch]'" in error.hint
    assert "did you mean `llama`" in refusal({"model_type": "lama"}).hint


@needs_transformers
def test_a_type_that_transformers_does_not_know_names_the_nearest() -> None:
    pytest.importorskip("transformers")
    error = refusal({"model_type": "persimon"})
    assert error.message == "`persimon` is no causal language model that dsplan or transformers knows @ $.model_type"
    assert "`persimmon`" in error.hint


@needs_transformers
@pytest.mark.parametrize("model_type", ["bert", "t5", "bart", "whisper"])
def test_encoders_are_no_causal_language_models(model_type: str) -> None:
    pytest.importorskip("transformers")
    assert "is no causal language model" in refusal({"model_type": model_type}).message


@needs_transformers
def test_a_value_that_the_type_refuses_is_one_line() -> None:
    pytest.importorskip("transformers")
    assert (
        "transformers refuses this `persimmon` config"
        in refusal({"model_type": "persimmon", "hidden_size": "wide"}).message
    )
    assert (
        "`persimmon` cannot be built"
        in refusal({"model_type": "persimmon", "hidden_size": 250, "num_attention_heads": 8}).message
    )


@needs_transformers
def test_an_estimate_of_a_traced_model_says_so_in_every_term(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "persimmon", **SMALL["persimmon"]}), "utf-8")
    first, again = (
        estimate(model=str(folder), gpus="2xA100-80G", zero=2, seq_len=512, micro_batch=2).to_dict() for _ in range(2)
    )
    assert first == again
    assert any("traced with transformers" in text for text in first["assumptions"])
    terms = [t for t in first["plans"][0]["memory"]["terms"] if t["name"].startswith("activations/")]
    assert {"activations/kept", "activations/backward_temporaries"} <= {t["name"] for t in terms}
    assert all("transformers" in t["source"] for t in terms)
    assert first["model"]["config"]["hidden_size"] == 256
    assert resolve_model(str(folder)).traced is not None


@needs_transformers
def test_adapters_on_a_traced_model_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "persimmon", **SMALL["persimmon"]}), "utf-8")
    with pytest.raises(PlannerError, match="the linear modules of model type `persimmon` are not known"):
        estimate(model=str(file), gpus="2xA100-80G", method="lora")
