"""Laws of whole estimates: what no table can hold for every model, degree and setting.

They hold for states, not for totals: a higher stage may hold more, because it gathers (DeepSpeed issue 3734).
"""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner import estimate
from planner.errors import PlannerError

MODELS = ("gpt2", "llama-3.2-1b", "qwen2.5-7b", "13b", "mixtral-8x7b", "gemma-2-9b", "qwen3-8b", "70b")
STAGES = st.integers(0, 3)
SLOW = settings(max_examples=40, deadline=None)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """One configuration that DeepSpeed runs, whether it fits or not."""
    zero, gpus = draw(STAGES), draw(st.sampled_from((1, 2, 3, 4, 8)))
    offloads = ("none", "optimizer", "optimizer+param")[: 1 + (zero > 0) + (zero == 3)]
    return {
        "model": draw(st.sampled_from(MODELS)),
        "gpus": f"{gpus}xA100-80G",
        "zero": zero,
        "tp": draw(st.sampled_from([tp for tp in (1, 2, 4) if gpus % tp == 0])),
        "seq_len": draw(st.sampled_from((128, 512, 1024))),
        "micro_batch": draw(st.integers(1, 6)),
        "accumulation": draw(st.integers(1, 3)),
        "checkpointing": draw(st.sampled_from(("none", "full"))),
        "offload": draw(st.sampled_from(offloads)),
        "precision": draw(st.sampled_from(("bf16", "fp16", "fp32"))),
    }


def memory(fields: dict[str, Any]) -> dict[str, Any]:
    """The plan's memory document; a combination that does not run is drawn again."""
    try:
        found: dict[str, Any] = estimate(**fields).to_dict()["plans"][0]["memory"]
    except PlannerError as error:
        assume("no configuration that runs" not in error.message)
        raise
    return found


def states(document: dict[str, Any]) -> int:
    """Weights, master weights and optimizer states on the GPU. Gradients come and go: a law of their own."""
    return sum(t["bytes"] for t in document["terms"] if t["device"] == "gpu" and t["name"].startswith("states/"))


@SLOW
@given(configurations())
def test_the_terms_of_a_phase_add_up_to_its_bytes(fields: dict[str, Any]) -> None:
    found = memory(fields)
    for device in ("gpu", "host"):
        for phase, size in found[device]["phases"].items():
            terms = [t["bytes"] for t in found["terms"] if t["device"] == device and phase in t["phases"]]
            assert sum(terms) == size, (device, phase)
    gpu = found["gpu"]
    assert gpu["tensor_peak_bytes"] == max(gpu["phases"].values()) == gpu["phases"][gpu["limiting_phase"]]
    assert gpu["peak_bytes"] == gpu["tensor_peak_bytes"] + gpu["overhead_bytes"]
    assert all(t["formula"] and t["source"] and t["bytes"] > 0 for t in found["terms"])


@SLOW
@given(configurations(), STAGES)
def test_more_sharding_never_costs_more_state(fields: dict[str, Any], other: int) -> None:
    few, more = sorted((fields["zero"], other))
    # In fp32, stage 0 trains the weights themselves, while the sharding stages keep a master copy beside them.
    fields = {**fields, "offload": "none", "tp": 1, "precision": "bf16"}
    slack = 2**20  # padding of partitions, and of every tensor at stage 3
    assert states(memory({**fields, "zero": more})) <= states(memory({**fields, "zero": few})) + slack


@SLOW
@given(configurations())
def test_twice_the_ranks_never_hold_more_each(fields: dict[str, Any]) -> None:
    twice = f"{2 * int(fields['gpus'].split('x')[0])}xA100-80G"
    assert states(memory({**fields, "gpus": twice})) <= states(memory(fields))


@SLOW
@given(configurations())
def test_offload_moves_the_optimizer_whole(fields: dict[str, Any]) -> None:
    fields = {**fields, "zero": max(1, fields["zero"])}

    def held(offload: str, device: str) -> int:
        terms = memory({**fields, "offload": offload})["terms"]
        names = ("states/master", "states/optimizer")
        return sum(t["bytes"] for t in terms if t["device"] == device and t["name"] in names)

    ranks = int(fields["gpus"].split("x")[0])
    assert held("optimizer", "gpu") == 0
    assert held("optimizer", "host") >= ranks * held("none", "gpu") > 0


@SLOW
@given(configurations())
def test_checkpointing_never_keeps_more_to_the_end_of_forward(fields: dict[str, Any]) -> None:
    def kept(checkpointing: str) -> int:
        terms = memory({**fields, "checkpointing": checkpointing})["terms"]
        return sum(t["bytes"] for t in terms if t["name"] in ("activations/kept", "activations/checkpoints"))

    assert kept("full") <= kept("none")


@SLOW
@given(configurations(), st.integers(2, 8))
def test_a_longer_sequence_never_needs_less(fields: dict[str, Any], times: int) -> None:
    fields = {**fields, "seq_len": 128}
    longer = memory({**fields, "seq_len": 128 * times})
    assert longer["gpu"]["tensor_peak_bytes"] >= memory(fields)["gpu"]["tensor_peak_bytes"]
