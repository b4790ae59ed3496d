"""Named clusters: goes in, a spelling of GPUs or an instance; comes out, a Cluster. Which rows does it mean?

The grammar and the decisions taken here are written out in `planner.spec.cluster`.
"""

from __future__ import annotations

from planner.catalog import tables
from planner.catalog.names import split_memory
from planner.errors import PlannerError, UnknownName
from planner.records.machine import Cluster
from planner.spec.cluster_words import EXAMPLES, ClusterWords, read_words
from planner.units import GIB

MAX_BOX_GPUS = 16
"""No box in the catalogue holds more (a2-megagpu-16g, DGX-2)."""


def named_cluster(text: str) -> Cluster:
    """The cluster named by GPU or instance, no file and not `auto`."""
    words = read_words(text, is_name=_is_name)
    if tables.is_gpu_family(split_memory(words.name)[0]):
        return _gpu_cluster(text, words)
    if tables.is_node(words.name):
        return _instance_cluster(text, words)
    if not split_memory(words.name)[0].strip():
        raise _nameless(text, words.name)
    raise _unknown(words.name if words.name in text else text)


def _is_name(text: str) -> bool:
    return tables.is_gpu_family(split_memory(text)[0]) or tables.is_node(text)


def _nameless(text: str, memory: str) -> PlannerError:
    """The error for a cluster without a name; a memory size alone leads to the cards that have it."""
    sizes = split_memory(memory)[1]
    cards = [name for name in tables.gpu_names() if sizes and f"-{sizes[0]:g}G" in name]
    hint = f"cards with {sizes[0]:g} GB are {', '.join(f'`{card}`' for card in cards)}" if cards else EXAMPLES
    return PlannerError(f"`{text}` names no GPU", hint=hint)


def _unknown(name: str) -> PlannerError:
    """The error for a name in neither table, suggesting from both."""
    known = (*tables.gpu_names(), *tables.node_names())
    return UnknownName("GPU or instance", name, known, listing="dsplan show gpus` or `dsplan show instances")


def _gpu_cluster(text: str, words: ClusterWords) -> Cluster:
    row, notes = tables.identify_gpu(words.name)
    gpu = tables.gpu_record(row)
    nodes, per_node, box_notes = _boxes(text, words, row)
    network = tables.find_network(row["network"]) if nodes > 1 else None
    if network:
        notes = (*notes, f"network between nodes not given; assumed {network.name} ({network.source})")
    return Cluster(
        gpu=gpu,
        gpus_per_node=per_node,
        nodes=nodes,
        intra_node=tables.find_link(row["link"]),
        network_bytes_per_s=network.bytes_per_s if network else None,
        network_name=network.name if network else "",
        host_memory_bytes=None,
        cpu_cores=None,
        nvme_bytes=None,
        nvme_read_bytes_per_s=None,
        nvme_write_bytes_per_s=None,
        usd_per_hour=_dollars(gpu.usd_per_hour, nodes * per_node),
        instance=None,
        source=gpu.source,
        notes=(*notes, *box_notes),
    )


def _dollars(price: float | None, count: int) -> float | None:
    """The price of `count` of them, to the cent; None stays unknown."""
    return None if price is None else round(price * count, 2)


def _boxes(text: str, words: ClusterWords, row: tables.Row) -> tuple[int, int, tuple[str, ...]]:
    """Nodes, GPUs per node, and a note where a single count was divided into nodes."""
    box = row.get("box_gpus", tables.USUAL_BOX_GPUS)
    name = row["name"]
    if words.nodes is not None:
        if words.per_node is None:
            hint = f"write nodes x GPUs per node: `{words.nodes}x{box}x{name}`"
            raise PlannerError(f"`{text}` does not say how many GPUs a node has", hint=hint)
        if words.per_node > MAX_BOX_GPUS:
            hint = f"nodes come first: `{words.per_node}x{words.nodes}x{name}`" if words.nodes <= box else EXAMPLES
            raise PlannerError(f"no node holds `{words.per_node}` GPUs", hint=hint)
        return words.nodes, words.per_node, ()
    total = words.total or 1
    if total <= box:
        return 1, total, ()
    if total % box == 0:
        return total // box, box, (f"{total} GPUs read as {total // box} nodes of {box}, the usual box of {name}",)
    if total <= MAX_BOX_GPUS and row["link"].startswith("pcie"):
        return 1, total, ()
    per_node = max(g for g in range(1, box) if total % g == 0)
    hint = f"write nodes x GPUs per node: `{total // per_node}x{per_node}x{name}`, or use {total // box * box} GPUs"
    raise PlannerError(f"`{total}` GPUs are no whole number of nodes of {box}", hint=hint)


def _instance_cluster(text: str, words: ClusterWords) -> Cluster:
    node = tables.find_node(words.name)
    if words.per_node not in (None, node.gpus):
        hint = f"write `{words.nodes}x{node.name}`, or name the GPU: `{words.nodes}x{words.per_node}x{node.gpu}`"
        raise PlannerError(
            f"`{text}` gives `{words.per_node}` GPUs per node and {node.name} has {node.gpus}", hint=hint
        )
    nodes = words.nodes or words.total or 1
    row, notes = tables.identify_gpu(node.gpu)
    gpu = tables.gpu_record(row)
    network = node.network
    if nodes > 1 and network is None:
        network = tables.find_network("ethernet-100")
        notes = (*notes, f"network between {node.name} nodes not published; assumed {network.name}")
    price = node.usd_per_hour
    if price is None and gpu.usd_per_hour is not None:
        price = gpu.usd_per_hour * node.gpus
        notes = (*notes, f"no list price of {node.name}: the price of {node.gpus} x {gpu.name} taken")
    return Cluster(
        gpu=gpu,
        gpus_per_node=node.gpus,
        nodes=nodes,
        intra_node=tables.find_link(node.link),
        network_bytes_per_s=network.bytes_per_s if network and nodes > 1 else None,
        network_name=network.name if network and nodes > 1 else "",
        host_memory_bytes=int(node.host_ram_gib * GIB),
        cpu_cores=node.cpu_cores,
        nvme_bytes=node.nvme_bytes,
        nvme_read_bytes_per_s=node.nvme_read_bytes_per_s,
        nvme_write_bytes_per_s=node.nvme_write_bytes_per_s,
        usd_per_hour=_dollars(price, nodes),
        instance=node.name,
        source=node.source,
        notes=notes,
    )
