"""The machine tables: goes in, a name; comes out, a record or a row with its source. What is this GPU, link or node?

`data/gpus.toml`, `data/links.toml` and `data/nodes.toml` are read once and only when asked for. Parsing all of
gpus.toml takes 11 ms and one row of it 0.2 ms, so a look-up cuts the file at its `[[gpu]]` lines, reads the names from
the first two lines of each row, and parses the row it needs. Every parsed row is checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from planner import toml
from planner.catalog.names import gpu_key, normalise, split_memory
from planner.errors import PlannerError, UnknownName
from planner.records.machine import Gpu, Link
from planner.resources import read_table
from planner.units import GIB

Row = Mapping[str, Any]

GPU_LISTING = "dsplan show gpus"
NODE_LISTING = "dsplan show instances"
USUAL_BOX_GPUS = 8
"""GPUs of the usual node where the row of the GPU does not say otherwise."""

_QUOTED = re.compile(r"'([^']*)'")
_GPU_NUMBERS = ("memory_gib", "marketed_gb", "fp32_tflop_per_s", "hbm_gb_per_s", "host_link_gb_per_s")
_GPU_SHARES = ("gemm_efficiency", "attention_efficiency")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What a node reaches its neighbours with: the nominal rate of its GPU ports and the share of it that arrives."""

    name: str
    gbit_per_s: float
    fraction: float
    source: str

    @property
    def bytes_per_s(self) -> float:
        """Effective rate of one node."""
        return self.gbit_per_s * 1e9 / 8 * self.fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """One node type that can be rented or bought. `None` means that no public figure was found."""

    name: str
    gpu: str  # name of a row of gpus.toml
    gpus: int
    link: str  # name of a row of links.toml
    host_ram_gib: float
    cpu_cores: int
    network: Network | None
    nvme_bytes: int | None
    nvme_read_bytes_per_s: float | None
    nvme_write_bytes_per_s: float | None
    usd_per_hour: float | None
    source: str


# --- files


@cache
def _text(file: str) -> str:
    return read_table("catalog", file)


@cache
def _blocks(file: str, table: str) -> tuple[str, ...]:
    """The unparsed text of each `[[table]]` row, in the order of the file."""
    return tuple(_text(file).split(f"\n[[{table}]]\n")[1:])


@cache
def _spellings(file: str, table: str) -> tuple[tuple[str, ...], ...]:
    """For each row its name and other spellings: the quoted words of its first two lines."""
    return tuple(tuple(_QUOTED.findall("\n".join(block.split("\n", 2)[:2]))) for block in _blocks(file, table))


@cache
def _row(file: str, table: str, index: int) -> Row:
    return toml.loads(_blocks(file, table)[index])


@cache
def _links() -> Mapping[str, Mapping[str, Row]]:
    """links.toml as {table: {name: row}}."""
    return {table: {row["name"]: row for row in rows} for table, rows in toml.loads(_text("links.toml")).items()}


# --- GPUs


@cache
def gpu_names() -> tuple[str, ...]:
    """The canonical name of every GPU."""
    return tuple(spelling[0] for spelling in _spellings("gpus.toml", "gpu"))


@cache
def _gpu_index() -> Mapping[str, tuple[int, ...]]:
    """Which rows answer to a key: one for a canonical name, several for a family such as `a100`."""
    index: dict[str, list[int]] = {}
    for position, spellings in enumerate(_spellings("gpus.toml", "gpu")):
        for key in dict.fromkeys(gpu_key(s) for s in spellings):
            index.setdefault(key, []).append(position)
    return {key: tuple(rows) for key, rows in index.items()}


@cache
def _gpu_row(index: int) -> Row:
    row = _row("gpus.toml", "gpu", index)
    for key in _GPU_NUMBERS:
        if not row[key] > 0:
            raise ValueError(f"gpus.toml: {row['name']}: {key} is not positive")
    for key in _GPU_SHARES:
        if not 0 < row[key] <= 1:
            raise ValueError(f"gpus.toml: {row['name']}: {key} is no share")
    if not row["source"] or row["memory_gib"] > row["marketed_gb"]:
        raise ValueError(f"gpus.toml: {row['name']}: no source, or more memory than marketed")
    return row


