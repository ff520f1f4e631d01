from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.executors.base import Job, JobState
from harness.plan.search_plan import make_search_plan
from harness.records import CellRecord, read_sweep
from harness.records.lease import STALE_AFTER_S, hold_lease
from harness.search.run import IDLE_TRIALS
from harness.search.study import SearchStudy
from tests.harness.search.fake_cells import (
    KNOBS,
    METRIC,
    FakeCells,
    Score,
    by_learning_rate,
    search,
    write_search,
)
from tests.refusals import refuses

pytestmark = pytest.mark.slow


def settings(study: dict[str, Any]) -> list[dict[str, Any]]:
    return [trial["params"] for trial in study["trials"]]


def left_by_a_dead_worker(path: Path) -> tuple[SearchStudy, dict[str, object]]:
    """Leave a trial that was drawn and never trained."""
    study = SearchStudy(make_search_plan(str(path)), path.parent / "runs" / "found", None)
    (study.folder / "workers" / "dead").mkdir(parents=True)
    with study.turn():
        left = study.ask("dead")
    return study, study.draw(left)


def test_trials_are_scored_and_the_best_is_named(tmp_path: Path) -> None:
    study, pool = search(write_search(tmp_path, {"sampler": {"type": "tpe", "seed": 7}}), 12)
    trials = study["trials"]
    assert [trial["number"] for trial in trials] == list(range(12))
    assert {trial["state"] for trial in trials} == {"complete"}
    assert study["best"] == max(trials, key=lambda trial: trial["values"][0])["number"]
    assert study["objectives"] == [{"metric": METRIC, "direction": "maximize"}]
    assert study["sampler"] == {"type": "tpe", "seed": 7}
    assert len(pool.trained) == len({trial["hash"] for trial in trials})
    for trial in trials:
        cell = CellRecord.at(tmp_path / "runs" / "found" / "cells" / trial["cells"][0])
        assert trial["values"] == [cell.read_scores()[-1]["metrics"]["pass@1"]]
        spec = json.loads((cell.path / "spec.json").read_text())
        assert spec["train"]["learning_rate"] == trial["params"]["train.learning_rate"]
    assert [trial["is_default"] for trial in trials] == [True] + 11 * [False]
    assert trials[0]["params"] == {"train.learning_rate": 3e-4, "train.updates_per_rollout": 1}
    drawn = [("objective.rule.clip_high" in p, p["train.updates_per_rollout"] > 1) for p in settings(study)]
    assert set(drawn) == {(True, True), (False, False)}
    sweep = read_sweep(tmp_path / "runs" / "found")
    assert sweep.is_search and {cell.arm for cell in sweep.cells} == {f"trial_{n}" for n in range(12)}
    assert sweep.varied["trial_1"]["train.learning_rate"] != sweep.varied["default"]["train.learning_rate"]


@pytest.mark.parametrize(
    "sampler", ["tpe", "gp", *(pytest.param(name, marks=pytest.mark.long) for name in ("random", "qmc", "nsga2"))]
)
def test_an_interrupted_search_draws_what_an_unbroken_one_draws(tmp_path: Path, sampler: str) -> None:
    kind = {"sampler": {"type": sampler, **({"options": {"n_startup_trials": 3}} if sampler in ("tpe", "gp") else {})}}
    (tmp_path / "broken").mkdir()
    whole, _ = search(write_search(tmp_path, kind), 7)
    path = write_search(tmp_path / "broken", kind)
    n_trained = []
    for trials in (2, 5, 7, 7):
        broken, pool = search(path, trials)
        n_trained.append(len(pool.trained))
    assert settings(broken) == settings(whole)
    assert n_trained == [2, 3, 2, 0]
    assert len({json.dumps(values) for values in settings(whole)}) > 3


def test_a_trial_has_the_mean_over_its_seeds(tmp_path: Path) -> None:
    pool = FakeCells(score=lambda spec: 0.5 + 0.1 * spec.seed)
    study, _ = search(write_search(tmp_path, seeds=[0, 3]), 1, pool)
    assert study["trials"][0]["values"] == [pytest.approx((0.5 + 0.8) / 2)]
    assert len(study["trials"][0]["cells"]) == 2


