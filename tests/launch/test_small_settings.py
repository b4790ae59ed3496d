"""ZeRO's sizes for the tiny model keep their relation to its matrices, and never grow."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from planner.catalog.models import model_rows
from planner.geometry.params import largest_tensor_numel, parameter_count
from planner.launch.shrink import shrink
from planner.launch.small_settings import shrink_settings, zero_sizes
from planner.records.candidate import ZeroStage
from planner.search.settings import default_settings
from planner.spec.hf_config import shape_from_config
from planner.spec.model import row_shape
from planner.units import GIB

ROWS = {row.model_type: row for row in model_rows()}


def small_of(whole):
    config = {**shrink(whole.hf_config, tp=1), "model_type": whole.model_type}
    return shape_from_config(config, name="small", source="test")


@pytest.mark.parametrize("stage", [ZeroStage.GRADIENTS, ZeroStage.PARAMETERS])
def test_for_each_architecture_states_are_seen_beside_the_buckets_and_something_is_divided(stage):
    tried = 0
    for row in ROWS.values():
        whole = row_shape(row)
        small, planned = small_of(whole), default_settings(stage, whole.hidden, 80 * GIB)
        settings = shrink_settings(planned, whole=whole, small=small)
        for name, value in asdict(settings).items():
            assert value <= asdict(planned)[name], row.name
        assert 8 * settings.reduce_bucket_elements <= parameter_count(small) + 8, row.name
        assert small.hidden <= settings.param_persistence_threshold < small.hidden**2, row.name
        assert settings.param_persistence_threshold < largest_tensor_numel(small, 1), row.name
        tried += 1
    assert tried >= 20


def test_a_bucket_of_one_matrix_stays_a_bucket_of_one_matrix():
    whole = row_shape(ROWS["llama"])
    small = small_of(whole)
    planned = default_settings(ZeroStage.PARAMETERS, whole.hidden, 80 * GIB)
    settings = shrink_settings(planned, whole=whole, small=small)
    assert planned.reduce_bucket_elements == whole.hidden**2
    assert settings.reduce_bucket_elements == min(small.hidden**2, -(-parameter_count(small) // 8))
    assert settings.param_persistence_threshold == 10 * small.hidden


def test_the_keys_are_those_of_the_stage():
    settings = default_settings(ZeroStage.PARAMETERS, 4096, 80 * GIB)
    assert set(zero_sizes(settings, ZeroStage.GRADIENTS)) == {"reduce_bucket_size", "allgather_bucket_size"}
    assert len(zero_sizes(settings, ZeroStage.PARAMETERS)) == 7
