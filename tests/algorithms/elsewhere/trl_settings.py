"""Settings of TRL beyond those of our presets, each by its own effect: (config, settings)."""

from __future__ import annotations

from typing import Any

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "defaults": ("GRPOConfig", {}),
    "dual clip": ("GRPOConfig", {"loss_type": "grpo", "delta": 1.5}),
    "cispo": ("GRPOConfig", {"loss_type": "cispo"}),
    "cispo, bound 1.3": ("GRPOConfig", {"loss_type": "cispo", "epsilon_high": 1.3}),
    "luspo": ("GRPOConfig", {"loss_type": "luspo", "importance_sampling_level": "sequence"}),
    "no std": ("GRPOConfig", {"scale_rewards": "none"}),
    "std of the batch": ("GRPOConfig", {"scale_rewards": "batch", "loss_type": "dr_grpo"}),
    "unbounded": ("GRPOConfig", {"epsilon": 1e9, "epsilon_high": 1e9}),
    "truncated out, by completion": ("GRPOConfig", {"mask_truncated_completions": True, "loss_type": "grpo"}),
    "truncated out, by token": ("GRPOConfig", {"mask_truncated_completions": True, "loss_type": "dapo"}),
    "k3 with ratio": ("GRPOConfig", {"beta": 0.3}),
    "k3": ("GRPOConfig", {"beta": 0.3, "use_bias_correction_kl": False, "loss_type": "grpo"}),
    "entropy bonus": ("GRPOConfig", {"entropy_coef": 0.2}),
    "sapo": ("GRPOConfig", {"loss_type": "sapo", "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 1.5}),
    "vLLM, as it is": ("GRPOConfig", {"use_vllm": True}),
    "vLLM, truncated tokens": (
        "GRPOConfig",
        {
            "use_vllm": True,
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": 1.1,
        },
    ),
    "vLLM, band": (
        "GRPOConfig",
        {
            "use_vllm": True,
            "vllm_importance_sampling_mode": "token_mask",
            "vllm_importance_sampling_clip_min": 0.8,
            "vllm_importance_sampling_clip_max": 1.2,
        },
    ),
    "vLLM, unbounded": (
        "GRPOConfig",
        {
            "use_vllm": True,
            "vllm_importance_sampling_mode": "token_mask",
            "vllm_importance_sampling_clip_max": None,
        },
    ),
    "RLOO": ("RLOOConfig", {}),
    "RLOO, normalised": ("RLOOConfig", {"normalize_advantages": True, "beta": 0.0, "epsilon_high": 0.4}),
    "GMPO with a KL": ("GMPOConfig", {"beta": 0.3, "epsilon": 0.1}),
}
PAIR_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "aot": ("DPOConfig", {"loss_type": ["aot"], "label_smoothing": 0.1}),
    "aot_unpaired": ("DPOConfig", {"loss_type": ["aot_unpaired"]}),
    "bco": ("DPOConfig", {"loss_type": ["bco_pair"]}),
    "apo_down": ("DPOConfig", {"loss_type": ["apo_down"]}),
    "discopop": ("DPOConfig", {"loss_type": ["discopop"], "discopop_tau": 0.2}),
    "ld": ("DPOConfig", {"ld_alpha": 0.5}),
    "ignored smoothing": ("DPOConfig", {"label_smoothing": 0.2}),
    "kto weights": ("KTOConfig", {"desirable_weight": 1.3, "undesirable_weight": 0.7, "beta": 0.5}),
    "cpo": ("CPOConfig", {"label_smoothing": 0.1}),
    "cpo, ipo": ("CPOConfig", {"loss_type": "ipo", "cpo_alpha": 0.0}),
    "cpo, hinge": ("CPOConfig", {"loss_type": "hinge", "cpo_alpha": 0.5}),
    "cpo, simpo as it is": ("CPOConfig", {"loss_type": "simpo"}),
}
