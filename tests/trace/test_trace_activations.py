"""What a trace at small depth says of whole models, against traces of deeper models and against the formulas.

    python tests/trace/test_trace_activations.py     prints the errors of every type in the golden file

tests/golden/traced_activations.toml holds traces of models of six layers; tests/oracles/trace_activations.py wrote it,
which counts with code of its own. dsplan traces a short stack of the same model at other batches and lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.errors import PlannerError
from planner.memory.activations import activation_terms
from planner.memory.logits import logits_terms
from planner.records.candidate import Checkpointing
from planner.records.estimate import Moment
from planner.records.model import ModelShape, Precision
from planner.records.request import Attention, Loss
from planner.spec.hf_config import shape_from_config
from planner.toml import tomllib
from planner.trace.activations import with_activations
from planner.trace.shape import traced_shape

pytestmark = pytest.mark.transformers

GOLDEN = tomllib.loads((Path(__file__).parents[1] / "golden" / "traced_activations.toml").read_text("utf-8"))
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in GOLDEN["case"]}
LAYER_KEYS = {"codegen": "n_layer", "xglm": "num_layers", "gpt2": "n_layer"}
QUICK = ("persimmon",)
PEAKS = ("forward_peak", "backward_head", "backward_layer")
TOLERANCE = 0.02


def config_of(name: str) -> dict[str, Any]:
    return {**CASES[name]["config"], "tie_word_embeddings": False, LAYER_KEYS.get(name, "num_hidden_layers"): 6}


def rows(name: str) -> Iterator[dict[str, Any]]:
    for values in CASES[name]["traces"]:
        yield dict(zip(GOLDEN["columns"], values, strict=True))


def traced(shape: ModelShape, *, seq_len: int, attention: str = "sdpa") -> ModelShape:
    return with_activations(shape, seq_len=seq_len, attention=Attention(attention), width=2)


def peaks(shape: ModelShape, row: dict[str, Any]) -> dict[str, int]:
    common = {key: row[key] for key in ("micro_batch", "seq_len")} | {"tp": 1, "precision": Precision.BF16}
    activations = activation_terms(
        shape, checkpointing=Checkpointing(row["checkpointing"]), attention=Attention(row["attention"]), **common
    )
    logits = {term.name: term.size_bytes for term in logits_terms(shape, loss=Loss.STANDARD, **common)}

    def alive(moment: Moment) -> int:
        return sum(term.size_bytes for term in activations if moment in term.moments)

    return {
        "forward_peak": alive(Moment.FORWARD_END) + logits["logits/forward"],
        "backward_head": alive(Moment.BACKWARD_HEAD) + logits["logits/backward"],
        "backward_layer": alive(Moment.BACKWARD_LAYER),
    }


def comparisons(name: str) -> Iterator[tuple[str, dict[str, Any], int, int]]:
    """Quantity, row, predicted and traced bytes of every row; the record is made for the row's own length."""
    pytest.importorskip("transformers")
    shape = shape_from_config(config_of(name), name=name, source="test")
    for row in rows(name):
        found = peaks(traced(shape, seq_len=row["seq_len"], attention=row["attention"]), row)
        for quantity in PEAKS:
            yield quantity, row, found[quantity], row[quantity]