def is_gpu_family(text: str) -> bool:
    """Whether some GPU is called so, memory size left out of the text."""
    return gpu_key(text) in _gpu_index()


def identify_gpu(text: str) -> tuple[Row, tuple[str, ...]]:
    """The row that a spelling names, and what had to be decided to choose it.

    The memory in the text decides. Without it an ambiguous name means the card with the least memory.
    Raises UnknownName for a name that no card has, PlannerError for a size that no card of the name has.
    """
    exact = _gpu_index().get(gpu_key(text), ())
    if len(exact) == 1 and gpu_names()[exact[0]] == text.strip():
        return _gpu_row(exact[0]), ()
    bare, sizes = split_memory(text)
    rows = [_gpu_row(i) for i in _gpu_index().get(gpu_key(bare), ())]
    if not rows:
        raise UnknownName("GPU", text.strip(), gpu_names(), listing=GPU_LISTING)
    if len(set(sizes)) > 1:
        raise PlannerError(f"`{text.strip()}` names two memory sizes", hint="write one, as in `A100-80G`")
    name = " ".join(bare.split()).strip("- ")
    if not sizes:
        return _smallest(name, rows)
    fitting = [row for row in rows if sizes[0] in (row["marketed_gb"], *row.get("also_gb", ()))]
    if not fitting:
        raise _no_such_memory(name, sizes[0], rows)
    return fitting[0], _device_note(fitting[0])


def _smallest(name: str, rows: list[Row]) -> tuple[Row, tuple[str, ...]]:
    """The card of a family with the least memory, and a note that names the others."""
    chosen = min(rows, key=lambda row: (row["memory_gib"], row["hbm_gb_per_s"]))
    others = [row["name"] for row in rows if row is not chosen] + list(chosen.get("not_to_confuse", ()))
    notes = _device_note(chosen)
    if others:
        notes = (
            f"`{name}` was read as {chosen['name']}, the smallest card of that name; also {', '.join(others)}",
            *notes,
        )
    return chosen, notes


def _device_note(row: Row) -> tuple[str, ...]:
    devices = row.get("devices_per_card", 1)
    return (f"one {row['name']} card is {devices} devices; the count is of devices",) if devices > 1 else ()


def _no_such_memory(name: str, size: float, rows: list[Row]) -> PlannerError:
    hint = f"there is {_listed([row['name'] for row in rows])}"
    others = [other for row in rows for other in row.get("not_to_confuse", ()) if f"-{size:g}G" in other]
    if others:
        hint += f"; other cards with {size:g} GB are {_listed(others)}"
    return PlannerError(f"no `{name}` has `{size:g}` GB of memory", hint=hint)


