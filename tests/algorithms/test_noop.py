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
    rules,
    select_tokens,
    with_overrides,
)
from algorithms.aggregation import AGGREGATIONS, Aggregation
from algorithms.kl import ESTIMATORS
from tests.algorithms.cases import EVERY_AGGREGATION, GRPO, gradients, identify, random_batch, take
from tests.algorithms.points import moved, points
from tests.refusals import refuses

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


RATIOS: list[dict[str, object]] = [{"ratio": ratio} for ratio in rules.RATIOS]


def aggregations(*names: Aggregation) -> list[dict[str, object]]:
    return [{"aggregation": name} for name in names or EVERY_AGGREGATION]


def each(knob: str, *values: object) -> list[dict[str, object]]:
    return [{knob: value} for value in values]


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
SELECTIONS: tuple[dict[str, object], ...] = (
    {"select.type": "none"},
    {"select.type": "kl_cov", "select.fraction": 0.3},
    {"select.type": "kl_cov", "select.fraction": 0.3, "select.coef": 2.0},
    {"select.type": "clip_cov", "select.fraction": 0.3, "select.cov_low": -0.5},
    {"select.type": "top_entropy", "select.fraction": 0.3},
)
CRITIC: dict[str, object] = {"baseline": "critic", "scale": "none"}
KLS: list[dict[str, object]] = [
    {"kl.where": "loss", "kl.estimator": estimator, "kl.beta": beta, "kl.reference": reference}
    for estimator in ("k1", "k2", "k3", "k3_ratio", "k3_straight")
    for beta in ((0.1, 0.2) if estimator in ("k1", "k3") else (0.1,))
    for reference in ("initial", "iteration_start")
]
IN_THE_FIRST_STEP: dict[str, list[Objective]] = {
    **{
        f"rules and ratios, {sign}": family(with_overrides(GRPO, {"advantage_sign": sign}), RATIOS, RULES)
        for sign in ("both", "positive", "negative")
    },
    "ratios and aggregations": family(GRPO, RATIOS, [RULES[i] for i in (0, 1, -1)], aggregations()),
    # A correction of the whole completion leaves its tokens alike.
    "sequence_truncate": family(
        with_overrides(GRPO, {"sampler_correction.type": "sequence_truncate"}), RATIOS, RULES[::4]
    ),
    "kl in the loss": family(GRPO, [{"kl.where": "none"}, *KLS]),
    # A KL in the loss has the aggregation's weight too, where no ratio makes up for it.
    "kl and aggregations": family(
        GRPO,
        [{"kl.where": "none"}, KLS[0], KLS[3], KLS[4]],
        RATIOS[1:],
        aggregations("seq_mean_token_mean", "seq_mean_token_sum"),
    ),
    "selections": family(GRPO, SELECTIONS, RULES[::4]),
    "penalties": family(
        with_overrides(GRPO, CRITIC),
        each("critic.value_clip", None, 0.1, 0.3),
        each("sequence_penalty", 0.0, 0.5),
        each("critic.coef", 0.5, 1.0),
    ),
}
AT_ANY_STEP: dict[str, list[Objective]] = {
    **{
        f"bounds for the other sign, {sign}": family(with_overrides(GRPO, {"advantage_sign": sign}), BOUNDED)
        for sign in ("positive", "negative")
    },
    "k3_straight is k2": family(
        with_overrides(GRPO, {"kl.where": "loss", "kl.beta": 0.1}),
        each("kl.estimator", *sorted(ESTIMATORS)),
    ),
}


@pytest.mark.parametrize("name", IN_THE_FIRST_STEP)
def test_what_cannot_act_in_the_first_step(name: str) -> None:
    check_all_pairs(IN_THE_FIRST_STEP[name])


