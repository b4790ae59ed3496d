"""The terminal answer: verdict, chosen plan, the best plans side by side, where time and memory go, what was rejected,
what was assumed.

In: `Plan`. Out: lines of at most 80 columns, readable without colour and in a pipe.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.explain.trade import change_percent
from planner.explain.why import binding_sentence, components, method_text, rejection_sentences, strategy_sentence
from planner.geometry.params import parameter_count
from planner.records.candidate import Candidate, Checkpointing, Offload
from planner.records.estimate import Device, Phase
from planner.records.plan import Evaluation, Plan, Remedy, Verdict
from planner.records.request import Request
from planner.report.table import WIDTH, bar, table, wrapped
from planner.report.timing import band_lines, bill_lines, share_lines, terms_table
from planner.search.evaluate import PHASE_WORDS
from planner.search.pareto import pareto_front
from planner.search.rank import best_of_each_strategy
from planner.search.summary import nearest_misses, rules_counted
from planner.units import GIB, gib_text

SHORT_OFFLOAD = {
    Offload.NONE: "",
    Offload.OPTIMIZER: "cpu:opt",
    Offload.OPTIMIZER_AND_PARAMS: "cpu:all",
    Offload.NVME: "nvme",
}
VERDICT_WORDS = {Verdict.FITS: "fits", Verdict.BORDERLINE: "BORDERLINE", Verdict.DOES_NOT_FIT: "DOES NOT FIT"}


def plan_text(plan: Plan) -> str:
    """The whole answer of `dsplan plan`."""
    request = plan.request
    shown = best_of_each_strategy(plan.ranked)[: request.top]
    lines = [*_heading(request)]
    if shown:
        lines += [
            "",
            *_chosen(request, shown[0]),
            "",
            *_plans_table(request, shown, pareto_front(plan.ranked)),
            *_notes(request, shown),
            *(share_lines(shown[0].time) if shown[0].time else ()),
            "",
            *_memory_bar(request, shown[0]),
        ]
    else:
        lines += ["", *_nothing_fits(plan)]
    lines += ["", *_rejected(plan)]
    if request.assumptions:
        lines += ["", "assumed"]
        for note in request.assumptions:
            lines += wrapped(note, indent="    ", first="  - ")
    return "\n".join(lines) + "\n"


def estimate_text(plan: Plan) -> str:
    """The answer of `dsplan estimate`: one configuration, every phase."""
    request, evaluation = plan.request, plan.ranked[0]
    lines = [*_heading(request), "", *_chosen(request, evaluation), "", *_phase_table(request, evaluation)]
    if evaluation.time is not None:
        lines += ["", *_plans_table(request, [evaluation]), *_notes(request, [evaluation])]
        lines += ["", *terms_table(evaluation.time)]
    lines += ["", *_memory_bar(request, evaluation)]
    if request.assumptions:
        lines += ["", "assumed"]
        for note in request.assumptions:
            lines += wrapped(note, indent="    ", first="  - ")
    return "\n".join(lines) + "\n"


def _heading(request: Request) -> list[str]:
    cluster, model, work = request.cluster, request.model, request.workload
    nodes = f"{cluster.nodes} nodes of {cluster.gpus_per_node}" if cluster.nodes > 1 else f"{cluster.gpus_per_node}"
    size = f"{parameter_count(model) / 1e9:.3f} B parameters"
    ram = (
        "host RAM unknown"
        if cluster.host_memory_bytes is None
        else f"host RAM {cluster.host_memory_bytes / GIB:.0f} GiB a node"
    )
    job = f"{model.name} ({size}), {method_text(work)} in {work.precision.value}, {work.seq_len} tokens a sample"
    usable = gib_text(cluster.gpu.memory_bytes, digits=2)
    place = f"{nodes} x {cluster.gpu.name} ({usable} usable), {ram}"
    indent = " " * len("model  ")
    return [*wrapped(job, indent=indent, first="model  "), *wrapped(place, indent=indent, first="on     ")]


def _chosen(request: Request, evaluation: Evaluation) -> list[str]:
    word = VERDICT_WORDS[evaluation.verdict]
    lines = wrapped(f"{word}: {strategy_sentence(evaluation.candidate)}", indent="  ", first="")
    lines += wrapped(binding_sentence(request, evaluation) + ".")
    for reason in evaluation.reasons[2:]:
        lines += wrapped(reason, indent="    ", first="  - ")
    if evaluation.time is not None:
        lines += bill_lines(request, evaluation.time)
    return lines


def short_label(candidate: Candidate) -> str:
    """The strategy in some 25 columns: `Z3 tp2 ckpt cpu:opt mb4x8`."""
    parts = [f"Z{int(candidate.zero)}"]
    if candidate.degrees.tp > 1:
        parts.append(f"tp{candidate.degrees.tp}")
    if candidate.checkpointing is Checkpointing.FULL:
        parts.append("ckpt")
    if SHORT_OFFLOAD[candidate.offload]:
        parts.append(SHORT_OFFLOAD[candidate.offload])
    steps = f"x{candidate.accumulation}" if candidate.accumulation > 1 else ""
    return " ".join([*parts, f"mb{candidate.micro_batch}{steps}"])


def _plans_table(request: Request, shown: Sequence[Evaluation], front: Sequence[Evaluation] = ()) -> list[str]:
    """One row a plan; the column of ranges gives way where long labels need the room."""
    header: list[str] = ["#", "plan", "GiB", "free", "host", "tok/s", "range", "MFU", "vs 1"]
    marked = {evaluation.candidate for evaluation in front}
    rows = [
        _plan_row(request, shown[0], e, f"{rank}{'+' if e.candidate in marked else ''}")
        for rank, e in enumerate(shown, 1)
    ]
    lines = table(header, rows, left=frozenset({0, 1}))
    if max(map(len, lines)) > WIDTH:
        at = header.index("range")
        lines = table(header[:at] + header[at + 1 :], [r[:at] + r[at + 1 :] for r in rows], left=frozenset({0, 1}))
    title = "best plans" if len(shown) > 1 else "the plan"
    return [f"{title} (GiB and tokens/s of one GPU, host GiB of one node)", *lines]


def _plan_row(request: Request, best: Evaluation, evaluation: Evaluation, rank: str) -> list[str]:
    memory, time = evaluation.memory, evaluation.time
    mark = "*" if evaluation.verdict is Verdict.BORDERLINE else ""
    sizes = (memory.gpu_total_bytes, request.cluster.gpu.memory_bytes - memory.gpu_total_bytes)
    row = [f"{rank}{mark}", short_label(evaluation.candidate), *(f"{size / GIB:.1f}" for size in sizes)]
    row.append(f"{memory.peak_bytes(Device.HOST) / GIB:.0f}")
    if time is None or best.time is None:
        return [*row, "", "", "", ""]
    per_gpu, error = time.tokens_per_second_per_gpu, time.relative_error
    against = "" if evaluation is best else f"{change_percent(best, evaluation):+d}%"
    band = f"{_short(per_gpu * (1 - error))}-{_short(per_gpu * (1 + error))}"
    return [*row, f"{per_gpu:,.0f}", band, f"{time.mfu:.0%}", against]


def _short(number: float) -> str:
    """`950`, `3.2k`."""
    return f"{number / 1000:.1f}k" if number >= 1000 else f"{number:.0f}"


def _legend(candidates: Sequence[Candidate]) -> str:
    """What the abbreviations of these plans mean, and no others."""
    words = ["Z3 = ZeRO stage 3"]
    if any(c.degrees.tp > 1 for c in candidates):
        words.append("tp2 = each layer split over 2 GPUs")
    if any(c.checkpointing is Checkpointing.FULL for c in candidates):
        words.append("ckpt = activations recomputed")
    used = {c.offload for c in candidates}
    if Offload.OPTIMIZER in used:
        words.append("cpu:opt = optimizer in host memory")
    if Offload.OPTIMIZER_AND_PARAMS in used:
        words.append("cpu:all = optimizer and parameters there")
    if Offload.NVME in used:
        words.append("nvme = both on local NVMe")
    accumulates = any(c.accumulation > 1 for c in candidates)
    words.append("mb4x8 = micro-batch 4, 8 accumulation steps" if accumulates else "mb4 = micro-batch 4")
    return ", ".join(words) + "."


def _notes(request: Request, shown: Sequence[Evaluation]) -> list[str]:
    lines = wrapped(_legend([evaluation.candidate for evaluation in shown]))
    if len(shown) > 1:
        lines += wrapped("+ no searched plan is both faster and smaller (the front of speed against headroom).")
    lines += band_lines(request, shown)
    if any(e.verdict is Verdict.BORDERLINE for e in shown):
        lines += wrapped("* borderline: it fits only inside the error of the memory model.")
    return lines


def _memory_bar(request: Request, evaluation: Evaluation) -> list[str]:
    phase = evaluation.memory.limiting_phase(Device.GPU)
    capacity = request.cluster.gpu.memory_bytes
    rows = [
        *components(evaluation, phase),
        ("overhead (context, NCCL, allocator)", evaluation.memory.gpu_overhead_bytes),
    ]
    left = capacity - evaluation.memory.gpu_total_bytes
    if left > 0:
        rows.append(("free", left))
    lines = [f"GPU memory in {PHASE_WORDS[phase]}, plan 1"]
    cells = [
        (name, f"{size / GIB:.1f}", ("." * len(bar(size / capacity)) if name == "free" else bar(size / capacity)))
        for name, size in rows
    ]
    body = table(("", "GiB", ""), cells, left=frozenset({0, 2}))[1:]
    return [*lines, *(f"  {line}" for line in body)]


def _phase_table(request: Request, evaluation: Evaluation) -> list[str]:
    memory = evaluation.memory
    rows = [
        (phase.value, f"{memory.phase_bytes(Device.GPU, phase) / GIB:.2f}",
         f"{(memory.phase_bytes(Device.GPU, phase) + memory.gpu_overhead_bytes) / GIB:.2f}",
         f"{memory.phase_bytes(Device.HOST, phase) / GIB:.1f}")
        for phase in Phase
    ]  # fmt: skip
    return table(("phase", "tensors GiB/GPU", "with overhead", "host GiB/node"), rows)


def _rejected(plan: Plan) -> list[str]:
    looked = len(plan.ranked) + len(plan.rejected)
    lines = [f"searched {looked} candidates: {len(plan.ranked)} fit, {len(plan.rejected)} rejected"]
    counts = rules_counted(plan.rejected)
    if counts:
        lines += wrapped(", ".join(f"{count} {rule}" for rule, count in counts.items()))
    for sentence in rejection_sentences(nearest_misses(plan, limit=3)):
        lines += wrapped(sentence, indent="    ", first="  - ")
    return lines


def _nothing_fits(plan: Plan) -> list[str]:
    lines = ["NOTHING FITS"]
    if plan.remedies:
        lines.append("  the smallest changes that would:")
        for remedy in plan.remedies:
            lines += wrapped(_remedy(remedy), indent="    ", first="  - ")
    return lines


def _remedy(remedy: Remedy) -> str:
    flags = " ".join(f"--{name.replace('_', '-')} {_flag_value(value)}" for name, value in remedy.fields)
    candidate, memory = remedy.evaluation.candidate, remedy.evaluation.memory
    needs = f"{gib_text(memory.gpu_total_bytes)} per GPU"
    if candidate.offload is not Offload.NONE:
        needs += f" and {gib_text(memory.peak_bytes(Device.HOST), digits=0)} of RAM per node"
    return f"{remedy.change} (`{flags}`): {candidate.label}, {needs}"


def _flag_value(value: object) -> str:
    return ",".join(str(v) for v in value) if isinstance(value, (list, tuple)) else str(value)
