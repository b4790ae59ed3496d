"""The committed examples are what their commands print and write today."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from regenerate_examples import cases, produce

from planner.resources import read_text


def test_there_is_a_single_node_and_a_multi_node_example() -> None:
    nodes = {json.loads((case / "plan/plan.json").read_text())["cluster"]["nodes"] for case in cases()}
    assert len(cases()) >= 2
    assert min(nodes) == 1
    assert max(nodes) > 1


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_the_example_is_what_its_command_gives(case: Path, tmp_path: Path) -> None:
    produced = produce(case, tmp_path)
    committed = {
        str(p.relative_to(case)): p.read_bytes() for p in case.rglob("*") if p.is_file() and p.name != "command"
    }
    assert sorted(produced) == sorted(committed)
    for name, content in produced.items():
        assert content == committed[name], f"{name}: run `python tests/regenerate_examples.py` and read the difference"


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_the_example_follows_the_plan_schema(case: Path) -> None:
    import jsonschema

    schema = json.loads(read_text("schemas", "plan.schema.json"))
    jsonschema.Draft202012Validator(schema).validate(json.loads((case / "plan/plan.json").read_text()))
