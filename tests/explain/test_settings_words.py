"""What is said about changed settings: each change once, with bytes that can be worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace

from planner.catalog.speed import speed_constants
from planner.explain.settings import settings_words
from planner.records.candidate import Candidate, Checkpointing, Degrees, Offload, ZeroStage
from planner.search.space import usual_settings
from planner.spec.request import build_request

CONSTANTS = speed_constants()


def candidate(gpus: str, zero: ZeroStage, offload: Offload, **changed: object) -> tuple[str, ...]:
    request = build_request({"model": "13b", "gpus": gpus})
    degrees = Degrees(tp=1, dp=request.cluster.world_size)
    usual = usual_settings(request, zero, degrees, offload)
    chosen = Candidate(
        zero=zero,
        degrees=degrees,
        checkpointing=Checkpointing.FULL,
        offload=offload,
        micro_batch=8,
        accumulation=1,
        settings=replace(usual, **changed),  # type: ignore[arg-type]
    )
    return settings_words(request, chosen, usual, CONSTANTS)


def test_usual_settings_need_no_words() -> None:
    assert candidate("8xA100-80G", ZeroStage.GRADIENTS, Offload.NONE) == ()


def test_a_smaller_bucket_saves_its_two_copies() -> None:
    """bf16, two buckets with overlap_comm: 2 * 2 * 35e6 bytes = 0.13 GiB. The head of 164 M fits both buckets, so the
    partition of the gradients comes to be at the same tensor."""
    (sentence,) = candidate(
        "8xA100-80G", ZeroStage.GRADIENTS, Offload.NONE,
        reduce_bucket_elements=165_000_000, allgather_bucket_elements=165_000_000,
    )  # fmt: skip
    assert sentence == "reduce bucket of 165 M elements instead of 200 M: saves 0.1 GiB of GPU memory"


def test_below_the_size_of_the_head_the_partition_comes_earlier() -> None:
    """The head flushes such a bucket in the last layer's first gradients, when all of that layer's activations are
    there: an eighth of them (3.6 GiB / 8) is more than the two buckets save (2 * 2 * 50e6 bytes = 0.19 GiB)."""
    (sentence,) = candidate(
        "8xA100-80G", ZeroStage.GRADIENTS, Offload.NONE,
        reduce_bucket_elements=150_000_000, allgather_bucket_elements=150_000_000,
    )  # fmt: skip
    assert sentence == "reduce bucket of 150 M elements instead of 200 M: takes 0.3 GiB of GPU memory"


def test_a_copy_in_every_node_takes_its_share_of_the_weights() -> None:
    """13e9 weights of 2 bytes over 8 GPUs are 3.0 GiB, and 3.5 with 14 % of allocator slack on what is dropped."""
    (sentence,) = candidate("2x8xA100-80G", ZeroStage.PARAMETERS, Offload.NONE, hpz_partition_size=8)
    assert sentence.startswith("hpZ over 8 GPUs: a second copy of the weights in every node, so that backward gathers")
    assert "takes 3.5 GiB of GPU memory" in sentence


def test_half_of_the_updates_on_the_gpu() -> None:
    """13e9 parameters over 8 GPUs, 16 bytes each (master weight, gradient, two moments): 24 GiB, of which the GPU gets
    half at most, and one sub-group of ten or more less at least."""
    (sentence,) = candidate("8xA100-80G", ZeroStage.PARAMETERS, Offload.OPTIMIZER, optimizer_offload_ratio=0.5)
    found = re.fullmatch(
        r"offload_optimizer.ratio 0.5, so that the GPU updates 50% of the sub-groups: takes ([\d.]+) GiB of GPU "
        r"memory, \d+% faster",
        sentence,
    )
    assert found
    assert 0.4 * 24.2 <= float(found[1]) <= 0.5 * 24.3


def test_several_changes_are_summed_up() -> None:
    words = candidate(
        "8xA100-80G", ZeroStage.PARAMETERS, Offload.NONE,
        max_live_parameters=100_000_000, max_reuse_distance=100_000_000, overlap_comm=False,
    )  # fmt: skip
    assert len(words) == 3
    assert words[0].startswith("fewer parameters stay gathered between their uses: stage3_max_live_parameters 100 M")
    assert words[1].startswith("overlap_comm off")
    assert words[2].startswith("these 2 settings together: saves ")
