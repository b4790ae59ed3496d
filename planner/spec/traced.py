"""A model whose type has no formulas, traced as a workload runs it: in, both; out, the model with its activations.

Other models pass unchanged, and nothing heavy is imported for them.
"""

from __future__ import annotations

from planner.records.model import ModelShape
from planner.records.request import Workload


def traced_as_run(model: ModelShape, workload: Workload) -> ModelShape:
    """The model with the activations of that length, attention and precision, if it needs a trace for them."""
    if model.traced is None:
        return model
    from planner.trace.activations import with_activations

    return with_activations(
        model, seq_len=workload.seq_len, attention=workload.attention, width=workload.precision.bytes
    )
