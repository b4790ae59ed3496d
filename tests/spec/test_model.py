"""`--model`: names, sizes, hub ids, files; and everything that is none of them."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.records.model import AutoTP, ModelShape, Norm, Position
from planner.spec.hf_config import shape_from_config
from planner.spec.model import resolve_model

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32000,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "torch_dtype": "bfloat16",
}  # fmt: skip


def shape(**change: Any) -> ModelShape:
    return shape_from_config({**LLAMA, **change}, name="m", source="config.json")


def refusal(**change: Any) -> PlannerError:
    with pytest.raises(PlannerError) as caught:
        shape(**change)
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


def resolve_refusal(text: str) -> PlannerError:
    with pytest.raises(PlannerError) as caught:
        resolve_model(text)
    assert "\n" not in caught.value.message + caught.value.hint
    assert caught.value.hint
    return caught.value


def write(folder: Path, content: Any, name: str = "config.json") -> Path:
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return file


# --- which model


def test_a_plain_size_says_which_model_it_took() -> None:
    found = resolve_model("13b")
    assert found.name == "llama-2-13b"
    assert found.hub_id == "meta-llama/Llama-2-13b-hf"
    assert "`13b` names a size; it was read as llama-2-13b" in found.notes


def test_names_and_hub_ids_of_the_catalogue_need_no_network() -> None:
    assert resolve_model("Llama 2 70B").name == "llama-2-70b"
    assert resolve_model("Qwen/Qwen2.5-7B-Instruct").hub_id == "Qwen/Qwen2.5-7B-Instruct"
    assert resolve_model("qwen/qwen2.5-7b").hub_id == "Qwen/Qwen2.5-7B"


def test_an_unknown_hub_id_without_the_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    error = resolve_refusal("someone/their-model")
    assert error.message == "`someone/their-model` is not in the catalogue, and looking it up needs huggingface_hub"
    assert "dsplan[launch]" in error.hint
    assert "config.json" in error.hint


class Answer:
    def __init__(self, status_code: int, content: bytes = b"") -> None:
        self.status_code = status_code
        self.content = content


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A hub without a network: the test appends answers or errors, and reads the requests that were made."""
    script: list[Any] = []
    package, utils = ModuleType("huggingface_hub"), ModuleType("huggingface_hub.utils")

    class Session:
        def get(self, url: str, *, headers: dict[str, str], timeout: float) -> Answer:
            assert url == "https://hub.test/someone/their-model/config.json"
            assert 0 < timeout <= 10
            answer = script.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    package.hf_hub_url = lambda repo, file: f"https://hub.test/{repo}/{file}"  # type: ignore[attr-defined]
    package.try_to_load_from_cache = lambda *_: None  # type: ignore[attr-defined]
    utils.build_hf_headers = dict  # type: ignore[attr-defined]
    utils.get_session = Session  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", package)
    monkeypatch.setitem(sys.modules, "huggingface_hub.utils", utils)
    yield script
    assert not script


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (OSError("no route\nto host"), "the hub cannot be asked: no route"),
        (Answer(404), "the hub answered 404"),
        (Answer(401), "wants a login"),
        (Answer(200, b"<html>"), "is no JSON"),
    ],
)
def test_a_hub_that_does_not_give_a_config_is_one_line(hub: list[Any], answer: Any, expected: str) -> None:
    hub.append(answer)
    assert expected in resolve_refusal("someone/their-model").message


def test_a_hub_config_is_read_like_a_file(hub: list[Any]) -> None:
    hub.append(Answer(200, json.dumps(LLAMA).encode()))
    found = resolve_model("someone/their-model")
    assert (found.name, found.hub_id) == ("their-model", "someone/their-model")
    assert found.source == "https://huggingface.co/someone/their-model/blob/main/config.json"


@pytest.mark.transformers
def test_huggingface_hub_has_what_the_look_up_calls() -> None:
    package = pytest.importorskip("huggingface_hub")
    utils = pytest.importorskip("huggingface_hub.utils")
    assert package.hf_hub_url("a/b", "config.json") == "https://huggingface.co/a/b/resolve/main/config.json"
    assert package.try_to_load_from_cache("nobody/nothing", "config.json") is None
    assert callable(utils.build_hf_headers)
    assert callable(utils.get_session().get)


# --- files


def test_a_folder_and_its_config_are_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    file = write(folder, LLAMA)
    assert resolve_model(str(folder)) == resolve_model(str(file))
    assert resolve_model(str(file)).name == "my model"


def test_no_path_of_the_machine_gets_into_the_shape(tmp_path: Path) -> None:
    found = resolve_model(str(write(tmp_path, LLAMA)))
    assert found.source == "config.json"
    assert str(tmp_path) not in repr(found)


