"""The model tables: rows are whole, every spelling finds its row, AutoTP's outcomes are those of the installed code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from planner import toml
from planner.catalog import models
from planner.catalog.names import normalise
from planner.errors import PlannerError, UnknownName
from planner.spec.model import row_shape

ROWS = models.model_rows()
MULTIMODAL_HUB_IDS = ("google/gemma-3-4b-pt", "google/gemma-3-12b-pt", "google/gemma-3-27b-pt")


def test_the_catalogue_holds_the_models_people_ask_for() -> None:
    assert len(ROWS) >= 60
    assert len({row.model_type for row in ROWS}) >= 25
    for name in (
        "llama-65b", "llama-3.3-70b", "codellama-34b", "qwen2.5-72b", "qwen3-235b-a22b", "mixtral-8x22b", "gemma-3-27b",
        "phi-4", "gpt2-xl", "gpt-neox-20b", "pythia-12b", "opt-66b", "falcon-40b", "bloom-176b", "starcoder2-15b",
        "stablelm-2-12b", "olmo-2-13b", "tinyllama-1.1b", "yi-34b", "smollm3-3b", "qwq-32b", "mistral-nemo-12b",
        "deepseek-r1-distill-qwen-32b", "deepseek-r1-distill-llama-70b", "qwen2-57b-a14b", "qwen1.5-moe-a2.7b",
    ):  # fmt: skip
        assert models.find_model(name).name == name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_has_a_source_and_keeps_its_invariants(row: models.ModelRow) -> None:
    shape = row_shape(row)
    assert row.source == f"https://huggingface.co/{row.hub_ids[0]}/blob/main/config.json"
    assert shape.heads % shape.kv_heads == 0
    assert "head_dim" in row.config or shape.hidden == shape.heads * shape.head_dim
    assert all("/" in hub_id for hub_id in row.hub_ids)
    assert row.parameters > 10**7


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_size_in_the_name_is_the_size_of_the_model(row: models.ModelRow) -> None:
    """`13b` in a name and 13.0 billion parameters agree: a row with a wrong geometry would not."""
    size = re.search(r"(?<![\dx.])(\d+(?:\.\d+)?)([bm])(?![\w])", row.name.replace("phi-1.5", ""))
    if size is None or row.name in ("mixtral-8x7b", "mixtral-8x22b", "olmoe-1b-7b", "qwen1.5-moe-a2.7b"):
        pytest.skip("no size in the name")
    billions = float(size[1]) / (1 if size[2] == "b" else 1000)
    rounded_names = {"falcon-7b", "gemma-7b", "granite-3.1-2b", "gemma-2b", "gemma-2-2b"}
    tolerance = 0.35 if row.name in rounded_names or billions < 3 else 0.13
    assert row.parameters / 1e9 == pytest.approx(billions, rel=tolerance)


def test_geometry_is_that_of_outside_sources() -> None:
    golden = toml.loads((Path(__file__).parents[1] / "golden" / "model_geometry.toml").read_text(encoding="utf-8"))
    compared = 0
    for table in golden.values():
        assert table["source"]
        for name, geometry in table["models"].items():
            shape = row_shape(models.find_model(name))
            ours = [shape.hidden, shape.layers, shape.heads, shape.kv_heads, shape.ffn_hidden, shape.vocab]
            if shape.experts:
                ours = [*ours[:4], shape.expert_ffn_hidden, shape.vocab, shape.experts, shape.experts_per_token]
            assert ours == geometry, name
            compared += 1
    assert compared >= 80


def test_no_spelling_means_two_models() -> None:
    owners: dict[str, str] = {}
    for row in ROWS:
        for spelling in (row.name, *row.aliases, *row.hub_ids):
            assert owners.setdefault(normalise(spelling), row.name) == row.name, spelling
    assert len(owners) > 300


def test_every_spelling_finds_its_row_in_any_case() -> None:
    tried = 0
    for row in ROWS:
        for spelling in (row.name, *row.aliases, *row.hub_ids):
            for variant in (spelling, spelling.upper(), f" {spelling} "):
                assert models.find_model(variant).name == row.name
                tried += 1
    assert tried > 1000


def test_a_hub_id_keeps_the_weights_that_were_asked_for() -> None:
    assert models.find_model("Qwen/Qwen2.5-32B-Instruct").hub_id == "Qwen/Qwen2.5-32B-Instruct"
    assert models.find_model("qwen2.5-32b-instruct").hub_id == "Qwen/Qwen2.5-32B-Instruct"
    assert models.find_model("qwen2.5-32b").hub_id == "Qwen/Qwen2.5-32B"


@pytest.mark.parametrize(
    ("size", "name"),
    [
        ("7b", "llama-2-7b"), ("13b", "llama-2-13b"), ("13B", "llama-2-13b"), ("70b", "llama-2-70b"),
        ("8b", "llama-3.1-8b"), ("32b", "qwen2.5-32b"), ("14b", "qwen2.5-14b"), ("0.5b", "qwen2.5-0.5b"),
        ("1.5b", "qwen2.5-1.5b"), ("30b-a3b", "qwen3-30b-a3b"), ("30B-A3B", "qwen3-30b-a3b"),
    ],
)  # fmt: skip
def test_a_plain_size_names_a_model_and_says_which(size: str, name: str) -> None:
    row = models.find_model(size)
    assert row.name == name
    assert row.notes == (f"`{size}` names a size; it was read as {name}",)


def test_a_name_needs_no_note() -> None:
    assert models.find_model("llama-2-13b").notes == ()


def test_a_size_that_no_model_has_names_the_nearest() -> None:
    with pytest.raises(PlannerError) as caught:
        models.find_model("11b")
    assert caught.value.message == "no model of size `11b` is in the catalogue"
    assert "`13b` (llama-2-13b)" in caught.value.hint
    assert "`12b` (pythia-12b)" in caught.value.hint


@pytest.mark.parametrize("text", ["13", "13.5"])
def test_a_number_is_no_size(text: str) -> None:
    with pytest.raises(PlannerError, match="is no model size") as caught:
        models.find_model(text)
    assert f"`{text}b`" in caught.value.hint


def test_a_misspelt_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="no model is called `lama-2-13b`") as caught:
        models.find_model("lama-2-13b")
    assert "`llama-2-13b`" in caught.value.hint
    assert models.LISTING in caught.value.hint


def test_one_look_up_parses_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    loads = models.toml.loads
    monkeypatch.setattr(models.toml, "loads", lambda text: parsed.append(text) or loads(text))
    models._parsed.cache_clear()
    models.find_model("qwen3-14b")
    assert len(parsed) == 1


@pytest.mark.transformers
def test_defaults_of_every_family_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    compared = 0
    for model_type in models.family_names():
        config = transformers.AutoConfig.for_model(model_type)
        for key, value in models.family_row(model_type)["defaults"].items():
            if hasattr(config, key):  # bloom and mpt have no such key: their code fixes it
                assert getattr(config, key) == value, (model_type, key)
                compared += 1
            else:
                assert (model_type, key) in {("bloom", "seq_length"), ("bloom", "hidden_act"), ("mpt", "hidden_act")}
    assert compared >= 250


@pytest.mark.deepspeed
@pytest.mark.transformers
def test_autotp_converts_and_refuses_what_the_table_says() -> None:
    """The tensor-parallel plan of each type through DeepSpeed's own converter."""
    transformers = pytest.importorskip("transformers")
    converter = pytest.importorskip("deepspeed.module_inject.tp_plan_converter").TPPlanConverter
    compared = refused = 0
    for model_type in models.family_names():
        row = models.autotp_row(model_type)
        plan = effective_plan(transformers, model_type)
        assert row.path == ("plan" if plan else "heuristic"), model_type
        if plan:
            try:
                converts = converter.convert(plan) is not None
            except ValueError as error:
                converts = False
                styles = re.findall(r"'([a-z_]+)'", str(error).split("]")[0])
                assert any(f"`{style}`" in row.reason for style in styles), (model_type, styles)
            assert converts == (row.outcome != "refused"), model_type
            compared += 1
            refused += not converts
    assert compared >= 26
    assert refused >= 8


