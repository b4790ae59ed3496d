"""Kernels and element-wise traffic of a layer against the operators of real transformers layers.

The traces count what torch launches; nothing in them comes from dsplan: tests/oracles/trace_kernels.py.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))
from strategies import MODELS

from planner.geometry.flops import model_work
from planner.records.model import Adapter, Method, ModelShape
from planner.records.request import Attention, Stack
from planner.spec.hf_config import shape_from_config
from planner.spec.model import resolve_model
from planner.speed.elementwise import elementwise_values, kernels, layer_kernels, outside_values
from planner.toml import tomllib

TESTS = Path(__file__).parents[1]
GOLDEN = tomllib.loads((TESTS / "golden" / "kernels.toml").read_text("utf-8"))
CASES: dict[str, dict[str, Any]] = {case["name"]: case for case in GOLDEN["case"]}
LAYER_KEYS = {
    "gpt2": "n_layer",
    "gptj": "n_layer",
    "bloom": "n_layer",
    "gpt_bigcode": "n_layer",
    "gpt_neo": "num_layers",
    "mpt": "n_layers",
}
WIDER = ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim")
MORE_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
TOLERANCE = 0.10
ROWS = 194


def shape_of(case: dict[str, Any], *, wide: bool) -> ModelShape:
    config = {**case["config"], **dict.fromkeys(case["nulls"])}
    if wide:
        config.update({key: 2 * config[key] for key in (*WIDER, *MORE_HEADS) if key in config})
    config.setdefault("tie_word_embeddings", False)
    config[LAYER_KEYS.get(config["model_type"], "num_hidden_layers")] = 3
    return shape_from_config(config, name=case["name"], source="test")


def adapter_of(targets: str | list[str], method: Method = Method.LORA) -> Adapter | None:
    if not targets:
        return None
    names = (targets,) if isinstance(targets, str) else tuple(targets)
    return Adapter(method=method, rank=GOLDEN["rank"], targets=names)


def rows(case: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(GOLDEN["columns"], values, strict=True)) for values in case["traces"]]


def test_the_traces_cover_the_architectures_that_have_formulas() -> None:
    types = {case["config"]["model_type"] for case in CASES.values()}
    assert len(CASES) == 51
    assert len(types) == 34
    assert sum(len(case["traces"]) for case in CASES.values()) == ROWS
    assert sum(1 for case in CASES.values() for row in rows(case) if row["targets"]) >= 40


@pytest.mark.parametrize("name", CASES)
def test_a_layer_launches_and_moves_what_the_trace_counted(name: str) -> None:
    compared = 0
    for row in rows(CASES[name]):
        shape = shape_of(CASES[name], wide=row["wide"])
        masked = "window" in name and row["attention"] == "sdpa"
        layer = layer_kernels(shape, adapter_of(row["targets"]), attention=Attention(row["attention"]), masked=masked)[
            -1
        ]
        for side, work in (("forward", layer.forward), ("backward", layer.backward)):
            assert work.products == row[f"{side}_products"], (side, row)
            assert work.attention == row[f"{side}_attention"], (side, row)
            assert work.elementwise == pytest.approx(row[f"{side}_elementwise"], rel=TOLERANCE), (side, row)
            assert work.values(1) == pytest.approx(row[f"{side}_values"], rel=TOLERANCE), (side, row)
            traced_scores = row[f"{side}_score_values"] / shape.heads
            assert work.score_values == pytest.approx(traced_scores, rel=TOLERANCE, abs=0.2), (side, row)
            compared += 1
    assert compared == 2 * len(CASES[name]["traces"]) >= 4


def test_traces_and_formulas_differ_by_less_than_two_percent_on_average() -> None:
    errors = []
    for case in CASES.values():
        for row in rows(case):
            masked = "window" in case["name"] and row["attention"] == "sdpa"
            layer = layer_kernels(
                shape_of(case, wide=row["wide"]),
                adapter_of(row["targets"]),
                attention=Attention(row["attention"]),
                masked=masked,
            )[-1]
            for side, work in (("forward", layer.forward), ("backward", layer.backward)):
                errors.append(abs(work.values(1) / row[f"{side}_values"] - 1))
                errors.append(abs(work.elementwise / row[f"{side}_elementwise"] - 1))
    assert len(errors) == 4 * ROWS
    assert sum(errors) / len(errors) < 0.02


def test_outside_the_layers_the_loss_moves_what_the_trace_counted() -> None:
    compared = 0
    for case in CASES.values():
        for values in case.get("rest", ()):
            row = dict(zip(GOLDEN["rest_columns"], values, strict=True))
            forward, backward = outside_values(shape_of(case, wide=row["wide"]))
            assert forward == pytest.approx(row["forward_values"], rel=0.06), case["name"]
            assert backward == pytest.approx(row["backward_values"], rel=0.06), case["name"]
            compared += 1
    assert compared == 16


def test_llama_by_hand() -> None:
    """Llama 3.1 8B: h 4096, q 4096, keys 1024, f 14336; kernels as models/llama/modeling_llama.py writes them."""
    model = resolve_model("llama-3.1-8b")
    assert elementwise_values(model) == (
        42 * 4096 + 10 * (4096 + 1024) + 5 * 14336,
        107 * 4096 + 17 * (4096 + 1024) + 9 * 14336,
    )
    norm = 8  # cast, square, mean, add, root, product, cast back, weight
    rotation = 5  # two products, a negation, a concatenation, a sum
    assert kernels(model)[0] == 7 + 1 + 2 * norm + 2 * rotation + 2 + 2  # products, attention, residual sums, SwiGLU


def test_adapters_and_packed_weights_add_kernels_for_every_linear_module() -> None:
    """peft: two products, a scaling and a sum for each module; bitsandbytes: scales, their offset and the weight."""
    model = resolve_model("llama-3.1-8b")
    plain = kernels(model)[0]
    lora = kernels(model, adapter_of("all-linear"))[0]
    packed = kernels(model, adapter_of("all-linear", Method.QLORA))[0]
    assert lora - plain == 7 * 4
    assert packed - lora == 7 * 3


def test_a_type_without_a_row_counts_by_its_traits() -> None:
    """Llama's own traits under another name: the same layer."""
    llama = shape_of(CASES["llama"], wide=False)
    assert layer_kernels(replace(llama, model_type="unheard-of")) == layer_kernels(llama)


