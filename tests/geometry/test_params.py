"""Counts and sizes of parameter tensors, against the transformers models on the meta device and AutoTP's own shards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog.models import autotp_row, family_names, model_rows
from planner.geometry.params import (
    active_parameter_count,
    largest_tensor_numel,
    layer_numel,
    parameter_count,
    parameter_tensors,
    rank_heads,
    rank_numel,
    rank_parameter_count,
)
from planner.geometry.sharding import State, padded_share, shards
from planner.records.candidate import Degrees, ZeroStage
from planner.records.model import ModelShape, ParameterTensor, Split
from planner.spec.hf_config import shape_from_config
from planner.spec.model import resolve_model, row_shape

SMALL = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 64,
}  # fmt: skip
GPT2_STYLE = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 128, "n_positions": 64}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
TINY: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3"), SMALL),
    **dict.fromkeys(("starcoder2", "stablelm", "olmo", "olmo2", "granite", "cohere", "smollm3"), SMALL),
    **{name: {**SMALL, "head_dim": 16} for name in ("glm", "glm4", "seed_oss", "internlm3", "ernie4_5")},
    "gpt2": GPT2_STYLE,
    "gptj": {**GPT2_STYLE, "rotary_dim": 8},
    "gpt_bigcode": GPT2_STYLE,
    "gpt_neo": {
        "num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 128, "max_position_embeddings": 64,
        "attention_types": [[["global", "local"], 1]],
    },
    "gpt_neox": {key: value for key, value in SMALL.items() if key != "num_key_value_heads"},
    "opt": {
        "num_hidden_layers": 2, "hidden_size": 64, "word_embed_proj_dim": 64, "num_attention_heads": 4, "ffn_dim": 96,
        "vocab_size": 128, "max_position_embeddings": 64,
    },
    "falcon": {
        "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_kv_heads": 2, "vocab_size": 128,
        "new_decoder_architecture": True,
    },
    "bloom": {"n_layer": 2, "hidden_size": 64, "n_head": 4, "vocab_size": 128},
    "mpt": {"n_layers": 2, "d_model": 64, "n_heads": 4, "vocab_size": 128, "max_seq_len": 64},
    "mixtral": {**SMALL, "num_local_experts": 4},
    "olmoe": {**SMALL, **EXPERTS},
    "qwen2_moe": {**SMALL, **EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48},
    "qwen3_moe": {**SMALL, **EXPERTS, "moe_intermediate_size": 32},
}  # fmt: skip
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"num_key_value_heads": None, "head_dim": 24}),
    ("qwen3", {"attention_bias": True, "head_dim": 32}),
    ("phi", {"qk_layernorm": True}),
    ("cohere", {"use_qk_norm": True}),
    ("stablelm", {"qk_layernorm": True, "use_parallel_residual": True, "use_qkv_bias": True}),
    ("starcoder2", {"use_bias": False}),
    ("granite", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    ("smollm3", {"attention_bias": True, "mlp_bias": True}),
    ("gpt_neox", {"attention_bias": False, "use_parallel_residual": False}),
    ("gpt2", {"n_inner": 80}),
    ("gpt_bigcode", {"multi_query": False}),
    ("opt", {"word_embed_proj_dim": 32, "do_layer_norm_before": False}),
    ("opt", {"enable_bias": False}),
    ("falcon", {"new_decoder_architecture": False, "num_kv_heads": None, "multi_query": True}),
    ("falcon", {"new_decoder_architecture": False, "num_kv_heads": None, "multi_query": False, "parallel_attn": False}),
    ("falcon", {"bias": True, "alibi": True}),
    ("falcon", {"num_ln_in_parallel_attn": 1}),
    ("seed_oss", {"attention_out_bias": True, "mlp_bias": True}),
    ("ernie4_5", {"use_bias": True}),
    ("qwen2_moe", {"decoder_sparse_step": 2}),
    ("qwen2_moe", {"mlp_only_layers": [0], "qkv_bias": False}),
    ("qwen3_moe", {"mlp_only_layers": [1], "attention_bias": True}),
]


def meta_tensors(model_type: str, fields: dict[str, Any]) -> Counter[int]:
    """Sizes of all parameters of the transformers model, each distinct tensor once."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(model_type, **fields, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return Counter(parameter.numel() for parameter in model.parameters())


