"""One edit of a text, everything else byte for byte.

In: a text, its notation, an edit. Out: the new text, or None where the edit has no place. Answers: how does the file
look with this key renamed, moved, set or taken out, in the way it is laid out?
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from planner.check.mending.strict_json import as_strict, bare_words
from planner.check.reading import json_text, yaml_text
from planner.check.reading.json_text import Unreadable
from planner.check.reading.nodes import Entry, Form, Node, python_value
from planner.check.reading.read import Notation
from planner.records.problem import Edit, EditKind

PLAIN_KEY = re.compile(r"[A-Za-z_]\w*")
COMMA = re.compile(r"[ \t]*,")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spot:
    """An entry, and the section that holds it."""

    section: Node
    index: int

    @property
    def entry(self) -> Entry:
        return self.section.entries[self.index]


def edited(text: str, notation: Notation, edit: Edit) -> str | None:
    """The text after the edit."""
    if notation is Notation.SHELL:
        return None
    try:
        root = yaml_text.read_tree(text) if notation is Notation.YAML else json_text.read_tree(text)
    except Unreadable:
        return None
    if root is None or root.form is not Form.MAPPING:
        return None
    if edit.kind is EditKind.STRICT:
        return as_strict(text, root) if notation is Notation.JSON and not bare_words(root) else None
    document = _Text(text=text, root=root, yaml=notation is Notation.YAML)
    if edit.kind is EditKind.SET:
        return document.with_value(edit.path, document.written(edit.value))
    if edit.kind is EditKind.REMOVE:
        return document.without(edit.path)
    if edit.kind is EditKind.RENAME:
        return document.renamed(edit.path, edit.to)
    if edit.kind is EditKind.MOVE:
        return document.moved(edit.path, edit.to)
    return document.with_the_last_only(edit.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    text: str
    root: Node
    yaml: bool

    # --- the edits

    def with_value(self, path: str, written: str) -> str | None:
        spot = self._find(path)
        if spot is not None:
            node = spot.entry.node
            if node.start == node.end:  # YAML: `key:` and nothing
                return self._replace(node.start, node.end, f" {written}")
            return self._replace(node.start, self._end_of_value(node), written)
        parent, _, name = path.rpartition(".")
        if not parent or name.endswith("]"):
            return None
        section = self.root if parent == "$" else self._section(parent)
        if section is None:
            inner = f"{{{self._key(name)}: {written}}}"
            return None if self._find(parent) and not self._is_null(parent) else self.with_value(parent, inner)
        return self._with_entry(section, name, written)

    def without(self, path: str) -> str | None:
        spot = self._find(path)
        return None if spot is None else self._without(spot)

    def renamed(self, path: str, name: str) -> str | None:
        spot = self._find(path)
        if spot is None or any(entry.name == name for entry in spot.section.entries):
            return None
        start, end = spot.entry.start, spot.entry.end
        quote = self.text[start] if self.text[start] in "\"'" else ""
        return self._replace(start, end, f"{quote}{name}{quote}" if quote else self._key(name))

    def moved(self, path: str, to: str) -> str | None:
        spot = self._find(path)
        if spot is None or self._find(to) is not None or to.startswith(f"{path}."):
            return None
        node = spot.entry.node
        raw = self.text[node.start : self._end_of_value(node)]
        if node.form is not Form.SCALAR and (not node.flow or "\n" in raw):
            raw = json.dumps(python_value(node)) if self.yaml else self._laid_out(python_value(node), to)
        without = self._without(spot)
        rest = _reread(without, yaml=self.yaml)
        return None if rest is None else rest.with_value(to, raw)

    def with_the_last_only(self, path: str) -> str | None:
        spot = self._find(path)
        if spot is None:
            return None
        text: str | None = self.text
        again = [at for at, entry in enumerate(spot.section.entries) if entry.name == spot.entry.name]
        for _ in again[:-1]:
            document = _reread(text, yaml=self.yaml)
            place = document._find(path) if document is not None else None
            if document is None or place is None:
                return None
            first = next(at for at, entry in enumerate(place.section.entries) if entry.name == place.entry.name)
            text = document._without(_Spot(section=place.section, index=first))
        return text

    # --- how a value is written

    def written(self, value: Any) -> str:
        """A value in this notation."""
        if not self.yaml or isinstance(value, (dict, list)):
            return json.dumps(value, ensure_ascii=False)
        if isinstance(value, str):
            return value if _is_plain(value) else "'" + value.replace("'", "''") + "'"
        if isinstance(value, float):
            return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))
        return json.dumps(value)

    def _laid_out(self, value: Any, to: str) -> str:
        """A section of several lines, indented for its new place."""
        step = self._step()
        lines = json.dumps(value, indent=step, ensure_ascii=False).split("\n")
        return f"\n{' ' * step * to.count('.')}".join(lines)

    def _step(self) -> int:
        first = next((entry.start for entry in self.root.entries), 0)
        blank = self._blank_before(first)
        return len(blank) if blank is not None and blank.strip(" ") == "" and blank else 2

    def _key(self, name: str) -> str:
        return name if self.yaml and _is_plain(name) else json.dumps(name, ensure_ascii=False)

    # --- where things stand

    def _spots(self, node: Node, path: str) -> Iterator[tuple[str, _Spot]]:
        for index, entry in enumerate(node.entries):
            place = f"{path}[{entry.name}]" if node.form is Form.LIST else f"{path}.{entry.name}"
            yield place, _Spot(section=node, index=index)
            yield from self._spots(entry.node, place)

    def _find(self, path: str) -> _Spot | None:
        found = None
        for place, spot in self._spots(self.root, "$"):
            if place == path:
                found = spot
        return found

    def _section(self, path: str) -> Node | None:
        spot = self._find(path)
        return spot.entry.node if spot is not None and spot.entry.node.form is Form.MAPPING else None

    def _is_null(self, path: str) -> bool:
        spot = self._find(path)
        return spot is not None and spot.entry.node.form is Form.SCALAR and spot.entry.node.value is None

    def _end_of_value(self, node: Node) -> int:
        """A word without quotes runs to the end of its line; the comma there was meant as one."""
        swallowed = not self.yaml and node.plain and isinstance(node.value, str) and node.value.endswith(",")
        return node.end - 1 if swallowed else node.end

    def _last(self, node: Node) -> int:
        """The end of what is written of a node: a YAML block itself ends where the next token starts."""
        if node.flow or not node.entries:
            return node.end
        return self._last(node.entries[-1].node)

    def _line_end(self, at: int) -> int:
        end = self.text.find("\n", at)
        end = len(self.text) if end < 0 else end
        return end - 1 if end > at and self.text[end - 1] == "\r" else end

    def _blank_before(self, at: int) -> str | None:
        """The blanks in front of a place, if nothing else stands on its line."""
        start = self.text.rfind("\n", 0, at) + 1
        blank = self.text[start:at]
        return blank if not blank.strip() else None

    @property
    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"

    def _replace(self, start: int, end: int, new: str) -> str:
        return self.text[:start] + new + self.text[end:]

    # --- one entry more, one entry less

    def _with_entry(self, section: Node, name: str, written: str) -> str | None:
        entry = f"{self._key(name)}: {written}"
        if not section.entries:
            at = section.start + 1 if self.text[section.start : section.start + 1] == "{" else None
            return None if at is None else self._replace(at, at, entry)
        last = section.entries[-1]
        blank = self._blank_before(last.start)
        if not section.flow:
            if blank is None:
                blank = " " * (last.start - (self.text.rfind("\n", 0, last.start) + 1))
            at = self._line_end(max(self._last(last.node), last.end))
            return self._replace(at, at, f"{self._newline}{blank}{entry}")
        if not self.yaml and last.node.plain and isinstance(last.node.value, str):
            return None  # a comma would become part of the word
        separator = ", " if blank is None else f",{self._newline}{blank}"
        return self._replace(last.node.end, last.node.end, separator + entry)

    def _without(self, spot: _Spot) -> str:
        section, entry = spot.section, spot.entry
        if not section.flow:
            return self._without_block(spot)
        start, end = entry.start, entry.node.end
        comma = COMMA.match(self.text, end)
        before: int | None = None
        if comma is not None:
            end = comma.end()
        elif spot.index:
            before = json_text.skip(self.text, section.entries[spot.index - 1].node.end)
        if before is not None and not self.text.startswith(",", before):
            before = None
        rest = self.text[end : self._line_end(end)].strip()
        if self._blank_before(start) is not None and (not rest or rest.startswith(("#", "//"))):
            start = self.text.rfind("\n", 0, start) + 1
            after = self.text.find("\n", end)
            end = len(self.text) if after < 0 else after + 1
        else:
            while end < len(self.text) and self.text[end] in " \t" and comma is not None:
                end += 1
            if before is not None and not self.text[before + 1 : start].strip():
                start, before = before, None
        text = self.text[:start] + self.text[end:]
        return text if before is None else text[:before] + text[before + 1 :]

    def _without_block(self, spot: _Spot) -> str:
        section, entry = spot.section, spot.entry
        end = max(self._last(entry.node), entry.end)
        if len(section.entries) == 1:
            return self._replace(entry.start, end, "{}")
        if self._blank_before(entry.start) is None:  # behind a dash
            return self._replace(entry.start, section.entries[spot.index + 1].start, "")
        start = self.text.rfind("\n", 0, entry.start) + 1
        after = self.text.find("\n", end)
        return self._replace(start, len(self.text) if after < 0 else after + 1, "")


def _reread(text: str | None, *, yaml: bool) -> _Text | None:
    if text is None:
        return None
    try:
        root = yaml_text.read_tree(text) if yaml else json_text.read_tree(text)
    except Unreadable:
        return None
    return None if root is None else _Text(text=text, root=root, yaml=yaml)


def _is_plain(text: str) -> bool:
    """Whether YAML reads the word as it stands."""
    import yaml

    if text != text.strip() or "\n" in text:
        return False
    try:
        return bool(yaml.safe_load(f"a: {text}") == {"a": text} and yaml.safe_load(f"[{text}]") == [text])
    except yaml.YAMLError:
        return False
