"""DeepSpeed's estimators as reimplemented, against the functions of the installed DeepSpeed; and the comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.accuracy.peers import PEERS, sixteen_bytes_rule_bytes, zero2_estimate_bytes, zero3_estimate_bytes
from planner.accuracy.points import packaged_points
from planner.accuracy.score import error_figures, score_all
from planner.records.candidate import ZeroStage
from planner.report.accuracy import peers_text

SIZES = ((6_738_415_616, 131_072_000), (13_015_864_320, 163_840_000), (70_553_706_496, 1_050_673_152))


@pytest.mark.deepspeed
def test_the_estimators_are_deepspeeds_own() -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as zero3
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as zero2

    compared = 0
    for total, largest in SIZES:
        for nodes, per_node in ((1, 1), (1, 8), (4, 8)):
            gpus = nodes * per_node
            for offload in (False, True):
                _, expected = zero2(total, num_gpus_per_node=per_node, num_nodes=nodes, cpu_offload=offload)
                assert zero2_estimate_bytes(total, gpus, cpu_offload=offload) == expected
                for params in (False, True):
                    _, expected, _ = zero3(
                        total, largest, num_gpus_per_node=per_node, num_nodes=nodes, cpu_offload=offload,
                        cpu_offload_params=params,
                    )  # fmt: skip
                    found = zero3_estimate_bytes(total, largest, gpus, cpu_offload=offload, cpu_offload_params=params)
                    assert found == expected
                    compared += 1
    assert compared == 36


def test_the_rule_is_sixteen_bytes_where_nothing_is_shared() -> None:
    alone = sixteen_bytes_rule_bytes(1000, 8, ZeroStage.DISABLED, offloaded=False, tokens=0, hidden=1, layers=1)
    assert alone == 16_000
    shared = sixteen_bytes_rule_bytes(1000, 8, ZeroStage.PARAMETERS, offloaded=False, tokens=2, hidden=3, layers=4)
    assert shared == 2000 + 15 * 2 * 3 * 4


def test_the_three_are_compared_on_the_same_rows() -> None:
    lines = peers_text(score_all(packaged_points()))
    cells = {name: line[len(name) :].split() for name in ("dsplan", *PEERS) for line in lines if line.startswith(name)}
    assert len(cells) == 3
    counts = {tuple(found[:2]) for found in cells.values()}
    assert len(counts) == 1
    sources, rows = counts.pop()
    assert (int(sources), int(rows)) >= (12, 80)
    medians = {name: float(found[2]) for name, found in cells.items()}
    assert medians["dsplan"] * 3 < min(medians[peer] for peer in PEERS)


def test_on_the_real_engine_the_planner_is_far_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "memory"))
    from compare_estimators import errors_by_predictor

    figures = {name: error_figures(found) for name, found in errors_by_predictor().items()}
    assert all(found.rows >= 30 for found in figures.values())
    assert figures["dsplan"].median * 10 < min(figures[peer].median for peer in PEERS)