def test_the_golden_types_have_no_formulas_and_every_setting_was_traced() -> None:
    assert len(CASES) >= 12
    for name in CASES:
        settings = {(row["checkpointing"], row["seq_len"], row["micro_batch"]) for row in rows(name)}
        assert len(settings) == 8, name
        assert all(row["layers"] == 6 for row in rows(name))


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_a_short_stack_tells_the_peaks_of_a_deeper_model_within_two_percent(name: str) -> None:
    compared = 0
    for quantity, row, predicted, expected in comparisons(name):
        assert predicted == pytest.approx(expected, rel=TOLERANCE), (quantity, row)
        compared += 1
    assert compared == 24


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8, "num_key_value_heads": 2},
    "qwen3": {"hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8, "num_key_value_heads": 4},
    "gpt2": {"n_embd": 512, "n_head": 8, "n_positions": 2048, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_trace_says_what_the_formulas_say(model_type: str) -> None:
    pytest.importorskip("transformers")
    fields = {**FAMILIES[model_type], "vocab_size": 8192, LAYER_KEYS.get(model_type, "num_hidden_layers"): 12}
    formulas = shape_from_config({"model_type": model_type, **fields}, name="m", source="test")
    found = traced_shape(model_type, fields, name="m", source="test", hub_id=None, path="$", formulas=())
    found = traced(found, seq_len=2048)
    for checkpointing in Checkpointing:
        for micro_batch in (1, 4):
            row = {"micro_batch": micro_batch, "seq_len": 2048, "attention": "sdpa", "checkpointing": checkpointing}
            expected = peaks(formulas, row)
            for quantity, size in peaks(found, row).items():
                assert size == pytest.approx(expected[quantity], rel=TOLERANCE), (quantity, row)


@pytest.mark.slow
def test_a_window_brings_a_mask_above_its_length_only() -> None:
    pytest.importorskip("transformers")
    shape = traced(shape_from_config(config_of("olmo3"), name="olmo3", source="test"), seq_len=2048)
    assert shape.traced is not None
    assert shape.traced.activations is not None
    stacks = shape.traced.activations.stacks
    assert len(stacks) == 4
    pairs = {
        stack.shortest: sum(kind.kept.per_token_and_position + kind.kept.per_position_pair for kind in stack.kinds)
        for stack in stacks
        if stack.checkpointing is Checkpointing.NONE
    }
    assert pairs[0] == 0
    assert pairs[512] > 0


@pytest.mark.slow
def test_the_stand_in_for_unequal_head_widths_keeps_what_a_fused_kernel_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """At equal widths a CPU has the fused kernel itself."""
    functional = pytest.importorskip("torch.nn.functional")
    pytest.importorskip("transformers")
    import planner.trace.kernels as kernels

    fields = {**FAMILIES["llama"], "num_key_value_heads": 8, "vocab_size": 8192, "num_hidden_layers": 12}
    shape = traced_shape("llama", fields, name="m", source="test", hub_id=None, path="$", formulas=())
    real = traced(shape, seq_len=512)
    stand_in = kernels._unequal_widths()
    monkeypatch.setattr(
        functional,
        "scaled_dot_product_attention",
        lambda query, key, value, attn_mask=None, *_, **__: stand_in.apply(query, key, value, attn_mask),
    )
    with_activations.cache_clear()
    imitated = traced(shape, seq_len=512)
    for micro_batch in (1, 4):
        row = {"micro_batch": micro_batch, "seq_len": 512, "attention": "sdpa", "checkpointing": "none"}
        assert peaks(imitated, row) == pytest.approx(peaks(real, row), rel=0.001)


@pytest.mark.slow
def test_narrow_values_keep_no_scores() -> None:
    """DeepSeek-V3 itself: queries of 192, values of 128."""
    pytest.importorskip("transformers")
    fields = {"num_hidden_layers": 4, "first_k_dense_replace": 1}
    shape = traced(shape_from_config({"model_type": "deepseek_v3", **fields}, name="d", source="t"), seq_len=512)
    assert shape.traced is not None
    assert shape.traced.activations is not None
    for stack in shape.traced.activations.stacks:
        assert all(kind.kept.per_token_and_position == 0 for kind in stack.kinds)


@pytest.mark.slow
def test_code_that_loops_over_tokens_is_refused() -> None:
    pytest.importorskip("transformers")
    fields = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4,
              "num_key_value_heads": 4, "vocab_size": 512, "use_mamba_kernels": False}  # fmt: skip
    shape = shape_from_config({"model_type": "jamba", **fields}, name="j", source="test")
    with pytest.raises(PlannerError, match="cannot be traced: its layers loop over tokens"):
        traced(shape, seq_len=2048)


def test_code_that_needs_the_values_of_its_tensors_is_refused() -> None:
    pytest.importorskip("transformers")
    fields = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_key_value_heads": 4,
              "kv_channels": 32, "vocab_size": 512, "num_local_experts": 4}  # fmt: skip
    shape = shape_from_config({"model_type": "jetmoe", **fields}, name="j", source="test")
    with pytest.raises(PlannerError, match="the activations of `jetmoe` cannot be traced: DataDependentOutput"):
        traced(shape, seq_len=256)


def test_activations_of_another_run_are_refused_not_guessed() -> None:
    pytest.importorskip("transformers")
    shape = shape_from_config(config_of("persimmon"), name="p", source="test")
    row = {"micro_batch": 1, "seq_len": 512, "attention": "sdpa", "checkpointing": "none"}
    with pytest.raises(PlannerError, match="were not traced with sdpa attention in bf16"):
        peaks(shape, row)
    with pytest.raises(PlannerError, match="were not traced with eager attention in bf16"):
        peaks(traced(shape, seq_len=512), {**row, "attention": "eager"})


def test_a_shape_with_formulas_is_left_alone() -> None:
    shape = shape_from_config({"model_type": "llama", "num_hidden_layers": 2}, name="l", source="test")
    assert with_activations(shape, seq_len=512, attention=Attention.SDPA, width=2) is shape
    assert replace(shape, traced=None) == shape


def main() -> None:
    print(f"{GOLDEN['source']}; transformers {GOLDEN['transformers']}, torch {GOLDEN['torch']}")
    for name in CASES:
        sizes = sorted(100 * abs(found / expected - 1) for _, _, found, expected in comparisons(name))
        middle, ninetieth = sizes[len(sizes) // 2], sizes[int(0.9 * len(sizes))]
        print(f"{name:18} median {middle:.2f}, 90th percentile {ninetieth:.2f}, largest {sizes[-1]:.2f} %", flush=True)


if __name__ == "__main__":
    main()