@pytest.mark.parametrize("name", AT_ANY_STEP)
def test_what_can_never_act(name: str) -> None:
    check_all_pairs(AT_ANY_STEP[name], drift=0.4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "varied",
    [
        CRITIC,
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
    start = with_overrides(GRPO, varied)
    check_all_pairs(family(start, RATIOS, RULES))
    check_all_pairs(family(start, RATIOS, RULES[:2], aggregations("seq_mean_token_mean", "seq_mean_token_sum")))


def test_a_steered_beta_follows_the_estimates_value() -> None:
    steered = with_overrides(GRPO, {"kl.where": "loss", "kl.estimator": "k2", "kl.control": "adaptive"})
    other = with_overrides(steered, {"kl.estimator": "k3_straight"})
    assert same(update(steered), update(other))
    assert differences_that_cannot_act(steered, other, 1) == {}


def test_a_bound_that_acts_on_one_sign_in_one_of_two_objectives_is_not_inert() -> None:
    """With the unified mask weight_max acts on positive advantages only, without it on both."""
    negative = with_overrides(GRPO, {"advantage_sign": "negative", "rule.type": "cispo", "rule.weight_max": 1.3})
    masked = with_overrides(negative, {"rule.mask": "unified"})
    clipped = with_overrides(negative, {"rule.weight_max": 1.1})
    assert "rule.weight_max" in differences_that_cannot_act(masked, with_overrides(masked, {"rule.weight_max": 1.1}), 2)
    assert differences_that_cannot_act(masked, clipped, 2) == {}


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
        aggregations(
            *(name for name, one in AGGREGATIONS.items() if not {"micro_batches", "groups"} & set(one.counts))
        ),
        [{"scale": scale} for scale in ("none", "group_std", "whiten_tokens")],
        [{"baseline": baseline} for baseline in ("batch_mean", "group_mean", "leave_one_out")],
        [{"entropy.bonus": bonus} for bonus in (0.0, 0.1)],
    ):
        masked = with_overrides(start, {"zero_std": "mask"})
        inert = differences_that_cannot_act(start, masked, updates_per_rollout=4)
        assert bool(inert) == same(gradient(start), gradient(masked)), identify(start)
        outcomes.add(bool(inert))
    assert outcomes == {True, False}


@settings(max_examples=60, deadline=None)
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


BAND: dict[str, object] = {"sampler_correction.type": "token_band"}
VETO: dict[str, object] = {"sampler_correction.type": "geometric_veto", "sampler_correction.mean_min": 0.3}
CLIP_COV: dict[str, object] = {"select.type": "clip_cov", "select.cov_low": -9.0, "select.fraction": 0.5}


@pytest.mark.parametrize(
    ("start", "knob", "value"),
    [
        ({"rule.type": "cispo", "rule.weight_max": 2.0}, "rule.weight_min", 1.5),
        ({"select.type": "top_entropy"}, "select.fraction", 0.6),
        (CLIP_COV, "select.cov_low", 0.2),
        (CLIP_COV, "select.cov_high", 0.1),
        ({}, "entropy.bonus", 0.1),
        ({}, "sampler_correction.type", "token_truncate"),
        ({"sampler_correction.type": "token_truncate"}, "sampler_correction.weight_max", 0.5),
        (BAND, "sampler_correction.weight_min", 1.0),
        ({"sampler_correction.type": "in_ratio"}, "rule.clip_high", 0.01),
        (VETO, "sampler_correction.mean_max", 3.0),
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
        (CRITIC, "critic.value_clip", 0.01),
        ({"kl.where": "loss", "kl.estimator": "k2"}, "kl.estimator", "k3_ratio"),
        ({"kl.where": "loss", "kl.reference": "iteration_start"}, "kl.beta", 0.5),
    ):
        a = with_overrides(GRPO, start)
        b = with_overrides(a, {knob: value})
        assert set(differences_that_cannot_act(a, b, 1)) == {knob}
        assert same(update(a), update(b)), knob
        assert differences_that_cannot_act(a, b, 2) == {}
        assert not same(update(a, 0.4), update(b, 0.4)), knob


@pytest.mark.parametrize(
    ("a", "b", "inert"),
    [
        (GRPO, GRPO, set()),
        (GRPO, preset("grpo", Objective, scale="none"), set()),
        (GRPO, preset("dapo", Objective), {"rule.clip_high"}),
        (
            GRPO,
            preset("reinforce", Objective),
            {"ratio", "rule.type", "rule.clip_low", "rule.clip_high", "rule.dual_clip"},
        ),
        *((preset(a, Objective), preset(b, Objective), None) for a, b in (("grpo", "gspo"), ("grpo", "sapo"))),
        *((preset(a, Objective), preset("gmpo", Objective), None) for a in ("grpo", "gspo")),
        (preset("kimi_k1_5", Objective), preset("reinforce", Objective, baseline="group_mean"), {"sequence_penalty"}),
        # The product ratio's factor n_i undoes the mean over a completion's tokens.
        (
            preset("rloo", Objective),
            preset("rloo", Objective, ratio="sequence_product", aggregation="seq_mean_token_mean"),
            {"ratio", "aggregation"},
        ),
        *(
            (with_overrides(GRPO, {"kl.where": "reward"}), with_overrides(GRPO, {"kl.where": "reward", **other}), set())
            for other in ({"kl.estimator": "k3"}, {"kl.beta": 0.2}, {"kl.where": "none"})
        ),
    ],
)
def test_presets_in_the_first_step(a: Objective, b: Objective, inert: set[str] | None) -> None:
    """inert: None for all differences."""
    assert set(differences_that_cannot_act(a, b, 1)) == (differing(a, b) if inert is None else inert)


def test_a_rollout_has_an_update() -> None:
    with refuses(ValueError, "algorithms.no_update", updates_per_rollout=0):
        differences_that_cannot_act(GRPO, GRPO, 0)
