"""When nothing fits: the smallest changes of the request that would.

In: a request without a plan, speed constants. Out: `Remedy` records in the order of their price: changes of the loss
and the sequence first, then wider axes, then adapters in place of full training, then hardware. Each one is searched
again at micro-batch 1, so each really fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.geometry.adapters import default_adapter
from planner.records.candidate import Checkpointing, Offload, ZeroStage
from planner.records.model import Method, Precision
from planner.records.plan import Evaluation, Remedy, Verdict
from planner.records.request import Axes, Loss, Request
from planner.search.choose import Ladder
from planner.search.rank import ranked_for
from planner.search.space import micro_batches, strategies
from planner.speed.constants import SpeedConstants
from planner.units import GIB

SHORTEST_SEQUENCE = 256
MOST_GROWTH = 64
MOST_REMEDIES = 5
WHOLE_AXES = Axes(
    zero=tuple(ZeroStage), tp=(1, 2, 4, 8), checkpointing=tuple(Checkpointing), offload=tuple(Offload), micro_batch=None
)

Change = tuple[str, tuple[tuple[str, object], ...], Request]


def find_remedies(request: Request, constants: SpeedConstants) -> tuple[Remedy, ...]:
    """At most five changes, each the smallest of its kind that admits a plan."""
    found: list[Remedy] = []
    for kind in (_fused_loss, _free_axes, _shorter, _lora, _qlora, _more_host_memory, _more_nodes):
        for change, fields, changed in kind(request):
            best = _best_at_smallest_batch(changed, constants)
            if best is not None:
                found.append(Remedy(change=change, fields=fields, request=changed, evaluation=best))
                break
        if len(found) == MOST_REMEDIES:
            break
    return tuple(found)


def _best_at_smallest_batch(request: Request, constants: SpeedConstants) -> Evaluation | None:
    """The best plan that truly fits, looking at the smallest micro-batch of every strategy only."""
    kept = []
    for strategy in strategies(request):
        listed = micro_batches(request, strategy.degrees.dp)
        if listed == ():
            continue
        smallest = listed[0] if listed else strategy.micro_batch
        outcome = Ladder(request, strategy, constants).at(smallest)
        if isinstance(outcome, Evaluation) and outcome.verdict is Verdict.FITS:
            kept.append(outcome)
    order = ranked_for(request, kept)
    return order[0] if order else None


def _fused_loss(request: Request) -> Iterator[Change]:
    if request.workload.loss is Loss.STANDARD:
        yield (
            "fuse head and loss, so that logits are never whole",
            (("loss", "fused"),),
            replace(request, workload=replace(request.workload, loss=Loss.FUSED)),
        )


def _free_axes(request: Request) -> Iterator[Change]:
    """Axes the user pinned, freed one at a time."""
    axes = request.axes
    degrees = tuple(t for t in WHOLE_AXES.tp if t <= request.cluster.gpus_per_node)
    options: tuple[tuple[str, str, Axes], ...] = (
        ("allow activation checkpointing", "checkpointing", replace(axes, checkpointing=WHOLE_AXES.checkpointing)),
        ("allow a smaller micro-batch", "micro_batch", replace(axes, micro_batch=(1,))),
        ("allow every ZeRO stage", "zero", replace(axes, zero=WHOLE_AXES.zero)),
        ("allow offload", "offload", replace(axes, offload=WHOLE_AXES.offload)),
        ("allow tensor parallelism", "tp", replace(axes, tp=degrees)),
    )
    for change, name, wider in options:
        if getattr(axes, name) not in (None, getattr(wider, name)):
            words = [getattr(value, "value", value) for value in getattr(wider, name)]
            yield change, ((name, words),), replace(request, axes=wider)


def _shorter(request: Request) -> Iterator[Change]:
    length = request.workload.seq_len // 2
    while length >= SHORTEST_SEQUENCE:
        yield (
            f"shorten samples to {length} tokens",
            (("seq_len", length),),
            replace(request, workload=replace(request.workload, seq_len=length)),
        )
        length //= 2


def _lora(request: Request) -> Iterator[Change]:
    """Train adapters instead of every parameter."""
    if request.workload.method is Method.FULL:
        yield from _adapters(request, Method.LORA, "train LoRA adapters only")


def _qlora(request: Request) -> Iterator[Change]:
    """Adapters beside weights in 4 bits."""
    if request.workload.method is not Method.QLORA and request.workload.precision is not Precision.FP32:
        yield from _adapters(request, Method.QLORA, "train LoRA adapters beside weights in 4 bits")


def _adapters(request: Request, method: Method, change: str) -> Iterator[Change]:
    work = request.workload
    adapter = replace(work.adapter, method=method) if work.adapter else default_adapter(request.model, method)
    if adapter is not None:
        yield change, (("method", method.value),), replace(request, workload=replace(work, adapter=adapter))


def _more_host_memory(request: Request) -> Iterator[Change]:
    known = request.cluster.host_memory_bytes
    if known is None:
        return
    for gib in (256, 512, 768, 1024, 1536, 2048, 3072, 4096):
        if gib * GIB > known:
            yield (
                f"use nodes with {gib} GiB of RAM",
                (("host_ram", gib),),
                replace(request, cluster=replace(request.cluster, host_memory_bytes=gib * GIB)),
            )


def _more_nodes(request: Request) -> Iterator[Change]:
    """More GPUs of the same kind: a fuller node up to 8, then more nodes."""
    cluster = request.cluster
    per_node, nodes = cluster.gpus_per_node, cluster.nodes
    network = cluster.network_bytes_per_s or cluster.intra_node.bus(per_node)
    while per_node * nodes < MOST_GROWTH * cluster.world_size:
        if per_node * 2 <= 8 and nodes == 1:
            per_node *= 2
        else:
            nodes *= 2
        text = f"{nodes}x{per_node}x{cluster.gpu.name}" if nodes > 1 else f"{per_node}x{cluster.gpu.name}"
        price = None if cluster.usd_per_hour is None else cluster.usd_per_hour * per_node * nodes / cluster.world_size
        grown = replace(
            cluster,
            gpus_per_node=per_node,
            nodes=nodes,
            network_bytes_per_s=network if nodes > 1 else None,
            usd_per_hour=price,
        )
        yield f"use {per_node * nodes} GPUs ({text})", (("gpus", text),), replace(request, cluster=grown)