def test_values_that_do_not_go_together_fail_their_trial(tmp_path: Path) -> None:
    knobs = {
        "rollout.prompts_per_step": {"categorical": [3, 4]},
        "train.updates_per_rollout": {"categorical": [1, 4]},
    }
    study, _ = search(write_search(tmp_path, {"knobs": knobs}), 20)
    failed = [trial for trial in study["trials"] if trial["state"] == "failed"]
    assert failed
    assert all(tuple(trial["params"].values()) == (3, 4) for trial in failed)
    assert "train.updates_per_rollout" in failed[0]["reason"]


def test_a_diverged_cell_is_a_scored_trial_and_breaking_off_is_no_thrift(tmp_path: Path) -> None:
    specs: list[RunSpec] = []

    class Diverging(FakeCells):
        def done(self, cell: CellRecord, spec: RunSpec) -> None:
            if cell.arm == "trial_1":
                cell.write_status("done", flags=["nan"], step=0, generated_tokens=0)
                specs.append(spec)

    section = {"objectives": ["eval.final.pass@1", "generated_tokens"], "sampler": {"type": "random"}}
    study, _ = search(write_search(tmp_path, section), 3, Diverging())
    (spec,) = specs
    rollout = spec.rollout
    allowed = spec.train.steps * rollout.prompts_per_step * rollout.samples_per_prompt * rollout.max_completion_tokens
    assert [trial["values"][1] for trial in study["trials"]] == [1000, allowed, 1000]
    assert allowed > 1000
    assert [(trial["state"], trial["flags"]) for trial in study["trials"]] == [
        ("complete", []), ("complete", ["nan"]), ("complete", [])
    ]  # fmt: skip
    assert study["best"] is not None


def test_a_pruned_trial_keeps_its_records(tmp_path: Path) -> None:
    pruner = {"pruner": {"type": "median", "options": {"n_startup_trials": 2, "n_warmup_steps": 0}}}
    study, _ = search(write_search(tmp_path, pruner), 12)
    pruned = [trial for trial in study["trials"] if trial["state"] == "pruned"]
    assert pruned
    for trial in pruned:
        assert trial["values"] is None and trial["intermediate"]
        cell = CellRecord.at(tmp_path / "runs" / "found" / "cells" / trial["cells"][0])
        assert cell.state == "interrupted" and cell.read_scores()
        assert f"--finish {trial['number']}`" in str(cell.reason)


def test_two_objectives_have_a_front(tmp_path: Path) -> None:
    objectives = {"objectives": ["eval.final.pass@1", "eval.final.mean_tokens"], "sampler": {"type": "nsga2"}}
    study, _ = search(write_search(tmp_path, objectives), 8)
    assert [o["direction"] for o in study["objectives"]] == ["maximize", "minimize"]
    values = {trial["number"]: trial["values"] for trial in study["trials"] if trial["same_as"] is None}
    # Accuracy costs tokens in these cells, so no setting is better in both.
    assert study["front"] == sorted(values)
    assert study["best"] == max(values, key=lambda number: values[number][0])


def test_of_equally_accurate_trials_the_one_with_fewer_tokens_is_best(tmp_path: Path) -> None:
    class Tied(FakeCells):
        def done(self, cell: CellRecord, spec: RunSpec) -> None:
            cell.write_status("done", generated_tokens=1000 - 10 * int(cell.arm.removeprefix("trial_")))

    objectives = {"objectives": ["eval.final.pass@1", "generated_tokens"]}
    study, _ = search(write_search(tmp_path, objectives), 4, Tied(score=lambda spec: 0.5))
    assert study["front"] == [study["best"]] == [3]


def test_importances_need_trials_enough(tmp_path: Path) -> None:
    path = write_search(tmp_path)
    study, _ = search(path, 3)
    assert study["importances"] == [] and study["importances_refused"]
    study, _ = search(path, 20)
    (found,) = study["importances"]
    assert max(found["shares"], key=found["shares"].get) == "train.learning_rate"
    assert sum(found["shares"].values()) == pytest.approx(1)


