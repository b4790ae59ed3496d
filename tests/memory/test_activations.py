"""Activation formulas against traces of the real transformers models, and against published worked values.

    python tests/memory/test_activations.py     prints the errors by model type

The traced run holds no parameters' bytes and none of their gradients, so it measures activations, logits and the loss
alone: what the terms say is compared with it at four instants, both ways, and layer by layer.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planner.errors import PlannerError
from planner.memory.activations import (
    activation_terms,
    attention_in_force,
    layer_kept_bytes_per_token,
    supports_activations,
)
from planner.memory.logits import logits_terms
from planner.records.candidate import Checkpointing
from planner.records.estimate import Device, Moment, Phase
from planner.records.model import ModelShape, Precision
from planner.records.request import Attention, Loss
from planner.spec.hf_config import shape_from_config
from planner.toml import tomllib

TESTS = Path(__file__).parents[1]
GOLDEN = tomllib.loads((TESTS / "golden" / "activations.toml").read_text("utf-8"))
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in GOLDEN["case"]}
LAYER_KEYS = {
    "gpt2": "n_layer",
    "gptj": "n_layer",
    "bloom": "n_layer",
    "gpt_bigcode": "n_layer",
    "gpt_neo": "num_layers",
    "mpt": "n_layers",
}
TOLERANCE = 0.02
PEAKS = ("forward_peak", "backward_head", "backward_layer")


def shape_of(case: dict[str, Any], layers: int) -> ModelShape:
    config = {**case["config"], **dict.fromkeys(case["nulls"])}
    config.setdefault("tie_word_embeddings", False)
    config[LAYER_KEYS.get(config["model_type"], "num_hidden_layers")] = layers
    return shape_from_config(config, name=case["name"], source="test")


def rows(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for values in case["traces"]:
        yield dict(zip(GOLDEN["columns"], values, strict=True))


def predicted(shape: ModelShape, row: dict[str, Any]) -> dict[str, int]:
    """The four traced quantities from the terms."""
    common = {
        "micro_batch": row["micro_batch"],
        "seq_len": row["seq_len"],
        "tp": 1,
        "precision": Precision(row["precision"]),
    }
    activations = activation_terms(
        shape, checkpointing=Checkpointing(row["checkpointing"]), attention=Attention(row["attention"]), **common
    )
    logits = {term.name: term for term in logits_terms(shape, loss=Loss.STANDARD, **common)}
    tokens = row["micro_batch"] * row["seq_len"]

    def alive(moment: Moment) -> int:
        return sum(term.size_bytes for term in activations if moment in term.moments)

    # At the end of forward only the loss is held: of backward's 12V, the log-softmax without 8V of gradients.
    held = logits["logits/backward"].size_bytes - 8 * shape.vocab * tokens
    rise = sum(term.size_bytes for term in activations if term.name == "activations/forward_scores")
    return {
        "forward_end": alive(Moment.FORWARD_END) - rise + held,
        "forward_peak": alive(Moment.FORWARD_END) + logits["logits/forward"].size_bytes,
        "backward_head": alive(Moment.BACKWARD_HEAD) + logits["logits/backward"].size_bytes,
        "backward_layer": alive(Moment.BACKWARD_LAYER),
    }


def test_at_least_twenty_architectures_are_traced() -> None:
    types = {case["config"]["model_type"] for case in CASES.values()}
    assert len(types) >= 34
    assert len(CASES) == 46
    assert sum(len(case["traces"]) for case in CASES.values()) >= 1000
    assert all(supports_activations(model_type) for model_type in types)


def test_every_case_has_two_depths_two_lengths_two_batches_and_both_checkpointings() -> None:
    for case in CASES.values():
        first = [row for row in rows(case) if row["attention"] == next(rows(case))["attention"]]
        for key in ("layers", "seq_len", "micro_batch", "checkpointing"):
            assert len({row[key] for row in first}) == 2, (case["name"], key)


def layer_pairs(case: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """What one more layer keeps: traced and predicted, for every setting that was traced at two depths."""
    by_setting: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    for row in rows(case):
        if row["checkpointing"] == "none":
            setting = (row["micro_batch"], row["seq_len"], row["attention"], row["precision"])
            value = predicted(shape_of(case, row["layers"]), row)["forward_end"]
            by_setting.setdefault(setting, []).append((row["forward_end"], value))
    for depths in by_setting.values():
        if len(depths) == 2:
            (traced_low, low), (traced_high, high) = depths
            yield traced_high - traced_low, high - low


@pytest.mark.parametrize("name", CASES)
def test_what_a_layer_keeps_is_within_two_percent_of_the_trace(name: str) -> None:
    compared = 0
    for traced, value in layer_pairs(CASES[name]):
        assert value == pytest.approx(traced, rel=TOLERANCE)
        compared += 1
    assert compared >= 4


@pytest.mark.parametrize("name", CASES)
def test_every_instant_of_the_step_is_within_two_percent_of_the_trace(name: str) -> None:
    case = CASES[name]
    compared = 0
    for row in rows(case):
        value = predicted(shape_of(case, row["layers"]), row)
        for quantity in ("forward_end", *PEAKS):
            assert value[quantity] == pytest.approx(row[quantity], rel=TOLERANCE), (quantity, row)
            compared += 1
    assert compared == 4 * len(case["traces"])


@pytest.mark.parametrize("name", CASES)
def test_the_peak_of_the_step_is_within_two_percent_of_the_trace(name: str) -> None:
    case = CASES[name]
    for row in rows(case):
        value = predicted(shape_of(case, row["layers"]), row)
        peak = max(row[quantity] for quantity in PEAKS)
        assert max(value[quantity] for quantity in PEAKS) == pytest.approx(peak, rel=TOLERANCE), row


def llama_like(**geometry: int) -> ModelShape:
    config = {
        "model_type": "qwen2" if geometry["v"] > 130_000 else "llama",
        "hidden_size": geometry["h"],
        "intermediate_size": geometry["i"],
        "num_attention_heads": geometry["a"],
        "num_key_value_heads": geometry["k"],
        "num_hidden_layers": geometry["n"],
        "vocab_size": geometry["v"],
    }
    return shape_from_config(config, name="worked", source="test")


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        ("Llama-2-7B", {"h": 4096, "i": 11008, "a": 32, "k": 32, "n": 32, "v": 32000}, 186_504),
        ("Llama-2-13B", {"h": 5120, "i": 13824, "a": 40, "k": 40, "n": 40, "v": 32000}, 233_640),
        ("Llama-3-8B", {"h": 4096, "i": 14336, "a": 32, "k": 8, "n": 32, "v": 128256}, 200_840),
        ("Qwen2.5-7B", {"h": 3584, "i": 18944, "a": 28, "k": 4, "n": 28, "v": 152064}, 225_400),
        ("Qwen2.5-14B", {"h": 5120, "i": 13824, "a": 40, "k": 8, "n": 48, "v": 152064}, 217_256),
        ("Qwen2.5-32B", {"h": 5120, "i": 27648, "a": 40, "k": 8, "n": 64, "v": 152064}, 327_848),
    ],
)
def test_worked_values_of_full_size_models(model: str, shape: dict[str, int], expected: int) -> None:
    """Counted on full-size models in bf16 under SDPA: unique storages saved for backward, bytes per token and layer."""
    assert kept(llama_like(**shape)) == expected


def test_worked_values_of_models_with_query_and_key_norms() -> None:
    dense = {"hidden_size": 5120, "intermediate_size": 25600, "num_attention_heads": 64, "num_key_value_heads": 8}
    qwen3 = shape_from_config({"model_type": "qwen3", **dense, "head_dim": 128}, name="Qwen3-32B", source="test")
    assert kept(qwen3) == 379_432
    routed = {"hidden_size": 2048, "moe_intermediate_size": 768, "num_attention_heads": 32, "num_key_value_heads": 4}
    routed |= {"num_experts": 128, "num_experts_per_tok": 8, "head_dim": 128}
    qwen3_moe = shape_from_config({"model_type": "qwen3_moe", **routed}, name="Qwen3-30B-A3B", source="test")
    assert kept(qwen3_moe) == pytest.approx(193_874, rel=0.005)  # the published count rounds the router's bytes


def kept(shape: ModelShape, *, tp: int = 1) -> int:
    return layer_kept_bytes_per_token(shape, seq_len=2048, tp=tp, precision=Precision.BF16, attention=Attention.SDPA)


def test_tensor_parallelism_divides_heads_and_ffn_and_leaves_hidden_wide_tensors() -> None:
    """AutoTP: 16h + 8 stay, (4Ad + 4Kd + 4A + 8I) is divided."""
    shape = llama_like(h=4096, i=14336, a=32, k=8, n=32, v=128256)
    replicated = 16 * 4096 + 8
    assert kept(shape, tp=4) == replicated + (200_840 - replicated) // 4


def test_checkpoints_are_two_bytes_per_hidden_value_and_layer() -> None:
    shape = llama_like(h=4096, i=11008, a=32, k=32, n=32, v=32000)
    terms = {term.name: term for term in terms_of(shape, checkpointing=Checkpointing.FULL)}
    tables = 2 * 2 * 128 * 1024
    assert terms["activations/checkpoints"].size_bytes == 2 * 1024 * 32 * 2 * 4096 + tables


def terms_of(shape: ModelShape, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "micro_batch": 2,
        "seq_len": 1024,
        "tp": 1,
        "checkpointing": Checkpointing.NONE,
        "precision": Precision.BF16,
        "attention": Attention.SDPA,
    }
    return activation_terms(shape, **{**settings, **changes})


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3_moe", "gemma2", "falcon new"])
def test_bytes_are_proportional_to_the_micro_batch_but_for_what_the_batch_shares(name: str) -> None:
    shape = shape_of(CASES[name], 3)
    for checkpointing in Checkpointing:
        sizes = {}
        for micro_batch in (1, 2, 4):
            terms = terms_of(shape, micro_batch=micro_batch, checkpointing=checkpointing)
            sizes[micro_batch] = [term.size_bytes for term in terms]
        for one, two, four in zip(sizes[1], sizes[2], sizes[4], strict=True):
            assert four - two == 2 * (two - one)


@pytest.mark.parametrize("name", CASES)
def test_checkpointing_never_keeps_more_at_the_end_of_forward(name: str) -> None:
    shape = shape_of(CASES[name], 8)

    def held(checkpointing: Checkpointing) -> int:
        terms = terms_of(shape, checkpointing=checkpointing)
        return sum(term.size_bytes for term in terms if Moment.FORWARD_END in term.moments)

    assert held(Checkpointing.FULL) < held(Checkpointing.NONE)


@pytest.mark.parametrize("name", CASES)
def test_terms_lie_on_the_gpu_between_forward_and_backward_and_say_where_they_come_from(name: str) -> None:
    for term in terms_of(shape_of(CASES[name], 4), checkpointing=Checkpointing.FULL):
        assert term.device is Device.GPU
        assert {moment.phase for moment in term.moments} <= {Phase.FORWARD, Phase.BACKWARD}
        assert term.size_bytes > 0
        assert term.name.startswith("activations/")
        assert term.formula
        assert "tests/golden/activations.toml" in term.source


def test_dropout_masks_take_one_byte_an_element() -> None:
    """GPT-2 as published drops out embedding, attention output and MLP output: h + 2h per layer."""
    with_dropout = shape_from_config({"model_type": "gpt2", "n_layer": 12}, name="gpt2", source="test")
    config = {"model_type": "gpt2", "n_layer": 12, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    without = shape_from_config(config, name="gpt2", source="test")
    grown = sum(t.size_bytes for t in terms_of(with_dropout)) - sum(t.size_bytes for t in terms_of(without))
    assert grown == 2 * 1024 * (12 * 2 * 768 + 768)


def test_classes_that_refuse_a_kernel_run_eager() -> None:
    assert attention_in_force(shape_of(CASES["bloom"], 2), Attention.SDPA) is Attention.EAGER
    assert attention_in_force(shape_of(CASES["gemma2"], 2), Attention.SDPA) is Attention.EAGER
    assert attention_in_force(shape_of(CASES["gemma2"], 2), Attention.FLASH) is Attention.FLASH
    assert attention_in_force(shape_of(CASES["llama"], 2), Attention.SDPA) is Attention.SDPA


def test_an_unknown_architecture_is_an_error_not_a_guess() -> None:
    shape = replace(shape_of(CASES["llama"], 2), model_type="llama9")
    assert not supports_activations("llama9")
    with pytest.raises(PlannerError, match="activation memory of model type `llama9` is not known") as raised:
        terms_of(shape)
    assert "qwen3_moe" in raised.value.hint


def test_an_unknown_activation_function_is_an_error() -> None:
    with pytest.raises(PlannerError, match="the activation function `swish9` of `llama`"):
        terms_of(replace(shape_of(CASES["llama"], 2), activation="swish9"))
    with pytest.raises(PlannerError, match="experts with the activation function `relu`"):
        terms_of(replace(shape_of(CASES["mixtral"], 2), activation="relu"))


def oracle() -> ModuleType:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("trace_activations", TESTS / "oracles" / "trace_activations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.transformers
@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text", "qwen3_moe"])
def test_stored_traces_are_what_the_tool_traces(name: str) -> None:
    tool = oracle()
    case = CASES[name]
    expected_config = {**case["config"], **dict.fromkeys(case["nulls"])}
    assert tool.CASES[name] == expected_config
    chosen = [row for row in rows(case) if row["micro_batch"] == 1 and row["seq_len"] == 1024 and row["layers"] == 2]
    assert len(chosen) == 2
    for row in chosen:
        settings = {key: row[key] for key in GOLDEN["columns"][:6]}
        assert tool.trace(case["config"] | dict.fromkeys(case["nulls"]), **settings) == {
            key: row[key] for key in tool.QUANTITIES
        }


# --- the table of errors


def errors_by_type() -> dict[str, dict[str, list[float]]]:
    """Signed errors of every comparison, by model type and by what is compared."""
    found: dict[str, dict[str, list[float]]] = {}
    for case in CASES.values():
        errors = found.setdefault(case["config"]["model_type"], {"layer": [], "instants": [], "step": []})
        errors["layer"] += [value / traced - 1 for traced, value in layer_pairs(case)]
        for row in rows(case):
            value = predicted(shape_of(case, row["layers"]), row)
            errors["instants"] += [value[quantity] / row[quantity] - 1 for quantity in ("forward_end", *PEAKS)]
            highest = [max(numbers[quantity] for quantity in PEAKS) for numbers in (value, row)]
            errors["step"].append(highest[0] / highest[1] - 1)
    return found


def table() -> str:
    """Median, 90th percentile and largest of the errors' sizes in percent, a line for each model type."""
    lines = [
        f"{'model type':14}" + "".join(f"{what:>28}" for what in ("kept by a layer", "instants", "peak of the step"))
    ]
    whole: dict[str, list[float]] = {"layer": [], "instants": [], "step": []}
    for model_type, errors in errors_by_type().items():
        lines.append(f"{model_type:14}" + "".join(f"{spread(values):>28}" for values in errors.values()))
        for what, values in errors.items():
            whole[what] += values
    lines.append(f"{'all':14}" + "".join(f"{spread(values):>28}" for values in whole.values()))
    return "\n".join(lines)


def spread(errors: list[float]) -> str:
    sizes = sorted(100 * abs(error) for error in errors)
    middle, ninetieth = sizes[len(sizes) // 2], sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    return f"{middle:.2f} {ninetieth:.2f} {sizes[-1]:.2f} %"


def test_the_table_of_errors_has_a_line_for_every_type() -> None:
    lines = table().splitlines()
    assert len(lines) == len({case["config"]["model_type"] for case in CASES.values()}) + 2
    assert lines[-1].startswith("all")


if __name__ == "__main__":
    print(f"{GOLDEN['source']}; transformers {GOLDEN['transformers']}, torch {GOLDEN['torch']}")
    print("size of the error: median, 90th percentile, largest\n")
    print(table())
