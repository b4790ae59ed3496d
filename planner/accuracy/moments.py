"""The instants of a training step that the terms of foreign engines and layers live in.

Named once here from the moments of a plan: a term is alive in all that its name says, and a peak that another engine
cannot have stays below its neighbours.
"""

from __future__ import annotations

from planner.memory.inputs import FORWARD_BACKWARD, STEP
from planner.records.estimate import Moment

LAYERS_KEPT = FORWARD_BACKWARD[: FORWARD_BACKWARD.index(Moment.BACKWARD_LAYER) + 1]
"""From the last layer's forward to its backward: what every layer keeps is alive."""
ACTIVATIONS = (Moment.FORWARD_END, Moment.BACKWARD_HEAD, Moment.BACKWARD_LAYER)
"""The moments that activation terms name; `planner.memory.backward` adds those in between."""
LAYER_BACKWARD = (Moment.BACKWARD_LAYER,)
LOSS = (Moment.FORWARD_END,)
LOSS_BACKWARD = (Moment.BACKWARD_HEAD,)
HEAD = (*LOSS, *LOSS_BACKWARD)
HEAD_GRADIENT = LAYERS_KEPT[LAYERS_KEPT.index(Moment.BACKWARD_HEAD) + 1 :]
"""The head's gradient exists, the layers have none yet."""
GRADIENTS = (Moment.BACKWARD_END, *STEP)
STEP_ONLY = (Moment.STEP_CAST,)