@pytest.mark.parametrize(("score", "shared_by"), [(by_learning_rate, [METRIC]), (lambda spec: 0.5, [])])
def test_an_objective_that_never_changes_has_no_importances(tmp_path: Path, score: Score, shared_by: list[str]) -> None:
    """All fake cells generate as many tokens, which takes nothing from the other objective."""
    path = write_search(tmp_path, {"objectives": ["eval.final.pass@1", "generated_tokens"]})
    study, _ = search(path, 12, FakeCells(score=score))
    assert [found["metric"] for found in study["importances"]] == shared_by
    assert "generated_tokens" in study["importances_refused"]
    assert (METRIC in study["importances_refused"]) == (not shared_by)


def test_a_trial_of_a_dead_worker_is_taken_up_with_its_values(tmp_path: Path) -> None:
    path = write_search(tmp_path)
    search(path, 1)
    _, values = left_by_a_dead_worker(path)
    found, pool = search(path, 3)
    assert found["trials"][1] | {"params": values, "state": "complete"} == found["trials"][1]
    assert [trial["state"] for trial in found["trials"]] == ["complete"] * 3
    assert len(pool.trained) == 2


def test_an_abandoned_trial_is_ended_although_the_budget_is_used_up(tmp_path: Path) -> None:
    path = write_search(tmp_path, {"budget": {"tokens": 900}})
    search(path, None)
    left_by_a_dead_worker(path)
    found, _ = search(path, None)
    assert [trial["state"] for trial in found["trials"]] == ["complete"] * 2


def test_waiting_for_a_trial_whose_worker_died_takes_it_up(tmp_path: Path) -> None:
    """Two trials of one setting; the one that was to train it is left."""
    path = write_search(tmp_path, {"knobs": {"train.updates_per_rollout": {"categorical": [1, 2]}}})
    study, _ = left_by_a_dead_worker(path)
    study.study._storage.set_trial_user_attr(0, "hash", "of another time")
    found, _ = search(path, 5)
    assert [trial["state"] for trial in found["trials"]] == ["complete"] * 5


def test_workers_are_forgotten_unless_they_left_a_trial(tmp_path: Path) -> None:
    path = write_search(tmp_path)
    search(path, 1)
    workers = tmp_path / "runs" / "found" / "workers"
    assert list(workers.iterdir()) == []
    study, _ = left_by_a_dead_worker(path)
    for name in ("alive", "left nothing"):
        (workers / name).mkdir()
    with hold_lease(workers / "alive"):
        study.forget_dead_workers()
    assert sorted(worker.name for worker in workers.iterdir()) == ["alive", "dead"]


def test_what_was_lost_or_damaged_is_written_anew_without_training_again(tmp_path: Path) -> None:
    path, folder = write_search(tmp_path), tmp_path / "runs" / "found"
    before, _ = search(path, 3)
    for left in ("", '{"trials": [', "[]"):
        (folder / "study.json").write_text(left)
        assert search(path, 3)[0] == before
    for name in ("study.journal", "study.json"):
        (folder / name).unlink()
    after, pool = search(path, 3)
    assert [trial["values"] for trial in after["trials"]] == [trial["values"] for trial in before["trials"]]
    assert pool.trained == []


@pytest.mark.parametrize(
    ("search_section", "fields", "differing"),
    [
        ({"knobs": KNOBS | {"train.learning_rate": {"log": [1e-4, 1e-3]}}}, {}, "ranges"),
        ({}, {"seeds": 2}, "seeds"),
        ({"sampler": {"type": "random"}}, {}, "sampler"),
        ({"sampler": {"seed": 1}}, {}, "sampler"),
        ({"pruner": {"type": "median"}}, {}, "pruner"),
        ({}, {"base": {"algorithm": "rloo"}}, "base"),
    ],
)
def test_a_storage_of_another_study_is_refused(
    tmp_path: Path, search_section: Any, fields: Any, differing: str
) -> None:
    search(write_search(tmp_path), 1)
    with refuses(RefusedError, "search.study_of_another_search", study="found") as refused:
        search(write_search(tmp_path, search_section, **fields), 2)
    assert differing in str(refused.value.fields["differing"])