def effective_plan(transformers: Any, model_type: str) -> dict[str, str]:
    """The plan on the config class and on the causal model class, as the engine merges them."""
    config_class = type(transformers.AutoConfig.for_model(model_type))
    model_class = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING[config_class]
    own = model_class._tp_plan if config_class.base_model_tp_plan else None
    return {**(config_class.base_model_tp_plan or {}), **(own or {})}


@pytest.mark.deepspeed
def test_gpt2_is_on_the_list_of_models_autotp_refuses() -> None:
    auto_tp = pytest.importorskip("deepspeed.module_inject.auto_tp")
    assert not auto_tp.AutoTP.supported("GPT2LMHeadModel(\n  (transformer): GPT2Model(")
    assert models.autotp_row("gpt2").outcome == "refused"


def test_a_type_without_a_row_counts_as_refused() -> None:
    assert models.autotp_row("brand_new").outcome == "refused"


def test_every_family_has_an_autotp_row_with_a_reason_where_refused() -> None:
    for model_type in models.family_names():
        row = models.autotp_row(model_type)
        assert row.outcome in ("trained", "converts", "refused")
        assert bool(row.reason) == (row.outcome == "refused"), model_type
        assert "0.19.8" in row.versions
        assert "5.24" in row.versions


def test_models_with_more_than_a_language_model_say_so() -> None:
    for hub_id in MULTIMODAL_HUB_IDS:
        assert any("vision tower" in note for note in models.find_model(hub_id).notes)
