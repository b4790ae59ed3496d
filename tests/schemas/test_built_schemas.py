"""The two schemas that are built are what the installed packages and the tables say, and the check notices when not."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from schema_cases import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.deepspeed, pytest.mark.accelerate]
SCRIPT = ROOT / "tests" / "oracles" / "build_schemas.py"


@pytest.fixture(autouse=True)
def _installed() -> None:
    pytest.importorskip("deepspeed")
    pytest.importorskip("accelerate")


def test_both_files_are_what_the_script_writes() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "both schemas are what the installed packages and the tables say" in done.stdout


def test_another_release_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import build_schemas

    monkeypatch.setattr(build_schemas, "version", lambda name: {"deepspeed": "0.20.0", "accelerate": "1.15.0"}[name])
    assert "deepspeed 0.20.0 is installed, and the tables are written for 0.19.8" in list(build_schemas.differences())


def test_a_new_field_of_a_model_stops_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    import build_schemas
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    fields = {**DeepSpeedZeroConfig.model_fields, "stage4": DeepSpeedZeroConfig.model_fields["stage"]}
    monkeypatch.setattr(DeepSpeedZeroConfig, "__pydantic_fields__", fields)
    with pytest.raises(build_schemas.Disagreement, match=r"only the installed package knows \['stage4'\]"):
        build_schemas.build("deepspeed")


def test_a_key_that_is_looked_up_no_more_stops_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    import build_schemas

    reads = build_schemas.recorded_reads()
    del reads["$.aio"]["use_gds"]
    monkeypatch.setattr(build_schemas, "recorded_reads", lambda: reads)
    with pytest.raises(build_schemas.Disagreement, match=r"only the table knows \['use_gds'\]"):
        build_schemas.build("deepspeed")


def test_another_default_changes_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    import build_schemas

    reads: dict[str, dict[str, Any]] = build_schemas.recorded_reads()
    reads["$"]["gradient_clipping"] = 0.0
    monkeypatch.setattr(build_schemas, "recorded_reads", lambda: reads)
    assert any(line.startswith("deepspeed.schema.json is not what") for line in build_schemas.differences())
