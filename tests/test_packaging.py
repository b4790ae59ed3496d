"""The wheel holds what a command needs, and nothing else; a zipped wheel runs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], capture_output=True, text=True, check=False
    )
    if (
        done.returncode
        and "hatchling" in done.stdout + done.stderr
        and "No matching distribution" in done.stdout + done.stderr
    ):
        pytest.skip("the package index that brings hatchling cannot be reached")
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_exactly_the_package_schemas_and_templates(wheel: Path) -> None:
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    expected = {n for n in tracked if n.startswith("planner/")}
    expected |= {f"planner/{n}" for n in tracked if n.startswith(("schemas/", "templates/"))}
    assert names == expected
    assert len(names) > 100


@pytest.mark.slow
def test_the_sdist_holds_no_stray_top_level(wheel: Path) -> None:
    import tarfile

    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert tops <= {
        "planner",
        "schemas",
        "templates",
        "tests",
        "examples",
        "README.md",
        "LICENSE",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
    }
    assert {"planner", "schemas", "templates", "tests", "examples"} <= tops


@pytest.mark.slow
def test_the_zipped_wheel_plans(wheel: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "planner", "--model", "13b", "--gpus", "4xA100-80G", "--out", "plan"]
    env = {**os.environ, "PYTHONPATH": str(wheel)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plan" / "train.py").read_text() == (ROOT / "templates" / "train.py").read_text()
