"""YAML as PyYAML reads it, which is YAML 1.1: `no` is false, 5e7 is a text, 0777 is 511.

In: a text. Out: its tree. Answers: what do accelerate and transformers make of a file, where does each key stand, and
which plain words mean something else than they seem to?
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from planner.check.reading.json_text import Unreadable
from planner.check.reading.nodes import Entry, Form, Node, walk

MOST_NODES = 100_000
"""Anchors that repeat each other can make a small text stand for billions of values."""
EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
OCTAL = re.compile(r"[-+]?0[0-7_]+")
SIXTY = re.compile(r"[-+]?\d+(:[0-5]?\d)+(\.\d*)?")


def read_tree(text: str) -> Node | None:
    """The tree of the text, None for an empty one; raises Unreadable where PyYAML's safe loader raises."""
    import yaml

    loader = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        root = _Builder(loader).node(node, frozenset())
        loader.construct_document(node)  # raises what only construction finds
        return root
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ": ".join(part for part in (error.context, error.problem) if part)
        raise Unreadable(reason, mark.index if mark else 0) from None
    except (yaml.YAMLError, ValueError, AttributeError, OverflowError) as error:
        raise Unreadable(str(error).splitlines()[0], getattr(error, "position", 0)) from None
    except RecursionError:
        raise Unreadable("nested too deeply", 0) from None
    finally:
        if loader is not None:
            loader.dispose()


class _Builder:
    """Nodes of PyYAML to ours, anchors written out where they are used."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._made = 0

    def node(self, node: Any, above: frozenset[int]) -> Node:
        import yaml

        self._made += 1
        if self._made > MOST_NODES or id(node) in above:
            raise Unreadable("anchors that stand for more values than any configuration has", node.start_mark.index)
        start, end = node.start_mark.index, node.end_mark.index
        above = above | {id(node)}
        if isinstance(node, yaml.MappingNode):
            flow = bool(node.flow_style)
            own = {id(key) for key, _ in node.value}
            self._loader.flatten_mapping(node)  # `<<: *base` becomes entries; those of the section itself win
            pairs = [(id(key) in own, self._entry(key, value, above)) for key, value in node.value]
            named = {entry.name for mine, entry in pairs if mine}
            entries = tuple(entry for mine, entry in pairs if mine or entry.name not in named)
            return Node(start=start, end=end, form=Form.MAPPING, entries=entries, flow=flow)
        if isinstance(node, yaml.SequenceNode):
            items = [self.node(item, above) for item in node.value]
            entries = tuple(
                Entry(name=str(index), start=item.start, end=item.end, node=item) for index, item in enumerate(items)
            )
            return Node(start=start, end=end, form=Form.LIST, entries=entries, flow=bool(node.flow_style))
        plain = node.style is None
        return Node(start=start, end=end, value=self._loader.construct_object(node), plain=plain)

    def _entry(self, key: Any, value: Any, above: frozenset[int]) -> Entry:
        read = self._loader.construct_object(key, deep=True)
        name = read if isinstance(read, str) else str(read)
        start, end = key.start_mark.index, key.end_mark.index
        return Entry(name=name, key=read, start=start, end=end, node=self.node(value, above))


def surprises(root: Node | None, text: str) -> Iterator[tuple[str, str, str, Any]]:
    """(path, what is written, what YAML makes of it, the value that was meant) of plain words that deceive."""
    for path, entry in walk(root):
        node = entry.node
        if node.form is not Form.SCALAR or not node.plain:
            continue
        written = text[node.start : node.end]
        if isinstance(node.value, str) and EXPONENT.fullmatch(written):
            number = float(written)
            whole = number.is_integer() and abs(number) < 1e15
            yield path, written, f"the text `{written}`", int(number) if whole else number
        elif written == "None":
            yield path, written, "the text `None`", None
        elif isinstance(node.value, int) and OCTAL.fullmatch(written) and written.strip("+-0_"):
            yield path, written, f"the octal number {node.value}", int(written.replace("_", ""), 10)
        elif isinstance(node.value, (int, float)) and SIXTY.fullmatch(written):
            yield path, written, f"the number {node.value}, in base 60", written
