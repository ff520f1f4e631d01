"""The mathematics of policy updates: pure functions on tensors, and the knob spaces that they span.

Objectives of policy gradients are here, those on pairs of completions in `algorithms.preference`. Objectives and
presets need no torch; the tensor functions are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from algorithms.catalogue import Preset, describe, preset, presets
from algorithms.controllers import applied_entropy_coefficient, next_entropy_coefficient, next_kl_coefficient
from algorithms.families import KNOB_DESCRIPTIONS, KNOB_NAMES, AnyObjective
from algorithms.formulas import formula
from algorithms.noop import differences_that_cannot_act
from algorithms.objective import Objective, acts_without_advantage
from algorithms.overrides import with_overrides
from algorithms.preference.objective import PreferenceObjective
from algorithms.space import GOVERNORS, active_knobs

if TYPE_CHECKING:
    from algorithms.advantage import advantages
    from algorithms.batch import TokenBatch
    from algorithms.critic import gae, value_losses, value_metrics, value_targets
    from algorithms.kl import kl_estimate, kl_penalties
    from algorithms.loss import Coefficients, Loss, combine_metrics, policy_loss, update_metric_names
    from algorithms.sampler_correction import sampler_weights
    from algorithms.selection import select_tokens

__all__ = [
    "GOVERNORS",
    "KNOB_DESCRIPTIONS",
    "KNOB_NAMES",
    "AnyObjective",
    "Coefficients",
    "Loss",
    "Objective",
    "PreferenceObjective",
    "Preset",
    "TokenBatch",
    "active_knobs",
    "acts_without_advantage",
    "advantages",
    "applied_entropy_coefficient",
    "combine_metrics",
    "describe",
    "differences_that_cannot_act",
    "formula",
    "gae",
    "kl_estimate",
    "kl_penalties",
    "next_entropy_coefficient",
    "next_kl_coefficient",
    "policy_loss",
    "preset",
    "presets",
    "sampler_weights",
    "select_tokens",
    "update_metric_names",
    "value_losses",
    "value_metrics",
    "value_targets",
    "with_overrides",
]

# No module may bear the name of a public function: importing it would put the module in the function's place.
_MODULE_OF = {
    "advantages": "advantage",
    "TokenBatch": "batch",
    "gae": "critic",
    "value_losses": "critic",
    "value_metrics": "critic",
    "value_targets": "critic",
    "Loss": "loss",
    "combine_metrics": "loss",
    "policy_loss": "loss",
    "update_metric_names": "loss",
    "Coefficients": "loss",
    "kl_estimate": "kl",
    "kl_penalties": "kl",
    "sampler_weights": "sampler_correction",
    "select_tokens": "selection",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
