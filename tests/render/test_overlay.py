"""A key has one home: the template or the plan."""

import pytest

from planner.render.overlay import overlay


def test_sections_are_merged_and_the_template_stays_as_it_was() -> None:
    template = {"a": 1, "zero": {"x": True}}
    assert overlay(template, {"zero": {"stage": 3}, "b": 2}) == {"a": 1, "zero": {"x": True, "stage": 3}, "b": 2}
    assert template == {"a": 1, "zero": {"x": True}}


def test_a_key_on_both_sides_is_refused_with_its_path() -> None:
    with pytest.raises(ValueError, match=r"`\$\.zero\.stage` is in the template and in the plan"):
        overlay({"zero": {"stage": 1}}, {"zero": {"stage": 1}})
