from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from algorithms import Objective, active_knobs, differences_that_cannot_act, preset, with_overrides
from tests.algorithms.cases import AGGREGATIONS, RATIOS, RULES, identify, random_batch, value_and_gradient

GRPO = preset("grpo")
BOUNDING: tuple[dict[str, object], ...] = (
    {"rule.type": "cispo", "rule.weight_max": 0.5},
    {"rule.type": "cispo", "rule.weight_min": 1.5, "rule.weight_max": 2.0},
    {"rule.type": "cispo", "rule.weight_min": 1.5, "rule.weight_max": 3.0},
)


def points() -> list[Objective]:
    found = [
        with_overrides(GRPO, {"ratio": ratio, "aggregation": aggregation})
        for ratio, aggregation in itertools.product(RATIOS, AGGREGATIONS)
    ]
    return list(dict.fromkeys(with_overrides(point, rule) for point in found for rule in (*RULES, *BOUNDING)))


def differing(a: Objective, b: Objective) -> set[str]:
    knobs_a, knobs_b = active_knobs(a), active_knobs(b)
    absent = object()
    return {knob for knob in knobs_a | knobs_b if knobs_a.get(knob, absent) != knobs_b.get(knob, absent)}


def test_all_differences_are_inert_exactly_where_gradients_are_equal() -> None:
    batch = random_batch(11)
    batch = replace(batch, old_logp=batch.logp.detach(), max_completion_tokens=17)
    gradients = {point: value_and_gradient(point, batch)[1] for point in points()}
    outcomes = set()
    for a, b in itertools.combinations(gradients, 2):
        same = torch.allclose(gradients[a], gradients[b], rtol=1e-9, atol=1e-12)
        inert = set(differences_that_cannot_act(a, b, updates_per_rollout=1))
        assert (inert == differing(a, b)) == same, f"{identify(a)} / {identify(b)}: {inert}"
        outcomes.add(same)
    assert outcomes == {True, False}


@pytest.mark.parametrize("point", points(), ids=identify)
def test_from_two_updates_on_everything_may_act(point: Objective) -> None:
    assert differences_that_cannot_act(GRPO, point, updates_per_rollout=2) == {}


def test_clip_higher_with_one_update_measures_noise() -> None:
    reasons = differences_that_cannot_act(GRPO, with_overrides(GRPO, {"rule.clip_high": 0.28}), 1)
    assert list(reasons) == ["rule.clip_high"]
    assert "one optimiser step per rollout" in reasons["rule.clip_high"]


def test_only_the_ratio_part_of_a_mixed_difference_is_named() -> None:
    assert set(differences_that_cannot_act(GRPO, preset("dapo_loss"), 1)) == {"rule.clip_high"}
    assert set(differences_that_cannot_act(GRPO, preset("reinforce"), 1)) == {
        "ratio",
        "rule.type",
        "rule.clip_low",
        "rule.clip_high",
        "rule.dual_clip",
    }
    assert differences_that_cannot_act(GRPO, preset("grpo", scale="none"), 1) == {}


def test_trl_rloo_is_rloo_with_one_update() -> None:
    """The product ratio's factor n_i undoes the mean over a completion's tokens."""
    trl = preset("rloo", ratio="sequence_product", aggregation="seq_mean_token_mean")
    assert set(differences_that_cannot_act(preset("rloo"), trl, 1)) == {"ratio", "aggregation"}


def test_a_cispo_bound_that_excludes_one_acts() -> None:
    trl_default = with_overrides(GRPO, {"rule.type": "cispo", "rule.weight_max": 0.2})
    assert "rule.type" not in differences_that_cannot_act(GRPO, trl_default, 1)
    loose, tight = (preset("grpo", **{"rule.type": "cispo", "rule.weight_max": bound}) for bound in (5.0, 1.2))
    assert set(differences_that_cannot_act(loose, tight, 1)) == {"rule.weight_max"}


def test_the_same_objective_differs_in_nothing() -> None:
    assert differences_that_cannot_act(GRPO, GRPO, 1) == {}


def test_a_rollout_has_an_update() -> None:
    with pytest.raises(ValueError, match="updates_per_rollout=0"):
        differences_that_cannot_act(GRPO, GRPO, 0)
