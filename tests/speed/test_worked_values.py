"""Nine plans computed by hand with the published formulas of each term: dsplan's parts and totals must agree.

The figures were worked out outside dsplan for two GPUs (A: A100 SXM 80 GB, H: H100 SXM) with textbook Megatron and
reduce-scatter behaviour; `speed_cases.textbook` switches DeepSpeed's own habits off. They take one multiple of h for
the element-wise work of every architecture and no traffic of gradients inside the GPU, as `textbook_layers` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import speed_cases as cases

from planner.records.candidate import Checkpointing, Offload
from planner.records.estimate import TimeEstimate
from planner.records.model import ModelShape
from planner.records.request import Stack
from planner.speed import layer
from planner.speed.constants import SpeedConstants
from planner.speed.elementwise import LayerKernels, PassWork
from planner.speed.estimate import _kept_kernels, time_estimate

MULTIPLES = {Stack.EAGER: 57.0, Stack.FUSED: 16.5, Stack.COMPILED: 25.0}

NODE_A = cases.cluster(cases.GPU_A, 8, 1, 228e9, None)
HALF_A = cases.cluster(cases.GPU_A, 4, 1, 228e9, None, nvme_read_bytes_per_s=10e9, nvme_write_bytes_per_s=5e9)
NODE_H = cases.cluster(cases.GPU_H, 8, 1, 365e9, None)
FOUR_H = cases.cluster(cases.GPU_H, 8, 4, 365e9, 340e9)

W1 = (cases.LLAMA_7B, NODE_A, 2048, cases.candidate(2, 8, 4, 4))
W2 = (cases.LLAMA_7B, NODE_A, 2048, cases.candidate(3, 8, 4, 4))
W3 = (replace(cases.LLAMA_7B, traits=(("vocab_parallel_head", True),)), NODE_A, 2048, cases.candidate(2, 4, 4, 8, tp=2))
W4 = (cases.LLAMA_7B, NODE_A, 2048, cases.candidate(2, 8, 4, 4, checkpointing=Checkpointing.NONE))
W5 = (cases.LLAMA_13B, HALF_A, 2048, cases.candidate(3, 4, 1, 8, offload=Offload.OPTIMIZER))
W6 = (cases.LLAMA_13B, HALF_A, 2048, cases.candidate(3, 4, 1, 8, offload=Offload.OPTIMIZER_AND_PARAMS))
W7 = (cases.LLAMA_13B, HALF_A, 2048, cases.candidate(3, 4, 1, 8, offload=Offload.NVME))
W8 = (cases.LLAMA_70B, FOUR_H, 4096, cases.candidate(3, 32, 2, 1))
W9 = (cases.LLAMA_8B, NODE_H, 8192, cases.candidate(1, 8, 1, 16))


def textbook_kernels(model: ModelShape, *_: object, stack: Stack, **__: object) -> tuple[LayerKernels, ...]:
    """ke * (0.5 + 0.5/t) * h values forward, twice that backward."""

    def work(values: float) -> PassWork:
        return PassWork(0.0, 0.0, 0.0, whole_values=values / 2, split_values=values / 2, score_values=0.0)

    values = MULTIPLES[stack] * model.hidden
    return (LayerKernels(layers=model.layers, forward=work(values), backward=work(2 * values)),)


@pytest.fixture(autouse=True)
def textbook_layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    _kept_kernels.cache_clear()  # which other tests fill with layers that are not the textbook's
    monkeypatch.setattr(layer, "layer_kernels", textbook_kernels)
    monkeypatch.setattr(layer, "adapter_launches", lambda *_: ((0.0, 0.0),))
    monkeypatch.setattr(layer, "gradient_traffic_s", lambda *_, **__: 0.0)
    yield
    _kept_kernels.cache_clear()


def estimate(case: tuple, *, stack: Stack = Stack.EAGER, constants: SpeedConstants | None = None) -> TimeEstimate:
    model, cluster, seq_len, candidate = case
    return time_estimate(
        model, cluster, cases.workload(seq_len, stack=stack), candidate, constants=constants or cases.textbook()
    )


def seconds(result: TimeEstimate, *names: str) -> float:
    return sum(term.seconds for term in result.terms if term.name in names)


def near(value: float) -> object:
    return pytest.approx(value, rel=0.005)


@pytest.mark.parametrize(
    ("case", "tokens_per_second_per_gpu", "step_seconds"),
    [
        pytest.param(W1, 3669.5, 8.930, id="W1 ZeRO-2"),
        pytest.param(W2, 3594.3, 9.117, id="W2 ZeRO-3"),
        pytest.param(W3, 3286.3, 9.971, id="W3 tp 2"),
        pytest.param(W4, 4812.0, 6.810, id="W4 no recomputation"),
        pytest.param(W5, 955.8, 17.14, id="W5 CPU optimizer"),
        pytest.param(W6, 820.2, 19.97, id="W6 parameters on CPU"),
        pytest.param(W8, 897.5, 9.127, id="W8 four nodes"),
    ],
)
def test_worked_plan_has_its_published_speed(
    case: tuple, tokens_per_second_per_gpu: float, step_seconds: float
) -> None:
    result = estimate(case)
    assert result.step_seconds == near(step_seconds)
    assert result.tokens_per_second_per_gpu == near(tokens_per_second_per_gpu)


def test_compiled_profile_has_its_worked_speed_and_parts() -> None:
    result = estimate(W9, stack=Stack.COMPILED, constants=cases.textbook(optimizer_traffic_bytes=32.0))
    assert result.step_seconds == near(19.73)
    assert result.tokens_per_second_per_gpu == near(6641.6)
    assert seconds(result, "compute/attention") == near(5.608)
    assert seconds(result, "compute/head") == near(0.657)
    assert seconds(result, "communication/gather") == pytest.approx(0.039, abs=0.0006)


def test_parts_of_the_first_worked_plan_agree() -> None:
    result = estimate(W1)
    assert seconds(result, "compute/gemm") == near(5.161)
    assert seconds(result, "compute/attention") == near(0.630)
    assert seconds(result, "compute/elementwise") == near(0.720)
    assert seconds(result, "compute/recompute") == near(2.120)
    assert seconds(result, "compute/head") == near(0.109)
    assert seconds(result, "communication/gather") == near(0.0517)
    assert seconds(result, "optimizer/step") == pytest.approx(0.019, abs=0.0006)


def test_tensor_parallel_traffic_of_the_third_plan_agrees() -> None:
    assert seconds(estimate(W3), "communication/tensor_parallel") == near(0.532)


@pytest.mark.parametrize("case", [W5, W6], ids=["W5", "W6"])
def test_cpu_optimizer_step_with_its_upload_agrees(case: tuple) -> None:
    assert seconds(estimate(case), "optimizer/step", "offload/weights") == near(7.502)


def test_nvme_optimizer_agrees_and_parameters_on_nvme_come_on_top() -> None:
    """The worked plan keeps parameters on the GPU: 46.86 s for the optimizer, 56.49 s for the step."""
    result = estimate(W7)
    terms = {term.name: term for term in result.terms}
    exposed_states = terms["offload/nvme_states"].seconds - terms["offload/nvme_states"].hidden_seconds
    assert exposed_states + seconds(result, "optimizer/step", "offload/weights") == near(46.86)
    layer_parameters = 40 * (5120 * 3 * 5120 + 5120 * 5120 + 3 * 5120 * 13824)
    assert seconds(result, "offload/parameters") == near(8 * 2 * 2 * layer_parameters / 10e9)
    parameters = layer_parameters + 2 * 32000 * 5120
    assert seconds(result, "offload/nvme_weights") == near(2 * parameters / 5e9)
    fetched = terms["offload/parameters"]
    others = result.step_seconds - fetched.seconds - terms["offload/nvme_weights"].seconds
    assert 56.49 * 0.9 < others < 56.49
