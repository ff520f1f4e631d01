"""The presets: named points of the knob spaces, each with its source, what other code does under its name, and traps.

Where a paper leaves a value open, the knob's default is used (std with divisor n - 1, 1e-6 added to it), or the text
says where the value comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, overload

from algorithms.catalogue.covariance import CLIP_COV, KL_COV
from algorithms.catalogue.entry import Preset
from algorithms.catalogue.estimators import (
    BRPO,
    GPG,
    OPO,
    PPO,
    REINFORCE,
    REINFORCE_PP,
    REINFORCE_PP_BASELINE,
    RFT,
    RLOO,
)
from algorithms.catalogue.group_relative import BNPO, DAPO, DR_GRPO, GRPO, LITE_PPO
from algorithms.catalogue.names import PolicyGradientPreset, PreferencePreset
from algorithms.catalogue.pairwise import (
    CDPO,
    DPO,
    DPO_NORM,
    DPOP,
    EXO,
    HINGE,
    IPO,
    IPO_SUM,
    ROBUST_DPO,
    RPO,
)
from algorithms.catalogue.recipes import ACE_REASON, MAGISTRAL, SKYWORK_OR1
from algorithms.catalogue.reference_free import ORPO, SIMPO
from algorithms.catalogue.sidewise import APO_ZERO, KTO, NCA, SPPO_HARD
from algorithms.catalogue.trust_regions import CISPO, GMPO, GSPO, KIMI_K1_5, SAPO
from algorithms.families import AnyObjective, Family
from algorithms.objective import Objective
from algorithms.overrides import nearest, with_overrides
from algorithms.preference.objective import PreferenceObjective

__all__ = ["PolicyGradientPreset", "PreferencePreset", "Preset", "describe", "preset", "presets"]

_PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "reinforce": REINFORCE,
        "reinforce_pp": REINFORCE_PP,
        "reinforce_pp_baseline": REINFORCE_PP_BASELINE,
        "rloo": RLOO,
        "opo": OPO,
        "ppo": PPO,
        "grpo": GRPO,
        "dr_grpo": DR_GRPO,
        "dapo": DAPO,
        "bnpo": BNPO,
        "lite_ppo": LITE_PPO,
        "gspo": GSPO,
        "cispo": CISPO,
        "kimi_k1_5": KIMI_K1_5,
        "clip_cov": CLIP_COV,
        "kl_cov": KL_COV,
        "sapo": SAPO,
        "gmpo": GMPO,
        "gpg": GPG,
        "magistral": MAGISTRAL,
        "brpo": BRPO,
        "skywork_or1": SKYWORK_OR1,
        "ace_reason": ACE_REASON,
        "rft": RFT,
        "dpo": DPO,
        "dpo_norm": DPO_NORM,
        "simpo": SIMPO,
        "ipo": IPO,
        "ipo_sum": IPO_SUM,
        "cdpo": CDPO,
        "robust_dpo": ROBUST_DPO,
        "hinge": HINGE,
        "rpo": RPO,
        "kto": KTO,
        "orpo": ORPO,
        "apo_zero": APO_ZERO,
        "sppo_hard": SPPO_HARD,
        "nca": NCA,
        "exo": EXO,
        "dpop": DPOP,
    }
)


@overload
def presets(family: Literal["policy_gradient"]) -> tuple[PolicyGradientPreset, ...]: ...
@overload
def presets(family: Literal["preference"]) -> tuple[PreferencePreset, ...]: ...
@overload
def presets(family: None = None) -> tuple[str, ...]: ...
def presets(family: Family | None = None) -> tuple[str, ...]:
    """The names of all presets, or of those of one family."""
    return tuple(name for name, entry in _PRESETS.items() if family in (None, entry.family))


@overload
def preset(name: PolicyGradientPreset, /, **overrides: object) -> Objective: ...
@overload
def preset(name: PreferencePreset, /, **overrides: object) -> PreferenceObjective: ...
@overload
def preset(name: str, /, **overrides: object) -> AnyObjective: ...
def preset(name: str, /, **overrides: object) -> AnyObjective:
    """The named objective, with dotted knobs changed: `preset("grpo", **{"rule.clip_high": 0.28})`.

    Raises ValueError for an unknown preset and, naming all of them, for overrides that `with_overrides` refuses.
    """
    return with_overrides(describe(name).objective, overrides)


def describe(name: str) -> Preset:
    """The preset with its source, its differences from other code and its traps. Raises ValueError if unknown."""
    if name not in _PRESETS:
        raise ValueError(f"unknown algorithm {name!r}: {nearest(name, presets())}")
    return _PRESETS[name]
