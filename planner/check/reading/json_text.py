"""JSON as DeepSpeed reads it: with comments, trailing or missing commas, and words without quotes.

In: a text. Out: its tree. Answers: what does DeepSpeed make of a file, and where in it does each key stand?
The notation is Hjson; DeepSpeed reads its file with the package hjson (3.1), whose decoder is followed here branch by
branch, since that package does not say where a value stands. Two results to know: a word without quotes runs to the end
of its line, comma included (`True,` is the text "True,"); a number without a fraction is an integer (5e8).
"""

from __future__ import annotations

import re
from typing import Any

from planner.check.reading.nodes import Entry, Form, Node

DEEPEST = 200
"""Levels of nesting; DeepSpeed's own reader gives up at Python's recursion limit."""
BLANK = re.compile(r"(?:[ \t\r\n]+|(?:#|//)[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
NUMBER = re.compile(r"(-?(?:0|[1-9]\d*))(\.\d+)?([eE][-+]?\d+)?[\t ]*")
WORD_END = re.compile(r"[\r\n,}\]#]|//|/\*|$(?![\r\n])")
QUOTED = {quote: re.compile(rf"[^{quote}\\\x00-\x1f]*(?:\\.[^{quote}\\\x00-\x1f]*)*{quote}") for quote in "\"'"}
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
WORDS = {"null": None, "true": True, "false": False}


class Unreadable(ValueError):
    """The text ends the reading at `offset`."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset


class OutOfRange(Unreadable):
    """A number that Python's int and float do not hold."""


def read_tree(text: str) -> Node:
    """The tree of the text; raises Unreadable where DeepSpeed's reader raises."""
    start = skip(text, 1 if text.startswith("\ufeff") else 0)
    if start == len(text) and not text.startswith("\ufeff"):
        return Node(start=0, end=start, form=Form.MAPPING)
    if text.startswith(("{", "["), start):
        root = _value(text, start, 0)
    else:
        try:
            root = _mapping(text, start, 0, bare=True)
        except OutOfRange:
            raise
        except Unreadable as error:
            try:
                root = _value(text, start, 0)
            except Unreadable:
                raise error from None
    rest = skip(text, root.end)
    if rest != len(text):
        raise Unreadable("text after the end of the document", rest)
    return root


def skip(text: str, at: int) -> int:
    """The next character that is neither blank nor comment."""
    found = BLANK.match(text, at)
    end = found.end() if found else at
    if text.startswith("/*", end):
        raise Unreadable("a comment without end", end)
    return end


def _value(text: str, at: int, depth: int) -> Node:
    if depth > DEEPEST:
        raise Unreadable(f"nested deeper than {DEEPEST} levels", at)
    if at >= len(text):
        raise Unreadable("the text ends where a value should be", at)
    if text.startswith("'''", at):
        return _block(text, at)
    if text[at] in "\"'":
        value, end = _quoted(text, at)
        return Node(start=at, end=end, value=value)
    if text[at] == "{":
        return _mapping(text, at, depth)
    if text[at] == "[":
        return _list(text, at, depth)
    return _word(text, at)


def _mapping(text: str, start: int, depth: int, *, bare: bool = False) -> Node:
    """A section; `bare`: the document's own, without braces."""
    entries: list[Entry] = []
    at = skip(text, start if bare else start + 1)
    if not bare and text.startswith("}", at):
        return Node(start=start, end=at + 1, form=Form.MAPPING)
    while True:
        name, key_end = _key(text, at)
        colon = skip(text, key_end)
        if not text.startswith(":", colon):
            raise Unreadable("a `:` should follow the key", colon)
        node = _value(text, skip(text, colon + 1), depth + 1)
        entries.append(Entry(name=name, key=name, start=at, end=key_end, node=node))
        at = skip(text, node.end)
        if text.startswith(",", at):
            at = skip(text, at + 1)
        if at >= len(text):
            if bare:
                return Node(start=start, end=at, form=Form.MAPPING, entries=tuple(entries))
            raise Unreadable("the text ends inside a section that starts with `{`", at)
        if not bare and text[at] == "}":
            return Node(start=start, end=at + 1, form=Form.MAPPING, entries=tuple(entries))


def _list(text: str, start: int, depth: int) -> Node:
    items: list[Entry] = []
    at = skip(text, start + 1)
    while not text.startswith("]", at):
        if at >= len(text):
            raise Unreadable("the text ends inside a list that starts with `[`", at)
        node = _value(text, at, depth + 1)
        items.append(Entry(name=str(len(items)), start=node.start, end=node.end, node=node))
        at = skip(text, node.end)
        if text.startswith(",", at):
            at = skip(text, at + 1)
    return Node(start=start, end=at + 1, form=Form.LIST, entries=tuple(items))


def _key(text: str, at: int) -> tuple[str, int]:
    if text[at : at + 1] in ('"', "'"):
        return _quoted(text, at)
    end = at
    while end < len(text) and text[end] not in ":{}[], \t\r\n":
        end += 1
    after = end
    while after < len(text) and text[after] in " \t\r\n":
        after += 1
    if end == at or not text.startswith(":", after):
        found = f"`{text[after]}`" if after < len(text) else "the end of the text"
        raise Unreadable(f"{found} where a key and its `:` should be", min(after, len(text)))
    return text[at:end], end


def _quoted(text: str, at: int) -> tuple[str, int]:
    found = QUOTED[text[at]].match(text, at + 1)
    if found is None:
        raise Unreadable("a text in quotes that does not end on its line, or holds a control character", at)
    return ESCAPE.sub(lambda escape: _escaped(escape, at), found.group()[:-1]), found.end()


def _escaped(escape: re.Match[str], at: int) -> str:
    if escape[1]:
        return chr(int(escape[1], 16))
    if escape[2] not in ESCAPES:
        raise Unreadable(f"`\\{escape[2]}` is no escape of JSON", at)
    return ESCAPES[escape[2]]


def _block(text: str, at: int) -> Node:
    """A text of several lines between three single quotes."""
    end = text.find("'''", at + 3)
    if end < 0:
        raise Unreadable("a text in three quotes that does not end", at)
    indent = at - (text.rfind("\n", 0, at) + 1)
    lines = text[at + 3 : end].lstrip(" \t\r").replace("\r", "").split("\n")
    value = "\n".join([lines[0], *(_without_indent(line, indent) for line in lines[1:])])
    value = value[1:] if value.startswith("\n") else value
    return Node(start=at, end=end + 3, value=value.removesuffix("\n"))


def _without_indent(line: str, indent: int) -> str:
    blanks = len(line) - len(line.lstrip(" \t"))
    return line[min(blanks, indent) :]


def _word(text: str, start: int) -> Node:
    """A number, true, false, null, or a text without quotes, which takes the rest of its line."""
    if text[start] in "{}[],:":
        raise Unreadable(f"`{text[start]}` where a value should be", start)
    stop = WORD_END.search(text, start)
    while stop is not None:
        end = stop.start()
        word = text[start:end].strip()
        if word in WORDS:
            return Node(start=start, end=start + len(word), value=WORDS[word], plain=True)
        number = NUMBER.fullmatch(text, start, end)
        if number is not None:
            return Node(start=start, end=start + len(word), value=_number(number, start), plain=True)
        if end == len(text) or text[end] in "\r\n":
            return Node(start=start, end=start + len(word), value=word, plain=True)
        stop = WORD_END.search(text, end + 1)
    raise Unreadable("the text ends inside a value", start)


def _number(found: re.Match[str], at: int) -> Any:
    whole, fraction, exponent = found.groups()
    try:
        if not fraction and not exponent:
            return int(whole)
        value = float(whole + (fraction or "") + (exponent or ""))
        return int(value) if int(value) == value and abs(value) < 1e10 else value
    except (ValueError, OverflowError) as error:
        raise OutOfRange(f"a number out of range ({error})", at) from None
