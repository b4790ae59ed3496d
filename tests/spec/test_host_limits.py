"""What this machine lets a process use: control groups of both versions, locked memory, shared memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.spec import host_limits
from planner.units import GIB, MIB


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


def test_limits_of_the_own_group_and_of_those_around_it_are_read(tmp_path: Path) -> None:
    root = machine(tmp_path, {
        "proc/self/cgroup": "0::/kubepods/pod7/main\n",
        "sys/fs/cgroup/kubepods/memory.max": f"{64 * GIB}\n",
        "sys/fs/cgroup/kubepods/pod7/main/memory.max": f"{16 * GIB}\n",
        "sys/fs/cgroup/kubepods/pod7/memory.max": "max\n",
    })  # fmt: skip
    assert sorted(host_limits.group_limits_bytes(root)) == [16 * GIB, 64 * GIB]
    assert host_limits.host_ram_bytes(root) == min(16 * GIB, host_limits.host_ram_bytes() or 0)


def test_a_container_sees_its_limit_at_the_root_of_the_mount(tmp_path: Path) -> None:
    assert host_limits.group_limits_bytes(machine(tmp_path, {"sys/fs/cgroup/memory.max": f"{2 * GIB}"})) == (2 * GIB,)


def test_the_first_version_of_control_groups_is_read_and_its_no_limit_is_none(tmp_path: Path) -> None:
    root = machine(tmp_path, {
        "proc/self/cgroup": "5:memory:/job_12\n4:cpu,cpuacct:/job_12\n",
        "sys/fs/cgroup/memory/job_12/memory.limit_in_bytes": f"{8 * GIB}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    })  # fmt: skip
    assert host_limits.group_limits_bytes(root) == (8 * GIB,)


def test_a_machine_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert host_limits.group_limits_bytes(tmp_path) == ()
    assert host_limits.host_ram_bytes(tmp_path) == host_limits.host_ram_bytes(Path("/nowhere"))


def test_the_size_of_shared_memory_is_that_of_its_file_system(tmp_path: Path) -> None:
    assert (host_limits.shared_memory_bytes(tmp_path) or 0) > 0
    assert host_limits.shared_memory_bytes(tmp_path / "missing") is None


NOTES = (
    ({"total": 16 * GIB, "groups": (16 * GIB,), "locked": None, "shared": 8 * GIB}, ["may use 16.0 GiB of RAM"]),
    ({"total": 16 * GIB, "groups": (), "locked": 8 * MIB, "shared": 8 * GIB}, ["`ulimit -l` allows 8 MiB"]),
    ({"total": 16 * GIB, "groups": (), "locked": None, "shared": 64 * MIB}, ["/dev/shm holds 64 MiB"]),
    ({"total": None, "groups": (), "locked": None, "shared": None}, []),
)


@pytest.mark.parametrize(("limits", "told"), NOTES)
def test_limits_that_matter_are_told(limits: dict[str, object], told: list[str]) -> None:
    notes = host_limits.limit_notes(**limits)
    assert len(notes) == len(told)
    assert all(text in note for text, note in zip(told, notes, strict=True))
