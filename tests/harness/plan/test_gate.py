from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.config.hashing import semantic_hash
from harness.plan.gate import ABSENT, GateReport, check_gate, find_noops, values_that_differ
from tests.harness.config.cases import spec

NO_SCALE = {"objective.scale": "none"}


def gate(
    one: dict[str, Any], other: dict[str, Any], ablate: list[str], co_changes: dict[str, str] | None = None
) -> GateReport:
    return check_gate({"one": spec(one), "other": spec(other)}, ablate, co_changes or {})


def test_equal_arms_differ_in_nothing() -> None:
    assert gate({}, {}, []) == GateReport([], {})


def test_the_seed_is_no_difference() -> None:
    assert check_gate({"one": spec(seed=1), "other": spec(seed=2)}, [], {}).ok


def test_an_undeclared_knob_is_named_with_arms_values_and_remedy() -> None:
    verdict = gate({}, NO_SCALE | {"train.steps": 9}, ["objective.scale"])
    assert not verdict.ok
    assert verdict.violations == {"train.steps": {"one": 5, "other": 9}}
    assert "train.steps" in verdict.differs and "objective.scale" in verdict.differs
    message = verdict.message()
    assert "  train.steps: one = 5, other = 9" in message
    assert "objective.scale" not in message
    assert "`ablate:`" in message and "`co_changes:`" in message


def test_every_undeclared_knob_is_named() -> None:
    verdict = gate({}, {"train.steps": 9, "eval.samples": 4, "rollout.temperature": 0.5}, ["train.steps"])
    assert set(verdict.violations) == {"eval.samples", "eval.k", "rollout.temperature"}


@pytest.mark.parametrize("declared", ["eval", "eval.temperature"])
def test_arms_that_are_measured_differently_are_refused_even_if_that_is_declared(declared: str) -> None:
    other = {"eval.temperature": 0.5, "train.steps": 9}
    verdict = gate({}, other, ["train.steps", declared], {declared: "it is cheaper"})
    assert verdict.violations == {"eval.temperature": {"one": 1.0, "other": 0.5}}
    message = verdict.message()
    assert "measured differently" in message and "eval.temperature: one = 1.0, other = 0.5" in message
    assert "To compare evaluations, give `checkpoint: MODEL`" in message and "Declare" not in message
    both = gate({}, other, []).message()
    assert "train.steps: one" in both.partition("measured differently")[0] and "Declare each" in both


def test_a_third_arm_can_be_the_one_that_differs() -> None:
    arms = {"a": spec(), "b": spec(), "c": spec({"train.steps": 9})}
    assert check_gate(arms, [], {}).violations == {"train.steps": {"a": 5, "b": 5, "c": 9}}


def test_a_reason_under_co_changes_lets_a_knob_pass() -> None:
    other = NO_SCALE | {"train.learning_rate": 1e-3}
    assert not gate({}, other, ["objective.scale"]).ok
    assert gate({}, other, ["objective.scale"], {"train.learning_rate": "scaled with the advantages"}).ok


@pytest.mark.parametrize("declared", ["objective", "algorithm", "objective.scale"])
def test_a_declared_prefix_covers_what_is_below_it(declared: str) -> None:
    assert gate({}, NO_SCALE, [declared]).ok


def test_a_section_covers_its_knobs_and_no_others() -> None:
    other = {"train.steps": 9, "train.learning_rate": 1e-3}
    assert gate({}, other, ["train"]).ok
    assert not gate({}, other | {"eval.problems": 9}, ["train"]).ok


def test_a_prefix_ends_at_a_dot() -> None:
    """objective.scale is declared; objective.scale_eps, which both arms have, is another knob."""
    verdict = gate({}, {"objective.scale_eps": 1e-3}, ["objective.scale"])
    assert verdict.violations == {"objective.scale_eps": {"one": 1e-6, "other": 1e-3}}
    three = {"a": spec(), "b": spec({"objective.scale_eps": 1e-3})}
    assert not check_gate(three, ["objective.scale_"], {}).ok


def test_a_knob_that_an_arm_lacks_is_explained_by_the_selector_alone() -> None:
    verdict = gate({}, NO_SCALE, ["objective.scale"])
    assert verdict.ok
    assert {"objective.scale", "objective.scale_eps", "objective.scale_ddof"} == set(verdict.differs)
    undeclared = gate({}, NO_SCALE, ["objective.baseline"])
    assert set(undeclared.violations) == {"objective.scale", "objective.scale_eps", "objective.scale_ddof"}
    assert undeclared.violations["objective.scale_eps"] == {"one": 1e-6, "other": ABSENT}


