"""Speed beside frozen weights: laws, and published rates of other frameworks as bounds."""

from __future__ import annotations

from typing import Any

import pytest

from planner import estimate
from planner.geometry.adapters import adapter_tensors
from planner.geometry.flops import attention_flop, forward_flop, head_flop, linear_flop, model_flop
from planner.records.model import Adapter, Method
from planner.spec.model import resolve_model

ADAPTER = Adapter(method=Method.LORA, rank=16, targets=("all-linear",))


def seconds(name: str, **fields: Any) -> float:
    terms = estimate(**{"model": "llama-3-8b", "gpus": "8xA100-80G", **fields}).plan.ranked[0].time
    assert terms is not None
    return sum(term.seconds for term in terms.terms if term.name == name)


def test_frozen_matrices_cost_two_thirds_of_trained_ones() -> None:
    model, seq_len, tokens = resolve_model("llama-3-8b"), 2048, 4096
    trained = sum(t.numel * t.count for t in adapter_tensors(model, ADAPTER))
    attention = model.layers * attention_flop(model.heads * model.head_dim, seq_len, tokens)
    matrices = forward_flop(model, seq_len, tokens) - attention
    assert matrices > head_flop(model, tokens)
    expected = 2 * matrices + 3 * attention + 3 * linear_flop(trained, tokens)
    assert model_flop(model, seq_len, tokens, ADAPTER) == expected


def test_products_of_frozen_weights_take_two_passes_and_adapters_come_on_top() -> None:
    base = {"zero": 2, "checkpointing": "full"}
    full, lora = (seconds("compute/gemm", **base, method=method) for method in ("full", "lora"))
    assert lora == pytest.approx(full * 2 / 3)
    assert seconds("compute/head", **base, method="lora") < seconds("compute/head", **base)
    assert seconds("compute/adapters", **base) == 0
    one, four = (seconds("compute/adapters", **base, method="lora", lora_rank=rank) for rank in (16, 64))
    assert 0 < one < four < lora


def test_only_four_bit_weights_are_unpacked() -> None:
    base = {"zero": 2, "micro_batch": 1}
    assert seconds("compute/unpacking", **base, method="lora") == 0
    once = seconds("compute/unpacking", **base, method="qlora")
    again = seconds("compute/unpacking", **base, method="qlora", checkpointing="full")
    assert again == pytest.approx(1.5 * once)


def test_only_adapters_are_reduced_and_stepped() -> None:
    base = {"model": "llama-3-8b", "gpus": "8xA100-80G", "zero": 2, "checkpointing": "full"}
    full, lora = (estimate(**base, method=method).plan.ranked[0].time for method in ("full", "lora"))
    assert full is not None
    assert lora is not None
    for name in ("communication/reduce", "communication/gather", "optimizer/step"):
        whole, few = (sum(t.seconds for t in time.terms if t.name == name) for time in (full, lora))
        assert few < 0.02 * whole, name


@pytest.mark.parametrize(
    ("model", "gpus", "method", "seq_len", "measured"),
    [
        ("llama-3.1-8b", "1xRTX-4090", "qlora", 2048, 2413),
        ("llama-3.2-3b", "1xA100-80G", "lora", 4096, 8210),
        ("llama-3.2-3b", "1xA100-80G", "qlora", 4096, 8035),
    ],
)
def test_rates_that_torchtune_publishes(model: str, gpus: str, method: str, seq_len: int, measured: int) -> None:
    """torchtune compiles its model, DeepSpeed's runs are eager: at most as fast, and no less than two thirds."""
    found = estimate(
        model=model, gpus=gpus, method=method, lora_rank=8, seq_len=seq_len, micro_batch=2, checkpointing="full",
        loss="fused",
    ).plan.ranked[0]  # fmt: skip
    assert found.time is not None
    assert measured * 2 / 3 < found.time.tokens_per_second < measured


def test_the_band_says_that_few_runs_stand_behind_adapters() -> None:
    time = estimate(model="llama-3-8b", gpus="1xA100-80G", method="lora", zero=2).plan.ranked[0].time
    assert time is not None
    assert "adapters" in time.error_class