def our_tensors(shape: ModelShape) -> Counter[int]:
    sizes: Counter[int] = Counter()
    for tensor in parameter_tensors(shape):
        sizes[tensor.numel] += tensor.count
    return sizes


def tiny(model_type: str, **fields: Any) -> ModelShape:
    return shape_from_config({"model_type": model_type, **TINY[model_type], **fields}, name="tiny", source="test")


@pytest.mark.transformers
@pytest.mark.slow
def test_every_catalogue_model_has_exactly_the_tensors_of_transformers() -> None:
    compared: dict[tuple[str, str], Counter[int]] = {}
    rows = model_rows()
    for row in rows:
        shape = row_shape(row)
        key = (shape.model_type, repr(sorted(shape.hf_config.items())))
        if key not in compared:
            compared[key] = meta_tensors(shape.model_type, dict(shape.hf_config))
        assert our_tensors(shape) == compared[key], row.name
        assert row.parameters == sum(size * count for size, count in compared[key].items()), row.name
    assert len(rows) >= 60
    assert len(compared) >= 60


@pytest.mark.transformers
def test_every_model_type_has_exactly_the_tensors_of_transformers() -> None:
    assert set(TINY) == set(family_names())
    cases = [(model_type, {}) for model_type in TINY] + VARIANTS
    for model_type, change in cases:
        for tied in (False, True):
            fields = {**TINY[model_type], **change, "tie_word_embeddings": tied}
            shape = shape_from_config({"model_type": model_type, **fields}, name="tiny", source="test")
            wanted = meta_tensors(model_type, fields)
            assert our_tensors(shape) == wanted, (model_type, change, tied)
            assert meta_tensors(model_type, dict(shape.hf_config)) == wanted, (model_type, change, tied)
            assert json.loads(json.dumps(shape.hf_config)) == shape.hf_config
    assert len(cases) >= 50


@pytest.mark.transformers
def test_a_config_with_nothing_but_layers_gets_the_defaults_of_transformers() -> None:
    compared = 0
    for model_type in family_names():
        key = next(iter(set(TINY[model_type]) & {"num_hidden_layers", "n_layer", "num_layers", "n_layers"}))
        fields = {key: TINY[model_type][key]}
        if model_type == "gpt_neo":
            fields["attention_types"] = TINY[model_type]["attention_types"]
        shape = shape_from_config({"model_type": model_type, **fields}, name="default", source="test")
        assert our_tensors(shape) == meta_tensors(model_type, fields), model_type
        compared += 1
    assert compared >= 30


def test_published_parameter_counts() -> None:
    """Counts as the hub shows them for the stored weights (safetensors metadata of the model pages)."""
    published = {
        "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192,
        "llama-3-8b": 8_030_261_248, "llama-3.1-405b": 405_853_388_800, "qwen2.5-7b": 7_615_616_512,
        "mistral-7b": 7_241_732_096, "mixtral-8x7b": 46_702_792_704, "gemma-7b": 8_537_680_896,
        "qwen3-30b-a3b": 30_532_122_624, "phi-2": 2_779_683_840, "bloom-176b": 176_247_271_424,
        "gpt-j-6b": 6_050_882_784, "tinyllama-1.1b": 1_100_048_384,
    }  # fmt: skip
    for name, count in published.items():
        assert parameter_count(resolve_model(name)) == count, name


def test_active_parameters_of_published_mixtures() -> None:
    """Billions per token as the model cards and arXiv:2401.04088 state them."""
    published = {"mixtral-8x7b": 12.9, "mixtral-8x22b": 39.1, "qwen3-30b-a3b": 3.3, "qwen3-235b-a22b": 22.2}
    for name, billions in published.items():
        assert active_parameter_count(resolve_model(name)) / 1e9 == pytest.approx(billions, abs=0.06), name


def test_every_parameter_of_a_dense_model_is_active() -> None:
    shape = resolve_model("llama-2-7b")
    assert active_parameter_count(shape) == parameter_count(shape)