def test_declaring_the_governed_knob_does_not_cover_its_selector() -> None:
    assert set(gate({}, NO_SCALE, ["objective.scale_eps"]).violations) == {"objective.scale", "objective.scale_ddof"}


def test_the_type_of_a_rule_explains_the_rules_own_knobs() -> None:
    weighted = {"objective.rule.type": "weighted"}
    assert gate({}, weighted, ["objective.rule.type"]).ok
    assert not gate({}, weighted, ["objective.rule.clip_low", "objective.rule.clip_high"]).ok


def test_the_cold_start_type_explains_its_knobs() -> None:
    sft = {"model.cold_start": {"type": "sft", "data": "demonstrations:arithmetic"}}
    assert gate({}, sft, ["model.cold_start.type"]).ok
    assert not gate(sft, {"model.cold_start": sft["model.cold_start"] | {"steps": 3}}, ["model.cold_start.type"]).ok


def test_an_additional_reward_part_must_be_declared() -> None:
    other = {"reward.parts.format": 0.2}
    assert gate({}, other, ["reward.parts"]).ok
    assert gate({}, other, ["reward.parts.format"]).ok
    violations = gate({}, other, ["reward.grader"]).violations
    assert violations["reward.parts.format"] == {"one": ABSENT, "other": 0.2}
    assert set(violations) == {"reward.parts.format", "reward.format.pattern"}


def test_a_selector_explains_what_exists_only_through_it() -> None:
    """kl.refresh_every_steps is governed by kl.reference, and that by kl.where."""
    other = {"objective.kl.where": "loss", "objective.kl.reference": "refreshed"}
    assert "objective.kl.refresh_every_steps" in gate({}, other, []).violations
    assert gate({}, other, ["objective.kl.where"]).ok
    assert not gate({}, other, ["objective.kl.reference"]).ok


def test_values_are_compared_by_type_and_value() -> None:
    differing = values_that_differ({"one": spec(), "other": spec({"eval.k": [1, 2]})})
    assert differing == {"eval.k": {"one": [1, 2, 4, 8, 16], "other": [1, 2]}}


CLIP = {"objective.rule.clip_high": 0.28}


def test_a_clip_range_cannot_act_with_one_update() -> None:
    (noop,) = find_noops({"one": spec(), "other": spec(CLIP)})
    assert noop.arms == ("one", "other")
    assert noop.refused
    assert list(noop.reasons) == ["objective.rule.clip_high"]
    assert "arms one and other cannot differ: objective.rule.clip_high: with one optimiser step" in noop.message()


@pytest.mark.parametrize("more", [{"train.updates_per_rollout": 2}, {"train.epochs": 2}])
def test_a_clip_range_acts_with_more_optimiser_steps(more: dict[str, int]) -> None:
    assert not find_noops({"one": spec(more), "other": spec(CLIP, more)})
    # Even if only one of the two arms takes them.
    assert not find_noops({"one": spec(), "other": spec(CLIP, more)})


def test_options_of_a_part_without_weight_are_inert() -> None:
    measured = {"reward.parts": {"vr_cli": 0.0}}
    solutions = {"reward.vr_cli.gold": "solution"}
    (noop,) = find_noops({"one": spec(measured), "other": spec(measured, solutions)})
    assert noop.refused
    assert noop.reasons == {"reward.vr_cli.gold": "the part vr_cli has weight 0: it is recorded but not trained on"}
    trained = {"reward.parts": {"vr_cli": 1.0}}
    assert not find_noops({"one": spec(trained), "other": spec(trained, solutions)})
    assert not find_noops({"one": spec(measured), "other": spec(trained, solutions)})


def test_an_aggregation_acts_through_the_supervised_term() -> None:
    """A product ratio's gradient carries the completion's length, and no answer's does."""
    product = {"objective.ratio": "sequence_product", "objective.aggregation": "seq_mean_token_mean"}
    summed = {"objective.ratio": "token", "objective.aggregation": "seq_mean_token_sum"}
    (noop,) = find_noops({"one": spec(product), "other": spec(summed)})
    assert "objective.aggregation" in noop.reasons
    jepo = {"reward.parts.jepo": 1.0}
    (noop,) = find_noops({"one": spec(jepo, product), "other": spec(jepo, summed)})
    assert "objective.aggregation" not in noop.reasons


def test_smoothing_labels_that_are_trusted_is_inert() -> None:
    robust = {"algorithm": "dpo", "objective.smoothing": "robust"}
    (noop,) = find_noops({"one": spec({"algorithm": "dpo"}), "other": spec(robust)})
    assert noop.refused
    assert "label_smoothing is 0" in noop.message()
    noisy = {"objective.label_smoothing": 0.1}
    assert not find_noops({"one": spec({"algorithm": "dpo"}, noisy), "other": spec(robust, noisy)})
    assert not find_noops({"one": spec(), "other": spec(robust)})


