"""The study of a search: what Optuna keeps of it, and whose trial is whose.

Whatever workers must know of each other is in the storage: a trial's attributes say which setting it is (`hash`), who
works on it (`owner`), and why it failed (`reason`). The records of its cells stay the truth of what was measured.
"""

from __future__ import annotations

import fcntl
import json
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import RefusedError
from harness.plan.search_plan import SearchPlan, Values
from harness.records.lease import STALE_AFTER_S, is_leased
from harness.spec.hashing import semantic_hash
from harness.spec.search import KnobRange, direction
from harness.tuning.document import STUDY, earlier_document
from harness.tuning.optuna_parts import make_pruner, make_sampler, open_storage, without_experimental_warnings

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial, Trial

QUESTION = "bench.question"
_LOCK = ".study.lock"
WORKERS = "workers"


class SearchStudy:
    """The study of a plan, in a journal in `folder` or in the database at `storage_url`.

    Raises RefusedError if the storage cannot be opened, or holds a study of that name that asks something else.
    """

    def __init__(self, plan: SearchPlan, folder: Path, storage_url: str | None) -> None:
        import optuna

        self.plan, self.folder = plan, folder
        make_sampler(plan.search.sampler, 0)  # refuses unknown options before anything is written
        pruner = make_pruner(plan.search.pruner)
        folder.mkdir(parents=True, exist_ok=True)
        with self.turn():
            storage = open_storage(storage_url, folder)
            with without_experimental_warnings():
                self.study = optuna.create_study(
                    storage=storage,
                    study_name=plan.sweep.name,
                    directions=[direction(objective) for objective in plan.search.objectives],
                    load_if_exists=True,
                    pruner=pruner,
                )
            if QUESTION not in self.study.user_attrs and not self.study.get_trials():  # new, or left as it was made
                if (default := plan.default_values()) is not None:
                    self.study.enqueue_trial(default, user_attrs={"is_default": True})
                self.study.set_user_attr(QUESTION, _question(plan) | {"id": uuid.uuid4().hex})
            _require_same_question(self.study, plan, storage_url or str(folder))
            _require_same_study(self.id, folder)

    @property
    def id(self) -> str:
        """Tells it from a study of the same name in another storage."""
        return str(self.study.user_attrs[QUESTION]["id"])

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Be the only worker of this folder that counts trials and asks for the next."""
        with (self.folder / _LOCK).open("a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def trials(self) -> list[FrozenTrial]:
        """All that were started, by number."""
        from optuna.trial import TrialState

        return [trial for trial in self.study.get_trials() if trial.state != TrialState.WAITING]

    def ask(self, owner: str) -> Trial:
        """The next trial, its values not drawn yet. Call in a `turn`."""
        self.study.sampler = make_sampler(self.plan.search.sampler, len(self.trials()))
        with without_experimental_warnings():
            trial = self.study.ask()
        self.claim(trial, owner)
        return trial

    def abandoned(self, number: int | None = None) -> Trial | None:
        """A trial (of this number) that runs on paper, but whose worker is dead. To be claimed in the same `turn`."""
        import optuna
        from optuna.trial import TrialState

        for frozen in self.trials():
            if frozen.state == TrialState.RUNNING and number in (None, frozen.number) and not self._is_alive(frozen):
                self.study.sampler = make_sampler(self.plan.search.sampler, frozen.number)
                with without_experimental_warnings():
                    return optuna.trial.Trial(self.study, frozen._trial_id)
        return None

    def running(self) -> list[int]:
        """Numbers of the trials that a living worker has in hand."""
        from optuna.trial import TrialState

        return [t.number for t in self.trials() if t.state == TrialState.RUNNING and self._is_alive(t)]

    def claim(self, trial: Trial, owner: str) -> None:
        """Say who works on a trial, and that it was alive just now."""
        trial.set_user_attr("owner", {"worker": owner, "host": socket.gethostname(), "heartbeat_s": time.time()})

    def _is_alive(self, trial: FrozenTrial) -> bool:
        """A worker that shares our folder is known by its lease there, whose lock dies with it; one with a folder of
        its own by its heartbeat in the storage. A trial without an owner was asked for just now, by one of those."""
        owner = trial.user_attrs.get("owner")
        if owner is None:
            started_s = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
            return time.time() - started_s < STALE_AFTER_S
        lease = self.folder / WORKERS / str(owner["worker"])
        if lease.exists():
            return is_leased(lease)
        return bool(time.time() - owner["heartbeat_s"] < STALE_AFTER_S)

    def draw(self, trial: Trial) -> Values:
        """The values of a trial; those that it has already stay as they are."""
        search = self.plan.search
        values: Values = {}
        with without_experimental_warnings():
            for knob in search.ordered():
                if search.is_drawn(knob, values):
                    values[knob] = _suggest(trial, knob, search.knobs[knob])
        return values

    def first_of(self, trial: Trial, setting: str) -> FrozenTrial | None:
        """The other trial that trains the same setting; None if this one is to. Call in the `turn` in which the trial's
        hash is set."""
        others = (t for t in self.trials() if t.number != trial.number and t.user_attrs.get("hash") == setting)
        return next((t for t in others if t.user_attrs.get("same_as") is None), None)


def _suggest(trial: Trial, knob: str, searched: KnobRange) -> Any:
    if searched.kind == "categorical":
        return trial.suggest_categorical(knob, searched.choices)
    low, high = searched.bounds
    if searched.kind == "int":
        return trial.suggest_int(knob, int(low), int(high), step=int(searched.step or 1))
    if searched.kind == "log":
        return trial.suggest_float(knob, low, high, log=True)
    return trial.suggest_float(knob, low, high, step=searched.step)


def _question(plan: SearchPlan) -> dict[str, Any]:
    """What must not change while a study goes on: what trials are compared by, and where they are drawn from."""
    return {
        "knobs": {knob: searched.model_dump(mode="json") for knob, searched in plan.search.knobs.items()},
        "objectives": plan.objectives,
        "seeds": plan.seeds,
        "base": semantic_hash(plan.spec({}, plan.seeds[0])),
    }


def _require_same_study(study_id: str, folder: Path) -> None:
    known = earlier_document(folder / STUDY).get("study_id")
    if known not in (None, study_id):
        raise RefusedError(
            f"{folder}: its records are of this search in another storage. Go on with the --storage that they were "
            "made with, or choose another --home for a search of its own."
        )


def _require_same_question(study: optuna.Study, plan: SearchPlan, where: str) -> None:
    theirs, ours = study.user_attrs.get(QUESTION), json.loads(json.dumps(_question(plan)))
    if theirs is None:
        raise RefusedError(
            f"{where}: the study {study.study_name!r} there was not made by `bench tune`. Choose another storage, or "
            "another `name:` for the sweep."
        )
    differing = [name for name in ours if ours[name] != theirs.get(name)]
    if differing:
        what = {"base": "the setting that all trials share (profile, base, --set)", "knobs": "the searched ranges"}
        raise RefusedError(
            f"{where}: the study {study.study_name!r} there is of another search: it differs in "
            f"{', '.join(what.get(name, name) for name in differing)}. Trials of both could not be compared: give the "
            "sweep another `name:`, or choose another storage or --home."
        )