def test_a_llama_layer_and_its_largest_tensor() -> None:
    """4 h^2 + 3 h I + 2 h by hand for Llama-2-7B; the largest tensor is the vocabulary's."""
    shape = resolve_model("llama-2-7b")
    assert layer_numel(shape, 1) == 4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096
    assert largest_tensor_numel(shape, 1) == 32000 * 4096
    assert layer_numel(shape, 4) == 4096**2 + 3 * 4096 * 11008 // 4 + 2 * 4096


def test_layer_of_a_mixture_is_its_larger_kind() -> None:
    shape = tiny("qwen2_moe", mlp_only_layers=[0])
    experts = 4 * 3 * 64 * 32 + 4 * 64 + 3 * 64 * 48 + 64
    attention = 64 * 64 * 2 + 2 * 64 * 32 + 64 + 2 * 32
    assert layer_numel(shape, 1) == experts + attention + 2 * 64


SHAPES = [row_shape(row) for row in model_rows()]


@given(st.sampled_from(SHAPES), st.sampled_from([1, 2, 4, 8]))
def test_all_tensor_parallel_ranks_together_hold_the_whole_model(shape: ModelShape, tp: int) -> None:
    """What is divided adds up, but for the last piece of each rank; what is replicated is there tp times."""
    for tensor in parameter_tensors(shape):
        held = rank_numel(tensor, tp) * tp
        if tensor.split is Split.REPLICATED:
            assert held == tensor.numel * tp
        else:
            pieces = tensor.pieces or (tensor.rows if tensor.split is Split.COLUMN else tensor.columns)
            assert tensor.numel <= held <= tensor.numel + (tp - 1) * tensor.numel // pieces


@given(st.sampled_from(SHAPES), st.integers(1, 64), st.integers(1, 64))
def test_more_tensor_parallel_ranks_never_hold_more_each(shape: ModelShape, few: int, more: int) -> None:
    few, more = sorted((few, more))
    assert rank_parameter_count(shape, more) <= rank_parameter_count(shape, few) <= parameter_count(shape)


def test_types_that_autotp_refuses_shard_nothing() -> None:
    refused = [shape for shape in SHAPES if autotp_row(shape.model_type).outcome == "refused"]
    assert len(refused) >= 20
    assert all(rank_parameter_count(shape, 8) == parameter_count(shape) for shape in refused)


# --- sharing by ZeRO


@given(st.sampled_from(list(ZeroStage)), st.sampled_from(list(State)), st.integers(1, 64), st.integers(1, 8))
def test_a_state_is_shared_from_its_stage_on_and_only_by_data_parallel_ranks(
    stage: ZeroStage, state: State, dp: int, tp: int
) -> None:
    """Table 1 of arXiv:1910.02054: P_os from stage 1, P_os+g from 2, P_os+g+p from 3."""
    first = {State.OPTIMIZER: 1, State.GRADIENTS: 2, State.PARAMETERS: 3}[state]
    assert shards(stage, state, Degrees(tp=tp, dp=dp)) == (dp if int(stage) >= first else 1)


@given(st.integers(1, 10**12), st.integers(1, 1024))
def test_shares_of_all_ranks_hold_the_whole_plus_at_most_the_padding(numel: int, dp: int) -> None:
    assert numel <= padded_share(numel, dp) * dp < numel + 2 * dp


@given(st.integers(1, 10**12), st.integers(1, 512), st.integers(1, 512))
def test_more_ranks_never_hold_more_each(numel: int, few: int, more: int) -> None:
    few, more = sorted((few, more))
    assert padded_share(numel, more) <= padded_share(numel, few)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(1, 16))
@settings(deadline=None, max_examples=30)
@pytest.mark.deepspeed
def test_padding_is_that_of_deepspeed(sizes: list[int], dp: int) -> None:
    """`align_dense_tensors`, which flattens the groups of stages 1 and 2, pads to 2 * dp elements."""
    torch = pytest.importorskip("torch")
    utils = pytest.importorskip("deepspeed.runtime.utils")
    padded = utils.align_dense_tensors([torch.zeros(size) for size in sizes], 2 * dp)
    assert sum(tensor.numel() for tensor in padded) == padded_share(sum(sizes), dp) * dp


