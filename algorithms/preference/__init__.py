"""Objectives on pairs of a chosen and a rejected completion: DPO and its relatives, over shared knobs.

The objective does not need torch: the tensor functions are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from algorithms.preference.objective import (
    PreferenceObjective,
    couples_pairs,
    preference_differences_that_cannot_act,
)

if TYPE_CHECKING:
    from algorithms.preference.loss import (
        PairTrace,
        PreferenceLoss,
        combine_preference_metrics,
        preference_loss,
        preference_metric_names,
    )

__all__ = [
    "PairTrace",
    "PreferenceLoss",
    "PreferenceObjective",
    "combine_preference_metrics",
    "couples_pairs",
    "preference_differences_that_cannot_act",
    "preference_loss",
    "preference_metric_names",
]

# No module may have the name of a public function: importing the module would replace the function by the module.
_IN_LOSS = (
    "PairTrace",
    "PreferenceLoss",
    "combine_preference_metrics",
    "preference_loss",
    "preference_metric_names",
)


def __getattr__(name: str) -> object:
    if name not in _IN_LOSS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.loss"), name)