def _listed(names: list[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)


def gpu_record(row: Row) -> Gpu:
    """A row of gpus.toml as the record the planner works with."""
    return Gpu(
        name=row["name"],
        full_name=row["full_name"],
        memory_bytes=int(row["memory_gib"] * GIB),
        bf16_flop_per_s=_tera(row.get("bf16_tflop_per_s")),
        fp16_flop_per_s=_tera(row.get("fp16_tflop_per_s")),
        fp32_flop_per_s=row["fp32_tflop_per_s"] * 1e12,
        hbm_bytes_per_s=row["hbm_gb_per_s"] * 1e9,
        gemm_efficiency=row["gemm_efficiency"],
        attention_efficiency=row["attention_efficiency"],
        host_link_bytes_per_s=row["host_link_gb_per_s"] * 1e9,
        usd_per_hour=row.get("usd_per_hour"),
        tdp_w=row.get("tdp_w"),
        source=row["source"],
    )


def _tera(value: float | None) -> float | None:
    return None if value is None else value * 1e12


def find_gpu(name: str) -> Gpu:
    """The GPU of that name or spelling; an ambiguous name means the one with the least memory."""
    return gpu_record(identify_gpu(name)[0])


# --- links and networks


def find_link(name: str) -> Link:
    """The link of that name (a row of links.toml, where GPUs and nodes name it); raises KeyError."""
    row = _links()["link"][name]
    rows = tuple((int(ranks), gb * 1e9) for ranks, gb in row["bus_gb_per_s"])
    switch = tuple((int(ranks), gb * 1e9) for ranks, gb in row.get("switch_gb_per_s", ()))
    crossing = row.get("crossing_gb_per_s")
    return Link(
        name=row["name"],
        bus_bytes_per_s=rows,
        source=row["source"],
        switch_bytes_per_s=switch,
        crossing=(int(crossing[0]), crossing[1] * 1e9) if crossing else None,
    )


def fabric_names() -> tuple[str, ...]:
    """The fabrics that have an effective share: `ib`, `roce`, `efa`, ..."""
    return tuple(_links()["fabric"])


def network_on(fabric: str, gbit_per_s: float, *, source: str) -> Network:
    """A network of that nominal rate per node on one of `fabric_names()`; raises KeyError for another."""
    row = _links()["fabric"][fabric]
    name = f"{row['full_name']}, {gbit_per_s:g} Gbit/s per node, {row['fraction']:.0%} of it effective"
    return Network(name=name, gbit_per_s=gbit_per_s, fraction=row["fraction"], source=source)


def find_network(name: str) -> Network:
    """The network assumed for a class of node (a `[[network]]` row of links.toml)."""
    row = _links()["network"][name]
    return network_on(row["fabric"], row["gbit_per_s"], source=row["source"])


# --- nodes


@cache
def node_names() -> tuple[str, ...]:
    """The name of every node type."""
    return tuple(spelling[0] for spelling in _spellings("nodes.toml", "node"))


@cache
def _node_index() -> Mapping[str, int]:
    """The row that a key names."""
    rows = enumerate(_spellings("nodes.toml", "node"))
    return {normalise(spelling): position for position, spellings in rows for spelling in spellings}


@cache
def _nvme_classes() -> Mapping[str, Row]:
    text = _text("nodes.toml").split("\n[[node]]\n", 1)[0]
    return {row["name"]: row for row in toml.loads(text)["nvme"]}


@cache
def _node_row(index: int) -> Row:
    row = _row("nodes.toml", "node", index)
    for key in ("gpus", "host_ram_gib", "cpu_cores"):
        if not row[key] > 0:
            raise ValueError(f"nodes.toml: {row['name']}: {key} is not positive")
    if not row["source"] or row["gpu"] not in gpu_names():
        raise ValueError(f"nodes.toml: {row['name']}: no source, or a GPU that gpus.toml lacks")
    return row


def is_node(text: str) -> bool:
    """Whether some node type is called so."""
    return normalise(text) in _node_index()


def find_node(name: str) -> NodeType:
    """The node type of that name; raises UnknownName."""
    index = _node_index().get(normalise(name))
    if index is None:
        raise UnknownName("instance", name, node_names(), listing=NODE_LISTING)
    row = _node_row(index)
    rate, drives = row.get("network_gbit_per_s"), row.get("nvme_tb")
    rates = _nvme_classes()[row["nvme"]] if drives else None
    return NodeType(
        name=row["name"],
        gpu=row["gpu"],
        gpus=row["gpus"],
        link=row.get("link") or identify_gpu(row["gpu"])[0]["link"],
        host_ram_gib=row["host_ram_gib"],
        cpu_cores=row["cpu_cores"],
        network=network_on(row["fabric"], rate, source=row["source"]) if rate else None,
        nvme_bytes=int(drives * 1e12) if drives else None,
        nvme_read_bytes_per_s=rates["read_gb_per_s"] * 1e9 if rates else None,
        nvme_write_bytes_per_s=rates["write_gb_per_s"] * 1e9 if rates else None,
        usd_per_hour=row.get("usd_per_hour"),
        source=row["source"],
    )


# --- whole tables, for `dsplan show` and the tests


def gpu_rows() -> tuple[Row, ...]:
    """Every row of gpus.toml, checked, with every field and its source."""
    return tuple(_gpu_row(i) for i in range(len(gpu_names())))


def node_rows() -> tuple[Row, ...]:
    """Every row of nodes.toml with every field and its source."""
    return tuple(_node_row(i) for i in range(len(node_names())))


def link_rows() -> tuple[Row, ...]:
    """Every row of the links of links.toml."""
    return tuple(_links()["link"].values())
