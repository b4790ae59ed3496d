"""The Python face of dsplan: `plan` and `estimate`, the same as the commands of these names.

In: the fields of CONTRACT section 2 as keywords. Out: `Answer`, the records with `.to_dict()` and `.files()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.catalog.speed import speed_constants
from planner.errors import PlannerError
from planner.explain.host import borderline_sentence, host_sentences
from planner.explain.why import binding_sentence, strategy_sentence, with_reasons
from planner.records.candidate import Checkpointing, Offload, ZeroStage
from planner.records.plan import Evaluation, Plan, Verdict
from planner.records.request import Axes, Request
from planner.report.as_json import document
from planner.search.evaluate import evaluate
from planner.search.remedies import find_remedies
from planner.search.search import search, with_micro_batch
from planner.search.space import micro_batches, strategies
from planner.search.summary import rejection_evaluation
from planner.spec.request import build_request, described, require_even_shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was asked and found. `plan.ranked` is empty when nothing fits."""

    plan: Plan

    @property
    def fits(self) -> bool:
        """Whether at least one plan fits, borderline ones included."""
        return bool(self.plan.ranked) and self.plan.ranked[0].verdict is not Verdict.DOES_NOT_FIT

    def to_dict(self) -> dict[str, Any]:
        """The document of CONTRACT section 3."""
        return document(self.plan)

    def files(self) -> dict[str, str]:
        """The files of the best plan, checked against their schemas and each other; raises PlannerError when nothing
        fits."""
        from planner.check.folder import require_valid
        from planner.render.bundle import render_files

        if not self.plan.ranked:
            raise PlannerError("there is no plan to write: nothing fits", hint="see `remedies` for changes that would")
        files = render_files(self.plan, self.to_dict())
        require_valid(files)
        return files

    def write(self, folder: Path, *, force: bool = False) -> dict[str, str]:
        """Write the best plan's files into a folder: all of them or none."""
        from planner.render.folder import write_folder

        files = self.files()
        write_folder(folder, files, force=force)
        return files


def plan(*, out: str | Path | None = None, force: bool = False, smoke: bool = False, **fields: Any) -> Answer:
    """Search, rank and explain; with `out`, write the files of the best plan, and with `smoke`, try them on the CPU.

    A tensor-parallel degree that was named has to divide the heads. When nothing fits, nothing is written. Raises
    PlannerError for a request that is wrong or a folder that cannot be written, LaunchFailed when the dry run fails.
    """
    if smoke and out is None:
        raise PlannerError("`smoke` needs `out`", hint="the dry run launches the files of a folder")
    request = build_request(fields)
    if fields.get("tp") is not None or request.axes.settings is not None:
        require_even_shards(request)
    answer = Answer(plan=solve(request))
    if out is not None and answer.fits:
        answer.write(Path(out), force=force)
        if smoke:
            from planner.launch.smoke import run_smoke

            run_smoke(Path(out))
    return answer


def solve(request: Request) -> Plan:
    """The explained plan of a request, with remedies when nothing fits."""
    constants = speed_constants()
    found = search(request, constants)
    if not found.ranked:
        return replace(found, remedies=find_remedies(request, constants))
    return with_reasons(found, constants)


def estimate(**fields: Any) -> Answer:
    """Memory and speed of one configuration, whether it fits or not.

    Axes that are not named take DeepSpeed's and the Trainer's own defaults: stage 0, no tensor parallelism, no
    checkpointing, no offload, micro-batch 1.
    """
    request = build_request({**fields, "top": 1})
    single_axes = replace(request, axes=_single(request.axes, fields))
    request = described(single_axes, model=str(fields["model"]), gpus=str(fields["gpus"]))
    strategy = next(strategies(request))
    listed = micro_batches(request, strategy.degrees.dp)
    candidate = with_micro_batch(request, strategy, listed[0] if listed else strategy.micro_batch)
    outcome = evaluate(request, candidate, speed_constants(), proposed=False)
    if not isinstance(outcome, Evaluation):
        if outcome.memory is None:
            raise PlannerError(
                f"{candidate.label} is no configuration that runs: {outcome.detail}", hint=f"rule {outcome.rule}"
            )
        outcome = rejection_evaluation(request, outcome)
    sentences = (strategy_sentence(candidate), binding_sentence(request, outcome), *host_sentences(request, outcome))
    if outcome.verdict is Verdict.BORDERLINE:
        sentences = (*sentences, borderline_sentence(request, outcome))
    reasons = (*sentences, *outcome.reasons)
    single = replace(outcome, reasons=reasons)
    return Answer(plan=Plan(request=request, ranked=(single,), rejected=(), remedies=()))


def _single(axes: Axes, fields: Mapping[str, Any]) -> Axes:
    """One value an axis; several are a mistake."""
    chosen: dict[str, Any] = {}
    defaults: Mapping[str, Any] = {
        "zero": ZeroStage.DISABLED,
        "tp": 1,
        "checkpointing": Checkpointing.NONE,
        "offload": Offload.NONE,
        "micro_batch": 1,
    }
    for name, default in defaults.items():
        values = getattr(axes, name)
        pinned = fields.get(name) is not None or (axes.settings is not None and values is not None and len(values) == 1)
        if pinned and len(values) > 1:
            raise PlannerError(
                f"`--{name.replace('_', '-')} {fields[name]}` names {len(values)} values",
                hint="`dsplan estimate` takes one; `dsplan plan` searches",
            )
        chosen[name] = values if pinned else (default,)
    return replace(axes, **chosen)
