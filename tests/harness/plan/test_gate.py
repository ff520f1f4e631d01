from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.config.hashing import semantic_hash
from harness.plan.gate import ABSENT, GateReport, check_gate, find_noops, values_that_differ
from tests.harness.config.cases import spec

Settings = dict[str, Any]
NO_SCALE: Settings = {"objective.scale": "none"}
STEPS: Settings = {"train.steps": 9}
SCALES = {"objective.scale", "objective.scale_eps", "objective.scale_ddof"}
COLD: Settings = {"type": "sft", "data": "demonstrations:arithmetic"}
FORMAT: Settings = {"reward.parts.format": 0.2}
REFRESHED: Settings = {"objective.kl.where": "loss", "objective.kl.reference": "refreshed"}
WEIGHTED: Settings = {"objective.rule.type": "weighted"}


def gate(one: Settings, other: Settings, ablate: list[str], co_changes: dict[str, str] | None = None) -> GateReport:
    return check_gate({"one": spec(one), "other": spec(other)}, ablate, co_changes or {})


@pytest.mark.parametrize(
    ("one", "other", "ablate", "violating"),
    [
        # Every undeclared knob is named.
        ({}, NO_SCALE | STEPS, ["objective.scale"], {"train.steps"}),
        (
            {},
            STEPS | {"eval.samples": 4, "rollout.temperature": 0.5},
            ["train.steps"],
            {"eval.samples", "eval.k", "rollout.temperature"},
        ),
        # A declared section covers what is below it and nothing else; a prefix ends at a dot.
        ({}, NO_SCALE, ["objective"], set()),
        ({}, NO_SCALE, ["algorithm"], set()),
        ({}, STEPS | {"train.learning_rate": 1e-3}, ["train"], set()),
        ({}, STEPS | {"eval.problems": 9}, ["train"], {"eval.problems"}),
        ({}, {"objective.scale_eps": 1e-3}, ["objective.scale"], {"objective.scale_eps"}),
        ({}, {"objective.scale_eps": 1e-3}, ["objective.scale_"], {"objective.scale_eps"}),
        # A selector explains what exists only through it, and is explained by nothing that it governs.
        ({}, NO_SCALE, ["objective.scale"], set()),
        ({}, NO_SCALE, ["objective.baseline"], SCALES),
        ({}, NO_SCALE, ["objective.scale_eps"], {"objective.scale", "objective.scale_ddof"}),
        ({}, WEIGHTED, ["objective.rule.type"], set()),
        ({}, {"model.cold_start": COLD}, ["model.cold_start.type"], set()),
        (
            {"model.cold_start": COLD},
            {"model.cold_start": COLD | {"steps": 3}},
            ["model.cold_start.type"],
            {"model.cold_start.steps"},
        ),
        ({}, FORMAT, ["reward.parts"], set()),
        ({}, FORMAT, ["reward.parts.format"], set()),
        ({}, FORMAT, ["reward.grader"], {"reward.parts.format", "reward.format.pattern"}),
        # kl.refresh_every_steps is governed by kl.reference, and that by kl.where.
        ({}, REFRESHED, ["objective.kl.where"], set()),
        ({}, {"eval.temperature": 0.5} | STEPS, ["train.steps", "eval"], {"eval.temperature"}),
    ],
)
def test_knobs_that_differ_without_being_declared_violate_the_gate(
    one: Settings, other: Settings, ablate: list[str], violating: set[str]
) -> None:
    verdict = gate(one, other, ablate)
    assert set(verdict.violations) == violating
    assert verdict.ok == (not violating)
    assert violating <= set(verdict.differs)


def test_part_of_what_a_selector_governs_does_not_explain_it() -> None:
    assert not gate({}, WEIGHTED, ["objective.rule.clip_low", "objective.rule.clip_high"]).ok
    assert not gate({}, REFRESHED, ["objective.kl.reference"]).ok
    assert "objective.kl.refresh_every_steps" in gate({}, REFRESHED, []).violations


def test_values_are_told_with_their_arms() -> None:
    assert gate({}, {}, []) == GateReport([], {})
    assert check_gate({"one": spec(seed=1), "other": spec(seed=2)}, [], {}).ok, "the seed is no difference"
    arms = {"a": spec(), "b": spec(), "c": spec(STEPS)}
    assert check_gate(arms, [], {}).violations == {"train.steps": {"a": 5, "b": 5, "c": 9}}
    assert gate({}, NO_SCALE, []).violations["objective.scale_eps"] == {"one": 1e-6, "other": ABSENT}
    assert gate({}, FORMAT, []).violations["reward.parts.format"] == {"one": ABSENT, "other": 0.2}
    assert set(gate({}, NO_SCALE, ["objective.scale"]).differs) == SCALES
    differing = values_that_differ({"one": spec(), "other": spec({"eval.k": [1, 2]})})
    assert differing == {"eval.k": {"one": [1, 2, 4, 8, 16], "other": [1, 2]}}


@pytest.mark.parametrize("declared", ["eval", "eval.temperature"])
def test_arms_that_are_measured_differently_are_refused_even_if_that_is_declared(declared: str) -> None:
    other = {"eval.temperature": 0.5} | STEPS
    verdict = gate({}, other, ["train.steps", declared], {declared: "it is cheaper"})
    assert verdict.violations == {"eval.temperature": {"one": 1.0, "other": 0.5}}
    assert "checkpoint: MODEL" in verdict.message()


