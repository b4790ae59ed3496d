"""The tiny model is the same architecture. Sizes are those of the published config.json files."""

from __future__ import annotations

import pytest

from planner.launch.shrink import VOCAB, shrink

LLAMA_13B = {
    "vocab_size": 32000, "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40,
    "num_attention_heads": 40, "num_key_value_heads": 40, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
QWEN2_7B = {
    "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 32768,
}  # fmt: skip
GEMMA_7B = {
    "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True,
}  # fmt: skip
FALCON_7B = {
    "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
    "num_kv_heads": 1, "multi_query": True,
}  # fmt: skip
GPT2_XL = {"vocab_size": 50257, "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024}
MIXTRAL = {
    **LLAMA_13B,
    "num_key_value_heads": 8,
    "num_attention_heads": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
MODELS = {
    "llama": LLAMA_13B,
    "qwen2": QWEN2_7B,
    "gemma": GEMMA_7B,
    "falcon": FALCON_7B,
    "gpt2": GPT2_XL,
    "mixtral": MIXTRAL,
}
DEGREES = (1, 2, 4, 8)


def heads_of(config: dict) -> tuple[int, int]:
    heads = config.get("num_attention_heads", config.get("n_head"))
    return heads, config.get("num_key_value_heads", config.get("num_kv_heads", heads))


@pytest.mark.parametrize("tp", DEGREES)
@pytest.mark.parametrize("name", MODELS)
def test_what_tp_divides_in_the_model_it_divides_in_the_small_one(name, tp):
    config = MODELS[name]
    small = shrink(config, tp=tp)
    for whole, little in zip(heads_of(config), heads_of(small), strict=True):
        assert little % tp == 0 or whole % tp != 0
    hidden = small.get("hidden_size", small.get("n_embd"))
    assert hidden % heads_of(small)[0] == 0
    assert hidden % tp == 0 or heads_of(config)[0] % tp != 0
    assert small.get("intermediate_size", tp) % tp == 0
    assert small["vocab_size"] == VOCAB


@pytest.mark.parametrize("name", MODELS)
def test_the_small_model_has_about_a_million_parameters(name):
    small = shrink(MODELS[name], tp=1)
    hidden = small.get("hidden_size", small.get("n_embd"))
    layers = small.get("num_hidden_layers", small.get("n_layer"))
    ffn = small.get("intermediate_size", 4 * hidden) * small.get("num_local_experts", 1)
    parameters = 2 * VOCAB * hidden + layers * (4 * hidden * hidden + 3 * hidden * ffn)
    assert 2e5 < parameters < 2e7


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_the_number_of_query_heads_per_key_value_head_is_kept(tp):
    heads, kv_heads = heads_of(shrink(QWEN2_7B, tp=tp))
    assert heads / kv_heads == 28 / 4


def test_a_decoupled_head_size_stays_decoupled():
    small = shrink(GEMMA_7B, tp=1)
    assert small["num_attention_heads"] * small["head_dim"] > small["hidden_size"]


def test_what_the_configuration_leaves_to_its_class_stays_left_to_it():
    assert "head_dim" not in shrink(LLAMA_13B, tp=1)
    assert "n_inner" not in shrink(GPT2_XL, tp=1)


def test_flags_and_norms_are_kept():
    small = shrink(LLAMA_13B, tp=1)
    assert small["tie_word_embeddings"] is False
    assert small["rms_norm_eps"] == 1e-5


def test_every_kind_of_layer_is_there():
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    small = shrink({**GEMMA_7B, "layer_types": kinds * 5, "num_hidden_layers": 30}, tp=1)
    assert small["layer_types"] == kinds
    assert small["num_hidden_layers"] == 6


def test_a_rotary_table_by_dimension_is_dropped():
    scaling = {"rope_type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    assert shrink({**LLAMA_13B, "rope_scaling": scaling}, tp=1)["rope_scaling"] is None


def test_experts_become_few_and_stay_experts():
    small = shrink(MIXTRAL, tp=1)
    assert (small["num_local_experts"], small["num_experts_per_tok"]) == (4, 2)


def test_the_given_configuration_is_not_changed():
    before = dict(QWEN2_7B)
    shrink(QWEN2_7B, tp=2)
    assert before == QWEN2_7B