@given(
    name=st.sampled_from(MODELS),
    stacks=st.sampled_from([(Stack.COMPILED, Stack.FUSED), (Stack.FUSED, Stack.EAGER)]),
    tp=st.integers(1, 16),
)
def test_less_fusion_moves_and_launches_more_and_tensor_parallelism_divides_a_part(
    name: str, stacks: tuple[Stack, Stack], tp: int
) -> None:
    model = resolve_model(name)
    fewer, more = (layer_kernels(model, stack=stack) for stack in stacks)
    assert len(fewer) == len(more) == len(model_work(model).kinds)
    for one, other in zip(fewer, more, strict=True):
        for little, much in ((one.forward, other.forward), (one.backward, other.backward)):
            assert little.values(tp) <= much.values(tp)
            assert little.kernels <= much.kernels
            assert little.products == much.products
            assert much.whole_values < much.values(tp + 1) < much.values(tp)


@pytest.mark.transformers
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["llama", "gpt2 dropout", "mixtral"])
def test_stored_traces_are_what_the_tool_traces(name: str) -> None:
    for package in ("torch", "transformers", "peft"):
        pytest.importorskip(package)
    spec = importlib.util.spec_from_file_location("trace_kernels", TESTS / "oracles" / "trace_kernels.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    case = CASES[name]
    assert tool.CASES[name] == {**case["config"], **dict.fromkeys(case["nulls"])}
    chosen = [settings for settings in tool.runs(name) if not settings["wide"]]
    stored = [values for values in case["traces"] if not values[0]]
    assert len(chosen) == len(stored) >= 2
    for settings, values in zip(chosen, stored, strict=True):
        assert tool.traced_row(name, settings) == values
