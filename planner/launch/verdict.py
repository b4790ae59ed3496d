"""What a launch showed: the checks that ranks made, the bytes they counted, and why the plan did not pass, if so.

In: the plan, how the launch ended, what rank 0 reported. Out: a `SmokeResult`. Nothing that a CPU or a tiny model
cannot show is passed over: it is listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.catalog.versions import difference_sentences
from planner.launch.folder import PlanFolder
from planner.launch.logs import telling_line
from planner.launch.memory_check import MemoryComparison, compare, limit_percent, predicted_bytes
from planner.launch.process import Finished
from planner.launch.result import Check, SmokeResult
from planner.launch.small_plan import SmallPlan
from planner.launch.small_settings import zero_sizes
from planner.records.candidate import Offload, ZeroStage

LOG_LINES = 60


def judge(
    folder: PlanFolder,
    small: SmallPlan,
    finished: Finished,
    answer: Mapping[str, Any],
    *,
    steps: int,
    timeout_s: float,
    uncounted: str | None,
    versions: Mapping[str, str],
) -> SmokeResult:
    """The plan passed when every check agrees, all of them were made, the launcher ended well, and the memory model
    was right. `uncounted` is why tensors could not be counted, if so."""
    checks = tuple(Check(**{**c, "ranks_failed": tuple(c["ranks_failed"])}) for c in answer.get("checks", ()))
    memory = _memory(small, answer.get("memory") or {}, uncounted)
    error = _error(checks, finished, memory, finished_report=bool(answer.get("finished")), timeout_s=timeout_s)
    degrees = small.candidate.degrees
    return SmokeResult(
        passed=error is None,
        error=error,
        launcher=str(folder.document["request"].get("launcher", "")),
        ranks=small.ranks,
        tp=degrees.tp,
        dp=degrees.dp,
        steps=steps,
        losses=tuple(answer.get("losses", ())),
        seconds=round(finished.seconds, 1),
        checks=checks,
        memory=memory,
        not_shown=(*_not_shown(folder, small), *difference_sentences(versions, small.candidate)),
        versions=versions,
        model_config=small.config,
        log_tail=() if error is None else finished.tail[-LOG_LINES:],
    )


def _memory(small: SmallPlan, measured: Mapping[str, int], uncounted: str | None) -> MemoryComparison:
    """Predicted and measured bytes, or why there is nothing to compare."""
    offload = small.candidate.offload
    if offload is Offload.NVME:
        uncounted = "states on a drive are no tensors, and the engine stages them in buffers of its own sizes"
    elif uncounted is None and not measured:
        uncounted = "the launch ended before three optimizer steps were counted"
    if uncounted is not None:
        return MemoryComparison(skipped=uncounted, limit_percent=limit_percent(offload))
    predicted = predicted_bytes(small.shape, small.workload, small.candidate)
    return compare(predicted, measured, limit_percent=limit_percent(offload))


def _error(
    checks: tuple[Check, ...],
    finished: Finished,
    memory: MemoryComparison,
    *,
    finished_report: bool,
    timeout_s: float,
) -> str | None:
    """Why the plan did not pass. A disagreement comes before the crash that it may have caused."""
    wrong = [c for c in checks if not c.ok]
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return (
            f"the plan is not in force: {wrong[0].what} should be `{wrong[0].expected}` and is `{wrong[0].found}`{more}"
        )
    if finished.returncode is None:
        return f"the dry run was ended after {timeout_s:g} s; it last said `{telling_line(finished.tail)}`"
    if finished.returncode != 0:
        return f"the launch ended with exit code {finished.returncode}: `{telling_line(finished.tail)}`"
    if not finished_report:
        return f"the launch ended without a report; it last said `{telling_line(finished.tail)}`"
    off = [phase for phase in memory.phases if not phase.within_limit]
    if off:
        worst = max(off, key=lambda phase: abs(phase.difference_percent))
        return (
            f"the memory model is wrong here: `{worst.phase}` holds {worst.measured_bytes:,} bytes of tensors, "
            f"{worst.predicted_bytes:,} were predicted ({worst.difference_percent:+.2f} %, the limit is "
            f"{memory.limit_percent:g} %)"
        )
    return None


def _not_shown(folder: PlanFolder, small: SmallPlan) -> tuple[str, ...]:
    """What the dry run leaves open, in words for the answer and for smoke.json."""
    plan, request = folder.plan, folder.document["request"]
    dp = small.candidate.degrees.dp
    lines = [
        "a shrunken model of the same architecture on CPU: speed, NCCL and GPU kernels are not tried, and of memory "
        "neither the CUDA context nor communicators nor the caching allocator",
        f"sequences of {small.workload.seq_len} tokens instead of {request.get('seq_len')}",
        *_shrunken_sizes(small),
    ]
    if small.candidate.zero is ZeroStage.PARAMETERS:
        lines.append("weights were random: what transformers gathers to fill them at stage 3 is not counted as loading")
    if dp != plan["dp"]:
        lines.append(f"dp {dp} stands for the plan's dp {plan['dp']}")
    if dp == 1:
        lines.append("one data-parallel rank: that ZeRO divides states between ranks is not shown")
    if request["attention"] == "flash":
        lines.append("attention `flash` needs a GPU: `sdpa` ran instead")
    if request.get("method") == "qlora":
        lines.append("the adapters trained beside 16-bit weights: what bitsandbytes stores in 4 bits is not tried")
    if small.attention_dropout_off:
        lines.append("dropout of attention needs a GPU's kernels: it was switched off")
    if request["loss"] == "fused":
        lines.append("loss `fused` needs a GPU: the standard loss ran instead")
    if request.get("script"):
        lines.append(f"`{request['script']}` was not run: the train.py of this folder ran instead")
    if plan["offload"] == "nvme":
        lines.append(
            "nvme_path was a temporary folder; of the states on disk, only the loss after reloading was compared"
        )
    return tuple(lines)


def _shrunken_sizes(small: SmallPlan) -> tuple[str, ...]:
    """The ZeRO sizes that the dry run changed, as a line if there are any."""
    stage = small.candidate.zero
    planned, used = zero_sizes(small.planned_settings, stage), zero_sizes(small.candidate.settings, stage)
    changed = [f"{key} {planned[key]:,} -> {used[key]:,}" for key in used if used[key] != planned[key]]
    return (f"sizes in elements were shrunken with the model: {', '.join(changed)}",) if changed else ()
