from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms import AnyObjective, Objective, active_knobs, preset, with_overrides
from harness.settings.faults import FaultyError
from tests.algorithms.points import POLICY_GRADIENT_KNOBS, VALUES, points
from tests.frozen import frozen
from tests.refusals import refuses

GRPO = preset("grpo", Objective)


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


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(points(), points())
def test_every_point_is_reached_from_every_other(start: Objective, goal: Objective) -> None:
    assert with_overrides(start, active_knobs(goal)) == goal
    assert with_overrides(goal, active_knobs(goal)) == goal


some_settings = st.lists(st.sampled_from(POLICY_GRADIENT_KNOBS), min_size=2, max_size=5, unique=True).flatmap(
    lambda knobs: st.tuples(*(st.tuples(st.just(knob), st.sampled_from(VALUES[knob])) for knob in knobs))
)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(points(), some_settings, st.randoms())
def test_the_order_of_the_overrides_does_not_matter(
    start: Objective, moves: tuple[tuple[str, Any], ...], random: Any
) -> None:
    def outcome(order: list[tuple[str, Any]]) -> Objective | set[str]:
        try:
            return with_overrides(start, dict(order))
        except ValueError as error:
            return set(str(error).splitlines())

    shuffled = list(moves)
    random.shuffle(shuffled)
    assert outcome(shuffled) == outcome(list(moves))


@settings(max_examples=50, deadline=None)
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


@pytest.mark.parametrize(
    ("start", "overrides", "code", "path"),
    [
        (GRPO, {"rule.clip_hihg": 1}, "unknown", "rule.clip_hihg"),
        (GRPO, {"zzz": 1}, "unknown", "zzz"),
        (GRPO, {"rule": "cispo"}, "unknown", "rule"),
        (GRPO, {"entropy": 0.1}, "unknown", "entropy"),
        (GRPO, {"entropy.adaptive": "x"}, "unknown", "entropy.adaptive"),
        (GRPO, {"rule.type": "clip"}, "bench.unknown_name", None),
        (GRPO, {"rule.type": 3}, "bench.unknown_name", None),
        (GRPO, {"rule.type": "cispo"}, "missing", "rule.weight_max"),
        (GRPO, {"scale": "none", "scale_ddof": 0}, "settings.no_effect", None),
        (GRPO, {"rule.weight_max": 2}, "clash", "rule.weight_max"),
        (GRPO, {"kl.beta": 0.1}, "clash", "kl.beta"),
        (GRPO, {"kl.where": "los"}, "value", "kl"),
        (GRPO, {"kl.where": "loss", "kl.beta": -1.0}, "value", "kl.beta"),
        (
            GRPO,
            {"entropy.adaptive.type": "step_up_only", "entropy.adaptive.delta": 0},
            "value",
            "entropy.adaptive.delta",
        ),
        (GRPO, {"critic.lam": 2.0, "baseline": "critic", "scale": "none"}, "value", "critic.lam"),
        (GRPO, {"scale_ddof": True}, "value", "scale_ddof"),
        (GRPO, {"baseline": "mean"}, "value", "baseline"),
        # Knobs of the other family.
        (preset("dpo"), {"rule.clip_high": 0.1}, "unknown", "rule.clip_high"),
        (preset("dpo"), {"kl": 0.1}, "unknown", "kl"),
        (GRPO, {"beta": 0.1}, "unknown", "beta"),
    ],
)
def test_one_fault_is_one_line(start: AnyObjective, overrides: dict[str, object], code: str, path: str | None) -> None:
    with refuses(FaultyError, code, **({"path": path} if path else {})) as error:
        with_overrides(start, overrides)
    assert len(str(error.value).splitlines()) == 1


def test_all_faults_at_once_with_the_nearest_names() -> None:
    """Also those of the other family are said to be of it."""
    wrong = {"rule.clip_hihg": 1, "clip_low": 0.1, "rule.weight_max": 2, "rule.dual_clip": 0.5, "scael": 1}
    said = []
    for start, overrides in ((GRPO, wrong | {"beta": 1, "zzz": 1}), (preset("dpo"), {"kl.beta": 1, "lnik": 1})):
        with pytest.raises(FaultyError) as error:
            with_overrides(start, overrides)
        said.append(str(error.value))
    frozen("algorithms/faults", "\n\n".join(said))


def test_a_link_takes_its_knobs_with_it() -> None:
    smoothed = preset("robust_dpo", margin=0.5)
    assert with_overrides(smoothed, {"link": "kto"}) == preset("kto")
    assert with_overrides(smoothed, {"link": "exo"}) == preset("exo", label_smoothing=0.1)
    assert with_overrides(preset("dpo", ld_alpha=0.5), {"logp": "mean"}) == preset("dpo", logp="mean")
