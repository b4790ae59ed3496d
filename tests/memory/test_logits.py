"""Head and loss against traced values, arithmetic published with Liger Kernel, and the Trainer's own source."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from planner.memory.logits import (
    divided_logits_backward_bytes_per_token,
    divided_logits_forward_bytes_per_token,
    fused_chunk_tokens,
    logits_backward_bytes_per_token,
    logits_forward_bytes_per_token,
    logits_terms,
)
from planner.records.estimate import Moment, Term
from planner.records.model import ModelShape, Precision
from planner.records.request import Loss
from planner.spec.hf_config import shape_from_config

TESTS = Path(__file__).parents[1]


def shape(model_type: str = "llama", **fields: int) -> ModelShape:
    config = {"model_type": model_type, "num_hidden_layers": 2, **fields}
    return shape_from_config(config, name=model_type, source="test")


def terms(model: ModelShape, *, tp: int = 1, loss: Loss = Loss.STANDARD, micro_batch: int = 4) -> dict[str, Term]:
    found = logits_terms(model, micro_batch=micro_batch, seq_len=2048, tp=tp, precision=Precision.BF16, loss=loss)
    return {term.name: term for term in found}


def test_logits_take_ten_bytes_a_word_in_forward_and_twelve_in_backward() -> None:
    """Traced with vocabularies of 1,000, 32,000 and 152,064: slopes of 10V and 12V in bf16 are exact."""
    assert logits_forward_bytes_per_token(32_000, 2, capped=False) == 10 * 32_000
    assert logits_backward_bytes_per_token(32_000, 2, capped=False) == 12 * 32_000


def test_in_fp32_the_logits_are_not_copied() -> None:
    assert logits_forward_bytes_per_token(32_000, 4, capped=False) == 8 * 32_000
    assert logits_backward_bytes_per_token(32_000, 4, capped=False) == 12 * 32_000


def test_a_soft_cap_keeps_one_more_copy() -> None:
    capped, plain = terms(shape("gemma2")), terms(shape("gemma"))
    vocab, tokens = 256_000, 4 * 2048
    assert capped["logits/backward"].size_bytes - plain["logits/backward"].size_bytes == 2 * vocab * tokens


def test_logits_of_a_large_vocabulary_take_fifteen_gigabytes() -> None:
    """152,064 words at 8,192 tokens."""
    model = shape("qwen2", vocab_size=152_064)
    assert terms(model)["logits/backward"].size_bytes == pytest.approx(15e9, rel=0.01)


@pytest.mark.parametrize("loss", Loss)
def test_tensor_parallelism_does_not_divide_the_logits_of_an_untied_head(loss: Loss) -> None:
    assert terms(shape(), loss=loss) == terms(shape(), loss=loss, tp=4)


def test_logits_are_gone_before_the_layers_are_differentiated() -> None:
    for loss in Loss:
        for term in terms(shape(), loss=loss).values():
            assert set(term.moments) <= {Moment.FORWARD_END, Moment.BACKWARD_HEAD, Moment.BACKWARD_HEAD_WEIGHT}
            assert term.source
            assert term.formula


def test_fused_chunks_follow_the_example_in_ligers_source() -> None:
    """`BT = 4096*4, V = 32000, H = 4096 ==> inc_factor = 8, chunk_size = 2048`."""
    assert fused_chunk_tokens(4096 * 4, 32_000, 4096) == 2048


def test_a_fused_chunk_never_exceeds_the_batch() -> None:
    assert fused_chunk_tokens(100, 1000, 4096) == 100


def test_the_fused_loss_holds_a_chunk_and_two_gradients() -> None:
    found = terms(shape(vocab_size=128_256, hidden_size=4096, num_attention_heads=32), loss=Loss.FUSED)
    chunk = fused_chunk_tokens(8192, 128_256, 4096)
    assert chunk == 256
    assert found["logits/fused_chunk"].size_bytes == 256 * 128_256 * 2
    assert found["logits/fused_gradients"].size_bytes == 2 * 4096 * (8192 + 128_256)


def test_the_fused_loss_saves_most_of_the_logits_of_a_large_vocabulary() -> None:
    model = shape(vocab_size=128_256, hidden_size=4096, num_attention_heads=32)
    fused = sum(term.size_bytes for term in terms(model, loss=Loss.FUSED).values())
    assert fused < terms(model)["logits/forward"].size_bytes / 5


@pytest.mark.transformers
def test_the_trainer_drops_the_logits_before_backward() -> None:
    """`compute_loss` keeps `outputs` in a local name and returns the loss alone; `training_step` calls it so."""
    pytest.importorskip("torch")
    import inspect

    from transformers import Trainer

    assert "return (loss, outputs) if return_outputs else loss" in inspect.getsource(Trainer.compute_loss)
    step = inspect.getsource(Trainer.training_step)
    assert "loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)" in step
    assert step.index("self.compute_loss(") < step.index("self.accelerator.backward(loss")


# --- a tied head, which AutoTP divides by its vocabulary


def test_the_logits_of_a_tied_head_stay_divided() -> None:
    whole, half, quarter = (terms(shape(tie_word_embeddings=True), tp=tp) for tp in (1, 2, 4))
    for name in ("logits/forward", "logits/backward"):
        assert half[name].size_bytes == 2 * quarter[name].size_bytes
        assert half[name].size_bytes < whole[name].size_bytes
    assert half["logits/backward"].size_bytes == 10 * 16_000 * 4 * 2048


def test_a_tied_head_that_autotp_replicates_keeps_its_logits_whole() -> None:
    assert terms(shape("gemma"), tp=4) == terms(shape("gemma"))


@pytest.mark.deepspeed
@pytest.mark.transformers
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_divided_logits_take_what_deepspeeds_own_loss_takes(precision: str, micro_batch: int) -> None:
    """One rank's part of the vocabulary under the loss that DeepSpeed installs, traced on real tensors; two sizes of
    the part leave its own bytes alone."""
    losses = pytest.importorskip("deepspeed.sequence.cross_entropy")
    tool = oracle()
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}

    def traced(words: int) -> dict[str, int]:
        model = tool.build({**config, "vocab_size": words}, 1, "sdpa", precision)
        model.loss_function = losses.VocabParallelCausalLMLoss(vocab_start_index=0, vocab_end_index=words)
        return tool.measure(model, 1, micro_batch, 256)

    few, many = traced(2048), traced(6144)
    width, tokens = Precision(precision).bytes, micro_batch * 256
    forward = divided_logits_forward_bytes_per_token(4096, width, capped=False, single=micro_batch == 1)
    backward = divided_logits_backward_bytes_per_token(4096, width, capped=False)
    assert tokens * forward == pytest.approx(many["forward_peak"] - few["forward_peak"], rel=0.005)
    assert tokens * backward == pytest.approx(many["backward_head"] - few["backward_head"], rel=0.005)


def oracle() -> ModuleType:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    spec = importlib.util.spec_from_file_location("trace_activations", TESTS / "oracles" / "trace_activations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