def test_a_study_that_somebody_else_made_is_used_only_empty_and_with_our_directions(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path / 'study.db'}", write_search(tmp_path)
    optuna.create_study(storage=url, study_name="found").ask()
    with refuses(RefusedError, "search.study_of_another_tool", study="found"):
        search(path, 1, storage_url=url)
    optuna.delete_study(storage=url, study_name="found")
    optuna.create_study(storage=url, study_name="found")
    with refuses(RefusedError, "search.directions_differ", theirs="minimize", ours="maximize"):
        search(path, 1, storage_url=url)
    optuna.delete_study(storage=url, study_name="found")
    optuna.create_study(storage=url, study_name="found", direction="maximize")
    study, _ = search(path, 1, storage_url=url)
    assert [trial["is_default"] for trial in study["trials"]] == [True]


@pytest.mark.parametrize("url", ["nonsense", "sqlite:////nowhere/study.db", "oracle+nothing://x"])
def test_a_storage_that_cannot_be_opened_is_refused(tmp_path: Path, url: str) -> None:
    with refuses(RefusedError, "search.storage_cannot_be_opened", url=url):
        search(write_search(tmp_path), 1, storage_url=url)


def test_the_records_of_another_storage_are_not_overwritten(tmp_path: Path) -> None:
    path, journal = write_search(tmp_path), tmp_path / "runs" / "found" / "study.journal"
    search(path, 2, storage_url=f"sqlite:///{tmp_path / 'study.db'}")
    assert not journal.exists()
    with refuses(RefusedError, "search.journal_missing", folder="found"):
        search(path, 2)
    assert not journal.exists()
    other = f"sqlite:///{tmp_path / 'other.db'}"
    with refuses(RefusedError, "search.another_storage", folder="found"):
        search(path, 2, storage_url=other)
    assert optuna.get_all_study_names(other) == []


def test_options_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    section = {"sampler": {"type": "tpe", "options": {"n_startup_trials": "five"}}}
    with refuses(RefusedError, "search.option_type", option="n_startup_trials"):
        search(write_search(tmp_path, section), 1)
    assert not (tmp_path / "runs").exists()


def test_a_default_outside_the_ranges_is_no_trial(tmp_path: Path) -> None:
    path = write_search(tmp_path, {"knobs": {"train.learning_rate": {"log": [1e-3, 1e-2]}}})
    study, _ = search(path, 2)
    assert not any(trial["is_default"] for trial in study["trials"])


def test_an_identical_setting_is_not_trained_twice(tmp_path: Path) -> None:
    path = write_search(tmp_path, {"knobs": {"train.updates_per_rollout": {"categorical": [1, 2]}}})
    study, pool = search(path, 6)
    assert len(pool.trained) == 2
    repeated = [trial for trial in study["trials"] if trial["same_as"] is not None]
    assert len(repeated) == 4
    for trial in repeated:
        assert trial["values"] == study["trials"][trial["same_as"]]["values"]
        assert trial["hash"] == study["trials"][trial["same_as"]]["hash"]
    assert study["trials"][study["best"]]["same_as"] is None


def test_what_cannot_be_measured_fails_its_trial_and_the_search_goes_on(tmp_path: Path) -> None:
    ends: dict[str, tuple[JobState, str]] = {
        "trial_1": ("failed", "its worker process was killed by signal 9"),
        "trial_2": ("invalid", "stale weights"),
    }
    study, _ = search(write_search(tmp_path), 4, FakeCells(ends=ends))
    assert [trial["state"] for trial in study["trials"]] == ["complete", "failed", "failed", "complete"]
    assert "signal 9" in study["trials"][1]["reason"]
    states = {cell.arm: cell.state for cell in read_sweep(tmp_path / "runs" / "found").cells}
    assert (states["trial_1"], states["trial_2"]) == ("failed", "invalid")


