"""The tree of a configuration text: what stands where.

In: nothing; the readers of JSON, YAML and launch lines build it. Out: records, and functions from JSON paths to places.
Answers: where in the text is `$.a.b`, which value does it have, and is it written twice?
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

LINE_END = re.compile(r"\r\n|\n|\r")


class Form(Enum):
    """What a node is."""

    SCALAR = "scalar"
    MAPPING = "mapping"
    LIST = "list"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One value, and the characters of the text that it takes: from `start` up to `end`."""

    start: int
    end: int
    form: Form = Form.SCALAR
    value: Any = None  # of a scalar
    entries: tuple[Entry, ...] = ()
    flow: bool = True  # written in brackets; False: a YAML block, laid out by indentation
    plain: bool = False  # a scalar without quotes


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A key with its value, or an item of a list: then the key's place is the value's, and the name its index."""

    name: str
    start: int
    end: int
    node: Node
    key: Any = None  # the key as the notation reads it: YAML's `no:` is false


def python_value(node: Node) -> Any:
    """Dicts, lists and scalars; of a key written twice the last counts, and every key is text."""
    if node.form is Form.MAPPING:
        return {entry.name: python_value(entry.node) for entry in node.entries}
    if node.form is Form.LIST:
        return [python_value(entry.node) for entry in node.entries]
    return node.value


def places(root: Node | None) -> dict[str, Entry]:
    """Every key and list item by its JSON path; of a key written twice the last."""
    return dict(walk(root))


def walk(root: Node | None, path: str = "$") -> Iterator[tuple[str, Entry]]:
    """Path and entry of everything below a node, in the order of the text."""
    if root is None:
        return
    for entry in root.entries:
        place = f"{path}[{entry.name}]" if root.form is Form.LIST else f"{path}.{entry.name}"
        yield place, entry
        yield from walk(entry.node, place)


def written_twice(root: Node | None) -> Iterator[tuple[str, Entry]]:
    """Path and later entry of each key that its section already holds."""
    nodes = [("$", root)] if root is not None else []
    while nodes:
        path, node = nodes.pop()
        seen: set[str] = set()
        for entry in node.entries:
            place = f"{path}[{entry.name}]" if node.form is Form.LIST else f"{path}.{entry.name}"
            if node.form is Form.MAPPING and entry.name in seen:
                yield place, entry
            seen.add(entry.name)
            nodes.append((place, entry.node))


class Lines:
    """Line and column, both from 1, of a place in a text."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(end.end() for end in LINE_END.finditer(text))]

    def at(self, offset: int) -> tuple[int, int]:
        """(line, column) of the character at `offset`."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1