def test_a_reason_under_co_changes_lets_a_knob_pass() -> None:
    other = NO_SCALE | {"train.learning_rate": 1e-3}
    assert not gate({}, other, ["objective.scale"]).ok
    assert gate({}, other, ["objective.scale"], {"train.learning_rate": "scaled"}).ok


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
    assert gate({}, given, ["algorithm"]).ok
    assert gate({"algorithm": "dpo"}, given, ["pairs"]).ok
    assert not gate({"algorithm": "dpo"}, given, ["objective.beta"]).ok


CLIP_HIGH, TIE, WEIGHT = "objective.rule.clip_high", "reward.pairwise.tie", "reward.parts.pairwise"
CLIP: Settings = {CLIP_HIGH: 0.28}
UPDATES: Settings = {"train.updates_per_rollout": 2}
GOLD: Settings = {"reward.vr_cli.gold": "solution"}
MEASURED, TRAINED = ({"reward.parts": {"vr_cli": weight}} for weight in (0.0, 1.0))
DPO: Settings = {"algorithm": "dpo"}
ROBUST: Settings = DPO | {"objective.smoothing": "robust"}
NOISY: Settings = {"objective.label_smoothing": 0.1}
TAUGHT: Settings = {"algorithm": "opd", "teacher.type": "model", "teacher.source": "scratch:tiny"}
UNHEARD: Settings = TAUGHT | {"reward.parts.format": 0.5, "reward.format.pattern": "work_hash"}
HEARD, DROPPED = {"objective.distill.verifier_coef": 0.5}, {"objective.zero_std": "drop"}


def judged(pairwise: float = 1.0, **parts: float) -> Settings:
    return {"algorithm": "brpo", "reward.parts": {"correct": 0.0, "pairwise": pairwise, **parts}}


JUDGED = judged()
HALF, FULL = {TIE: -0.5}, {TIE: -1.0}


@pytest.mark.parametrize(
    ("one", "other", "inert", "refused"),
    [
        ({}, {}, set(), False),
        # A clip range cannot act with one optimiser step, and does if one arm takes more.
        ({}, CLIP, {CLIP_HIGH}, True),
        (UPDATES, CLIP | UPDATES, set(), False),
        ({}, CLIP | UPDATES, set(), False),
        ({}, CLIP | {"train.epochs": 2}, set(), False),
        ({}, CLIP | NO_SCALE, {CLIP_HIGH}, False),
        # A part without weight is recorded but not trained on.
        (MEASURED, MEASURED | GOLD, set(GOLD), True),
        (TRAINED, TRAINED | GOLD, set(), False),
        (MEASURED, TRAINED | GOLD, set(), False),
        # Smoothing of labels that are trusted.
        (DPO, ROBUST, {"objective.smoothing"}, True),
        (DPO | NOISY, ROBUST | NOISY, set(), False),
        ({}, ROBUST, set(), False),
        # Rewards that nobody hears.
        (TAUGHT, UNHEARD, {"reward.parts.format", "reward.format.pattern"}, True),
        (TAUGHT | HEARD, UNHEARD | HEARD, set(), False),
        (TAUGHT | DROPPED, UNHEARD | DROPPED, set(), False),
        # The sign of a tie decides, not its size, where only the sign of the reward counts.
        (JUDGED | HALF, JUDGED | FULL, {TIE}, True),
        (JUDGED | {TIE: 0.0}, JUDGED | FULL, set(), False),
        (JUDGED, judged(3.0), {WEIGHT}, True),
        (JUDGED | HALF, JUDGED | FULL | STEPS, {TIE}, False),
        (JUDGED | HALF | {"objective.baseline": "none"}, JUDGED | FULL | {"objective.baseline": "none"}, set(), False),
        (judged(format=0.2) | HALF, judged(format=0.2) | FULL, set(), False),
        (
            JUDGED | HALF | {"objective.overlong.penalty": -0.5},
            JUDGED | FULL | {"objective.overlong.penalty": -0.5},
            set(),
            False,
        ),
        # A part that is only measured.
        (judged(0.0), judged(0.0) | {"reward.pairwise.steps": 7}, {"reward.pairwise.steps"}, True),
        (JUDGED, JUDGED | {"reward.pairwise.steps": 7}, set(), False),
    ],
)
def test_knobs_that_cannot_act_are_known(one: Settings, other: Settings, inert: set[str], refused: bool) -> None:
    noops = find_noops({"one": spec(one), "other": spec(other)})
    assert {knob for noop in noops for knob in noop.reasons} == inert
    assert [noop.refused for noop in noops] == ([refused] if inert else [])
    assert all(noop.arms == ("one", "other") and knob in noop.message() for noop in noops for knob in inert)


def test_an_aggregation_acts_through_the_supervised_term() -> None:
    """A product ratio's gradient carries the completion's length, and no answer's does."""
    product = {"objective.ratio": "sequence_product", "objective.aggregation": "seq_mean_token_mean"}
    summed = {"objective.ratio": "token", "objective.aggregation": "seq_mean_token_sum"}
    cases: list[tuple[Settings, bool]] = [({}, True), ({"reward.parts.jepo": 1.0}, False)]
    for parts, is_inert in cases:
        (noop,) = find_noops({"one": spec(parts, product), "other": spec(parts, summed)})
        assert ("objective.aggregation" in noop.reasons) == is_inert


def test_every_pair_of_arms_is_looked_at() -> None:
    arms = {"a": spec(), "b": spec(NO_SCALE), "c": spec(CLIP)}
    assert [(noop.arms, noop.refused) for noop in find_noops(arms)] == [(("a", "c"), True), (("b", "c"), False)]
