from __future__ import annotations

import re
from typing import get_args

import pytest

from algorithms import Objective, PreferenceObjective, Preset, active_knobs, describe, preset, presets
from algorithms.catalogue import PolicyGradientPreset, PreferencePreset
from algorithms.families import FAMILY_KNOBS
from algorithms.space import UNIONS

OBJECTIVES = {"policy_gradient": Objective, "preference": PreferenceObjective}
PLAIN = active_knobs(Objective(aggregation="token_mean"))
CLIP = {"rule.type": "ppo_clip", "ratio": "token", "rule.clip_low": 0.2, "rule.clip_high": 0.2, "rule.dual_clip": None}
STD = {"scale_ddof": 1, "scale_eps": 1e-6}
GROUP_STD = {"baseline": "group_mean", "scale": "group_std", **STD}
WHITEN = {"scale": "whiten_tokens", "scale_ddof": 1, "scale_eps": 1e-8}
KL = {"kl.reference": "initial", "kl.control": "fixed"}
REFILL = {"zero_std": "refill", "refill_max_rounds": 8}


def test_the_presets_of_policy_gradients() -> None:
    """Written out in full, beside what is plain: one that drifts changes the meaning of every sweep that names it."""
    expected: dict[str, dict[str, object]] = {
        "reinforce": {"baseline": "batch_mean", "aggregation": "seq_mean_token_sum"},
        "reinforce_pp": {**WHITEN, **CLIP, "kl.where": "reward", "kl.estimator": "k1", "kl.beta": 0.01, **KL},
        "reinforce_pp_baseline": {
            "baseline": "group_mean",
            **WHITEN,
            **CLIP,
            "kl.where": "loss",
            "kl.estimator": "k2",
            "kl.beta": 0.001,
            **KL,
        },
        "rloo": {
            "baseline": "leave_one_out",
            **CLIP,
            "aggregation": "seq_mean_token_sum",
            "kl.where": "reward",
            "kl.estimator": "k1",
            "kl.beta": 0.05,
            **KL,
        },
        "opo": {"baseline": "length_weighted", "aggregation": "seq_mean_token_sum"},
        "ppo": {
            "baseline": "critic",
            **WHITEN,
            **CLIP,
            "kl.where": "reward",
            "kl.estimator": "k1",
            "kl.beta": 0.05,
            **KL,
            "critic.gamma": 1.0,
            "critic.lam": 0.95,
            "critic.value_clip": 0.2,
            "critic.coef": 0.5,
            "critic.trunk": "own",
            "critic.learning_rate_factor": 1.0,
            "critic.warmup_steps": 0,
            "critic.whiten_rewards": False,
        },
        "grpo": {**GROUP_STD, **CLIP, "aggregation": "seq_mean_token_mean"},
        "dr_grpo": {"baseline": "group_mean", **CLIP, "aggregation": "constant_length"},
        "dapo": {
            **GROUP_STD,
            **CLIP,
            "rule.clip_high": 0.28,
            "overlong.type": "soft",
            "overlong.cache_frac": 0.2,
            "overlong.factor": 1.0,
            **REFILL,
        },
        "bnpo": {**GROUP_STD, **CLIP, "aggregation": "micro_token_mean"},
        "lite_ppo": {"baseline": "group_mean", "scale": "batch_std", **STD, **CLIP},
        "gspo": {
            **GROUP_STD,
            **CLIP,
            "ratio": "sequence_mean",
            "rule.clip_low": 3e-4,
            "rule.clip_high": 4e-4,
            "aggregation": "seq_mean_token_mean",
        },
        "cispo": {
            **GROUP_STD,
            "ratio": "token",
            "rule.type": "cispo",
            "rule.weight_min": 0.0,
            "rule.weight_max": 5.0,
            "rule.mask": "none",
            "aggregation": "group_token_mean",
            **REFILL,
        },
        "kimi_k1_5": {"baseline": "group_mean", "aggregation": "seq_mean_token_sum", "sequence_penalty": 0.1},
        "clip_cov": {
            **GROUP_STD,
            **CLIP,
            "rule.clip_low": 1.0,
            "rule.clip_high": 1.0,
            "select.type": "clip_cov",
            "select.fraction": 2e-4,
            "select.cov_low": 1.0,
            "select.cov_high": 5.0,
            **REFILL,
        },
        "kl_cov": {
            **GROUP_STD,
            "ratio": "token",
            "rule.type": "weighted",
            "select.type": "kl_cov",
            "select.fraction": 2e-3,
            "select.coef": 1.0,
            **REFILL,
        },
        "sapo": {
            **GROUP_STD,
            "ratio": "token",
            "rule.type": "sapo",
            "rule.temperature_positive": 1.0,
            "rule.temperature_negative": 1.05,
            "aggregation": "seq_mean_token_mean",
        },
        "gmpo": {
            **GROUP_STD,
            "ratio": "sequence_mean",
            "rule.type": "gmpo",
            "rule.log_ratio_low": 0.4,
            "rule.log_ratio_high": 0.4,
            "aggregation": "seq_mean_token_mean",
        },
        "gpg": {"baseline": "group_mean", "scale": "nonzero_frac"},
        "magistral": {
            "baseline": "group_mean",
            "scale": "mini_batch_std",
            **STD,
            **CLIP,
            "rule.clip_high": 0.28,
            "aggregation": "group_token_mean",
            "zero_std": "drop",
        },
        "brpo": {"baseline": "random_peer", **CLIP, "aggregation": "seq_mean_token_mean"},
        "skywork_or1": {
            **GROUP_STD,
            **CLIP,
            "entropy.adaptive.type": "step_both_ways",
            "entropy.adaptive.target_nats": 0.2,
            "entropy.adaptive.delta": 0.005,
            "entropy.adaptive.coef_min": 0.0,
            "entropy.adaptive.coef_max": 1.0,
            "entropy.adaptive.estimator": "full",
            "zero_std": "drop",
        },
        "ace_reason": {**GROUP_STD, "overlong.type": "mask_after"},
        "rft": {"advantage_sign": "positive"},
    }
    assert tuple(expected) == presets("policy_gradient")
    for name, knobs in expected.items():
        beside = {k: v for k, v in active_knobs(preset(name)).items() if k not in PLAIN or PLAIN[k] != v}
        absent = set(PLAIN) - set(active_knobs(preset(name)))
        assert beside == {k: v for k, v in knobs.items() if k not in PLAIN or PLAIN[k] != v}, name
        assert absent == ({"overlong.penalty"} if "overlong.type" in knobs else set()), name


