"""Hypothesis strategies for requests: catalogue models and clusters small enough that a search takes milliseconds."""

from __future__ import annotations

from hypothesis import strategies as st

MODELS = (
    "gpt2",
    "tinyllama-1.1b",
    "llama-3.2-1b",
    "qwen2.5-0.5b",
    "qwen2.5-7b",
    "llama-2-7b",
    "13b",
    "70b",
    "mixtral-8x7b",
    "opt-1.3b",
)
WITHOUT_FUSED_LOSS = ("gpt2", "opt-1.3b")
CLUSTERS = (
    "1xA100-80G",
    "4xA100-80G",
    "8xA100-40G",
    "2x8xH100-80G",
    "8xV100-32G",
    "2xRTX-3090",
    "1xH200",
    "p4d.24xlarge",
    "4x8xA100-80G",
)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, object]:
    """Fields of a request that is legal by itself; nothing has to fit."""
    fields: dict[str, object] = {
        "model": draw(st.sampled_from(MODELS)),
        "gpus": draw(st.sampled_from(CLUSTERS)),
        "seq_len": draw(st.sampled_from((64, 512, 1024))),
    }
    if draw(st.booleans()):
        fields["host_ram"] = draw(st.sampled_from((64, 256, 1024, 4096)))
    if draw(st.booleans()):
        fields["global_batch"] = draw(st.sampled_from((8, 32, 48, 256)))
    if draw(st.booleans()):
        fields["zero"] = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True))
    if draw(st.booleans()):
        fields["offload"] = draw(st.sampled_from(("none", "optimizer", "none,optimizer+param")))
    if draw(st.booleans()):
        fields["checkpointing"] = draw(st.sampled_from(("none", "full")))
    if draw(st.booleans()) and fields["model"] not in WITHOUT_FUSED_LOSS:
        fields["loss"] = "fused"
    return fields
