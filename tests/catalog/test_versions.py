"""Facts that changed between releases: the table holds together, and its last ranges are what is installed."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from planner import estimate
from planner.catalog import versions
from planner.catalog.versions import difference_sentences, differing, earlier_sentences, version_facts
from planner.records.candidate import Candidate
from planner.version import TARGET_VERSIONS

MEMORY = Path(inspect.getfile(versions)).parents[1] / "memory"


def candidate(**fields: object) -> Candidate:
    return estimate(model="7b", gpus="8xA100-80G", host_ram=2000, **fields).plan.ranked[0].candidate


def test_every_fact_ends_with_what_is_planned_and_has_a_source() -> None:
    assert len(version_facts()) >= 14
    assert {fact.package for fact in version_facts()} == {"deepspeed", "torch", "transformers"}
    for fact in version_facts():
        assert fact.range_of(TARGET_VERSIONS[fact.package]) is fact.ranges[-1]
        assert fact.source


def test_the_terms_of_a_fact_are_terms_of_the_memory_model() -> None:
    named = set()
    for path in MEMORY.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"\w+/\w+", node.value):
                named.add(node.value)
    told = {term for fact in version_facts() for term in fact.terms}
    assert len(told) >= 12
    assert told <= named


def test_the_planned_releases_differ_in_nothing() -> None:
    assert differing(TARGET_VERSIONS, version_facts()) == ()
    assert differing({**TARGET_VERSIONS, "torch": f"{TARGET_VERSIONS['torch']}+cpu"}, version_facts()) == ()


# Releases whose sources were read, and the facts that are otherwise in them (settings that plans write out left aside).
READ = (
    ("0.19.4", set()),
    ("0.19.3", {"NVMe staging buffers", "AutoTP with ZeRO-3", "AutoTP and the output matrix"}),
    ("0.18.6", {"NVMe staging buffers", "AutoTP with ZeRO-3", "AutoTP and the output matrix",
                "flattening at initialisation"}),
    ("0.16.9", {"NVMe staging buffers", "AutoTP with ZeRO-3", "AutoTP and the output matrix",
                "flattening at initialisation", "fp32 copy of a sub-group", "pinned although not asked",
                "offloaded step"}),
)  # fmt: skip


@pytest.mark.parametrize(("release", "expected"), READ, ids=[release for release, _ in READ])
def test_an_earlier_release_differs_in_the_facts_read_in_it(release: str, expected: set[str]) -> None:
    assert {fact.name for fact, _ in differing({"deepspeed": release}, version_facts())} == expected


def test_a_plan_hears_only_of_what_concerns_it() -> None:
    plain = difference_sentences({"deepspeed": "0.18.9"}, candidate(zero=3))
    parallel = difference_sentences({"deepspeed": "0.18.9"}, candidate(zero=3, tp=2))
    assert plain == ()
    assert len(parallel) == 2
    assert all(
        sentence.startswith("deepspeed 0.18.9 is not the 0.19.8 that was planned for: ") for sentence in parallel
    )
    offloaded = earlier_sentences(candidate(zero=2, offload="optimizer"))
    assert any(sentence.startswith("torch before 1.11: ") for sentence in offloaded)
    assert not any("pin_memory` is set" in sentence for sentence in offloaded)  # the plan writes it out


def test_an_answer_says_which_releases_it_speaks_for() -> None:
    told = estimate(model="7b", gpus="8xA100-80G", zero=3).to_dict()["assumptions"]
    assert any(f"deepspeed {TARGET_VERSIONS['deepspeed']}" in sentence for sentence in told)


INSTALLED = (
    ("runtime/zero/offload_config.py", "pin_memory: bool = True"),
    ("runtime/zero/stage_1_and_2.py", "flatten_on_accelerator"),
    ("runtime/zero/stage_1_and_2.py", "param_buffer_of_bit16_for_cpu_offload_groups"),
    ("runtime/zero/stage_1_and_2.py", "if self.cpu_offload_pin_memory:\n                    weights_partition"),
    ("runtime/zero/stage3.py", "converted.clone().detach()"),
    ("runtime/zero/config.py", "self.overlap_comm = self.stage == ZeroStageEnum.weights"),
    ("runtime/swap_tensor/utils.py", "new_cpu_locked_tensor"),
    ("module_inject/tp_plan_converter.py", "colwise_gather_output"),
    ("runtime/zero/partition_parameters.py", "partitioned_tensor = get_accelerator().pin_memory(partitioned_tensor)"),
)


@pytest.mark.parametrize(("file", "text"), INSTALLED, ids=[f"{file} {i}" for i, (file, _) in enumerate(INSTALLED)])
def test_the_installed_release_is_as_the_last_range_says(file: str, text: str) -> None:
    from importlib import metadata, util

    found = util.find_spec("deepspeed")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("deepspeed is not installed")
    if metadata.version("deepspeed") != TARGET_VERSIONS["deepspeed"]:
        pytest.skip("another release is installed")
    source = Path(found.submodule_search_locations[0]) / file
    assert text in source.read_text(encoding="utf-8")
