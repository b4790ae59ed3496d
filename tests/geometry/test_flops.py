"""FLOP counts against published formulas, a published table and torch's own counter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.geometry.flops import attention_flop, forward_flop, linear_flop, model_flop, model_work
from planner.geometry.legend import LEGEND
from planner.records.model import AutoTP, ModelShape, Norm, Position

MOSAIC = Path(__file__).parents[2].parent / "shared" / "data" / "mosaic_throughput.json"
MOSAIC_SHAPES = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
}


def shape(hidden: int, layers: int, heads: int, ffn: int, vocab: int, **changes: Any) -> ModelShape:
    values: dict[str, Any] = {
        "name": "test",
        "model_type": "llama",
        "hub_id": None,
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "ffn_hidden": ffn,
        "vocab": vocab,
        "max_positions": 4096,
        "tied_embeddings": False,
        "gated_mlp": False,
        "activation": "gelu",
        "norm": Norm.LAYER,
        "norms_per_layer": 2,
        "parallel_block": False,
        "qk_norm": False,
        "qkv_bias": False,
        "attention_output_bias": False,
        "mlp_bias": False,
        "head_bias": False,
        "final_norm": True,
        "position": Position.ROTARY,
        "autotp": AutoTP.TRAINED,
        "source": "test",
    }
    return ModelShape(**(values | changes))


def with_full_attention(model: ModelShape, seq_len: int, tokens: int) -> int:
    """Model FLOPs in the convention that counts the whole score matrix."""
    return model_flop(model, seq_len, tokens) + 3 * model.layers * attention_flop(model.hidden, seq_len, tokens)


def test_gpt3_step_has_the_flops_of_narayanan_equation_three() -> None:
    """arXiv:2104.04473: 96 B s l h^2 (1 + s/6h + V/16lh) with recomputation, less its 24 B s l h^2 (1 + s/6h)."""
    batch, seq_len, layers, hidden, vocab = 1536, 2048, 96, 12288, 51200
    base = batch * seq_len * layers * hidden**2
    published = 96 * base * (1 + seq_len / (6 * hidden) + vocab / (16 * layers * hidden))
    recomputed = 24 * base * (1 + seq_len / (6 * hidden))
    gpt3 = shape(hidden, layers, 96, 4 * hidden, vocab)
    assert with_full_attention(gpt3, seq_len, batch * seq_len) == pytest.approx(published - recomputed, rel=1e-9)


@pytest.mark.skipif(not MOSAIC.is_file(), reason="the visible llm-foundry rows are not beside this checkout")
def test_llm_foundry_mfu_follows_from_these_flops_with_full_attention() -> None:
    """The table's MFU is 6 N + 12 l h s FLOPs per token over 312 or 989.5 TFLOP/s; N holds s x h positions."""
    rows = json.loads(MOSAIC.read_text(encoding="utf-8"))
    assert len(rows) == 87
    for row in rows:
        hidden, layers, heads = MOSAIC_SHAPES[row["model"]]
        model = shape(hidden, layers, heads, 4 * hidden, 50368, tied_embeddings=True)
        per_token = with_full_attention(model, row["seq"], 1) + 6 * row["seq"] * hidden
        peak = 312e12 if row["gpu"].startswith("a100") else 989.5e12
        published = row["mfu"] / 100 * peak / row["tps_gpu"]
        assert per_token == pytest.approx(published, rel=0.005), row


def test_causal_attention_counts_half_of_the_square() -> None:
    assert attention_flop(4096, 2048, 10) * 2 == 10 * (2 * 2048 * 4096 + 2 * 2048 * 4096)


def test_mixtral_token_visits_two_of_eight_experts() -> None:
    """Mixtral 8x7B: 12.9 B active and 46.7 B total parameters (arXiv:2401.04088), less the input embedding."""
    mixtral = shape(
        4096, 32, 32, 0, 32000, kv_heads=8, gated_mlp=True, experts=8, experts_per_token=2, expert_ffn_hidden=14336
    )
    (kind,) = model_work(mixtral).kinds
    embedding = 32000 * 4096
    assert 32 * kind.active_elements + 2 * embedding == pytest.approx(12.9e9, rel=0.005)
    assert 32 * kind.held_elements + 2 * embedding == pytest.approx(46.7e9, rel=0.005)


def test_dense_and_expert_layers_are_two_kinds() -> None:
    """Qwen-MoE-like: some layers dense, a shared expert in the others."""
    model = shape(
        2048,
        24,
        16,
        5632,
        151936,
        gated_mlp=True,
        experts=60,
        experts_per_token=4,
        expert_ffn_hidden=1408,
        shared_ffn_hidden=5632,
        dense_layers=1,
    )
    dense, sparse = model_work(model).kinds
    assert (dense.layers, sparse.layers) == (1, 23)
    attention = 4 * 2048**2
    assert dense.active_elements == attention + 3 * 2048 * 5632
    assert sparse.active_elements == attention + 3 * 2048 * (5632 + 4 * 1408) + 2048 * 60
    assert sparse.held_elements == attention + 3 * 2048 * (5632 + 60 * 1408) + 2048 * 60


@given(tokens=st.integers(1, 10**7), seq_len=st.integers(1, 10**6), elements=st.integers(1, 10**12))
def test_twice_the_tokens_are_twice_the_linear_flops(tokens: int, seq_len: int, elements: int) -> None:
    assert linear_flop(elements, 2 * tokens) == 2 * linear_flop(elements, tokens)
    model = shape(512, 4, 8, 2048, 32000)
    assert model_flop(model, seq_len, 2 * tokens) == 2 * model_flop(model, seq_len, tokens)
    assert model_flop(model, 2 * seq_len, tokens) > model_flop(model, seq_len, tokens)


@pytest.mark.slow
@pytest.mark.transformers
@pytest.mark.parametrize(
    ("model", "options"),
    [
        pytest.param(shape(256, 3, 8, 704, 1000, kv_heads=2, gated_mlp=True), {}, id="llama"),
        pytest.param(
            shape(256, 3, 8, 704, 1000, kv_heads=8, gated_mlp=True, head_dim=64, model_type="qwen3"),
            {"head_dim": 64},
            id="qwen3 with its own head size",
        ),
        pytest.param(
            shape(256, 3, 8, 1024, 1000, tied_embeddings=True, model_type="gpt_neox"), {}, id="two MLP matrices"
        ),
    ],
)
def test_forward_equals_torch_flop_counter(model: ModelShape, options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    config = transformers.AutoConfig.for_model(
        model.model_type,
        hidden_size=model.hidden,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        intermediate_size=model.ffn_hidden,
        vocab_size=model.vocab,
        **options,
    )
    batch, seq_len = 2, 64
    network = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    tokens = torch.zeros((batch, seq_len), dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        network(input_ids=tokens, use_cache=False)
    query_width = model.heads * model.head_dim
    square = forward_flop(model, seq_len, batch * seq_len)
    square += model.layers * attention_flop(query_width, seq_len, batch * seq_len)
    assert counter.get_total_flops() == pytest.approx(square, rel=0.001)


def test_legend_gives_every_symbol_one_meaning() -> None:
    symbols = [entry.symbol for entry in LEGEND]
    assert len(symbols) == len(set(symbols)) >= 25
    assert all(entry.name and entry.meaning for entry in LEGEND)
