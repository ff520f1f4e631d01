"""The names of the presets as types, so that a type checker knows which kind of objective a name stands for."""

from __future__ import annotations

from typing import Literal

PolicyGradientPreset = Literal[
    "reinforce",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "rloo",
    "opo",
    "ppo",
    "grpo",
    "dr_grpo",
    "dapo",
    "bnpo",
    "lite_ppo",
    "gspo",
    "cispo",
    "kimi_k1_5",
    "clip_cov",
    "kl_cov",
    "sapo",
    "gmpo",
    "gpg",
    "magistral",
    "brpo",
    "skywork_or1",
    "ace_reason",
    "rft",
]
PreferencePreset = Literal[
    "dpo",
    "dpo_norm",
    "simpo",
    "ipo",
    "ipo_sum",
    "cdpo",
    "robust_dpo",
    "hinge",
    "rpo",
    "kto",
    "orpo",
    "apo_zero",
    "sppo_hard",
    "nca",
    "exo",
    "dpop",
]
