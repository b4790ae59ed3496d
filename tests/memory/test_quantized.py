"""4-bit weights against what bitsandbytes really stores, and the terms of QLoRA by stage."""

from __future__ import annotations

from typing import Any

import pytest

from planner import estimate
from planner.memory.quantized import packed_elements, quantized_base, scales_bytes
from planner.memory.sizes import rank_sizes
from planner.records.estimate import Moment
from planner.spec.model import resolve_model

GIB = 2**30
CODE_TABLES = 4 * (16 + 256)  # nf4's and the scales' own, which the formula leaves out


@pytest.mark.transformers
@pytest.mark.parametrize("width", [2, 4])
def test_bytes_of_a_packed_matrix_are_those_that_bitsandbytes_keeps(width: int) -> None:
    torch = pytest.importorskip("torch")
    bitsandbytes = pytest.importorskip("bitsandbytes")
    storage = {2: torch.bfloat16, 4: torch.float32}[width]
    shapes = ((1024, 512), (128, 64), (688, 256), (4096, 1024))
    for shape in shapes:
        weight = bitsandbytes.nn.Params4bit(
            torch.randn(shape), requires_grad=False, quant_type="nf4", compress_statistics=True, quant_storage=storage
        ).to("cpu")
        numel = shape[0] * shape[1]
        assert weight.numel() == packed_elements(numel, width), shape
        state = weight.quant_state
        tensors = (state.absmax, state.code, state.state2.absmax, state.state2.code)
        kept = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        assert kept - CODE_TABLES == scales_bytes(numel), shape


def test_a_quantised_parameter_takes_half_a_byte_and_a_sixtieth() -> None:
    """Dettmers et al. 2023, arXiv:2305.14314, section 3: scales take 0.127 bits a parameter."""
    numel = 4096 * 4096
    assert scales_bytes(numel) / numel * 8 == pytest.approx(0.127, abs=0.0005)
    assert 2 * packed_elements(numel, 2) == numel // 2


def terms(**fields: Any) -> dict[str, int]:
    request = {"model": "llama-3-8b", "gpus": "4xA100-80G", "method": "qlora", **fields}
    return {term["name"]: term["bytes"] for term in plan_of(**request)["memory"]["terms"] if term["device"] == "gpu"}


def plan_of(**fields: Any) -> dict[str, Any]:
    plan: dict[str, Any] = estimate(**fields).to_dict()["plans"][0]
    return plan


def test_stages_below_three_hold_the_packed_model_whole_and_stage_three_divides_all_but_the_scales() -> None:
    model = resolve_model("llama-3-8b")
    unpacked = 2 * 128256 * 4096 + 65 * 4096
    packed = (model_parameters() - unpacked) // 2 + 2 * unpacked
    for stage in (0, 1, 2):
        found = terms(zero=stage)
        assert found["states/frozen_weights"] == packed
        assert found["states/quantization_scales"] == quantized_base(model, 2).scales_bytes
    found = terms(zero=3)
    assert found["states/frozen_weights"] == packed // 4
    assert found["states/quantization_scales"] == quantized_base(model, 2).scales_bytes
    assert found["load/whole_model"] == packed


def model_parameters() -> int:
    return rank_sizes(resolve_model("llama-3-8b"), 1).total


def test_the_largest_packed_matrix_is_unpacked_in_backward() -> None:
    memory = estimate(model="llama-3-8b", gpus="4xA100-80G", method="qlora", zero=2).plan.ranked[0].memory
    unpacked = next(term for term in memory.terms if term.name == "quantized/unpacked_matrix")
    assert (unpacked.size_bytes, unpacked.moments) == (2 * 14336 * 4096, (Moment.BACKWARD_LAYER,))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_fewer_bits_and_fewer_trained_parameters_need_less(stage: int) -> None:
    request = {"model": "llama-3-8b", "gpus": "4xA100-80G", "zero": stage, "checkpointing": "full"}
    full, lora, qlora = (
        plan_of(**request, method=method)["memory"]["gpu"]["tensor_peak_bytes"] for method in ("full", "lora", "qlora")
    )
    assert qlora < lora < full


def test_lora_as_measured_on_one_a100() -> None:
    """28.9 GiB: Llama-3.1-8B, rank 16 on q and v, micro-batch 4 of 2048 tokens, https://github.com/ritikmahy5/ftune."""
    found = plan_of(
        model="llama-3.1-8b", gpus="1xA100-80G", method="lora", lora_rank=16, lora_targets="q_proj,v_proj",
        micro_batch=4, seq_len=2048, checkpointing="full",
    )  # fmt: skip
    assert found["memory"]["gpu"]["tensor_peak_bytes"] / GIB == pytest.approx(28.9, rel=0.02)


@pytest.mark.parametrize(
    ("model", "gpus", "method", "seq_len", "measured"),
    [
        ("llama-3.1-8b", "1xRTX-4090", "qlora", 2048, 7.4),
        ("llama-3.1-8b", "1xA100-80G", "lora", 2048, 16.2),
        ("llama-3.2-3b", "1xA100-80G", "lora", 4096, 8.5),
        ("llama-3.2-3b", "1xA100-80G", "qlora", 4096, 4.6),
    ],
)
def test_peaks_that_torchtune_publishes(model: str, gpus: str, method: str, seq_len: int, measured: float) -> None:
    """Tensor peaks of torchtune's README, micro-batch 2, checkpointing, chunked loss; another framework, so 10 %."""
    found = plan_of(
        model=model, gpus=gpus, method=method, lora_rank=8, seq_len=seq_len, micro_batch=2, checkpointing="full",
        loss="fused",
    )  # fmt: skip
    assert found["memory"]["gpu"]["tensor_peak_bytes"] / GIB == pytest.approx(measured, rel=0.1)
