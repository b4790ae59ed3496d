"""SARIF 2.1.0: the members that readers of it need, relative addresses, the same bytes for the same findings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.check import check
from planner.check.sarif import sarif, uri_of

BAD = """{
  "zero_optimisation": {"stage": 3},
  "train_micro_batch_size_per_gpu": 1, "train_micro_batch_size_per_gpu": 2,
  "bf16": {"enabled": true,
    "loss_scale": 0}
}
"""


def document(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    (folder / "my cfg").mkdir(exist_ok=True)
    (folder / "my cfg" / "ds é.json").write_text(BAD, encoding="utf-8")
    monkeypatch.chdir(folder)
    return sarif(check(os.path.join("my cfg", "ds é.json")))


def test_the_form_is_that_of_the_standard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = document(tmp_path, monkeypatch)
    assert found["version"] == "2.1.0"
    assert found["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = found["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "dsplan"
    assert [rule["id"] for rule in driver["rules"]] == ["DS003", "DS010", "DS011", "DS060"]
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"]
        assert rule["fullDescription"]["text"]
        assert {"text", "markdown"} <= set(rule["help"])
        assert rule["defaultConfiguration"]["level"] in ("error", "warning", "note")
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
    assert len(run["results"]) == 4


def test_places_are_regions_of_relative_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = document(tmp_path, monkeypatch)["runs"]
    places = {}
    for result in run["results"]:
        (location,) = result["locations"]
        physical = location["physicalLocation"]
        assert physical["artifactLocation"]["uri"] == "my%20cfg/ds%20%C3%A9.json"
        (logical,) = location["logicalLocations"]
        places[logical["fullyQualifiedName"]] = tuple(physical["region"].values())
    assert places == {
        "$.zero_optimisation": (2, 3),
        "$.train_micro_batch_size_per_gpu": (3, 40),
        "$.bf16.loss_scale": (5, 5),
        "$.gradient_clipping": (1, 1),
    }
    assert run["columnKind"] == "unicodeCodePoints"


def test_the_bytes_are_the_same_every_time(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(BAD)
    outputs = {
        subprocess.run(
            [sys.executable, "-m", "planner", "check", "ds.json", "--sarif"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        for seed in ("0", "7")
    }
    assert len(outputs) == 1
    assert json.loads(outputs.pop())["version"] == "2.1.0"


def test_addresses_have_slashes_and_are_relative_to_a_folder() -> None:
    assert uri_of(os.path.join("a", "b c.json"), ".") == "a/b%20c.json"
    assert uri_of(os.path.abspath(os.path.join("a", "x.json")), os.path.abspath("a")) == "x.json"
