"""`dsplan check` finds nothing in a plan's own files, however they are named to it."""

from __future__ import annotations

from pathlib import Path

import pytest

import planner
from planner.check import check


@pytest.mark.parametrize("integration", ["trainer", "accelerate", "deepspeed"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_folder_files_and_patterns_are_all_clean(tmp_path: Path, integration: str, nodes: int) -> None:
    gpus = "8xA100-80G" if nodes == 1 else "2x8xA100-80G"
    planner.plan(model="13b", gpus=gpus, integration=integration, launcher="deepspeed").write(tmp_path / "plan")
    folder = tmp_path / "plan"
    written = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".yaml", ".sh"))
    assert len(written) == 7
    ways = [
        [folder],
        *([path] for path in written),
        [folder / "ds_config.json", folder / "accelerate.yaml"],
        written,
        [folder / "*.json"],
        [folder / "*.json", folder / "*.yaml"],
    ]
    for way in ways:
        assert check(*way).findings == (), way
        assert check(*way, gpus=gpus, model="13b", host_ram=2048).findings == (), way
    assert len(ways) == 12