def test_a_search_without_a_limit_of_trials_ends_when_nothing_is_new(tmp_path: Path) -> None:
    knobs = {"train.updates_per_rollout": {"categorical": [1, 2]}}
    section = {"knobs": knobs, "budget": {"tokens": 1_000_000}, "sampler": {"type": "random"}}
    study, pool = search(write_search(tmp_path, section), None)
    assert len(pool.trained) == 2
    assert [trial["same_as"] is None for trial in study["trials"][-IDLE_TRIALS:]] == [False] * IDLE_TRIALS
    assert study["trials"][-IDLE_TRIALS - 1]["same_as"] is None


def test_trials_that_generate_nothing_do_not_go_on_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each diverges at once, although its evaluation takes its time."""

    class Diverging(FakeCells):
        def done(self, cell: CellRecord, spec: RunSpec) -> None:
            cell.write_status("done", flags=["nan"], step=0, generated_tokens=0)

    monkeypatch.setattr("harness.search.trials.seconds", lambda cell: 1.0)
    study, _ = search(write_search(tmp_path, {"budget": {"tokens": 1000}}), None, Diverging())
    assert len(study["trials"]) == IDLE_TRIALS


@pytest.mark.parametrize("pruner", ["none", "median"])
def test_a_trial_that_another_worker_ended_is_theirs(tmp_path: Path, pruner: str) -> None:
    """Who hears nothing of a worker for two minutes takes it for dead, and may be quicker."""
    path = write_search(tmp_path, {"pruner": {"type": pruner}})
    journal = str(tmp_path / "runs" / "found" / "study.journal")

    class Overtaken(FakeCells):
        def begun(self, cell: CellRecord) -> None:
            if cell.arm == "trial_1":
                storage = JournalStorage(JournalFileBackend(journal))
                optuna.load_study(study_name="found", storage=storage).tell(1, 0.123)

    study, pool = search(path, 3, Overtaken())
    assert [trial["state"] for trial in study["trials"]] == ["complete"] * 3
    assert pool.cancelled == study["trials"][1]["cells"] * (pruner == "median")
    assert study["trials"][1]["values"] == [0.123]


def test_what_a_trial_cost_is_known_without_its_cells(tmp_path: Path) -> None:
    path = write_search(tmp_path)
    study, _ = search(path, 2)
    cells = tmp_path / "runs" / "found" / "cells"
    (cells / study["trials"][0]["cells"][0] / "timing.jsonl").write_text("damaged\n")
    shutil.rmtree(cells / study["trials"][1]["cells"][0])
    again, _ = search(path, 3)
    assert [trial["generated_tokens"] for trial in again["trials"]] == [1000] * 3


def test_wilcoxon_looks_at_the_seeds(tmp_path: Path) -> None:
    pruner = {"pruner": {"type": "wilcoxon", "options": {"p_threshold": 0.2}}}
    pool = FakeCells(score=lambda spec: by_learning_rate(spec) - 0.001 * spec.seed)
    study, _ = search(write_search(tmp_path, pruner, seeds=8), 8, pool)
    pruned = [trial for trial in study["trials"] if trial["state"] == "pruned"]
    assert pruned
    assert all(2 <= len(trial["intermediate"]) < 8 for trial in pruned)
    done = [trial for trial in study["trials"] if trial["state"] == "complete"]
    assert all([step for step, _ in trial["intermediate"]] == list(range(8)) for trial in done)


@pytest.mark.parametrize("budget", [{"tokens": 2500}, {"hours": 2.5 / 3600}])
def test_a_budget_counts_what_other_machines_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: dict[str, float]
) -> None:
    """Each has a folder of its own; they share the database."""
    monkeypatch.setattr("harness.search.trials.seconds", lambda cell: 1.0)
    url = f"sqlite:///{tmp_path / 'study.db'}"
    files = []
    for machine in ("one", "other"):
        (tmp_path / machine).mkdir()
        files.append(write_search(tmp_path / machine, {"budget": budget}))
    search(files[0], 2, storage_url=url)
    study, pool = search(files[1], None, storage_url=url)
    assert len(pool.trained) == 1
    assert [trial["generated_tokens"] for trial in study["trials"]] == [1000] * 3
    assert [trial["duration_s"] for trial in study["trials"]] == [1.0] * 3


def test_of_two_machines_that_take_up_one_trial_the_last_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_search_plan(str(write_search(tmp_path)))
    study = SearchStudy(plan, tmp_path / "runs" / "found", f"sqlite:///{tmp_path / 'study.db'}")
    with study.turn():
        left = study.ask("dead")
    claim = {"worker": "dead", "host": "elsewhere", "beats": 1}
    left.set_user_attr("owner", claim)
    assert study.unknown() == [left.number]
    real, passed_s = time.monotonic, [STALE_AFTER_S]
    monkeypatch.setattr(time, "monotonic", lambda: real() + sum(passed_s))
    sleep = "harness.search.study.time.sleep"
    monkeypatch.setattr(sleep, lambda _: left.set_user_attr("owner", claim | {"worker": "b"}))
    with study.turn():
        assert study.take_over_dead("a") is None
        monkeypatch.setattr(sleep, lambda _: None)
        assert study.take_over_dead("a") is None, "b was heard of just now"
        passed_s.append(STALE_AFTER_S)
        taken = study.take_over_dead("a")
    assert taken is not None and taken.number == left.number


@pytest.mark.parametrize("told", ["UNIQUE constraint failed: alembic_version", "table studies already exists"])
def test_a_database_that_several_workers_make_at_once_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    from optuna.storages import RDBStorage
    from sqlalchemy.exc import IntegrityError

    make, asked = RDBStorage.__init__, []

    def first_told_so(self: RDBStorage, url: str) -> None:
        asked.append(url)
        if len(asked) == 1:
            raise IntegrityError("INSERT", {}, Exception(told))
        make(self, url)

    monkeypatch.setattr(RDBStorage, "__init__", first_told_so)
    monkeypatch.setattr("harness.search.optuna_parts.time.sleep", lambda _: None)
    study, _ = search(write_search(tmp_path), 1, storage_url=f"sqlite:///{tmp_path / 'study.db'}")
    assert (len(asked), len(study["trials"])) == (2, 1)


def test_a_stage_that_cannot_be_done_fails_its_trial(tmp_path: Path) -> None:
    """The starting weights of some trials cannot be made; the stage is tried once by each of them."""

    class ColdOnes(FakeCells):
        def stage(self, job: Job) -> tuple[JobState, str | None]:
            if job.kind == "start":
                if job.spec.model.cold_start.learning_rate > 1e-3:  # type: ignore[union-attr]
                    return "refused", "no cold start"
                (self.home / job.path).mkdir()
            return "done", None

    start = {"type": "sft", "data": "demonstrations:arithmetic"}
    section = {"knobs": {"model.cold_start.learning_rate": {"log": [1e-4, 1e-2]}}, "sampler": {"type": "random"}}
    base = {"algorithm": "grpo", "model.source": "scratch:tiny", "model.cold_start": start}
    study, _ = search(write_search(tmp_path, section, base=base), 8, ColdOnes())
    states = {
        (trial["params"]["model.cold_start.learning_rate"] > 1e-3, trial["state"], trial["reason"])
        for trial in study["trials"]
    }
    assert states == {(True, "failed", "no cold start"), (False, "complete", None)}


def test_a_torn_end_of_the_journal_is_cut(tmp_path: Path) -> None:
    path = write_search(tmp_path)
    search(path, 2)
    journal = tmp_path / "runs" / "found" / "study.journal"
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 5, "tri')
    study, _ = search(path, 3)
    assert [trial["state"] for trial in study["trials"]] == ["complete"] * 3


def test_conditional_knobs_are_drawn_anew_by_qmc(tmp_path: Path) -> None:
    study, _ = search(write_search(tmp_path, {"sampler": {"type": "qmc"}}), 12)
    drawn = [trial["params"].get("objective.rule.clip_high") for trial in study["trials"][1:]]
    known = [value for value in drawn if value is not None]
    assert len(set(known)) == len(known) > 2
