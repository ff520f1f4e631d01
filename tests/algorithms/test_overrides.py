from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms import AnyObjective, Objective, active_knobs, preset, with_overrides
from tests.algorithms.points import POLICY_GRADIENT_KNOBS, VALUES, points

GRPO = preset("grpo", Objective)


def complaint(**overrides: object) -> str:
    with pytest.raises(ValueError) as error:
        with_overrides(GRPO, overrides)
    return str(error.value)


def test_one_knob_moves_and_the_others_stay() -> None:
    moved = with_overrides(GRPO, {"rule.clip_high": 0.28})
    assert active_knobs(moved) == active_knobs(GRPO) | {"rule.clip_high": 0.28}
    assert with_overrides(GRPO, {}) == GRPO


def test_a_type_resets_its_group() -> None:
    wide = with_overrides(GRPO, {"rule.clip_low": 0.5, "rule.dual_clip": 3})
    assert with_overrides(wide, {"rule.type": "ppo_clip", "rule.dual_clip": 4}) == preset(
        "grpo", **{"rule.dual_clip": 4}
    )
    cispo = with_overrides(wide, {"rule.weight_max": 5.0, "rule.type": "cispo"})
    assert active_knobs(cispo)["rule.weight_max"] == 5
    assert "rule.clip_low" not in active_knobs(cispo)
    assert with_overrides(cispo, {"rule.type": "ppo_clip"}) == GRPO


def test_nested_and_other_selectors_reset_too() -> None:
    kl = with_overrides(
        GRPO, {"kl.where": "loss", "kl.beta": 0.04, "kl.reference": "refreshed", "kl.refresh_every_steps": 3}
    )
    assert with_overrides(kl, {"kl.where": "loss"}) == with_overrides(GRPO, {"kl.where": "loss"})
    assert active_knobs(with_overrides(kl, {"kl.reference": "initial"})) == {
        knob: value for knob, value in active_knobs(kl).items() if knob != "kl.refresh_every_steps"
    } | {"kl.reference": "initial"}
    steered = with_overrides(GRPO, {"entropy.adaptive.type": "step_up_only", "entropy.adaptive.delta": 0.1})
    assert active_knobs(steered)["entropy.adaptive.delta"] == 0.1
    assert with_overrides(steered, {"entropy.adaptive.type": "none"}) == GRPO
    critic = with_overrides(GRPO, {"baseline": "critic", "scale": "none", "critic.lam": 1.0})
    assert with_overrides(critic, {"baseline": "group_mean"}) == with_overrides(GRPO, {"scale": "none"})


def test_a_knob_that_ceases_to_exist_is_dropped_with_its_selector() -> None:
    fine = with_overrides(GRPO, {"scale_eps": 1e-4})
    assert with_overrides(fine, {"scale": "none"}) == with_overrides(GRPO, {"scale": "none"})
    assert with_overrides(fine, {"scale": "batch_std"}).scale_eps == 1e-4
    assert with_overrides(GRPO, {"rule.type": "policy_gradient"}).ratio == "none"
    assert with_overrides(GRPO, {"rule.type": "weighted"}).ratio == "token"


@given(points(), points())
def test_every_point_is_reached_from_every_other(start: Objective, goal: Objective) -> None:
    assert with_overrides(start, active_knobs(goal)) == goal
    assert with_overrides(goal, active_knobs(goal)) == goal


some_settings = st.lists(st.sampled_from(POLICY_GRADIENT_KNOBS), min_size=2, max_size=5, unique=True).flatmap(
    lambda knobs: st.tuples(*(st.tuples(st.just(knob), st.sampled_from(VALUES[knob])) for knob in knobs))
)


@given(points(), some_settings, st.randoms())
def test_the_order_of_the_overrides_does_not_matter(
    start: Objective, settings: tuple[tuple[str, Any], ...], random: Any
) -> None:
    def outcome(order: list[tuple[str, Any]]) -> Objective | set[str]:
        try:
            return with_overrides(start, dict(order))
        except ValueError as error:
            return set(str(error).splitlines())

    shuffled = list(settings)
    random.shuffle(shuffled)
    assert outcome(shuffled) == outcome(list(settings))


@given(points(), st.sampled_from(POLICY_GRADIENT_KNOBS), st.data())
def test_a_move_sets_what_it_names_and_resets_only_what_that_governs(
    start: Objective, knob: str, data: st.DataObject
) -> None:
    try:
        found = with_overrides(start, {knob: data.draw(st.sampled_from(VALUES[knob]))})
    except ValueError:
        return
    before, after = active_knobs(start), active_knobs(found)
    changed = {name for name in before | after if before.get(name, ...) != after.get(name, ...)}
    group = knob.rpartition(".")[0]
    for name in changed - {knob}:
        assert (group and name.startswith(f"{group}.")) or name not in before or name not in after


