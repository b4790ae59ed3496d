"""The model tables: goes in, a name; comes out, a row with its Hugging Face fields. Which model is called so?

`data/models.toml` holds the models, `data/families.toml` how each transformers model_type is read, `data/autotp.toml`
what AutoTP does with it, `data/liger.toml` whether Liger fuses its loss. Each is read once and only when asked for.
Parsing all of models.toml takes 15 ms and one row 0.2 ms, so a look-up cuts the file at its `[[model]]` lines, reads
the names from the first two lines of each row, and parses the row it needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from planner import toml
from planner.catalog.names import normalise
from planner.errors import PlannerError, UnknownName
from planner.resources import read_table

LISTING = "dsplan show models"

_QUOTED = re.compile(r"'([^']*)'")
_SECTION = re.compile(r"^\[(\w+)\]\n", re.MULTILINE)
_PLAIN_SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([bm])(-?a\d{1,4}(?:\.\d{1,3})?b)?")
_BARE_NUMBER = re.compile(r"\d{1,6}(?:\.\d{1,3})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One model of the catalogue."""

    name: str
    hub_id: str  # the id that was asked for, else the first of `hub_ids`
    aliases: tuple[str, ...]
    hub_ids: tuple[str, ...]
    model_type: str
    parameters: int  # exact
    config: Mapping[str, Any]  # the config.json fields that differ from the defaults of the model_type
    source: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoTPRow:
    """What AutoTP does with a model_type."""

    outcome: str  # trained, converts, refused
    path: str  # plan, heuristic
    tied: str  # vocabulary, replicated
    head: str  # columns, replicated
    reason: str
    versions: str


# --- files


@cache
def _text(file: str) -> str:
    return read_table("catalog", file)


@cache
def _blocks() -> tuple[str, ...]:
    """The unparsed text of each `[[model]]` row, in the order of the file."""
    return tuple(_text("models.toml").split("\n[[model]]\n")[1:])


@cache
def _spellings() -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """For each row its names and its hub ids: the quoted words of its first and second line."""
    lines = (block.split("\n", 2) for block in _blocks())
    return tuple((tuple(_QUOTED.findall(names)), tuple(_QUOTED.findall(ids))) for names, ids, _ in lines)


@cache
def _index() -> Mapping[str, int]:
    """The row that each normalised name, alias, hub id or last part of a hub id names; the first row wins."""
    index: dict[str, int] = {}
    for position, (names, hub_ids) in enumerate(_spellings()):
        for spelling in (*names, *hub_ids):
            index.setdefault(normalise(spelling), position)
    for position, (_, hub_ids) in enumerate(_spellings()):
        for hub_id in hub_ids:
            index.setdefault(normalise(hub_id.rpartition("/")[2]), position)
    return index


# --- models


def find_model(name: str) -> ModelRow:
    """The model of that plain size, name, alias or hub id; raises UnknownName, or PlannerError for an unknown size."""
    key = normalise(name)
    position = _index().get(key)
    if position is None:
        raise _unknown(name.strip())
    row = _row(position)
    asked = [hub_id for hub_id in row.hub_ids if key in (normalise(hub_id), normalise(hub_id.rpartition("/")[2]))]
    notes = row.notes
    if _PLAIN_SIZE.fullmatch(key):
        notes = (f"`{name.strip()}` names a size; it was read as {row.name}", *notes)
    return _row(position, hub_id=asked[0] if asked else None, notes=notes)


def knows_model(name: str) -> bool:
    """Whether some model is called so."""
    return normalise(name) in _index()


def model_rows() -> tuple[ModelRow, ...]:
    """Every model, for `dsplan show models` and the tests."""
    return tuple(_row(position) for position in range(len(_blocks())))


def plain_sizes() -> Mapping[str, str]:
    """The sizes that stand for a model, and its name."""
    return {name: names[0] for names, _ in _spellings() for name in names[1:] if _PLAIN_SIZE.fullmatch(normalise(name))}


@cache
def _parsed(position: int) -> Mapping[str, Any]:
    row = toml.loads(_blocks()[position])
    for key in ("names", "hub_ids", "model_type", "parameters", "source", "config"):
        if not row.get(key):
            raise ValueError(f"models.toml: row {position + 1} lacks `{key}`")
    return row


def _row(position: int, *, hub_id: str | None = None, notes: tuple[str, ...] | None = None) -> ModelRow:
    row = _parsed(position)
    return ModelRow(
        name=row["names"][0],
        hub_id=hub_id or row["hub_ids"][0],
        aliases=tuple(row["names"][1:]),
        hub_ids=tuple(row["hub_ids"]),
        model_type=row["model_type"],
        parameters=row["parameters"],
        config={key: None if key == "sliding_window" and value == 0 else value for key, value in row["config"].items()},
        source=row["source"],
        notes=tuple(row.get("notes", ())) if notes is None else notes,
    )


def _unknown(name: str) -> PlannerError:
    key = normalise(name)
    if _BARE_NUMBER.fullmatch(key):
        return PlannerError(f"`{name}` is no model size", hint=f"write the unit, as in `{name}b`")
    size = _PLAIN_SIZE.fullmatch(key)
    if size is None:
        known = [spelling for names, ids in _spellings() for spelling in (*names, *ids)]
        return UnknownName("model", name, known, listing=LISTING)
    wanted = _billions(size)
    near = sorted(plain_sizes().items(), key=lambda item: abs(_size_of(item[0]) - wanted))[:3]
    listed = ", ".join(f"`{size}` ({model})" for size, model in sorted(near, key=lambda item: _size_of(item[0])))
    return PlannerError(
        f"no model of size `{name}` is in the catalogue",
        hint=f"the nearest sizes are {listed}; `{LISTING}` lists every model",
    )


def _size_of(text: str) -> float:
    match = _PLAIN_SIZE.fullmatch(normalise(text))
    return _billions(match) if match else 0.0


def _billions(size: re.Match[str]) -> float:
    return float(size[1]) / (1 if size[2] == "b" else 1000)


# --- model types


@cache
def _families() -> Mapping[str, str]:
    """The unparsed text of each section of families.toml."""
    parts = _SECTION.split(_text("families.toml"))[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def family_names() -> tuple[str, ...]:
    """Every model_type that dsplan reads."""
    return tuple(_families())


@cache
def family_row(model_type: str) -> Mapping[str, Any]:
    """How configs of that model_type are read; raises UnknownName."""
    if model_type not in _families():
        raise UnknownName("model type", model_type, _families(), listing="dsplan show models")
    return toml.loads(_families()[model_type])


@cache
def _autotp() -> Mapping[str, Any]:
    return toml.loads(_text("autotp.toml"))


def autotp_row(model_type: str) -> AutoTPRow:
    """What AutoTP does with that model_type; a type without a row counts as refused."""
    versions = _autotp()["versions"]
    row = _autotp()["types"].get(model_type, {"outcome": "refused", "path": "heuristic", "reason": "never tried"})
    return AutoTPRow(
        outcome=row["outcome"],
        path=row["path"],
        tied=row.get("tied", "replicated"),
        head=row.get("head", "columns"),
        reason=row.get("reason", ""),
        versions=f"DeepSpeed {versions['deepspeed']}, transformers {versions['transformers']}",
    )


@cache
def fused_loss_types() -> frozenset[str]:
    """The model types whose head and loss Liger Kernel fuses."""
    return frozenset(toml.loads(_text("liger.toml"))["types"])
