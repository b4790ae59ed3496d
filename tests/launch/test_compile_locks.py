"""A lock that an interrupted compile leaves is removed; one that a builder holds stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planner.launch.compile_locks import LONGEST_BUILD_S, left_behind, locks, remove_abandoned

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="open files are found through /proc")


def made(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True)
    lock = folder / name / "lock"
    lock.touch()
    return lock


def test_locks_are_found_where_torch_keeps_its_extensions(tmp_path):
    lock = made(tmp_path, "cpu_adam")
    assert {found.path for found in locks({"TORCH_EXTENSIONS_DIR": str(tmp_path)})} == {lock}
    nested = made(tmp_path / "torch_extensions" / "py311_cpu", "fused_adam")
    assert {found.path for found in locks({"XDG_CACHE_HOME": str(tmp_path)})} == {nested}


def test_only_a_lock_that_nobody_holds_is_removed(tmp_path):
    abandoned, held = made(tmp_path, "a"), made(tmp_path, "b")
    with held.open("w"):
        removed = remove_abandoned(locks({"TORCH_EXTENSIONS_DIR": str(tmp_path)}))
    assert {lock.path for lock in removed} == {abandoned}
    assert held.exists()
    assert not abandoned.exists()


def test_a_later_lock_at_the_same_place_is_another(tmp_path):
    lock, env = made(tmp_path, "a"), {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    before = locks(env)
    lock.unlink()
    lock.touch()
    os.utime(lock, ns=(1, 1))
    assert {found.path for found in locks(env) - before} == {lock}


def test_before_a_run_only_locks_older_than_any_build_are_taken_for_left_behind(tmp_path):
    young, old = made(tmp_path, "a"), made(tmp_path, "b")
    past = young.stat().st_mtime_ns - (LONGEST_BUILD_S + 1) * 10**9
    os.utime(old, ns=(past, past))
    found = locks({"TORCH_EXTENSIONS_DIR": str(tmp_path)})
    assert {lock.path for lock in left_behind(found)} == {old}
