"""A search that is killed at any of its writes goes on as if nothing had been."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from optuna.storages.journal import JournalFileBackend

from harness.plan.search_plan import make_search_plan
from harness.records.lease import STALE_AFTER_S, hold_lease
from harness.search.study import SearchStudy
from tests.harness.search.fake_cells import Silent, search, write_search

pytestmark = pytest.mark.slow

TRIALS = 4


class KilledError(BaseException):
    """The process is gone: nothing after this is written."""


class Writes:
    """Counts what is appended to journals, and refuses all from the `last` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[list[dict[str, Any]]] = []
        self.last: int | None = None
        append = JournalFileBackend.append_logs

        def counted(backend: JournalFileBackend, logs: list[dict[str, Any]]) -> None:
            if self.last is not None and len(self.seen) >= self.last:
                raise KilledError
            self.seen.append(logs)
            append(backend, logs)

        monkeypatch.setattr(JournalFileBackend, "append_logs", counted)

    def begin(self, last: int | None) -> None:
        self.seen, self.last = [], last


def settings(study: dict[str, Any]) -> list[dict[str, Any]]:
    return [trial["params"] for trial in study["trials"]]


def section(sampler: str) -> dict[str, Any]:
    options = {"options": {"n_startup_trials": 1}} if sampler in ("tpe", "gp") else {}
    knobs = {"train.learning_rate": {"log": [1e-4, 1e-2]}, "rollout.temperature": {"float": [0.5, 1.5]}}
    return {"sampler": {"type": sampler, **options}, "knobs": knobs}


@pytest.mark.parametrize(
    "sampler", ["tpe", *(pytest.param(name, marks=pytest.mark.long) for name in ("random", "nsga2"))]
)
def test_a_search_that_is_killed_while_values_are_drawn_draws_what_an_unbroken_one_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    writes = Writes(monkeypatch)
    (tmp_path / "whole").mkdir()
    whole, _ = search(write_search(tmp_path / "whole", section(sampler)), TRIALS)
    ids = [log.get("trial_id") for logs in writes.seen for log in logs]
    first = ids.index(2)
    for last in range(first - 1, first + 7):  # from before the trial is asked for until it is drawn
        folder = tmp_path / str(last)
        folder.mkdir()
        path = write_search(folder, section(sampler))
        writes.begin(last)
        with pytest.raises(KilledError):
            search(path, TRIALS)
        writes.begin(None)
        broken, _ = search(path, TRIALS)
        assert settings(broken) == settings(whole)
        assert {trial["state"] for trial in broken["trials"]} == {"complete"}


def test_a_search_that_is_killed_at_its_start_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = Writes(monkeypatch)
    for last in range(8):
        folder = tmp_path / str(last)
        folder.mkdir()
        path = write_search(folder)
        writes.begin(last)
        with pytest.raises(KilledError):
            search(path, 2)
        writes.begin(None)
        study, _ = search(path, 2)
        assert [(trial["state"], trial["is_default"]) for trial in study["trials"]] == [
            ("complete", True),
            ("complete", False),
        ]


def test_a_trial_that_nobody_claimed_before_a_kill_is_taken_up_at_once(tmp_path: Path) -> None:
    path = write_search(tmp_path)
    search(path, 1)
    study = SearchStudy(make_search_plan(str(path)), tmp_path / "runs" / "found", None)
    study.study.ask()
    assert study.is_any_abandoned() and study.running() == []
    found, _ = search(path, 3)
    assert [trial["state"] for trial in found["trials"]] == ["complete"] * 3


class Clock:
    """A second passes with every look at it. began_s: where it stands, as every machine's stands elsewhere."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, began_s: float = 1e6) -> None:
        self.now_s = began_s
        monkeypatch.setattr("harness.search.study.time.monotonic", self.read)
        monkeypatch.setattr("harness.search.run.WAIT_S", 0.001)

    def read(self) -> float:
        self.now_s += 1
        return self.now_s


@pytest.mark.parametrize(
    ("trials", "skew_s", "is_claimed"),
    [(1, -1e5, True), (3, 1e5, True), (3, 1e5, False)],
    ids=["nothing else to do", "trials left", "not claimed yet"],
)
def test_a_trial_of_a_machine_that_died_is_continued_whatever_its_clock_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trials: int, skew_s: float, is_claimed: bool
) -> None:
    url, path = f"sqlite:///{tmp_path / 'study.db'}", write_search(tmp_path)
    search(path, 1, storage_url=url)
    real = time.time
    with monkeypatch.context() as there:
        there.setattr(time, "time", lambda: real() + skew_s)
        study = SearchStudy(make_search_plan(str(path)), tmp_path / "runs" / "found", url)
        if is_claimed:
            study.ask("on another machine")
        else:
            study.study.ask()
    clock, observer = Clock(monkeypatch), Silent()
    found, _ = search(path, trials, observer=observer, storage_url=url)
    assert [trial["state"] for trial in found["trials"]] == ["complete"] * max(2, trials)
    assert clock.now_s - 1e6 > STALE_AFTER_S
    (said,) = observer.remarks
    assert "trial 1" in said


@pytest.mark.parametrize("skew_s", [-1e5, 1e5])
def test_a_trial_of_a_machine_that_lives_is_left_to_it_whatever_its_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew_s: float
) -> None:
    url, path = f"sqlite:///{tmp_path / 'study.db'}", write_search(tmp_path)
    search(path, 1, storage_url=url)
    study = SearchStudy(make_search_plan(str(path)), tmp_path / "runs" / "found", url)
    trial, real = study.ask("on another machine"), time.time
    observer = Silent()

    class Beating(Clock):
        def read(self) -> float:
            if self.now_s % 30 == 0:
                study.claim(trial, "on another machine")
            return super().read()

    with monkeypatch.context() as there:
        there.setattr(time, "time", lambda: real() + skew_s)
        Beating(there)
        found, _ = search(path, 1, observer=observer, storage_url=url)
    assert [trial["state"] for trial in found["trials"]] == ["complete", "running"]
    assert "trial 1" in observer.remarks[-1]


def test_a_trial_in_the_hands_of_another_worker_of_this_folder_is_named_at_the_end(tmp_path: Path) -> None:
    path = write_search(tmp_path)
    study = SearchStudy(make_search_plan(str(path)), tmp_path / "runs" / "found", None)
    lease = study.folder / "workers" / "alive"
    lease.mkdir(parents=True)
    observer = Silent()
    with hold_lease(lease):
        with study.turn():
            study.ask("alive")
        found, _ = search(path, 3, observer=observer)
    assert [trial["state"] for trial in found["trials"]] == ["running", "complete", "complete"]
    (said,) = observer.remarks
    assert "trial 0" in said
