from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from algorithms import (
    Objective,
    active_knobs,
    advantages,
    differences_that_cannot_act,
    policy_loss,
    preset,
    select_tokens,
    with_overrides,
)
from algorithms.objective import Aggregation
from tests.algorithms.cases import EVERY_AGGREGATION, GRPO, gradients, identify, random_batch, take
from tests.algorithms.points import moved, points

STEP = {"rows": 12, "width": 8}
RULES: tuple[dict[str, object], ...] = (
    {"rule.type": "policy_gradient"},
    {"rule.type": "weighted"},
    {"rule.type": "ppo_clip", "rule.clip_low": 0.1, "rule.clip_high": 0.3},
    {"rule.type": "ppo_clip", "rule.dual_clip": 1.5},
    {"rule.type": "sapo"},
    {"rule.type": "sapo", "rule.temperature_positive": 3.0, "rule.temperature_negative": 2.0},
    {"rule.type": "gmpo", "ratio": "sequence_mean"},
    {"rule.type": "gmpo", "ratio": "sequence_mean", "rule.log_ratio_low": 0.1, "rule.log_ratio_high": 0.2},
    {"rule.type": "cispo", "rule.weight_min": 0.8, "rule.weight_max": 1.2},
    {"rule.type": "cispo", "rule.weight_max": None},
    {"rule.type": "cispo", "rule.weight_max": 0.5},
    {"rule.type": "cispo", "rule.weight_min": 1.5, "rule.weight_max": 2.0},
    {"rule.type": "cispo", "rule.weight_min": 1.5, "rule.weight_max": 3.0},
    {"rule.type": "cispo", "rule.weight_min": 0.8, "rule.weight_max": 1.2, "rule.mask": "unified"},
    {"rule.type": "cispo", "rule.weight_max": 0.9, "rule.mask": "unified"},
    {"rule.type": "cispo", "rule.weight_min": 1.1, "rule.weight_max": 1.2, "rule.mask": "unified"},
)


def update(objective: Objective, drift: float = 0.0) -> Tensor:
    """Gradient [3, B, T] by log-probs, entropy and values of one optimiser step in two micro-batches.

    drift 0 is the first step on a rollout batch: log-probs and values are those of the rollout. Advantages are of
    completions or of tokens, as the objective has them.
    """
    batch = random_batch(11, **STEP)
    by_token = objective.baseline == "critic" or objective.credit == "steps"
    by_token = by_token or (objective.baseline == "none" and objective.kl.where == "reward")
    advantage = random_batch(12, **STEP).old_logp + 0.8 if by_token else batch.advantages
    if objective.advantage_sign != "both":
        advantage = advantage.clamp(min=0) if objective.advantage_sign == "positive" else advantage.clamp(max=0)
    if objective.distill.where != "none":
        advantage = objective.distill.verifier_coef * advantage
    if objective.distill.where == "reward":
        taught = random_batch(13, **STEP).old_logp
        advantage = taught + (advantage if advantage.ndim == 2 else advantage[:, None])
    assert batch.values is not None
    if drift == 0:
        batch = replace(batch, old_logp=batch.logp.detach(), old_values=batch.values.detach())
    batch = replace(batch, advantages=advantage, max_completion_tokens=17)
    selected = select_tokens(objective, batch.logp, batch.old_logp, batch.advantages, batch.mask, batch.entropy)
    batch = replace(batch, selected=selected)
    parts = [take(batch, torch.tensor(list(rows)), micro_batches=2) for rows in (range(7), range(7, 12))]
    value = torch.stack([policy_loss(objective, part).value for part in parts]).sum()
    return torch.stack(gradients(value, batch))


def same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def differing(a: Objective, b: Objective) -> set[str]:
    knobs_a, knobs_b = active_knobs(a), active_knobs(b)
    absent = object()
    return {knob for knob in knobs_a | knobs_b if knobs_a.get(knob, absent) != knobs_b.get(knob, absent)}


