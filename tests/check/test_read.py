"""Notation: what can be read, by whom, and where in the text a key stands."""

import json

import pytest

from planner.check import check_text
from planner.check.read import path_marks, read_document, strip_notes


def test_a_key_has_the_line_and_column_it_is_written_at() -> None:
    text = '{\n  "a": 1,\n\t"zero": {"stage": 2,\n    "list": [10, {"x": 1}]}\n}'
    marks = path_marks(text)
    assert marks["$.a"] == (2, 3)
    assert marks["$.zero"] == (3, 2)
    assert marks["$.zero.stage"] == (3, 11)
    assert marks["$.zero.list[1].x"] == (4, 19)


def test_comments_and_trailing_commas_are_a_warning_and_do_not_hide_other_faults() -> None:
    text = '{\n // note\n "train_batch_size": 1, # and\n "gradient_clipping": 1,\n "fp16": {"hysteresis": "x",},\n}'
    _, problems = check_text("ds.json", text)
    assert [(problem.rule, problem.line) for problem in problems] == [("DS002", 2), ("DS013", 5)]


def test_what_looks_like_a_comment_inside_a_string_stays() -> None:
    text = '{"url": "https://x/#y", "list": ["a,]", 1,], /* z */ "b": "\\"//"}'
    assert len(strip_notes(text)) == len(text)
    assert json.loads(strip_notes(text)) == {"url": "https://x/#y", "list": ["a,]", 1], "b": '"//'}


@pytest.mark.parametrize("text", ["", "{", "{]", '{"a": }', "[" * 100_000, "not json", '{"a": 1}}', "\0"])
def test_an_unreadable_json_file_is_one_finding_with_a_line(text: str) -> None:
    document, problems = check_text("ds.json", text)
    assert document is None
    assert [(problem.rule, problem.severity.value) for problem in problems] == [("DS001", "error")]
    assert problems[0].line >= 1


@pytest.mark.parametrize("text", ["a: [1", "a: b: c", "\tx: 1", "!!python/object:os.system x", "\0"])
def test_an_unreadable_yaml_file_is_one_finding_with_a_line(text: str) -> None:
    document, problems = check_text("a.yaml", text)
    assert document is None
    assert [problem.rule for problem in problems] == ["DS001"]


@pytest.mark.parametrize(("name", "text"), [("a.json", "[]"), ("a.json", "3"), ("a.yaml", ""), ("a.yaml", "- 1")])
def test_a_document_that_is_no_mapping_is_one_finding(name: str, text: str) -> None:
    assert [problem.rule for problem in check_text(name, text)[1]] == ["DS001"]


def test_a_key_written_twice_is_an_error() -> None:
    _, problems = read_document("a.json", '{"a": 1, "b": {"c": 1, "c": 2}}')
    assert [(problem.rule, problem.path) for problem in problems] == [("DS003", "$.c")]
