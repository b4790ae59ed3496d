"""Text of a configuration file to its document, and JSON paths to lines.

In: the text and the file's name. Out: the document with the problems of the notation, and a function from paths to
(line, column). Answers: can every program that gets this file read it, and where in it is `$.a.b`?
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.check.rules import finding
from planner.records.problem import Problem

STRING = r'"(?:[^"\\]|\\.)*"'
COMMENT = re.compile(STRING + r"|(?P<drop>//[^\n]*|#[^\n]*|/\*.*?\*/)", re.DOTALL)
TRAILING_COMMA = re.compile(STRING + r"|(?P<drop>,(?=\s*[}\]]))", re.DOTALL)


def read_document(name: str, text: str) -> tuple[Any, list[Problem]]:
    """The document (None when it cannot be read) and what is wrong with its notation."""
    return _read_json(text) if name.endswith(".json") else _read_yaml(text)


def locate(problems: list[Problem], file: str, text: str) -> list[Problem]:
    """The problems with file, line and column filled in."""
    marks = {}
    if any(not problem.line for problem in problems):
        marks = path_marks(text) or path_marks(strip_notes(text))
    return [_placed(problem, file, marks) for problem in problems]


def path_marks(text: str) -> dict[str, tuple[int, int]]:
    """(line, column), from 1, of every key and list item of a JSON or YAML text; empty where it cannot be parsed."""
    import yaml

    try:
        root = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError):
        return {}
    marks: dict[str, tuple[int, int]] = {}
    queue = [("$", root)]
    while queue:
        path, node = queue.pop()
        children: list[tuple[str, Any, Any]] = []
        if isinstance(node, yaml.MappingNode):
            children = [(f"{path}.{key.value}", key, value) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            children = [(f"{path}[{index}]", value, value) for index, value in enumerate(node.value)]
        for place, marked, value in children:
            marks[place] = (marked.start_mark.line + 1, marked.start_mark.column + 1)
            queue.append((place, value))
    return marks


def _placed(problem: Problem, file: str, marks: Mapping[str, tuple[int, int]]) -> Problem:
    if problem.line:
        return replace(problem, file=file)
    path = problem.path
    while path not in marks and "." in path:
        path = path.rpartition(".")[0]
    line, column = marks.get(path, (1, 1))
    return replace(problem, file=file, line=line, column=column)


def _read_json(text: str) -> tuple[Any, list[Problem]]:
    problems: list[Problem] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        document = dict(items)
        if len(document) == len(items):
            return document
        keys = [key for key, _ in items]
        for key in sorted({key for key in keys if keys.count(key) > 1}):
            problems.append(
                finding("DS003", f"$.{key}", f"`{key}` is written twice in one section", fix="leave one of them")
            )
        return document

    try:
        return json.loads(text, object_pairs_hook=pairs), problems
    except (ValueError, RecursionError) as error:
        strict = error
    problems.clear()
    try:
        document = json.loads(strip_notes(text), object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return None, [_unreadable("JSON", strict)]
    note = "comments or trailing commas: DeepSpeed reads them, the Trainer and accelerate do not"
    return document, [replace(_unreadable("JSON", strict, rule="DS002"), message=note), *problems]


def _read_yaml(text: str) -> tuple[Any, list[Problem]]:
    import yaml

    try:
        return yaml.safe_load(text), []
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return None, [_unreadable("YAML", error)]


def strip_notes(text: str) -> str:
    """JSON without comments and trailing commas, of the same length and the same lines."""

    def blank(match: re.Match[str]) -> str:
        return match.group() if match["drop"] is None else re.sub(r"[^\n]", " ", match["drop"])

    return TRAILING_COMMA.sub(blank, COMMENT.sub(blank, text))


def _unreadable(notation: str, error: Exception, *, rule: str = "DS001") -> Problem:
    mark = getattr(error, "problem_mark", None)
    line = getattr(error, "lineno", 0) or (mark.line + 1 if mark else 0)
    column = getattr(error, "colno", 0) or (mark.column + 1 if mark else 0)
    reason = getattr(error, "msg", None) or getattr(error, "problem", None) or type(error).__name__
    problem = finding(
        rule, "$", f"not {notation}: {reason}", fix=f"write plain {notation}, without comments or template text"
    )
    return replace(problem, line=line or 1, column=column or 1)