def test_the_preference_presets() -> None:
    """As above, beside DPO."""
    expected: dict[str, dict[str, object]] = {
        "dpo": {},
        "dpo_norm": {"logp": "mean", "beta": 5.0},
        "simpo": {"logp": "mean", "reference": "none", "beta": 2.0, "margin": 1.0},
        "ipo": {"link": "square", "logp": "mean"},
        "ipo_sum": {"link": "square"},
        "cdpo": {"label_smoothing": 0.1},
        "robust_dpo": {"label_smoothing": 0.1, "smoothing": "robust"},
        "hinge": {"link": "hinge"},
        "rpo": {"nll_coef": 1.0},
        "kto": {"link": "kto", "desirable_weight": 1.0, "undesirable_weight": 1.0},
        "orpo": {"link": "odds_ratio", "logp": "mean", "reference": "none", "nll_coef": 1.0},
        "apo_zero": {"link": "apo_zero"},
        "sppo_hard": {"link": "sppo_hard"},
        "nca": {"link": "nca"},
        "exo": {"link": "exo", "label_smoothing": 0.001},
        "dpop": {"beta": 0.3, "positive_penalty": 50.0},
    }
    assert tuple(expected) == presets("preference")
    dpo = active_knobs(preset("dpo"))
    assert dpo == {
        "link": "logistic",
        "logp": "sum",
        "reference": "initial",
        "beta": 0.1,
        "margin": 0.0,
        "label_smoothing": 0.0,
        "smoothing": "conservative",
        "nll_coef": 0.0,
        "positive_penalty": 0.0,
        "ld_alpha": 1.0,
        "weighting": "none",
        "matching": "pairs",
    }
    for name, knobs in expected.items():
        assert {k: v for k, v in active_knobs(preset(name)).items() if dpo.get(k) != v} == knobs, name


def test_families_and_their_names_as_types() -> None:
    assert presets("policy_gradient") == get_args(PolicyGradientPreset)
    assert presets("preference") == get_args(PreferencePreset)
    assert presets() == presets("policy_gradient") + presets("preference")
    for name in presets():
        entry = describe(name)
        assert name in presets(entry.family)
        assert isinstance(preset(name), OBJECTIVES[entry.family])


def test_no_two_presets_are_the_same() -> None:
    assert len({preset(name) for name in presets()}) == len(presets())


def test_overrides() -> None:
    dapo = {"rule.clip_high": 0.28, "aggregation": "token_mean", "overlong.type": "soft", "zero_std": "refill"}
    assert preset("grpo", **dapo) == preset("dapo")


def texts(entry: Preset) -> dict[str, str]:
    return {name: getattr(entry, name) for name in ("summary", "source", "about", "implementations", "traps")}


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_described(name: str) -> None:
    entry = describe(name)
    assert all(texts(entry).values())
    assert re.search(r"\b(2\d{3}\.\d{5}|1992|TRL)\b", entry.source), "no paper"
    assert len(entry.summary) <= 100 and not entry.summary.endswith(".") and "\n" not in entry.summary
    for field in ("about", "implementations", "traps"):
        assert texts(entry)[field].endswith("."), field


@pytest.mark.parametrize("name", presets())
def test_settings_that_a_text_names_can_be_made(name: str) -> None:
    """`rule.dual_clip=3` and the like, all that one text names together."""
    knobs = FAMILY_KNOBS[describe(name).family]
    for text in texts(describe(name)).values():
        named = dict(re.findall(r"\b(?:objective\.)?([a-z_.]+)=([\w.]*\w)", text))
        last_segments = {knob.rpartition(".")[2] for knob in knobs}
        assert {*UNIONS, *last_segments} & set(named) <= set(knobs), "no full name"
        settings = {knob: _value(value) for knob, value in named.items() if knob in knobs}
        if any(knob.startswith("kl.") for knob in settings):
            settings.setdefault("kl.where", "loss")
        if settings:
            assert preset(name, **settings) != preset(name), settings


def _value(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def test_grpo_says_how_its_paper_has_a_kl_penalty() -> None:
    about = describe("grpo").about
    settings = dict(re.findall(r"objective\.(kl\.\w+)=([\w.]*\w)", about))
    assert settings == {"kl.where": "loss", "kl.estimator": "k3", "kl.beta": "0.04"}
    assert "off" in about


def test_what_follows_from_the_ratio_is_among_the_traps() -> None:
    """Whoever takes one step per rollout must know which of these cannot act."""
    for name in ("grpo", "dapo", "cispo", "kl_cov", "kimi_k1_5", "sapo", "ppo"):
        assert "step" in describe(name).traps, name


def test_an_unknown_preset_is_named_with_its_neighbours() -> None:
    for function in (preset, describe):
        with pytest.raises(ValueError, match="unknown algorithm 'drgrpo': did you mean dr_grpo or grpo"):
            function("drgrpo")
