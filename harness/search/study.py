"""The study of a search: its state in Optuna, and which worker trains which trial.

Everything that workers must know about each other is in the storage. A trial's attributes contain the sampled values
(`drawn`), a hash of the setting (`hash`), the worker (`owner`), and the reason for a failure (`reason`). The records of
its cells remain authoritative on what was measured. Clocks of different machines are not compared. As in
`harness.records.lease`, an owner that is known only by its heartbeats is dead once they have stopped for
`STALE_AFTER_S` by the reader's own clock.

`earlier_document` reads study.json, from which the search's page is made. The file is rewritten after each trial.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.config.search import KnobRange, direction
from harness.errors import RefusedError
from harness.plan.search_plan import SearchPlan, Values
from harness.records.files import DamagedRecordError, read_json
from harness.records.lease import STALE_AFTER_S, is_leased, look_at_lease
from harness.records.study import STUDY
from harness.search.optuna_parts import (
    JOURNAL,
    SETTLED_AFTER_S,
    make_pruner,
    make_sampler,
    open_storage,
    without_experimental_warnings,
)

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, Trial

QUESTION = "bench.question"
_DRAWN = "drawn"
_LOCK = ".study.lock"
WORKERS = "workers"


@dataclass(frozen=True)
class _Sighting:
    """The owner that a trial has named since a certain time, by the reader's clock."""

    owner: dict[str, object] | None
    since_s: float
    has_changed: bool
    """True if the attribute was different before, which shows that the owner was alive."""


