"""A plan made small: the same strategy for a tiny model of the same architecture on a few ranks.

In: plan.json's document and its ds_config.json. Out: `SmallPlan`, what the dry run launches and what is predicted for
it. The strategy is the plan's own; data-parallel ranks, sequence length and sizes counted in elements are smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.launch.shrink import shrink
from planner.launch.small_settings import shrink_settings
from planner.records.candidate import Candidate, Checkpointing, Degrees, Offload, ZeroSettings, ZeroStage
from planner.records.model import Adapter, Method, ModelShape, Precision
from planner.records.request import Attention, Loss, Optimizer, Workload
from planner.spec import ds_config
from planner.spec.hf_config import shape_from_config
from planner.spec.traced import traced_as_run

SHORTEST, LONGEST = 16, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallPlan:
    """What a dry run trains, and how."""

    config: Mapping[str, Any]  # fields of the tiny model's config.json
    shape: ModelShape
    candidate: Candidate
    workload: Workload
    planned_settings: ZeroSettings  # the plan's own sizes
    attention_dropout_off: bool  # the plan's model drops attention, the tiny one does not

    @property
    def ranks(self) -> int:
        """Processes to launch."""
        return self.candidate.degrees.world_size


def small_plan(document: Mapping[str, Any], engine_file: Path, *, ranks: int) -> SmallPlan:
    """The first plan of the document on that many ranks; raises PlannerError for a file that cannot be planned."""
    plan, request, model = document["plans"][0], document["request"], document["model"]
    model_type = model["model_type"]
    config = shrink(model["config"], tp=plan["tp"])
    whole = shape_from_config({**model["config"], "model_type": model_type}, name=model_type, source="plan.json")
    shape = shape_from_config({**config, "model_type": model_type}, name=f"small {model_type}", source="plan.json")
    world_size = plan["tp"] * plan["dp"]
    planned = ds_config.read(engine_file, world_size=world_size, hidden=whole.hidden).settings
    small = SmallPlan(
        config=config,
        shape=shape,
        candidate=Candidate(
            zero=ZeroStage(plan["zero_stage"]),
            degrees=Degrees(tp=plan["tp"], dp=ranks // plan["tp"]),
            checkpointing=Checkpointing(plan["checkpointing"]),
            offload=Offload(plan["offload"]),
            micro_batch=plan["micro_batch"],
            accumulation=plan["accumulation"],
            settings=shrink_settings(planned, whole=whole, small=shape),
        ),
        workload=Workload(
            seq_len=_seq_len(shape, plan["micro_batch"]),
            global_batch=None,
            accumulation=plan["accumulation"],
            precision=Precision(plan["precision"]),
            attention=Attention.EAGER if request["attention"] == "eager" else Attention.SDPA,  # flash needs a GPU
            loss=Loss.STANDARD,  # the fused loss does too
            tokens=None,
            optimizer=Optimizer(request.get("optimizer", Optimizer.ADAMW.value)),
            adapter=_adapter(request),
        ),
        planned_settings=planned,
        attention_dropout_off=bool(whole.trait("attention_dropout")),
    )
    return replace(small, shape=traced_as_run(small.shape, small.workload))


def _seq_len(shape: ModelShape, micro_batch: int) -> int:
    """Half as many tokens in a micro-batch as the model is wide: activations then are some fifth of the states, which
    grow with the square of the width; neither hides an error in the other."""
    return min(LONGEST, max(SHORTEST, shape.hidden // 2 // micro_batch))


def _adapter(request: Mapping[str, Any]) -> Adapter | None:
    """The plan's adapters, beside 16-bit weights even where the plan has 4-bit ones."""
    if Method(request.get("method", Method.FULL.value)) is Method.FULL:
        return None
    return Adapter(method=Method.LORA, rank=request["lora_rank"], targets=tuple(request["lora_targets"]))
