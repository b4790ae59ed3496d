"""Notation: what can be read, by whom, and where in the text a key stands."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import yaml

from planner.check import check_text
from planner.check.reading.json_text import Unreadable, read_tree
from planner.check.reading.nodes import Lines, places, python_value, written_twice
from planner.check.reading.read import Parsed, parse
from planner.records.problem import Problem


def places_in(text: str, name: str = "a.json") -> dict[str, tuple[int, int]]:
    lines = Lines(text)
    return {path: lines.at(entry.start) for path, entry in places(parse(name, text).root).items()}


def found(name: str, text: str, *rules: str) -> list[Problem]:
    return [problem for problem in check_text(name, text)[1] if problem.rule in rules]


def test_a_key_has_the_line_and_column_it_is_written_at() -> None:
    text = '{\n  "a": 1,\n\t"zero": {"stage": 2,\n    "list": [10, {"x": 1}]}\n}'
    marks = places_in(text)
    assert marks["$.a"] == (2, 3)
    assert marks["$.zero"] == (3, 2)
    assert marks["$.zero.stage"] == (3, 11)
    assert marks["$.zero.list[1].x"] == (4, 19)
    assert places_in("a: 1\nb:\n  - 10\n  - x: 1\n    y: [5, {z: 2}]\n", "a.yaml") == {
        "$.a": (1, 1), "$.b": (2, 1), "$.b[0]": (3, 5), "$.b[1]": (4, 5), "$.b[1].x": (4, 5), "$.b[1].y": (5, 5),
        "$.b[1].y[0]": (5, 9), "$.b[1].y[1]": (5, 12), "$.b[1].y[1].z": (5, 13),
    }  # fmt: skip


def test_a_wrong_value_is_shown_where_the_value_stands() -> None:
    text = '{"train_micro_batch_size_per_gpu": 1,\n "zero_optimization": {"stage":\n   7, "stage3_max": 1}}'
    assert [(p.rule, p.line, p.column) for p in found("a.json", text, "DS013", "DS010")] == [
        ("DS013", 3, 4),
        ("DS010", 3, 7),
    ]


def test_comments_and_trailing_commas_are_a_warning_and_do_not_hide_other_faults() -> None:
    text = '{\n // note\n "train_batch_size": 1, # and\n "gradient_clipping": 1,\n "fp16": {"hysteresis": "x",},\n}'
    _, problems = check_text("ds.json", text)
    assert [(problem.rule, problem.line) for problem in problems] == [("DS002", 2), ("DS013", 5)]


def test_what_looks_like_a_comment_inside_a_string_stays() -> None:
    text = '{"url": "https://x/#y", "list": ["a,]", 1,], /* z */ "b": "\\"//"}'
    assert parse("a.json", text).document == {"url": "https://x/#y", "list": ["a,]", 1], "b": '"//'}


@pytest.mark.parametrize(
    "text",
    ["", " \n", "{", "{]", '{"a": }', "[" * 100_000, "not json", '{"a": 1}}', '{"a": ' + "9" * 5000 + "}", "{/*"],
)
def test_an_unreadable_json_file_is_one_finding_with_a_line(text: str) -> None:
    document, problems = check_text("ds.json", text)
    assert document is None
    assert [(problem.rule, problem.severity.value) for problem in problems] == [("DS001", "error")]
    assert problems[0].line >= 1


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1", 1), ("x: 1\na: b: c", 2), ("x: 1\n\ty: 1", 2), ("!!python/object:os.system x", 1), ("a: \0", 1),
        ("a: 1\n---\nb: 2\n", 2), (BOMB, 1), ("a: &a [*a]", 1), ("a: " + "[" * 5000, 1), ("a: " + "9" * 5000, 1),
        ("a:\n  b: 1\n c: 2", 3), ("a: 2024-13-01", 1),
    ],
)  # fmt: skip
def test_an_unreadable_yaml_file_is_one_finding_with_a_line(text: str, line: int) -> None:
    document, problems = check_text("a.yaml", text)
    assert document is None
    assert [problem.rule for problem in problems] == ["DS001"]
    assert problems[0].line == line


@pytest.mark.parametrize(("name", "text"), [("a.json", "[]"), ("ds.json", "3"), ("a.yaml", ""), ("acc.yaml", "- 1")])
def test_a_document_that_is_no_mapping_is_one_finding(name: str, text: str) -> None:
    assert [problem.rule for problem in check_text(name, text)[1]] == ["DS001"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "3"),
        ("a.yaml", "- 1"),
        ("tokenizer_config.json", '{"model_max_length": 2048, "tokenizer_class": "LlamaTokenizer"}'),
        ("compose.yaml", "services:\n  web:\n    image: nginx\n"),
        ("hybrid_engine.json", '{"deepspeed_config": "configs/ds_zero3.json", "prompts": 8}'),
        ("run.sh", "#!/bin/bash\necho hello\n"),
        ("ci.yaml", "name: ci\nenv:\n  A: 1\njobs: {}\n"),
        ("model.json", '{"model_type": "llama", "vocab_size": 32000, "hidden_size": 1}'),
        ("adapter_config.json", '{"peft_type": "LORA", "r": 16, "target_modules": ["q_proj"]}'),
        ("8B_lora.yaml", "optimizer:\n  _component_: torch.optim.AdamW\n  lr: 0.0003\n"),
        ("lightning.yaml", "optimizer:\n  class_path: torch.optim.Adam\nlr_scheduler: {}\n"),
    ],
)
def test_a_file_of_another_program_is_a_note(name: str, text: str) -> None:
    assert [(problem.rule, problem.severity.value) for problem in check_text(name, text)[1]] == [("DS005", "info")]


@pytest.mark.parametrize(("name", "key"), [("ds.json", "nothing_known"), ("a.json", "zero_optimisation")])
def test_a_name_or_a_slip_tells_what_a_file_is_meant_to_be(name: str, key: str) -> None:
    assert {problem.rule for problem in check_text(name, json.dumps({key: 1}))[1]} >= {"DS011", "DS020"}


def test_a_deepspeed_file_is_json_whatever_its_name() -> None:
    document = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}
    rate = ', "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}'
    assert check_text("ds.yaml", json.dumps(document)[:-1] + rate)[1] == []
    found = check_text("ds.yaml", yaml.safe_dump(document))[1]
    assert [(problem.rule, problem.severity.value) for problem in found] == [("DS006", "warning")]


def test_a_key_written_twice_is_shown_at_its_second_place() -> None:
    parsed = parse("a.json", '{"a": 1, "b": [{"c": 1,\n "d": 1, "c": 2}], "a": 3}')
    assert [(p.rule, p.path, p.line, p.column) for p in parsed.problems] == [
        ("DS003", "$.a", 2, 20),
        ("DS003", "$.b[0].c", 2, 10),
    ]
    assert parsed.document == {"a": 3, "b": [{"c": 2, "d": 1}]}
    twice = parse("a.yaml", "a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert [(p.rule, p.path, p.line, p.column, p.bites) for p in twice.problems] == [
        ("DS003", "$.a.b", 4, 3, "silently")
    ]


def test_anchors_and_merged_sections_are_no_duplicates() -> None:
    text = "base: &b {x: 1, y: 2}\nmine:\n  <<: *b\n  y: 3\n"
    parsed = parse("a.yaml", text)
    assert parsed.problems == ()
    assert parsed.document == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("written", "column"), [("5e7", 4), ("1.0e5", 4), ("-2E-3", 4), ("None", 4), ("0777", 4), ("1:30", 4)]
)
def test_a_plain_word_that_yaml_reads_otherwise_is_pointed_out(written: str, column: int) -> None:
    parsed = parse("t.yaml", f"a: {written}\nb: '{written}'\n")
    assert parsed.document["a"] == yaml.safe_load(written)
    assert [(p.rule, p.path, p.line, p.column, p.severity.value) for p in parsed.problems] == [
        ("DS004", "$.a", 1, column, "warning")
    ]


@pytest.mark.parametrize("written", ["1.0e+5", "500000000", "~", "null", "0", "10.0", "0.5", "'None'", "abc", "0x1F"])
def test_a_plain_word_that_means_what_it_says_is_left_alone(written: str) -> None:
    assert parse("t.yaml", f"a: {written}\n").problems == ()


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ('{"a": NaN,\n"b": 1}', ["DS004"]),
        ('{"a": Infinity\n}', ["DS004"]),
        ('{"a": NaN}', ["DS001"]),
        ('{"a": 1e999}', ["DS001"]),
        ('{"a": True,\n"b": 1}', ["DS002", "DS004"]),
        ('{"a": auto,\n"b": 1}', ["DS002", "DS004"]),
        ("\ufeff{}", ["DS002"]),
        ("{'a': 'b'}", ["DS002"]),
        ('a: "b"', ["DS002"]),
        ('{"a": "x" "b": 2}', ["DS002"]),
    ],
)
def test_what_only_one_of_the_readers_takes_is_said(text: str, rules: list[str]) -> None:
    assert [problem.rule for problem in parse("a.json", text).problems] == rules


WORDS = (
    *("{", "}", "[", "]", ":", ",", '"a"', '"b"', "a", "b", "1", "2.5", "5e8", "true", "null", "True", "\n", " "),
    *("# c\n", "// c\n", "/* c */", "'x'", '"x y"', "\t", "-", "/", "\\", '"\\n"', "NaN", "1e999", '"z": 1,\n'),
    *('"k": [1, 2],', "\r\n", "x: y\n", "\ufeff", '"\\u00e9"'),
)
VALID = '{"a": 1, "b": {"c": [1, 2.5, "x"], "d": true},\n "e": null, "f": "auto"}'


def spoilt(chance: random.Random) -> str:
    """A text of random words, or a valid text with some characters taken out, put in or replaced."""
    if chance.random() < 0.5:
        return "".join(chance.choice(WORDS) for _ in range(chance.randint(1, 12)))
    letters = list(VALID)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(letters))
        letters[at : at + chance.randint(0, 1)] = [chance.choice((*WORDS, ""))]
    return "".join(letters)


@pytest.mark.deepspeed
def test_json_is_read_as_the_package_reads_it_that_deepspeed_uses() -> None:
    hjson = pytest.importorskip("hjson")
    chance = random.Random(20)
    read = 0
    for _ in range(6000):
        text = spoilt(chance)
        expected: Any
        try:
            expected = json.loads(json.dumps(hjson.loads(text)))
            read += 1
        except Exception:
            expected = Unreadable
        try:
            mine = json.loads(json.dumps(python_value(read_tree(text))))
        except Unreadable:
            mine = Unreadable
        assert mine == expected, text
    assert read >= 1000


def test_random_texts_never_crash_the_readers() -> None:
    chance = random.Random(7)
    for number in range(3000):
        text = spoilt(chance)
        for name in ("a.json", "a.yaml"):
            parsed: Parsed = parse(name, text)
            assert parsed.document is None or parsed.root is None or list(written_twice(parsed.root)) is not None, (
                number
            )
            assert all(problem.line >= 1 and problem.column >= 1 for problem in parsed.problems)