def check_all_pairs(family: Iterable[Objective], drift: float = 0.0) -> None:
    """All differences of two objectives are inert exactly where their gradients are equal; both cases occur."""
    found = {point: update(point, drift) for point in dict.fromkeys(family)}
    outcomes = set()
    for a, b in itertools.combinations(found, 2):
        equal = same(found[a], found[b])
        inert = set(differences_that_cannot_act(a, b, updates_per_rollout=2 if drift else 1))
        assert inert <= differing(a, b)
        assert (inert == differing(a, b)) == equal, f"{identify(a)} / {identify(b)}: {inert}"
        outcomes.add(equal)
    assert outcomes == {True, False}


def family(start: Objective, *changes: Iterable[dict[str, object]]) -> list[Objective]:
    """Every combination of one change of each kind that makes sense."""
    found = []
    for combination in itertools.product(*changes):
        overrides: dict[str, object] = {}
        for change in combination:
            overrides |= change
        try:
            found.append(with_overrides(start, overrides))
        except ValueError:
            continue
    return found


def ratios() -> list[dict[str, object]]:
    return [{"ratio": ratio} for ratio in ("token", "sequence_mean", "sequence_product")]


def aggregations(*names: Aggregation) -> list[dict[str, object]]:
    return [{"aggregation": name} for name in names or EVERY_AGGREGATION]


@pytest.mark.parametrize("sign", ["both", "positive", "negative"])
def test_rules_and_ratios(sign: str) -> None:
    check_all_pairs(family(with_overrides(GRPO, {"advantage_sign": sign}), ratios(), RULES))


