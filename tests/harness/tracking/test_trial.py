"""A search in MLflow: all of its trials are there, and the ends that are its results are not faults."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.records.files import read_json, write_json
from harness.records.lease import hold_lease
from harness.records.rows import CellState
from harness.tracking import Mirror
from tests.harness.tracking.helpers import DiskSweep, Reader, train
from tests.reports.search.studies import TOKENS, study_document

pytestmark = pytest.mark.slow

METRIC = "eval.final.arithmetic.pass@1"
NO_CELLS: dict[str, Any] = {"cells": [], "intermediate": []}


@pytest.fixture
def searched(sweep: DiskSweep) -> DiskSweep:
    """Trial 0 is complete, 1 pruned, 2 failed before it had a cell, 3 is the same as 0 and 4 as 1, 5 has failed."""
    sweep.ask(arms=("trial_0", "trial_1", "trial_5"))
    question = read_json(sweep.path / "sweep.json")
    knobs = {"kind": "search", "ablate": ["train.learning_rate"]}
    write_json(sweep.path / "sweep.json", question | knobs)
    states: dict[str, CellState] = {"trial_0": "done", "trial_1": "interrupted", "trial_5": "failed"}
    for arm, state in states.items():
        cell = sweep.start(arm)
        train(cell, 1, 2)
        cell.write_status(state)
    write_trials(sweep)
    return sweep


def write_trials(sweep: DiskSweep, **changes: Any) -> None:
    own = {number: {"cells": [sweep.cell(f"trial_{number}").path.name]} for number in (0, 1, 5)}
    trials: dict[int, dict[str, Any]] = {
        0: own[0],
        1: own[1] | {"state": "pruned", "values": None, "reason": "given up at step 2"},
        2: NO_CELLS | {"state": "failed", "values": None, "hash": None, "reason": "values that do not go together"},
        3: NO_CELLS | {"state": "complete", "values": [0.7, 1000.0], "same_as": 0, "reason": "the same as trial 0"},
        4: NO_CELLS | {"state": "pruned", "values": None, "same_as": 1, "reason": "the same as trial 1"},
        5: own[5] | {"state": "failed", "values": None, "reason": "out of luck"},
    }
    for name, change in changes.items():
        trials[int(name.removeprefix("trial_"))] |= change
    # Trials are numbered by their place; what the study has besides is of no matter here.
    document = study_document(6, objectives=2, changes=trials, sweep=sweep.name)
    write_json(sweep.path / "study.json", document | {"best": 0, "front": [0]})


def by_trial(reader: Reader) -> dict[str, Any]:
    runs = [run for run in reader.runs() if "bench.trial" in run.data.tags]
    found = {run.info.run_name: run for run in runs}
    assert len(found) == len(runs), "a trial has more than one run"
    return found


def test_every_trial_is_a_child_run(searched: DiskSweep, uri: str, reader: Reader) -> None:
    n_points = Mirror(searched.path, uri).sync()
    runs, (parent,) = by_trial(reader), reader.parents()
    assert set(runs) == {"trial_2", "trial_3", "trial_4"}
    assert set(reader.children()) == {"trial_0-s0", "trial_1-s0", "trial_5-s0"}
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    assert [runs[name].info.status for name in sorted(runs)] == ["FAILED", "FINISHED", "KILLED"]
    study = json.loads((searched.path / "study.json").read_text())
    same = runs["trial_3"]
    told = {"trial": "3", "trial.state": "complete", "trial.same_as": "0"}
    assert told.items() <= same.data.tags.items()
    assert same.data.metrics == {
        "objective/eval.final.arithmetic.pass_at_1": 0.7,
        f"objective/{TOKENS['metric']}": 1000.0,
    }
    assert set(same.data.params) == set(study["trials"][3]["params"])
    assert float(same.data.params["train.learning_rate"]) == study["trials"][3]["params"]["train.learning_rate"]
    assert runs["trial_2"].data.tags["trial.reason"] == study["trials"][2]["reason"]
    pruned = reader.children()["trial_1-s0"].data.tags
    assert (pruned["trial.state"], pruned["state"]) == ("pruned", "interrupted")
    assert pruned["trial.reason"] == study["trials"][1]["reason"]
    best = study["trials"][0]
    expected = {"best.trial": "0", "best.train.learning_rate": json.dumps(best["params"]["train.learning_rate"])}
    assert expected.items() <= parent.data.tags.items()
    assert [*parent.data.metrics.values()] == best["values"]
    assert json.loads(parent.data.params["search.train.learning_rate"])["kind"] == "log"
    assert n_points == 3 * 4 + 2 + 2


@pytest.mark.parametrize("is_restarted", [False, True])
def test_mirrored_twice_adds_nothing(searched: DiskSweep, uri: str, reader: Reader, is_restarted: bool) -> None:
    mirror = Mirror(searched.path, uri)
    mirror.sync()
    before = {run.info.run_id for run in reader.runs()}
    if is_restarted:
        mirror = Mirror(searched.path, uri)
    assert mirror.sync() == 0
    assert {run.info.run_id for run in reader.runs()} == before


def test_a_search_that_has_ended_is_finished(searched: DiskSweep, uri: str, reader: Reader) -> None:
    """Whatever became of its trials; one that goes on, or was left in its midst, is told as in every sweep."""
    mirror = Mirror(searched.path, uri)

    def status() -> str:
        mirror.sync()
        return str(reader.parents()[0].info.status)

    assert status() == "FINISHED"
    with hold_lease(searched.cell("trial_1").path):  # it is trained to the end
        assert status() == "RUNNING"
    write_trials(searched, trial_1={"state": "running"})
    assert status() == "KILLED"


def test_a_trial_that_waits_for_another_ends_as_that_does(searched: DiskSweep, uri: str, reader: Reader) -> None:
    write_trials(searched, trial_3={"state": "running", "values": None})
    mirror = Mirror(searched.path, uri)
    mirror.sync()
    assert (by_trial(reader)["trial_3"].info.status, reader.parents()[0].info.status) == ("RUNNING", "FINISHED")
    write_trials(searched)
    assert mirror.sync() == 2
    assert by_trial(reader)["trial_3"].info.status == "FINISHED"


def test_a_trial_that_was_only_drawn_has_no_run_yet(searched: DiskSweep, uri: str, reader: Reader) -> None:
    (searched.path / "study.json").unlink()
    mirror = Mirror(searched.path, uri)
    mirror.sync()
    assert by_trial(reader) == {}
    write_trials(searched, trial_2={"state": "running", "reason": None})
    mirror.sync()
    assert set(by_trial(reader)) == {"trial_3", "trial_4"}


def test_a_search_without_a_single_cell_ends_too(searched: DiskSweep, uri: str, reader: Reader) -> None:
    question = read_json(searched.path / "sweep.json")
    write_json(searched.path / "sweep.json", question | {"arms": ["default"], "baseline": "default", "cells": []})
    document = study_document(1, changes={0: NO_CELLS | {"state": "failed", "values": None}}, sweep=searched.name)
    write_json(searched.path / "study.json", document)
    Mirror(searched.path, uri).sync()
    assert reader.parents()[0].info.status == "FINISHED"
