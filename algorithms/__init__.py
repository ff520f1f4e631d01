"""The mathematics of policy updates: the knob spaces of objectives, and pure functions on tensors.

Policy-gradient objectives are in this package, and objectives on pairs of completions in `algorithms.preference`.
Objectives and presets do not need torch: the tensor functions are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from algorithms.entropy import applied_entropy_coefficient, next_entropy_coefficient
from algorithms.formulas import formula
from algorithms.kl import kl_estimate, kl_penalties, next_kl_coefficient
from algorithms.noop import differences_that_cannot_act, hears_rewards
from algorithms.objective import Objective, acts_without_advantage
from algorithms.overrides import AnyObjective, objective_knobs, with_overrides
from algorithms.preference.objective import PreferenceObjective
from algorithms.presets import Preset, describe, preset, presets
from algorithms.rules import RULES, Rule
from algorithms.selection import select_tokens
from harness.settings import active_knobs

if TYPE_CHECKING:
    from algorithms.advantage import advantages, policy_waits, value_targets
    from algorithms.loss import (
        Coefficients,
        Loss,
        StepSize,
        TokenBatch,
        combine_metrics,
        policy_loss,
        update_metric_names,
    )

__all__ = [
    "RULES",
    "AnyObjective",
    "Coefficients",
    "Loss",
    "Objective",
    "PreferenceObjective",
    "Preset",
    "Rule",
    "StepSize",
    "TokenBatch",
    "active_knobs",
    "acts_without_advantage",
    "advantages",
    "applied_entropy_coefficient",
    "combine_metrics",
    "describe",
    "differences_that_cannot_act",
    "formula",
    "hears_rewards",
    "kl_estimate",
    "kl_penalties",
    "next_entropy_coefficient",
    "next_kl_coefficient",
    "objective_knobs",
    "policy_loss",
    "policy_waits",
    "preset",
    "presets",
    "select_tokens",
    "update_metric_names",
    "value_targets",
    "with_overrides",
]

# `__getattr__` below resolves these names, so that commands which only list or describe objectives start without torch.
# No module may have the name of a public function: importing the module would replace the function by the module.
_NEED_TORCH = {
    "advantage": ("advantages", "policy_waits", "value_targets"),
    "loss": ("Coefficients", "Loss", "StepSize", "TokenBatch", "combine_metrics", "policy_loss", "update_metric_names"),
}


def __getattr__(name: str) -> object:
    for module, names in _NEED_TORCH.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
