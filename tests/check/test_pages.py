"""Every rule has a page, and the examples on it show the rule."""

from __future__ import annotations

import json

import pytest

from planner.check import RULES, check_text
from planner.check.pages import WHEN, _pages, as_markdown, as_text, page
from planner.errors import UnknownName

# Rules that a text by itself cannot show: they need another file, the machine, the model, or a folder of a plan.
NEED_MORE = {
    "DS068",
    "DS133",
    "DS069",
    "DS070",
    "DS071",
    "DS072",
    "DS076",
    "DS005",
    "DS022",
    "DS051",
    "DS121",
    "DS122",
    "DS201",
    "DS202",
    "DS203",
    "DS204",
}
NOT_A_FILE = {"DS001"}


def test_every_rule_has_a_page_and_every_page_a_rule() -> None:
    assert set(_pages()) == set(RULES)
    for rule in RULES:
        known = page(rule)
        for field in ("about", "happens", "releases", "wrong", "right", "source"):
            assert getattr(known, field).strip(), (rule, field)
        assert known.bites in WHEN
        assert known.title in as_text(known)
        assert known.happens in as_markdown(known)
    assert len(RULES) >= 80


def readable(text: str) -> tuple[str, str] | None:
    """Name and text of an example that is a whole file."""
    if text.lstrip().startswith("{") and text.rstrip().endswith("}"):
        try:
            json.loads(text)
        except ValueError:
            return "ds.json", text
        return "ds.json", text
    return ("accelerate.yaml", text) if "\n" in text and ":" in text.splitlines()[0] else None


@pytest.mark.parametrize("rule", sorted(rule for rule in RULES if rule < "DS200" and rule not in NEED_MORE))
def test_the_wrong_example_breaks_the_rule_and_the_right_one_does_not(rule: str) -> None:
    known = page(rule)
    wrong, right = readable(known.wrong), readable(known.right)
    if wrong is None or right is None:
        pytest.skip("the example is no whole file")
    assert rule in {problem.rule for problem in check_text(*wrong)[1]}
    assert rule not in {problem.rule for problem in check_text(*right)[1]}


def test_an_unknown_rule_is_the_callers_mistake() -> None:
    with pytest.raises(UnknownName, match="no rule is called `DS0O3`") as caught:
        page("DS0O3")
    assert "did you mean" in caught.value.hint
    assert page(" ds003 ").rule == "DS003"