class SearchStudy:
    """The study of a plan, in a journal in `folder` or in the database at `storage_url`.

    Raises RefusedError if the storage cannot be opened, or if its study of this name belongs to another search or has
    other directions.
    """

    def __init__(self, plan: SearchPlan, folder: Path, storage_url: str | None) -> None:
        import optuna

        self.plan, self.folder, self.storage_url = plan, folder, storage_url
        self._sightings: dict[int, _Sighting] = {}
        self._beats = 0
        # The sampler is created only to refuse unknown options before anything is written.
        make_sampler(plan.search.sampler, 0)
        pruner = make_pruner(plan.search.pruner)
        folder.mkdir(parents=True, exist_ok=True)
        # Other workers may use the folder too, and the study must be created only once.
        with self.turn():
            known_id = earlier_document(folder / STUDY).get("study_id")
            if storage_url is None and known_id is not None and not (folder / JOURNAL).exists():
                raise RefusedError("search.journal_missing", folder=folder, journal=JOURNAL, study=STUDY)
            storage = open_storage(storage_url, folder)
            if known_id is not None and plan.sweep.name not in optuna.get_all_study_names(storage):
                raise _in_another_storage(folder)
            with without_experimental_warnings():
                self.study = optuna.create_study(
                    storage=storage,
                    study_name=plan.sweep.name,
                    directions=[direction(objective) for objective in plan.search.objectives],
                    load_if_exists=True,
                    pruner=pruner,
                )
            # The study is new, or its creator was killed before it stored the question.
            if QUESTION not in self.study.user_attrs and not self.study.get_trials():
                _require_directions(self.study, plan, storage_url or str(folder))
                self.study.set_user_attr(QUESTION, plan.question() | {"id": uuid.uuid4().hex})
                # If several workers created the study at once, the last one determined its id.
                if storage_url is not None:
                    time.sleep(SETTLED_AFTER_S)
            _require_same_question(self.study, plan, storage_url or str(folder))
            if known_id not in (None, self.id):
                raise _in_another_storage(folder)

    @property
    def id(self) -> str:
        """An id that distinguishes the study from one with the same name in another storage."""
        return str(self.study.user_attrs[QUESTION]["id"])

    @contextmanager
    def turn(self) -> Iterator[None]:
        """During the block, be the only worker of this folder that counts trials and asks for the next trial."""
        with (self.folder / _LOCK).open("a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def trials(self) -> list[FrozenTrial]:
        """Return all trials that were started, ordered by number."""
        from optuna.trial import TrialState

        return [trial for trial in self.study.get_trials() if trial.state != TrialState.WAITING]

    def ask(self, owner: str) -> Trial:
        """Return the next trial. Its values are not sampled yet. Call this in a `turn`."""
        trial = self.study.ask()
        self.claim(trial, owner)
        return trial

    def take_over_dead(self, owner: str, number: int | None = None) -> Trial | None:
        """Take over a trial (the one with this number, if given) that is marked as running but whose worker is dead.

        Returns None if there is none. Call this in a `turn`.
        """
        import optuna

        for frozen in self._running():
            if number in (None, frozen.number) and self._look(frozen) == "free":
                trial = optuna.trial.Trial(self.study, frozen._trial_id)
                self.claim(trial, owner)
                if self._is_ours(trial, owner):
                    return trial
        return None

    def _is_ours(self, trial: Trial, owner: str) -> bool:
        """Return whether this worker's claim on a trial is valid.

        If several workers claim a trial at once, the last one gets it. If the storage is in the search's own folder, a
        `turn` already excludes the others.
        """
        if self.storage_url is None:
            return True
        time.sleep(SETTLED_AFTER_S)
        return any(t.number == trial.number and t.user_attrs["owner"]["worker"] == owner for t in self._running())

    def is_claimed_by(self, owner: str, number: int) -> bool:
        """Return whether this worker was the last to claim a trial. Call this in a `turn`."""
        return bool(self.study.get_trials(deepcopy=False)[number].user_attrs["owner"]["worker"] == owner)

    def running(self) -> list[int]:
        """Return the numbers of the running trials, except those whose worker is known to be dead."""
        with self.turn():
            return [trial.number for trial in self._running() if self._look(trial) != "free"]

    def unknown(self) -> list[int]:
        """Return the numbers of the running trials for which only time can show whether the worker is alive."""
        with self.turn():
            return [trial.number for trial in self._running() if self._look(trial) == "unknown"]

    def _running(self) -> list[FrozenTrial]:
        from optuna.trial import TrialState

        return [trial for trial in self.trials() if trial.state == TrialState.RUNNING]

    def is_any_abandoned(self) -> bool:
        with self.turn():
            return any(self._look(trial) == "free" for trial in self._running())

    def forget_dead_workers(self) -> None:
        """Remove the leases of dead workers, except those that left a trial to be continued."""
        with self.turn():
            left = {trial.user_attrs["owner"]["worker"] for trial in self._running() if "owner" in trial.user_attrs}
            for worker in (self.folder / WORKERS).iterdir():
                if worker.name not in left and not is_leased(worker):
                    shutil.rmtree(worker)

    def claim(self, trial: Trial, owner: str) -> None:
        """Record that this worker owns a trial and is alive now."""
        # The counter makes each claim differ from the previous one. Readers watch for this change.
        self._beats += 1
        trial.set_user_attr("owner", {"worker": owner, "host": socket.gethostname(), "beats": self._beats})

    def _look(self, trial: FrozenTrial) -> Literal["free", "held", "unknown"]:
        """Return whether a worker is training a trial, in the words of `harness.records.lease.Leases.look`.

        A worker that shares this folder is recognised by its lease, whose lock ends with the worker. A worker with
        another folder is recognised by its heartbeats in the storage. A trial without an owner has just been requested
        by a worker with another folder, because those of this folder ask and claim in one `turn`. Call this in a
        `turn`.
        """
        owner = trial.user_attrs.get("owner")
        if owner is None and self.storage_url is None:
            return "free"
        if owner is not None and (lease := self.folder / WORKERS / str(owner["worker"])).exists():
            return look_at_lease(lease)
        now_s, seen = time.monotonic(), self._sightings.get(trial.number)
        if seen is None or seen.owner != owner:
            seen = self._sightings[trial.number] = _Sighting(owner, now_s, has_changed=seen is not None)
        if now_s - seen.since_s >= STALE_AFTER_S:
            return "free"
        return "held" if seen.has_changed else "unknown"

    def is_default(self, trial: Trial | FrozenTrial) -> bool:
        """Return whether a trial is the default. The first trial is, if the default lies in the ranges."""
        return trial.number == 0 and self.plan.default_values() is not None

    def draw(self, trial: Trial) -> Values:
        """Return the values of a trial. They are sampled if it has none yet.

        All values are sampled before any is stored, and stored at once. Otherwise, after a kill in between, the rest
        would be sampled with the random numbers of the first.
        """
        from optuna.samplers import PartialFixedSampler, RandomSampler

        if _DRAWN not in trial.user_attrs:
            values = self.plan.default_values() if self.is_default(trial) else self._sample(trial)
            trial.set_user_attr(_DRAWN, values)
        drawn: dict[str, object] = trial.user_attrs[_DRAWN]
        with without_experimental_warnings():
            # Optuna stores a value only through `suggest`, so it is made to suggest the sampled value.
            self.study.sampler = PartialFixedSampler(drawn, RandomSampler())
            return {knob: _suggest(trial, knob, _distribution(self.plan.search.knobs[knob])) for knob in drawn}

    def _sample(self, trial: Trial) -> Values:
        """Return the values that Optuna's `suggest` would sample, without storing them."""
        search, values = self.plan.search, Values()
        sampler = make_sampler(search.sampler, trial.number)
        frozen = self.study.get_trials(deepcopy=False)[trial.number]
        with without_experimental_warnings():
            space = sampler.infer_relative_search_space(self.study, frozen)
            together = sampler.sample_relative(self.study, frozen, space)
            for knob in search.ordered():
                if search.is_drawn(knob, values):
                    distribution = _distribution(search.knobs[knob])
                    if knob in together:
                        value = together[knob]
                    else:
                        value = sampler.sample_independent(self.study, frozen, knob, distribution)
                    # The round trip gives the value the type in which Optuna returns it.
                    values[knob] = distribution.to_external_repr(distribution.to_internal_repr(value))
        return values

    def first_of(self, trial: Trial, setting: str) -> FrozenTrial | None:
        """Return another trial that trains the same setting, or None if this trial must train it.

        Call this in the `turn` in which the trial's hash is set.
        """
        others = (t for t in self.trials() if t.number != trial.number and t.user_attrs.get("hash") == setting)
        return next((t for t in others if t.user_attrs.get("same_as") is None), None)


def _distribution(searched: KnobRange) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if searched.kind == "categorical":
        return CategoricalDistribution(searched.choices)
    low, high = searched.bounds
    if searched.kind == "int":
        return IntDistribution(int(low), int(high), step=int(searched.step or 1))
    return FloatDistribution(low, high, log=searched.kind == "log", step=searched.step)


def _suggest(trial: Trial, knob: str, distribution: BaseDistribution) -> object:
    """Let Optuna store a value of this distribution for a trial, and return it."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(knob, distribution.choices)
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(knob, distribution.low, distribution.high, step=distribution.step)
    assert isinstance(distribution, FloatDistribution)
    return trial.suggest_float(knob, distribution.low, distribution.high, step=distribution.step, log=distribution.log)


def _in_another_storage(folder: Path) -> RefusedError:
    """Return the error for a folder whose search is stored elsewhere."""
    return RefusedError("search.another_storage", folder=folder, study=STUDY)


def _require_directions(study: optuna.Study, plan: SearchPlan, where: str) -> None:
    """Raise RefusedError if someone else has created an empty study with other directions."""
    theirs = [found.name.lower() for found in study.directions]
    ours = [direction(objective) for objective in plan.search.objectives]
    if theirs != ours:
        raise RefusedError(
            "search.directions_differ",
            where=where,
            study=study.study_name,
            theirs=" and ".join(theirs),
            ours=" and ".join(ours),
            objectives=" and ".join(plan.objectives),
        )


def _require_same_question(study: optuna.Study, plan: SearchPlan, where: str) -> None:
    """Raise RefusedError if the study belongs to another search or another program."""
    theirs, ours = study.user_attrs.get(QUESTION), json.loads(json.dumps(plan.question()))
    if theirs is None:
        raise RefusedError("search.study_of_another_tool", where=where, study=study.study_name)
    differing = [name for name in ours if ours[name] != theirs.get(name)]
    if differing:
        what = {"base": "the setting that all trials share (profile, base, --set)", "knobs": "the searched ranges"}
        what |= {"sampler": "the sampler with its seed and options", "pruner": "the pruner with its options"}
        raise RefusedError(
            "search.study_of_another_search",
            where=where,
            study=study.study_name,
            differing=", ".join(what.get(name, name) for name in differing),
        )


def earlier_document(path: Path) -> dict[str, object]:
    """Return the content of study.json, or {} if it is missing or damaged, because it will be rewritten."""
    try:
        document = read_json(path) if path.exists() else {}
    except DamagedRecordError:
        return {}
    return document if isinstance(document, dict) else {}
