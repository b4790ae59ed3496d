"""A JSON that only DeepSpeed reads, written so that everybody reads it.

In: the text and its tree. Out: the text in strict JSON. Answers: how does the same file look without comments, trailing
commas, bare words and single quotes? What is strict already stays byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from planner.check.reading.nodes import Form, Node, walk

COMMENT_LINE = re.compile(r"(?<=\n)[ \t]*(?:#|//)[^\r\n]*(?:\r?\n|\Z)")
COMMENT = re.compile(r"[ \t]*(?:(?:#|//)[^\r\n]*|/\*.*?\*/)", re.DOTALL)


def as_strict(text: str, root: Node) -> str:
    """The whole text."""
    before = _blanks("\n" + text[: root.start].removeprefix("\ufeff"))[1:]
    after = _blanks(text[root.end :])
    bare = not text.startswith(("{", "["), root.start)
    inner = "".join(_written(text, root))
    return f"{before}{{{inner}}}{after}" if bare and root.form is Form.MAPPING else f"{before}{inner}{after}"


def bare_words(root: Node) -> bool:
    """Whether a text stands without quotes: most likely the place of a template, which something else fills in."""
    nodes = (entry.node for _, entry in walk(root))
    return any(node.plain and isinstance(node.value, str) for node in nodes)


def _written(text: str, node: Node) -> Iterator[str]:
    """The pieces of a value."""
    if node.form is Form.SCALAR:
        yield _scalar(text[node.start : node.end], node)
        return
    bracketed = text.startswith(("{", "["), node.start)
    if bracketed:
        yield text[node.start]
    at = node.start + bracketed
    for index, entry in enumerate(node.entries):
        gap = _blanks(text[at : entry.start])
        yield f",{gap or ' '}" if index else gap
        if node.form is Form.MAPPING:
            key = text[entry.start : entry.end]
            yield key if key.startswith('"') else json.dumps(entry.name, ensure_ascii=False)
            yield _blanks(text[entry.end : entry.node.start])
        yield from _written(text, entry.node)
        at = entry.node.end
    end = node.end - bracketed
    yield _blanks(text[at:end])
    if bracketed:
        yield text[end]


def _scalar(written: str, node: Node) -> str:
    """As it is written where that is strict."""
    try:
        json.loads(written)
    except ValueError:
        return json.dumps(node.value, ensure_ascii=False)
    return written


def _blanks(gap: str) -> str:
    """What stands between two values, without comments and commas."""
    return COMMENT.sub("", COMMENT_LINE.sub("", gap)).replace(",", "")
