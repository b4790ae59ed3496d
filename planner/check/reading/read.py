"""Text of a configuration file to its document.

In: the text and the file's name. Out: the document, the tree that says where each key stands, and the problems of the
notation. Answers: can every program that gets this file read it, and do they all read the same?
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from planner.check.reading import json_text, yaml_text
from planner.check.reading.json_text import Unreadable
from planner.check.reading.nodes import Entry, Form, Lines, Node, places, python_value, walk, written_twice
from planner.check.rules import finding
from planner.errors import one_line
from planner.records.problem import Edit, EditKind, Problem, Severity

VALUE_RULES = frozenset(
    ("DS004", "DS013", "DS014", "DS021", "DS031", "DS051", "DS064", "DS066", "DS112", "DS322", "DS121", "DS123")
)
"""Rules about a value: their place is the value's, not the key's."""
PYTHON_WORDS = {"True": True, "False": False, "None": None}
NO_NUMBERS = ("NaN", "Infinity", "-Infinity")


class Notation(Enum):
    """How a file is written."""

    JSON = "JSON"
    YAML = "YAML"
    SHELL = "shell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """One text that was read; `document` and `root` are None where nobody can read it."""

    notation: Notation
    document: Any
    root: Node | None
    problems: tuple[Problem, ...] = ()


def parse(name: str, text: str) -> Parsed:
    """A JSON or YAML text, told apart by what it looks like, then by its name."""
    return _parse_yaml(text) if notation_of(name, text) is Notation.YAML else parse_json(text)


def notation_of(name: str, text: str) -> Notation:
    """JSON starts with a bracket; the name decides where a text could be both."""
    lower = name.lower()
    if lower.endswith((".yaml", ".yml")):
        return Notation.YAML
    bracket = text.lstrip("\ufeff \t\r\n").startswith(("{", "[", "//", "/*"))
    return Notation.JSON if bracket or lower.endswith((".json", ".hjson", ".json5", ".jsonc")) else Notation.YAML


def locate(problems: list[Problem], file: str, text: str, *roots: Node | None) -> list[Problem]:
    """The problems with file, line and column filled in; `roots` are the trees that their paths may lie in."""
    if all(problem.line for problem in problems):
        return [replace(problem, file=file) for problem in problems]
    known = {path: entry for root in roots for path, entry in places(root).items()}
    lines = Lines(text)
    return [_placed(problem, file, known, lines) for problem in problems]


def _placed(problem: Problem, file: str, known: Mapping[str, Entry], lines: Lines) -> Problem:
    if problem.line:
        return replace(problem, file=file)
    path = problem.path
    while path not in known and path != "$":
        path = path[: max(path.rfind("."), path.rfind("["), 1)]
    line, column = 1, 1
    if path in known:
        entry = known[path]
        wrong_value = problem.rule in VALUE_RULES and path == problem.path
        line, column = lines.at(entry.node.start if wrong_value else entry.start)
    return replace(problem, file=file, line=line, column=column)


def _at(problem: Problem, text: str, offset: int) -> Problem:
    line, column = Lines(text).at(offset)
    return replace(problem, line=line, column=column)


def parse_json(text: str) -> Parsed:
    """A text that DeepSpeed gets, whatever its name."""
    strict: Any = None
    refused: json.JSONDecodeError | None = None
    try:
        strict = json.loads(text)
    except json.JSONDecodeError as error:
        refused = error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; too many brackets
        return _nothing(Notation.JSON, f"not JSON: {one_line(str(error))}", text, 0)
    try:
        root = json_text.read_tree(text)
    except Unreadable as error:
        if refused is not None:
            return _nothing(Notation.JSON, f"not JSON: {error.reason}", text, error.offset)
        message = f"DeepSpeed's reader refuses what the JSON of Python takes: {error.reason}"
        problem = _at(finding("DS001", "$", message, fix="write a finite number"), text, error.offset)
        return Parsed(notation=Notation.JSON, document=strict, root=None, problems=(problem,))
    if refused is not None and root.form is Form.SCALAR:
        return _nothing(Notation.JSON, f"not JSON: {refused.msg}", text, refused.pos)
    if refused is not None and not text.strip("\ufeff \t\r\n"):
        return _nothing(Notation.JSON, "the file is empty", text, 0)
    problems = [*_repeated(root, text, Notation.JSON), *_words(root, text)]
    if refused is not None:
        problems.insert(0, _only_deepspeed(text, refused))
    document = strict if refused is None else python_value(root)
    return Parsed(notation=Notation.JSON, document=document, root=root, problems=tuple(problems))


def _only_deepspeed(text: str, refused: json.JSONDecodeError) -> Problem:
    what = "a byte order mark" if text.startswith("\ufeff") else f"{refused.msg[0].lower()}{refused.msg[1:]}"
    message = f"no strict JSON ({what}): DeepSpeed itself reads it, the Trainer and accelerate do not"
    fix = "write plain JSON: double quotes, no comments, no trailing commas, no byte order mark"
    return _at(finding("DS002", "$", message, fix=fix), text, refused.pos)


def _words(root: Node, text: str) -> Iterator[Problem]:
    """Words without quotes that DeepSpeed takes as text, though a value was meant."""
    for path, entry in walk(root):
        node = entry.node
        if node.form is not Form.SCALAR or not node.plain or not isinstance(node.value, str):
            continue
        word = node.value.rstrip(", ")
        edits: tuple[Edit, ...] = ()
        fix = "write a value; a text needs quotes"
        if word in PYTHON_WORDS:
            edits = (Edit(kind=EditKind.SET, path=path, value=PYTHON_WORDS[word]),)
            fix = f"write {json.dumps(PYTHON_WORDS[word])}"
        elif word in NO_NUMBERS:
            fix = "write a finite number"
        elif not node.value.endswith(","):
            continue
        message = f"DeepSpeed reads this as the text `{one_line(node.value)[:60]}`"
        yield _at(finding("DS004", path, message, fix=fix, edits=edits), text, node.start)


def _repeated(root: Node, text: str, notation: Notation) -> Iterator[Problem]:
    for path, entry in written_twice(root):
        edits = (Edit(kind=EditKind.KEEP_LAST, path=path),)
        message = f"`{entry.name}` is written twice in one section"
        problem = finding("DS003", path, message, fix="leave one of them", edits=edits)
        if notation is Notation.YAML:
            problem = replace(problem, message=f"{message}; the last one counts, without a word", bites="silently")
        yield _at(problem, text, entry.start)


def _parse_yaml(text: str) -> Parsed:
    try:
        root = yaml_text.read_tree(text)
    except Unreadable as error:
        return _nothing(Notation.YAML, f"not YAML: {one_line(error.reason)}", text, error.offset)
    if root is None:
        return Parsed(notation=Notation.YAML, document=None, root=None)
    problems = list(_repeated(root, text, Notation.YAML))
    for path, written, read_as, meant in yaml_text.surprises(root, text):
        words = "null" if meant is None else str(meant)
        edits = () if isinstance(meant, str) else (Edit(kind=EditKind.SET, path=path, value=meant),)
        fix = f"write {words}" if edits else f"write '{words}' in quotes, if a text is meant"
        message = f"YAML 1.1 reads `{written}` as {read_as}"
        problems.append(finding("DS004", path, message, fix=fix, severity=Severity.WARNING, edits=edits))
    problems = locate(problems, "", text, root)
    return Parsed(notation=Notation.YAML, document=python_value(root), root=root, problems=tuple(problems))


def _nothing(notation: Notation, message: str, text: str, offset: int) -> Parsed:
    fix = f"write plain {notation.value}, without template text"
    problem = _at(finding("DS001", "$", message, fix=fix), text, offset)
    return Parsed(notation=notation, document=None, root=None, problems=(problem,))