def test_relative_and_bare_paths_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, LLAMA)
    write(tmp_path, LLAMA, "tiny.json")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("config.json").layers == 32
    assert resolve_model("./config.json").layers == 32
    assert resolve_model(".").layers == 32
    assert resolve_model("tiny.json").name == "tiny"


def test_a_file_named_like_a_model_does_not_hide_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "13b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_model("13b").name == "llama-2-13b"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"model_type": "llama", "hidden_size": 40', "is no JSON"),
        ("", "is no JSON"),
        ("[1, 2]", "holds no JSON object @ $"),
        ("null", "holds no JSON object @ $"),
        ("{}", "names no `model_type` @ $"),
        ('{"model_type": 3}', "is no model type @ $.model_type"),
        ('{"model_type": "llama"}', "names neither `num_hidden_layers` nor `hidden_size` @ $"),
        ('{"r": 16, "target_modules": ["q_proj"]}', "names no `model_type` @ $"),
        ("[" * 100_000, "is no usable JSON"),
        ('{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}", "@ $.hidden_size|is no usable JSON"),
        ('{"model_type": "llama", "hidden_size": NaN}', "@ $.hidden_size"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, content: str, expected: str) -> None:
    message = resolve_refusal(str(write(tmp_path, content))).message
    assert any(part in message for part in expected.split("|")), message


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"\x80\x02\xff\xfe" * 100)
    assert "is no text file" in resolve_refusal(str(file)).message


def test_a_file_of_a_gigabyte_is_refused_without_reading_it(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    with file.open("wb") as stream:
        stream.truncate(2**30)
    assert "is larger than 4 MiB" in resolve_refusal(str(file)).message


def test_missing_and_unreadable_paths_are_refused(tmp_path: Path) -> None:
    assert "No such file" in resolve_refusal(str(tmp_path / "absent" / "config.json")).message
    assert "holds no config.json" in resolve_refusal(str(tmp_path)).message
    secret = write(tmp_path, LLAMA)
    secret.chmod(0)
    if os.access(secret, os.R_OK):
        pytest.skip("this user may read everything")
    assert "Permission denied" in resolve_refusal(str(secret)).message


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    assert "is no regular file" in resolve_refusal(str(pipe)).message


@pytest.mark.parametrize(
    "text",
    ["", "   ", "\0", "a\0b", "x" * 999, "~nobody/x", "../" * 99, "a\nb", "$(reboot)", "'; ls", "13bb", "-13b", "0b"],
)  # fmt: skip
def test_words_that_name_nothing_are_refused_in_one_line(text: str) -> None:
    resolve_refusal(text)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30).filter(lambda text: "/" not in text))
def test_no_text_ends_in_a_traceback(text: str) -> None:
    """Anything but a PlannerError would fail here; the name of a model is fine."""
    with contextlib.suppress(PlannerError):
        assert resolve_model(text).layers > 0


# --- values of a config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 0), ("hidden_size", -4096), ("hidden_size", "4096"), ("hidden_size", 4096.0),
        ("hidden_size", True), ("hidden_size", [4096]), ("hidden_size", 10**12), ("num_hidden_layers", 10**6),
        ("num_attention_heads", 0), ("num_key_value_heads", 0), ("num_key_value_heads", 64), ("vocab_size", -1),
        ("intermediate_size", {}), ("max_position_embeddings", 0), ("head_dim", -1), ("head_dim", "128"),
        ("tie_word_embeddings", "yes"), ("attention_bias", 1), ("mlp_bias", "false"), ("hidden_act", 5),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused_with_its_path(key: str, value: Any) -> None:
    error = refusal(**{key: value})
    assert error.message.endswith(f"@ $.{key}")
    assert f"`{key}`" in error.message


def test_heads_must_divide() -> None:
    assert refusal(num_attention_heads=24, num_key_value_heads=8, hidden_size=4100).message.endswith(
        "@ $.num_attention_heads"
    )
    assert refusal(num_key_value_heads=5).message.endswith("@ $.num_key_value_heads")


def test_a_decoupled_head_size_need_not_divide() -> None:
    assert shape(head_dim=96).head_dim == 96


def test_an_unknown_type_names_the_nearest() -> None:
    error = refusal(model_type="lama")
    assert error.message.endswith("@ $.model_type")
    assert "`lama`" in error.message
    assert "`llama`" in error.hint


@pytest.mark.parametrize("model_type", ["t5", "bert", "", "LLAMA"])
def test_types_that_are_not_planned_are_refused(model_type: str) -> None:
    assert refusal(model_type=model_type).message.endswith("@ $.model_type")


