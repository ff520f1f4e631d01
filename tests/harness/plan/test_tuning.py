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
from tests.refusals import refuses

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
    ("changes", "named"),
    [
        ({"search": {"knobs": {LR: {"log": [1e-5, 1e-3]}}}}, "tune search"),
        ({"ablate": ["train"], "arms": {"a": {}, "b": {"train.steps": 4}}}, f"tune.per_arm {LR}"),
        ({"co_changes": {LR: "it must"}}, f"tune.per_arm {LR}"),
        ({"arms": {"a": {}, "b": {"train": {"learning_rate": 1e-4}}}}, f"arms.b {LR} tune.per_arm"),
        ({"arms": None, "grid": {"objective.scale": ["none", "group_std"]}}, "tune grid"),
        ({"seeds": [0, TUNING_SEED]}, "seeds 1000000:"),
        ({"tune": {"per_arm": {"eval.temperature": {"float": [0.5, 1.0]}}}}, "eval.temperature"),
        ({"tune": {"per_arm": {"train.steps": {"int": [2, 9]}}}}, "train.steps"),
        ({"tune": {"per_arm": {"train.learning_rat": {"float": [0.5, 1.0]}}}}, f"train.learning_rat {LR}"),
        ({"tune": TUNE | {"seeds": 1}}, "tune.seeds 1"),
        ({"tune": TUNE | {"pruner": {}}}, "tune.pruner"),
    ],
)
def test_what_cannot_be_tuned_is_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(RefusedError) as refused:
        plan(tmp_path, **({"tune": TUNE} | changes))
    assert all(name in str(refused.value) for name in named.split())


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


def test_a_tuned_knob_that_is_overridden_or_cannot_act_is_refused_with_the_arm(tmp_path: Path) -> None:
    with refuses(RefusedError, "plan.searched_knob_set", knob=LR, where="tune.per_arm"):
        arm_searches(plan(tmp_path, settings=(f"{LR}=1e-4",)).request)
    clip = {"per_arm": {"objective.rule.clip_high": {"float": [0.2, 0.4]}}}
    with pytest.raises(GateError, match=r"with: tune\.per_arm\.objective\.rule\.clip_high"):
        arm_searches(plan(tmp_path, clip).request)


def test_the_gate_knows_the_tuned_knobs_and_the_guard_does_not(tmp_path: Path) -> None:
    clips: dict[str, Any] = {"ablate": ["objective.rule"], "arms": {"a": {}, "b": {"objective.rule.clip_high": 0.3}}}
    untuned = plan(tmp_path, **clips)
    tuned = with_tuning(untuned, {"a": found("", 1e-4), "b": found("", 2e-4)})
    assert tuned.gate.ok and LR in tuned.gate.differs
    assert [cell.spec.train.learning_rate for cell in tuned.cells if cell.seed == 0] == [1e-4, 2e-4]
    # A clip range does nothing with one update per rollout; another learning rate does not make it act.
    assert tuned.noops == untuned.noops and tuned.noops[0].refused


@pytest.mark.slow
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
    outside, at_the_end = warnings[-2:]
    assert "untuned" in outside and LR in at_the_end and "0.01" in at_the_end
