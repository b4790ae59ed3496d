"""Cluster words: goes in, a spelling such as `2Nodes * 8 A100-80G`; comes out, counts and a name. What was said?

The grammar is written out in `planner.spec.cluster`. Nothing here knows a GPU: the caller says which texts are names.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from planner.errors import PlannerError

MAX_LENGTH = 200
MAX_COUNT = 100_000

EXAMPLES = "write `4xA100-80G`, `2x8xH100-80G` (nodes x GPUs per node), an instance (`2xp4d.24xlarge`) or a .toml file"

_TIMES = re.compile(r"[×✕✖⨯∗＊⋅·]")
_COUNT_X = re.compile(r"(?<![a-z0-9._-])([0-9]+)\s*x(?=[\s0-9a-z(])", re.IGNORECASE)
_MEMORY_X = re.compile(r"((?<![a-z0-9.])[0-9]+\s*(?:gib|gb|g))\s*x(?=\s*[0-9])", re.IGNORECASE)
_SPACED_X = re.compile(r"(?<=[\s)])x(?=[\s(0-9])", re.IGNORECASE)
_TRAILING_X = re.compile(r"(?:(?<=[0-9])|(?<=[0-9][a-z]))x(?=\s*[0-9]+\s*$)", re.IGNORECASE)
_UNIT = r"(?<![a-z0-9._-])([0-9]+)\s*(?:(?:{})(?![a-z])|(?:{}))"  # Chinese words need no space before a name
_NODES = re.compile(
    _UNIT.format("nodes?|machines?|servers?|hosts?|boxes|box", "台|机器|机|节点|節點|服务器"), re.IGNORECASE
)
_CARDS = re.compile(_UNIT.format("gpus?|cards?|devices?", "张卡|卡|张|块"), re.IGNORECASE)
_FILLER_WORDS = "per|each|of|with|class|gpus?|cards?|nodes?|machines?|servers?|hosts?"
_FILLER = re.compile(rf"(?<![\w.-])(?:{_FILLER_WORDS})(?![\w.-])", re.IGNORECASE)
_NEGATIVE = re.compile(r"(?:^|[\s(*×]|(?<![a-z])x)-\s*[0-9]+\s*(?:[x*×]|$|gpu|card|node|machine)", re.IGNORECASE)
_MIXED = re.compile(r"\+|&|(?<![\w.-])and(?![\w.-])", re.IGNORECASE)
_MIG = re.compile(r"(?<![a-z0-9])mig(?![a-z0-9])", re.IGNORECASE)
_MEMORY_ONLY = re.compile(r"[0-9]+(?:\.[0-9]+)?\s*(?:gib|gb|g)", re.IGNORECASE)
_LEADING_COUNT = re.compile(r"([0-9]+)\s*(\D.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterWords:
    """What a spelling says. A count that is not said is None."""

    name: str  # GPU or instance, memory size still in it; only the size, or nothing, where no name was said
    nodes: int | None
    per_node: int | None  # GPUs per node
    total: int | None  # one bare count: GPUs if a GPU is named, nodes if an instance is


def read_words(text: str, *, is_name: Callable[[str], bool]) -> ClusterWords:
    """The counts and the name of a spelling; raises PlannerError for text that follows no rule of the grammar."""
    plain = checked_text(text)
    _refuse(plain)
    marked, nodes, cards = _marked(plain)
    counts, names, memory = _pieces(marked)
    name_first = bool(names) and not counts_before_name(marked, names[0])
    name = " ".join(names)
    if not names:
        name, counts = _number_name(counts, is_name)
    elif not is_name(name):
        name, counts = _leading_count(name, counts, is_name)
    return _words(plain, f"{name} {memory}".strip(), counts, nodes, cards, name_first=name_first)


def checked_text(text: str) -> str:
    """The text in Unicode's compatibility form and trimmed; raises for empty, overlong or unprintable text."""
    plain = unicodedata.normalize("NFKC", text[: 4 * MAX_LENGTH]).strip()
    if not plain:
        raise PlannerError("the cluster is empty", hint=EXAMPLES)
    if len(text) > MAX_LENGTH or len(plain) > MAX_LENGTH:
        raise PlannerError(f"the cluster `{plain[:40]}...` is longer than {MAX_LENGTH} characters", hint=EXAMPLES)
    if not plain.isprintable():
        raise PlannerError(f"the cluster `{plain}` holds a character that cannot be printed", hint=EXAMPLES)
    return plain


