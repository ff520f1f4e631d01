"""What `tune:` asks for is checked before the first trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.config.search import TUNING_SEED
from harness.errors import GateError, RefusedError
from harness.plan import Plan, make_plan
from harness.plan.tuning import arm_searches, digest, with_known_tuning, with_tuning
from harness.records.sweep import TunedArm
from harness.run.question import write_question
from tests.harness.plan.files import write_sweep_file

LR = "train.learning_rate"
TUNE: dict[str, Any] = {"per_arm": {LR: {"log": [1e-5, 1e-3]}}}


def plan(folder: Path, tune: dict[str, Any] = TUNE, settings: tuple[str, ...] = (), **changes: Any) -> Plan:
    return make_plan(str(write_sweep_file(folder, tune=tune, **changes)), settings=settings)


def found(search_digest: str, rate: float, **changes: Any) -> TunedArm:
    return TunedArm.model_validate(
        {
            "digest": search_digest, "trial": 3, "values": {LR: rate}, "search_pp": 80.0, "default_pp": 79.0,
            "complete": 8, "generated_tokens": 1000, "at_end": [], "short_pp": 0.1, "short_sd_pp": 0.1,
        }
        | changes
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"search": {"knobs": {LR: {"log": [1e-5, 1e-3]}}}}, "tune is given with search"),
        ({"ablate": ["train"], "arms": {"a": {}, "b": {"train.steps": 4}}}, f"tune.per_arm has {LR}, which the arms"),
        ({"co_changes": {LR: "it must"}}, f"tune.per_arm has {LR}, which the arms differ in"),
        ({"arms": {"a": {}, "b": {"train": {"learning_rate": 1e-4}}}}, f"arms.b sets {LR}, which tune.per_arm"),
        ({"arms": None, "grid": {"objective.scale": ["none", "group_std"]}}, "tune is given with grid"),
        ({"seeds": [0, TUNING_SEED]}, "seeds reach 1000000: with tune they stay below"),
        ({"tune": {"per_arm": {"eval.temperature": {"float": [0.5, 1.0]}}}}, "how a trial is measured"),
        ({"tune": {"per_arm": {"train.steps": {"int": [2, 9]}}}}, "decides how much is trained"),
        ({"tune": {"per_arm": {"train.learning_rat": {"float": [0.5, 1.0]}}}}, "did you mean train.learning_rate"),
        ({"tune": TUNE | {"seeds": 1}}, "tune.seeds is 1"),
        ({"tune": TUNE | {"pruner": {}}}, "tune.pruner is not a key here"),
    ],
)
def test_what_cannot_be_tuned_is_refused(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(RefusedError, match=match):
        plan(tmp_path, **({"tune": TUNE} | changes))


def test_every_arm_has_the_same_search_from_its_own_settings(tmp_path: Path) -> None:
    searches = arm_searches(plan(tmp_path, TUNE | {"trials": 5, "seeds": 2}, seeds=4).request)
    assert [search.sweep.name for search in searches.values()] == ["mine-tune-with", "mine-tune-without"]
    budgets = {(search.search.model_dump_json(), tuple(search.seeds)) for search in searches.values()}
    assert len(budgets) == 1
    assert searches["with"].search.budget.trials == 5
    assert searches["with"].seeds == [TUNING_SEED, TUNING_SEED + 1], "which no verdict may have"
    assert searches["with"].spec({}, 0).objective.scale == "group_std"  # type: ignore[union-attr]
    drawn = searches["without"].spec({LR: 1e-4}, 0)
    assert (drawn.objective.scale, drawn.train.learning_rate) == ("none", 1e-4)  # type: ignore[union-attr]
    assert searches["with"].default_values() == {LR: 3e-4}


def test_an_override_of_a_tuned_knob_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"arm with: --set train\.learning_rate: .*tune\.per_arm"):
        arm_searches(plan(tmp_path, settings=(f"{LR}=1e-4",)).request)


def test_a_knob_that_cannot_act_in_an_arm_is_named_with_the_arm(tmp_path: Path) -> None:
    clip = {"per_arm": {"objective.rule.clip_high": {"float": [0.2, 0.4]}}}
    with pytest.raises(GateError, match=r"arm with: tune\.per_arm\.objective\.rule\.clip_high cannot act"):
        arm_searches(plan(tmp_path, clip).request)


def test_the_gate_knows_the_tuned_knobs_and_the_guard_does_not(tmp_path: Path) -> None:
    clips: dict[str, Any] = {"ablate": ["objective.rule"], "arms": {"a": {}, "b": {"objective.rule.clip_high": 0.3}}}
    untuned = plan(tmp_path, **clips)
    tuned = with_tuning(untuned, {"a": found("", 1e-4), "b": found("", 2e-4)})
    assert tuned.gate.ok and LR in tuned.gate.differs
    assert [cell.spec.train.learning_rate for cell in tuned.cells if cell.seed == 0] == [1e-4, 2e-4]
    # A clip range does nothing with one update per rollout; another learning rate does not make it act.
    assert tuned.noops == untuned.noops and tuned.noops[0].refused


def test_what_was_found_stays_while_the_question_does(tmp_path: Path) -> None:
    planned = plan(tmp_path)
    assert planned.to_tune == ["with", "without"]
    assert with_known_tuning(planned, tmp_path / "runs").to_tune == ["with", "without"]
    searches = arm_searches(planned.request)
    record = {arm: found(digest(search), 1e-4) for arm, search in searches.items()}
    tuned = with_tuning(planned, record)
    write_question(tuned, tmp_path / "runs", "bench run mine")

    def still_to_tune(**changes: Any) -> list[str]:
        return with_known_tuning(plan(tmp_path, **changes), tmp_path / "runs").to_tune

    assert still_to_tune() == []
    assert still_to_tune(seeds=24) == []
    assert still_to_tune(settings=("eval.samples=64",)) == [], "more samples do not ask for another search"
    assert still_to_tune(tune=TUNE | {"trials": 9}) == ["with", "without"]
    assert still_to_tune(settings=("train.steps=7",)) == ["with", "without"]


def test_a_best_at_the_end_and_a_default_outside_are_said(tmp_path: Path) -> None:
    planned = plan(tmp_path, {"per_arm": {LR: {"log": [1e-3, 1e-2]}}})
    warnings = with_tuning(planned, {"with": found("", 1e-2, at_end=[LR])}).warnings
    assert any("arms with, without: the untuned setting lies outside" in warning for warning in warnings)
    assert any("arm with: the best train.learning_rate, 0.01, is at the end" in warning for warning in warnings)