def test_knobs_of_drawing_do_not_exist_on_given_pairs(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"prompt": "1+1=", "chosen": "2#2", "rejected": "3#3"}\n')
    given = {"algorithm": "dpo", "pairs": {"data": str(file), "max_tokens": 40}}
    drawing = {
        "rollout.samples_per_prompt": 3,
        "reward.parts.format": 1.0,
        "task.order": "curriculum",
        "budget.tokens": 9,
    }
    assert values_that_differ({"one": spec(given), "other": spec(given, drawing)}) == {}
    assert semantic_hash(spec(given)) == semantic_hash(spec(given, drawing))
    assert semantic_hash(spec(given)) != semantic_hash(spec(given, {"rollout.temperature": 0.5}))
    # Beside an arm that draws they are explained by where the pairs come from.
    assert check_gate({"one": spec(), "other": spec(given)}, ["algorithm"], {}).ok
    assert check_gate({"one": spec({"algorithm": "dpo"}), "other": spec(given)}, ["pairs"], {}).ok
    assert not check_gate({"one": spec({"algorithm": "dpo"}), "other": spec(given)}, ["objective.beta"], {}).ok


def test_a_partly_inert_difference_is_no_refusal() -> None:
    (noop,) = find_noops({"one": spec(), "other": spec(CLIP | NO_SCALE)})
    assert not noop.refused
    assert list(noop.reasons) == ["objective.rule.clip_high"]
    assert "of which some cannot act" in noop.message()


def test_every_pair_of_arms_is_looked_at() -> None:
    arms = {"a": spec(), "b": spec(NO_SCALE), "c": spec(CLIP)}
    assert [(noop.arms, noop.refused) for noop in find_noops(arms)] == [(("a", "c"), True), (("b", "c"), False)]


def test_rewards_that_nobody_hears_are_no_difference() -> None:
    taught = {"algorithm": "opd", "teacher.type": "model", "teacher.source": "scratch:tiny"}
    other = taught | {"reward.parts.format": 0.5, "reward.format.pattern": "work_hash"}
    (noop,) = find_noops({"one": spec(taught), "other": spec(other)})
    assert noop.refused and set(noop.reasons) == {"reward.parts.format", "reward.format.pattern"}
    heard = {"objective.distill.verifier_coef": 0.5}
    assert not find_noops({"one": spec(taught, heard), "other": spec(other, heard)})
    dropped = {"objective.zero_std": "drop"}
    assert not find_noops({"one": spec(taught, dropped), "other": spec(other, dropped)})


def test_identical_arms_are_no_noop() -> None:
    assert not find_noops({"one": spec(), "other": spec()})


JUDGE_ALONE = {"algorithm": "brpo", "reward.parts": {"correct": 0.0, "pairwise": 1.0}}
TIE, WEIGHT = "reward.pairwise.tie", "reward.parts.pairwise"


@pytest.mark.parametrize(
    ("shared", "one", "other", "inert", "refused"),
    [
        # The sign of a tie decides, not its size, where only the sign of the reward counts.
        ({}, {TIE: -0.5}, {TIE: -1.0}, {TIE}, True),
        ({}, {TIE: 0.0}, {TIE: -1.0}, set(), False),
        ({}, {}, {WEIGHT: 3.0}, {WEIGHT}, True),
        ({}, {TIE: -0.5}, {TIE: -1.0, "train.steps": 9}, {TIE}, False),
        ({"objective.baseline": "none"}, {TIE: -0.5}, {TIE: -1.0}, set(), False),
        ({"reward.parts.format": 0.2}, {TIE: -0.5}, {TIE: -1.0}, set(), False),
        ({"objective.overlong.penalty": -0.5}, {TIE: -0.5}, {TIE: -1.0}, set(), False),
        # A part that is only measured.
        ({WEIGHT: 0.0}, {}, {"reward.pairwise.steps": 7}, {"reward.pairwise.steps"}, True),
        ({}, {}, {"reward.pairwise.steps": 7}, set(), False),
    ],
)
def test_options_of_a_judge_that_cannot_act_are_known(
    shared: dict[str, Any], one: dict[str, Any], other: dict[str, Any], inert: set[str], refused: bool
) -> None:
    noops = find_noops({"one": spec(JUDGE_ALONE, shared, one), "other": spec(JUDGE_ALONE, shared, other)})
    assert {knob for noop in noops for knob in noop.reasons} == inert
    assert any(noop.refused for noop in noops) == refused