def test_ratios_and_aggregations() -> None:
    some = (RULES[0], RULES[1], RULES[6], RULES[10], RULES[-1])
    check_all_pairs(family(GRPO, ratios(), some, aggregations()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "varied",
    [
        {"baseline": "critic", "scale": "none"},
        {"credit": "steps"},
        {"baseline": "none", "scale": "none", "kl.where": "reward"},
        {"sampler_correction.type": "token_truncate", "sampler_correction.weight_max": 1.1},
        {"sampler_correction.type": "token_band"},
        {"sampler_correction.type": "token_unbounded"},
    ],
    ids=str,
)
def test_a_ratio_of_the_completion_acts_where_its_tokens_differ(varied: dict[str, object]) -> None:
    """It hands every token the mean of the completion."""
    check_all_pairs(family(with_overrides(GRPO, varied), ratios(), RULES, aggregations("token_mean")))
    some = aggregations("seq_mean_token_mean", "seq_mean_token_sum")
    check_all_pairs(family(with_overrides(GRPO, varied), ratios(), RULES[:2], some))


def test_a_correction_of_the_whole_completion_leaves_its_tokens_alike() -> None:
    start = with_overrides(GRPO, {"sampler_correction.type": "sequence_truncate"})
    check_all_pairs(family(start, ratios(), RULES, aggregations("token_mean")))


def test_kl_in_the_loss() -> None:
    kls: list[dict[str, object]] = [
        {"kl.where": "loss", "kl.estimator": estimator, "kl.beta": beta, "kl.reference": reference}
        for estimator in ("k1", "k2", "k3", "k3_ratio", "k3_straight")
        for beta in ((0.1, 0.2) if estimator in ("k1", "k3") else (0.1,))
        for reference in ("initial", "iteration_start")
    ]
    check_all_pairs(
        family(
            GRPO, [{"kl.where": "none"}, *kls], ratios()[1:], aggregations("seq_mean_token_mean", "seq_mean_token_sum")
        )
    )


def test_kl_in_the_reward_acts_in_the_first_step() -> None:
    a = with_overrides(GRPO, {"kl.where": "reward", "kl.estimator": "k1", "kl.beta": 0.1})
    for other in (
        {"kl.estimator": "k3"},
        {"kl.beta": 0.2},
        {"kl.estimator": "k3", "kl.beta": 0.2},
        {"kl.where": "none"},
    ):
        assert differences_that_cannot_act(a, with_overrides(a, other), 1) == {}


def test_a_steered_beta_follows_the_estimates_value() -> None:
    steered = with_overrides(GRPO, {"kl.where": "loss", "kl.estimator": "k2", "kl.control": "adaptive"})
    other = with_overrides(steered, {"kl.estimator": "k3_straight"})
    assert same(update(steered), update(other))
    assert differences_that_cannot_act(steered, other, 1) == {}


def test_selections() -> None:
    selections: list[dict[str, object]] = [
        {"select.type": "none"},
        {"select.type": "kl_cov", "select.fraction": 0.3},
        {"select.type": "kl_cov", "select.fraction": 0.3, "select.coef": 2.0},
        {"select.type": "clip_cov", "select.fraction": 0.3, "select.cov_low": -0.5},
        {"select.type": "top_entropy", "select.fraction": 0.3},
    ]
    check_all_pairs(family(GRPO, selections, RULES[::2]))


def test_penalties_on_the_way_from_where_it_started() -> None:
    critic = with_overrides(GRPO, {"baseline": "critic", "scale": "none"})
    check_all_pairs(
        family(
            critic,
            [{"critic.value_clip": clip} for clip in (None, 0.1, 0.3)],
            [{"sequence_penalty": tau} for tau in (0.0, 0.5)],
            [{"critic.coef": coef} for coef in (0.5, 1.0)],
        )
    )


BOUNDED: tuple[dict[str, object], ...] = (
    {"rule.type": "ppo_clip", "ratio": "token", "rule.clip_low": 0.05},
    {"rule.type": "ppo_clip", "ratio": "token", "rule.clip_high": 0.05},
    {"rule.type": "ppo_clip", "ratio": "token", "rule.dual_clip": 1.05},
    {"rule.type": "sapo", "ratio": "token"},
    {"rule.type": "sapo", "ratio": "token", "rule.temperature_positive": 3.0},
    {"rule.type": "sapo", "ratio": "token", "rule.temperature_negative": 3.0},
    {"rule.type": "gmpo", "ratio": "sequence_mean"},
    {"rule.type": "gmpo", "ratio": "sequence_mean", "rule.log_ratio_low": 0.05},
    {"rule.type": "gmpo", "ratio": "sequence_mean", "rule.log_ratio_high": 0.05},
    {"rule.type": "cispo", "rule.weight_min": 0.7, "rule.weight_max": 1.3, "rule.mask": "unified"},
    {"rule.type": "cispo", "rule.weight_min": 0.9, "rule.weight_max": 1.3, "rule.mask": "unified"},
    {"rule.type": "cispo", "rule.weight_min": 0.7, "rule.weight_max": 1.1, "rule.mask": "unified"},
    {"rule.type": "cispo", "rule.weight_min": 0.7, "rule.weight_max": 1.1},
)


@pytest.mark.parametrize("sign", ["positive", "negative"])
def test_bounds_for_the_other_sign_never_act(sign: str) -> None:
    check_all_pairs(family(with_overrides(GRPO, {"advantage_sign": sign}), BOUNDED), drift=0.4)


def test_a_bound_that_acts_on_one_sign_in_one_of_two_objectives_is_not_inert() -> None:
    """With the unified mask weight_max acts on positive advantages only, without it on both."""
    negative = with_overrides(GRPO, {"advantage_sign": "negative", "rule.type": "cispo", "rule.weight_max": 1.3})
    masked = with_overrides(negative, {"rule.mask": "unified"})
    clipped = with_overrides(negative, {"rule.weight_max": 1.1})
    assert "rule.weight_max" in differences_that_cannot_act(masked, with_overrides(masked, {"rule.weight_max": 1.1}), 2)
    assert differences_that_cannot_act(masked, clipped, 2) == {}


def test_k3_straight_is_k2_at_any_step() -> None:
    kls: list[dict[str, object]] = [
        {"kl.where": "loss", "kl.estimator": estimator, "kl.beta": 0.1}
        for estimator in ("k1", "k1_clamped", "k2", "k3", "k3_ratio", "k3_straight")
    ]
    check_all_pairs(family(GRPO, kls), drift=0.4)


def test_masking_groups_that_add_nothing() -> None:
    """One group of three has equal rewards; `mask` takes its tokens out of the loss."""
    groups = torch.arange(12) // 4
    rewards = torch.tensor([1.0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 1, 0], dtype=torch.float64)

    def gradient(objective: Objective) -> Tensor:
        batch = random_batch(11, **STEP)
        advantage = advantages(objective, rewards, groups, batch.mask)
        if objective.zero_std == "mask":
            batch = replace(batch, mask=batch.mask & (groups != 1)[:, None])
        return torch.stack(gradients(policy_loss(objective, replace(batch, advantages=advantage)).value, batch))

    outcomes = set()
    for start in family(
        GRPO,
        aggregations(*(name for name in EVERY_AGGREGATION if name not in ("micro_token_mean", "group_token_mean"))),
        [{"scale": scale} for scale in ("none", "group_std", "whiten_tokens")],
        [{"baseline": baseline} for baseline in ("batch_mean", "group_mean", "leave_one_out")],
        [{"entropy.bonus": bonus} for bonus in (0.0, 0.1)],
    ):
        masked = with_overrides(start, {"zero_std": "mask"})
        inert = differences_that_cannot_act(start, masked, updates_per_rollout=4)
        assert bool(inert) == same(gradient(start), gradient(masked)), identify(start)
        outcomes.add(bool(inert))
    assert outcomes == {True, False}


@settings(max_examples=150, deadline=None)
@given(points(), points())
def test_whatever_is_called_inert_changes_no_gradient(a: Objective, b: Objective) -> None:
    """Anywhere in the space: moving the inert knobs of `a` to where `b` has them."""
    for updates, drift in ((1, 0.0), (3, 0.4)):
        inert = differences_that_cannot_act(a, b, updates)
        there = {knob: value for knob, value in active_knobs(b).items() if knob in inert and knob != "zero_std"}
        try:
            between = with_overrides(a, there)
        except ValueError:
            continue  # Some of them exist only together with a knob that acts.
        assert differing(a, between) <= set(inert)
        assert same(update(a, drift), update(between, drift)), f"{identify(a)} / {there}"


@pytest.mark.parametrize(
    ("start", "knob", "value"),
    [
        ({}, "ratio", "sequence_product"),
        ({}, "aggregation", "token_mean"),
        ({"rule.type": "cispo", "rule.weight_max": 2.0}, "rule.weight_max", 0.5),
        ({"rule.type": "cispo", "rule.weight_max": 2.0}, "rule.weight_min", 1.5),
        ({"rule.type": "cispo", "rule.weight_max": 0.5}, "rule.mask", "unified"),
        ({"rule.type": "cispo", "rule.weight_max": 0.5}, "rule.type", "weighted"),
        ({}, "select.type", "top_entropy"),
        ({"select.type": "top_entropy"}, "select.fraction", 0.6),
        ({"select.type": "clip_cov", "select.cov_low": -9.0, "select.fraction": 0.5}, "select.cov_low", 0.2),
        ({"select.type": "clip_cov", "select.cov_low": -9.0, "select.fraction": 0.5}, "select.cov_high", 0.1),
        ({}, "kl.where", "loss"),
        ({"kl.where": "loss"}, "kl.beta", 0.5),
        ({"kl.where": "loss"}, "kl.estimator", "k1"),
        ({"kl.where": "loss"}, "kl.reference", "iteration_start"),
        ({}, "entropy.bonus", 0.1),
        ({"baseline": "critic", "scale": "none"}, "critic.coef", 0.1),
        ({}, "sampler_correction.type", "token_truncate"),
        ({"sampler_correction.type": "token_truncate"}, "sampler_correction.weight_max", 0.5),
        ({"sampler_correction.type": "token_band"}, "sampler_correction.weight_min", 1.0),
        ({"sampler_correction.type": "in_ratio"}, "rule.clip_high", 0.01),
        (
            {"sampler_correction.type": "geometric_veto", "sampler_correction.mean_min": 0.3},
            "sampler_correction.mean_max",
            3.0,
        ),
    ],
)
def test_a_knob_that_acts_in_the_first_step(start: dict[str, object], knob: str, value: object) -> None:
    a = with_overrides(GRPO, start)
    b = moved(a, knob, value)
    assert b is not None
    assert knob not in differences_that_cannot_act(a, b, 1)
    assert not same(update(a), update(b))


def test_what_only_later_steps_can_show_is_inert_in_the_first_alone() -> None:
    for start, knob, value in (
        ({}, "rule.clip_high", 0.01),
        ({}, "rule.clip_low", 0.01),
        ({"rule.dual_clip": 3.0}, "rule.dual_clip", 1.01),
        ({"rule.type": "sapo"}, "rule.temperature_negative", 4.0),
        ({"rule.type": "gmpo", "ratio": "sequence_mean"}, "rule.log_ratio_low", 0.01),
        ({"select.type": "kl_cov"}, "select.coef", 3.0),
        ({}, "sequence_penalty", 0.5),
        ({"baseline": "critic", "scale": "none"}, "critic.value_clip", 0.01),
        ({"kl.where": "loss", "kl.estimator": "k2"}, "kl.estimator", "k3_ratio"),
        ({"kl.where": "loss", "kl.reference": "iteration_start"}, "kl.beta", 0.5),
    ):
        a = with_overrides(GRPO, start)
        b = with_overrides(a, {knob: value})
        assert set(differences_that_cannot_act(a, b, 1)) == {knob}
        assert same(update(a), update(b)), knob
        assert differences_that_cannot_act(a, b, 2) == {}
        assert not same(update(a, 0.4), update(b, 0.4)), knob


def test_clip_higher_with_one_update_measures_noise() -> None:
    reasons = differences_that_cannot_act(GRPO, with_overrides(GRPO, {"rule.clip_high": 0.28}), 1)
    assert reasons == {"rule.clip_high": "with one optimiser step per rollout every ratio is 1, inside any clip range"}


def test_only_the_ratio_part_of_a_mixed_difference_is_named() -> None:
    assert set(differences_that_cannot_act(GRPO, preset("dapo", Objective), 1)) == {"rule.clip_high"}
    assert set(differences_that_cannot_act(GRPO, preset("reinforce", Objective), 1)) == {
        "ratio",
        "rule.type",
        "rule.clip_low",
        "rule.clip_high",
        "rule.dual_clip",
    }
    assert differences_that_cannot_act(GRPO, preset("grpo", Objective, scale="none"), 1) == {}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("grpo", "gspo"),
        ("grpo", "sapo"),
        ("grpo", "gmpo"),
        ("gspo", "gmpo"),
    ],
)
def test_presets_that_are_one_in_the_first_step(one: str, other: str) -> None:
    a, b = preset(one, Objective), preset(other, Objective)
    assert set(differences_that_cannot_act(a, b, 1)) == differing(a, b)


def test_kimi_without_a_second_step_is_reinforce_with_a_group_mean() -> None:
    plain = preset("reinforce", Objective, baseline="group_mean")
    assert set(differences_that_cannot_act(preset("kimi_k1_5", Objective), plain, 1)) == {"sequence_penalty"}


def test_trl_rloo_is_rloo_with_one_update() -> None:
    """The product ratio's factor n_i undoes the mean over a completion's tokens."""
    trl = preset("rloo", Objective, ratio="sequence_product", aggregation="seq_mean_token_mean")
    assert set(differences_that_cannot_act(preset("rloo", Objective), trl, 1)) == {"ratio", "aggregation"}


def test_the_same_objective_differs_in_nothing() -> None:
    assert differences_that_cannot_act(GRPO, GRPO, 1) == {}


def test_a_rollout_has_an_update() -> None:
    with pytest.raises(ValueError, match="updates_per_rollout=0"):
        differences_that_cannot_act(GRPO, GRPO, 0)