def _refuse(plain: str) -> None:
    """Raises for spellings that can be understood but not planned."""
    if _NEGATIVE.search(plain):
        raise PlannerError(f"`{plain}` has a negative count", hint=EXAMPLES)
    if _MIXED.search(plain):
        raise PlannerError(
            f"`{plain}` mixes kinds of GPU, and a plan needs equal ones",
            hint="plan with the smallest card and the whole count: DeepSpeed gives every rank the same share",
        )
    if _MIG.search(plain):
        raise PlannerError(
            f"`{plain}` names a MIG slice, which is not in the catalogue",
            hint='a cluster file can describe it: gpus = "1xA100-40G" and memory_gib of the slice',
        )


def _marked(plain: str) -> tuple[str, list[int], list[int]]:
    """The text with every sign of multiplication as `*`, and the counts that carry a unit taken out."""
    marked = f" {_TIMES.sub('*', plain)} "
    nodes = [_count(n, plain) for n in _NODES.findall(marked)]
    marked = _NODES.sub(" * ", marked)
    cards = [_count(n, plain) for n in _CARDS.findall(marked)]
    marked = _CARDS.sub(" * ", marked)
    while _COUNT_X.search(marked):
        marked = _COUNT_X.sub(r"\1 * ", marked)
    marked = _MEMORY_X.sub(r"\1 * ", marked)
    marked = _SPACED_X.sub(" * ", marked)
    return _TRAILING_X.sub(" * ", marked), nodes, cards


def _pieces(marked: str) -> tuple[list[str], list[str], str]:
    """The bare numbers, the pieces of the name, and the memory sizes that stand alone."""
    pieces = [" ".join(_FILLER.sub(" ", piece).split()) for piece in re.split(r"[*(),;/]", marked)]
    pieces = [piece for piece in pieces if piece]
    counts = [p for p in pieces if p.isascii() and p.isdigit()]
    memory = [p for p in pieces if _MEMORY_ONLY.fullmatch(p)]
    return counts, [p for p in pieces if p not in counts and p not in memory], " ".join(memory)


def counts_before_name(marked: str, name: str) -> bool:
    """Whether some number stands before the name."""
    return any(c.isdigit() for c in marked.partition(name)[0])


def _number_name(counts: list[str], is_name: Callable[[str], bool]) -> tuple[str, list[str]]:
    """The card whose name is a number, as in `8*3090`; empty where there is none."""
    cards = [c for c in counts if is_name(c)]
    if len(set(cards)) != 1:
        return "", counts
    rest = list(counts)
    rest.remove(cards[0])
    return cards[0], rest


def _leading_count(name: str, counts: list[str], is_name: Callable[[str], bool]) -> tuple[str, list[str]]:
    """`8 A100-80G` and `8A100` as count and name, where what is left is a name."""
    match = _LEADING_COUNT.fullmatch(name) or re.fullmatch(r"([0-9]+)\s+(.+)", name)
    if match and is_name(match[2].strip()):
        return match[2].strip(), [*counts, match[1]]
    return name, counts


def _words(
    plain: str, name: str, counts: list[str], nodes: list[int], cards: list[int], *, name_first: bool
) -> ClusterWords:
    """Which count is which: units decide, else one count is a total and two are nodes x GPUs per node."""
    bare = [_count(c, plain) for c in counts]
    if len(nodes) > 1 or len(cards) > 1 or len(nodes) + len(cards) + len(bare) > 2:
        raise PlannerError(f"`{plain}` has more counts than nodes and GPUs per node", hint=EXAMPLES)
    if len(bare) == 2:
        if name_first and bare[0] != bare[1]:
            first, second = bare
            hint = f"write the nodes first: `{first}x{second}x{name}` or `{second}x{first}x{name}`"
            raise PlannerError(f"`{plain}` does not say which count is nodes", hint=hint)
        return ClusterWords(name=name, nodes=bare[0], per_node=bare[1], total=None)
    if nodes:
        return ClusterWords(name=name, nodes=nodes[0], per_node=next(iter([*cards, *bare]), None), total=None)
    if cards and bare:
        return ClusterWords(name=name, nodes=bare[0], per_node=cards[0], total=None)
    return ClusterWords(name=name, nodes=None, per_node=None, total=next(iter([*cards, *bare]), None))


def _count(digits: str, plain: str) -> int:
    """A count between 1 and 100,000."""
    if len(digits) > 9 or not 1 <= int(digits) <= MAX_COUNT:
        raise PlannerError(f"`{digits[:20]}` in `{plain}` is no count from 1 to {MAX_COUNT}", hint=EXAMPLES)
    return int(digits)