def test_all_complaints_at_once_with_the_nearest_names() -> None:
    text = complaint(**{"rule.clip_hihg": 1, "clip_low": 0.1, "rule.weight_max": 2, "rule.dual_clip": 0.5, "scael": 1})
    assert len(text.splitlines()) == 5
    assert "'rule.clip_hihg'; did you mean rule.clip_high" in text
    assert "'clip_low'; did you mean rule.clip_low" in text
    assert "'scael'; did you mean scale" in text
    assert "rule.weight_max does not exist while rule.type=ppo_clip: leave it out, or set rule.type to cispo" in text
    assert "rule.dual_clip is 0.5: input should be greater than 1" in text


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            {"rule": "cispo"},
            "rule is a section: set rule.type to one of cispo, gmpo, policy_gradient, supervised",
        ),
        ({"rule.type": "clip"}, "unknown rule 'clip'; did you mean cispo or ppo_clip? `bench ls rules` lists all."),
        ({"rule.type": "cispo"}, "rule.weight_max has no default: set it"),
        ({"rule.type": 3}, "unknown rule '3'. `bench ls rules` lists all."),
        ({"scale": "none", "scale_ddof": 0}, "scale_ddof=0 has no effect while scale=none"),
        ({"kl": 0.1}, "kl is a section: set kl.where to one of none, reward, loss"),
        ({"entropy": 0.1}, "entropy is a section: set one of entropy.bonus, entropy.adaptive.type"),
        ({"entropy.adaptive": "x"}, "entropy.adaptive is a section: set entropy.adaptive.type to one of none"),
        (
            {"kl.beta": 0.1},
            "kl.beta does not exist while kl.where=none: leave it out, or set kl.where to reward or loss",
        ),
        ({"kl.where": "los"}, "kl.where is 'los': choose among 'none', 'reward', 'loss'"),
        ({"kl.where": "loss", "kl.beta": -1.0}, "kl.beta is -1.0: input should be greater than 0"),
        (
            {"entropy.adaptive.type": "step_up_only", "entropy.adaptive.delta": 0},
            "entropy.adaptive.delta is 0: input should be greater than 0",
        ),
        (
            {"critic.lam": 2.0, "baseline": "critic", "scale": "none"},
            "critic.lam is 2.0: input should be less than or equal",
        ),
        ({"scale_ddof": True}, "scale_ddof is True: input should be a valid integer"),
        ({"baseline": "mean"}, "baseline is 'mean': input should be 'none', 'batch_mean'"),
    ],
)
def test_complaints(overrides: dict[str, object], expected: str) -> None:
    text = complaint(**overrides)
    assert expected in text
    assert len(text.splitlines()) == 1


def test_without_a_close_name_there_is_the_list() -> None:
    assert complaint(zzz=1) == "unknown objective knob 'zzz'. `bench ls knobs` lists all."


@pytest.mark.parametrize(
    ("objective", "knob", "says"),
    [
        (
            preset("dpo"),
            "rule.clip_high",
            "belongs to policy-gradient objectives, and this is a preference objective: ",
        ),
        (
            preset("dpo"),
            "kl",
            "kl belongs to policy-gradient objectives, and this is a preference objective: leave",
        ),
        (preset("dpo"), "kl.beta", "or choose another algorithm; did you mean beta?"),
        (GRPO, "beta", "beta belongs to preference objectives, and this is a policy-gradient objective: leave it out"),
        (GRPO, "reference", "did you mean kl.reference?"),
        (preset("dpo"), "lnik", "unknown objective knob 'lnik'; did you mean link?"),
    ],
)
def test_a_knob_of_the_other_family_says_so(objective: AnyObjective, knob: str, says: str) -> None:
    with pytest.raises(ValueError) as error:
        with_overrides(objective, {knob: 0.1})
    assert str(error.value).startswith(knob if "belongs" in says else "") and says in str(error.value)


def test_a_link_takes_its_knobs_with_it() -> None:
    smoothed = preset("robust_dpo", margin=0.5)
    assert with_overrides(smoothed, {"link": "kto"}) == preset("kto")
    assert with_overrides(smoothed, {"link": "exo"}) == preset("exo", label_smoothing=0.1)
    assert with_overrides(preset("dpo", ld_alpha=0.5), {"logp": "mean"}) == preset("dpo", logp="mean")
