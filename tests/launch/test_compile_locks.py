"""A lock that an interrupted compile leaves is removed; one that a builder holds stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.launch.compile_locks import locks, remove_abandoned

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="open files are found through /proc")


def test_locks_are_found_where_torch_keeps_its_extensions(tmp_path):
    (tmp_path / "cpu_adam").mkdir()
    lock = tmp_path / "cpu_adam" / "lock"
    lock.touch()
    assert locks({"TORCH_EXTENSIONS_DIR": str(tmp_path)}) == {lock}
    (tmp_path / "torch_extensions" / "py311_cpu" / "fused_adam").mkdir(parents=True)
    nested = tmp_path / "torch_extensions" / "py311_cpu" / "fused_adam" / "lock"
    nested.touch()
    assert locks({"XDG_CACHE_HOME": str(tmp_path)}) == {nested}


def test_only_a_lock_that_nobody_holds_is_removed(tmp_path):
    abandoned, held = tmp_path / "a", tmp_path / "b"
    abandoned.touch()
    with held.open("w"):
        assert remove_abandoned({abandoned, held}) == {abandoned}
    assert held.exists()
    assert not abandoned.exists()