# --- the real engine


def engine_results(ranks: int, cases: dict[str, dict[str, Any]], folder: Path) -> dict[str, Any]:
    """What autotp_run.py reports for these cases on that many ranks."""
    given_file, result_file = folder / f"cases-{ranks}.json", folder / f"result-{ranks}.json"
    given_file.write_text(json.dumps(cases), encoding="utf-8")
    script = Path(__file__).with_name("autotp_run.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    environment = {
        **os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    run = subprocess.run(
        [*launch, str(script), str(given_file), str(result_file)],
        env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    results: dict[str, Any] = json.loads(result_file.read_text(encoding="utf-8"))
    return results


@pytest.mark.deepspeed
@pytest.mark.slow
def test_autotp_outcomes_and_shards_are_those_of_the_real_engine(tmp_path: Path) -> None:
    """Two ranks on CPU: every type trains as the table says, and its largest rank holds what we count."""
    pytest.importorskip("deepspeed")
    cases = {}
    for model_type in family_names():
        for tied in (False, True):
            shape = tiny(model_type, tie_word_embeddings=tied)
            dropouts = {key: 0.0 for key in shape.hf_config if "drop" in key}
            fields = {**shape.hf_config, **dropouts, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
            cases[f"{model_type} {'tied' if tied else 'untied'}"] = {"model_type": model_type, "fields": fields}
    sharded, whole = engine_results(2, cases, tmp_path), engine_results(1, cases, tmp_path)
    trained = 0
    for name, result in sharded.items():
        model_type, tie = name.split()
        shape = tiny(model_type, tie_word_embeddings=tie == "tied")
        outcome = autotp_row(model_type).outcome
        if outcome == "refused":
            useless = "error" in result or result["numel"] > 0.6 * whole[name]["numel"]
            assert useless, f"{name} is no longer refused"
            continue
        assert outcome == "trained", name
        assert "error" not in result, (name, result)
        assert result["losses"] == pytest.approx(whole[name]["losses"], abs=2e-5), name
        assert result["numel"] == rank_parameter_count(shape, 2), name
        trained += 1
    assert trained >= 40
    assert len(sharded) == 2 * len(family_names())


UNEVEN = {
    "llama": {"num_key_value_heads": 3},
    "qwen2": {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen3": {"num_key_value_heads": 3, "head_dim": 16},
    "mistral": {"num_key_value_heads": 2, "sliding_window": None},
    "starcoder2": {"num_key_value_heads": 3},
    "gpt_neox": {},
}
"""Six heads (four for qwen2), 130 wide MLPs and 513 words: nothing of it is a multiple of four."""


@pytest.mark.deepspeed
@pytest.mark.slow
def test_the_fullest_of_uneven_ranks_holds_what_the_engine_gives_it(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    common = {
        "hidden_size": 96, "intermediate_size": 130, "num_hidden_layers": 2, "num_attention_heads": 6,
        "vocab_size": 513, "max_position_embeddings": 64,
    }  # fmt: skip
    cases = {name: {"model_type": name, "fields": {**common, **fields}} for name, fields in UNEVEN.items()}
    whole, found = engine_results(1, cases, tmp_path), engine_results(4, cases, tmp_path)
    for name, case in cases.items():
        shape = shape_from_config({"model_type": name, **case["fields"]}, name=name, source="test")
        assert found[name]["numel"] == rank_parameter_count(shape, 4), name
        assert found[name]["losses"] == pytest.approx(whole[name]["losses"], abs=2e-5), name
    assert len(found) == 6


def test_whole_key_value_heads_go_to_a_rank() -> None:
    """Three key-value heads on two ranks: two of them with their four queries on the fullest."""
    shape = replace(tiny("llama"), heads=6, kv_heads=3)
    assert rank_heads(shape, 2) == (4, 2)
    assert rank_heads(shape, 4) == (2, 1)


def test_the_split_of_a_tensor_decides_its_share() -> None:
    def tensor(split: Split) -> ParameterTensor:
        return ParameterTensor(name="t", rows=10, columns=7, count=1, split=split)

    assert [rank_numel(tensor(split), 4) for split in Split] == [3 * 7, 10 * 2, 70]
