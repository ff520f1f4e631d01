"""The presets: named points of the knob space, each with its source, what other code does under its name, and traps.

Where a paper leaves a value open, the knob's default is used (std with divisor n - 1, 1e-6 added to it), or the text
says where the value comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

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
    RLOO,
)
from algorithms.catalogue.group_relative import BNPO, DAPO, DR_GRPO, GRPO, LITE_PPO
from algorithms.catalogue.recipes import ACE_REASON, MAGISTRAL, SKYWORK_OR1
from algorithms.catalogue.trust_regions import CISPO, GMPO, GSPO, KIMI_K1_5, SAPO
from algorithms.objective import Objective
from algorithms.overrides import nearest, with_overrides

__all__ = ["Preset", "describe", "preset", "presets"]

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
    }
)


def presets() -> tuple[str, ...]:
    """The names of all presets."""
    return tuple(_PRESETS)


def preset(name: str, /, **overrides: object) -> Objective:
    """The named objective, with dotted knobs changed: `preset("grpo", **{"rule.clip_high": 0.28})`.

    Raises ValueError for an unknown preset and, naming all of them, for overrides that `with_overrides` refuses.
    """
    return with_overrides(describe(name).objective, overrides)


def describe(name: str) -> Preset:
    """The preset with its source, its differences from other code and its traps. Raises ValueError if unknown."""
    if name not in _PRESETS:
        raise ValueError(f"unknown algorithm {name!r}: {nearest(name, presets())}")
    return _PRESETS[name]
