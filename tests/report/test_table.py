"""Columns and paragraphs of the terminal answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.report.table import WIDTH, bar, table, wrapped


@given(st.lists(st.from_regex(r"[a-z]{1,9}|\d{1,3} %|\d{1,3}\.\d GiB", fullmatch=True), min_size=1, max_size=60))
def test_a_paragraph_keeps_its_words_the_width_and_units_beside_their_numbers(words: list[str]) -> None:
    text = " ".join(words)
    lines = wrapped(text, first="  - ", indent="    ")
    assert max(map(len, lines)) <= WIDTH
    assert " ".join(line[4:] for line in lines) == text
    assert not any(line[4:].startswith(("%", "GiB")) for line in lines)


def test_an_empty_paragraph_is_one_empty_line() -> None:
    assert wrapped("") == [""]


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table(("#", "plan", "GiB"), [("1", "a", "10.0"), ("12", "bcd", "9.5")], left=frozenset({0, 1})) == [
        "#   plan   GiB",
        "1   a     10.0",
        "12  bcd    9.5",
    ]


def test_a_bar_shows_at_least_one_mark_and_never_more_than_its_width() -> None:
    assert [bar(share, width=10) for share in (0, 0.001, 0.5, 1, 3)] == ["", "#", "#" * 5, "#" * 10, "#" * 10]