def test_nested_language_models_are_read_and_their_errors_have_the_nested_path() -> None:
    text = {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "sliding_window": 1024, "vocab_size": 262208,
    }  # fmt: skip
    config = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}
    found = shape_from_config(config, name="g", source="s")
    assert (found.model_type, found.heads, found.kv_heads, found.head_dim) == ("gemma3_text", 8, 4, 256)
    assert found.tied_embeddings
    assert any("vision tower" in note for note in found.notes)
    with pytest.raises(PlannerError, match=r"@ \$\.text_config\.hidden_size$"):
        shape_from_config({**config, "text_config": {**text, "hidden_size": -1}}, name="g", source="s")
    with pytest.raises(PlannerError, match="holds no object `text_config`"):
        shape_from_config({"model_type": "gemma3", "hidden_size": 4}, name="g", source="s")


def test_what_training_does_not_follow_is_said() -> None:
    assert any("quantised" in note for note in shape(quantization_config={"bits": 4}).notes)
    assert any(
        "LlamaForSequenceClassification" in note
        for note in shape(architectures=["LlamaForSequenceClassification"]).notes
    )
    assert shape().notes == ()


def test_experts_and_dense_layers_of_a_mixture() -> None:
    config = {
        "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 8,
        "num_experts_per_tok": 2, "vocab_size": 128, "decoder_sparse_step": 2, "mlp_only_layers": [1],
    }  # fmt: skip
    found = shape_from_config(config, name="m", source="s")
    assert (found.experts, found.experts_per_token, found.dense_layers, found.ffn_hidden) == (8, 2, 4, 96)
    for change, path in (
        ({"num_experts_per_tok": 9}, "$.num_experts_per_tok"),
        ({"decoder_sparse_step": 7, "mlp_only_layers": []}, "$.decoder_sparse_step"),
        ({"mlp_only_layers": "all"}, "$.mlp_only_layers"),
        ({"num_experts": 0}, "$.num_experts"),
    ):
        with pytest.raises(PlannerError) as caught:
            shape_from_config({**config, **change}, name="m", source="s")
        assert caught.value.message.endswith(f"@ {path}")


def test_traits_of_well_known_architectures() -> None:
    """From the modeling files of transformers 5.24."""
    llama, gemma, falcon = resolve_model("llama-3.1-8b"), resolve_model("gemma-2-9b"), resolve_model("falcon-40b")
    assert (llama.norm, llama.norms_per_layer, llama.parallel_block) == (Norm.RMS, 2, False)
    assert (llama.gated_mlp, llama.position, llama.autotp) == (True, Position.ROTARY, AutoTP.TRAINED)
    assert (gemma.norm, gemma.norms_per_layer, gemma.trait("final_logit_softcapping")) == (
        Norm.RMS_UNIT_OFFSET,
        4,
        30.0,
    )
    assert not gemma.trait("vocab_parallel_head", default=False)
    assert (falcon.norm, falcon.norms_per_layer, falcon.parallel_block) == (Norm.LAYER, 2, True)
    assert falcon.trait("new_decoder_architecture") is True
    assert resolve_model("falcon-7b").norms_per_layer == 1
    assert resolve_model("qwen3-8b").qk_norm
    assert resolve_model("qwen2.5-7b").qkv_bias
    assert resolve_model("phi-3-mini").trait("fused_qkv")
    assert resolve_model("bloom-7b1").position is Position.ALIBI
    assert resolve_model("gpt2").position is Position.LEARNED
    assert resolve_model("opt-350m").final_norm is False
    assert resolve_model("llama-3.2-1b").trait("vocab_parallel_head")
    assert resolve_model("mistral-7b").trait("sliding_window") == 4096
    assert resolve_model("mistral-7b-v0.3").trait("sliding_window") is None


def test_a_window_that_is_switched_off_is_no_window() -> None:
    """Qwen configs name a `sliding_window` that `use_sliding_window`, false by default, does not use."""
    fields = {"model_type": "qwen2", "sliding_window": 32768}
    assert shape(**fields).trait("sliding_window") is None
    assert shape(**fields, use_sliding_window=True).trait("sliding_window") == 32768


def test_the_fields_handed_on_are_plain_json() -> None:
    found = shape()
    assert json.loads(json.dumps(found.hf_config)) == found.hf_config
    assert found.hf_config["hidden_size"] == 4096
    assert "model_type" not in found.hf_config
    assert hash(found) == hash(shape())


JSON_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=2)
)
KEYS = st.sampled_from([*LLAMA, "head_dim", "attention_bias", "text_config", "quantization_config"])


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(KEYS, JSON_VALUES, max_size=4))
def test_any_change_of_a_config_gives_a_shape_or_a_path(change: dict[str, Any]) -> None:
    message = ""
    try:
        found = shape(**change)
    except PlannerError as error:
        message = error.message
    if message:
        assert "@ $" in message
    else:
        assert found.heads % found.kv_heads == 0
