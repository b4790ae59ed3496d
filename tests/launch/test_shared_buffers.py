"""Only the buffers of the run that ended are deleted."""

from __future__ import annotations

from pathlib import Path

from planner.launch.shared_buffers import remove_shared_buffers


def test_the_buffers_of_one_run_go_and_those_of_others_stay(tmp_path: Path) -> None:
    for port, ranks in ((29500, 2), (29501, 4)):
        for rank in range(ranks):
            (tmp_path / f"deepspeed_allreduce_buffer_0_127.0.0.1_{port}_{rank}").touch()
    (tmp_path / "something_else_29500_0").touch()
    assert remove_shared_buffers(29500, folder=tmp_path) == 2
    left = sorted(path.name for path in tmp_path.iterdir())
    assert len(left) == 5
    assert not any("allreduce" in name and "29500" in name for name in left)
