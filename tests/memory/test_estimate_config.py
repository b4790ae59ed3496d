"""`dsplan estimate --config` on the engine's own runs: the document says what the engine allocated, phase by phase.

The phases of the document are those of one GPU, so runs with offload, whose host tensors the engine's count includes,
are compared in `test_engine_memory.py` only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_engine_memory import GOLDEN, RUNS, offloads, tolerances

from planner import estimate

COMPARED = [run for run in RUNS if not offloads(run)]
PHASES = ("init", "forward", "backward", "step")  # the engine's load counts the model on the host at stages 0-2


def document(run: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The answer for the run's files, as a user gives them."""
    (folder / "config.json").write_text(json.dumps(GOLDEN["models"][run["model"]]))
    (folder / "ds_config.json").write_text(json.dumps(run["config"]))
    adapter = run.get("adapter")
    chosen = {"method": "lora", "lora_rank": adapter["rank"], "lora_targets": adapter["targets"]} if adapter else {}
    return estimate(
        model=str(folder),
        gpus=f"{run['ranks']}xA100-80G",
        config=str(folder / "ds_config.json"),
        seq_len=run["seq"],
        checkpointing="full" if run["checkpointing"] else "none",
        **chosen,
    ).to_dict()


@pytest.mark.parametrize("run", COMPARED, ids=[run["name"] for run in COMPARED])
def test_the_document_says_what_the_engine_allocated(run: dict[str, Any], tmp_path: Path) -> None:
    phases = document(run, tmp_path)["plans"][0]["memory"]["gpu"]["phases"]
    for phase in PHASES:
        measured = run["peaks"][phase]
        assert abs(phases[phase] - measured) <= tolerances(run)[phase] * measured, (
            f"{phase}: {phases[phase]} for {measured}"
        )


def test_enough_runs_are_compared() -> None:
    assert len(COMPARED) >= 60
