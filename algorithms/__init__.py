"""The mathematics of policy updates: pure functions on tensors, and the knob space that they span.

Objectives and presets need no torch; the tensor functions are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from algorithms.catalogue import describe, preset, presets
from algorithms.noop import differences_that_cannot_act
from algorithms.objective import GOVERNORS, KNOB_NAMES, Objective, active_knobs
from algorithms.overrides import with_overrides

if TYPE_CHECKING:
    from algorithms.advantage import advantages
    from algorithms.batch import TokenBatch
    from algorithms.diagnostics import update_metric_names
    from algorithms.loss import Loss, combine_metrics, policy_loss

__all__ = [
    "GOVERNORS",
    "KNOB_NAMES",
    "Loss",
    "Objective",
    "TokenBatch",
    "active_knobs",
    "advantages",
    "combine_metrics",
    "describe",
    "differences_that_cannot_act",
    "policy_loss",
    "preset",
    "presets",
    "update_metric_names",
    "with_overrides",
]

# No module may bear the name of a public function: importing it would put the module in the function's place.
_MODULE_OF = {
    "advantages": "advantage",
    "TokenBatch": "batch",
    "Loss": "loss",
    "combine_metrics": "loss",
    "policy_loss": "loss",
    "update_metric_names": "diagnostics",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
