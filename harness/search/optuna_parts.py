"""Samplers, pruners and storages by name. Optuna is imported here, when a search starts."""

from __future__ import annotations

import fcntl
import inspect
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from harness.config.search import Pruner, SearchSampler
from harness.errors import BenchError, RefusedError, few, nearest
from harness.secrets import register_address, without_password

if TYPE_CHECKING:
    import optuna

Made = TypeVar("Made")
JOURNAL = "study.journal"
SETTLED_AFTER_S = 1.0
"""What several workers wrote into a database at one moment can be read by all of them after this time."""
_OPENING_TRIES = 5
"""How often a database is opened whose tables another worker is making."""
_MADE_MEANWHILE = re.compile("already exists|UNIQUE|unique|duplicate")
"""What databases say of a table that exists already."""
_PLAIN = ("int", "float", "bool", "str")
"""Types of options that a file can hold."""
_LEAST = {"n_startup_trials": 0, "n_ei_candidates": 1}
"""Lower bounds of the options that Optuna does not check, or checks only in mid-search, when it samples."""
_LEAVING = ("consider_prior", "prior_weight", "consider_magic_clip", "consider_endpoints", "warn_independent_sampling")
"""TPE's options that Optuna warns of at each use: its version 6 removes them."""
_SAMPLERS = {
    "tpe": "TPESampler",
    "gp": "GPSampler",
    "random": "RandomSampler",
    "qmc": "QMCSampler",
    "nsga2": "NSGAIISampler",
}
_PRUNERS = {
    "none": "NopPruner",
    "median": "MedianPruner",
    "asha": "SuccessiveHalvingPruner",
    "wilcoxon": "WilcoxonPruner",
}


def make_sampler(sampler: SearchSampler, trial: int) -> optuna.samplers.BaseSampler:
    """Return the sampler for one trial's values. Raises RefusedError for unknown options.

    Its seed is made of that of the search and the trial's number, so an interrupted search samples what an unbroken one
    would have. Only a kill during the sampling itself moves qmc on by a point, and gp by what it had noted of the
    trial.
    """
    import optuna

    # The points of a quasi-random sequence belong together, so they have one seed.
    seed = sampler.seed if sampler.type == "qmc" else (1_000_003 * sampler.seed + trial) % 2**31
    kind: Callable[..., optuna.samplers.BaseSampler] = getattr(optuna.samplers, _SAMPLERS[sampler.type])
    ours: dict[str, object] = {"seed": seed}
    # Conditional knobs are sampled independently by design, which needs no warning each time.
    if sampler.type in ("gp", "qmc"):
        ours["warn_independent_sampling"] = False
    if sampler.type == "qmc":
        # Conditional knobs are not part of the sequence; like those of other samplers, they get a seed for each trial.
        alone = optuna.samplers.RandomSampler(seed=(1_000_003 * sampler.seed + trial) % 2**31)
        ours["independent_sampler"] = alone
    return _made(f"search.sampler ({sampler.type})", kind, sampler.options, ours)


def make_pruner(pruner: Pruner) -> optuna.pruners.BasePruner:
    """Return the pruner. Raises RefusedError for unknown options."""
    import optuna

    kind: Callable[..., optuna.pruners.BasePruner] = getattr(optuna.pruners, _PRUNERS[pruner.type])
    return _made(f"search.pruner ({pruner.type})", kind, pruner.options, {})


def _made(what: str, kind: Callable[..., Made], options: Mapping[str, object], ours: Mapping[str, object]) -> Made:
    """Return an object of this class with the user's options and ours.

    Raises RefusedError for options that do not fit.
    """
    # An option is known if its annotation in Optuna's own signature names a type that a file can hold.
    known = {
        name: types
        for name, parameter in inspect.signature(kind).parameters.items()
        if name not in ours and name not in _LEAVING and (types := _plain_types(parameter.annotation))
    }
    for name, value in options.items():
        if name in _LEAVING:
            raise RefusedError("search.option_deprecated", what=what, option=name)
        if name not in known:
            raise RefusedError(
                "search.unknown_option", what=what, option=name, nearest=nearest(name, known), known=few(known)
            )
        given = type(value).__name__
        if given not in known[name] and not (given == "int" and "float" in known[name]):
            raise RefusedError(
                "search.option_type", what=what, option=name, value=value, known=" or ".join(known[name])
            )
        if name in _LEAST and isinstance(value, int | float) and value < _LEAST[name]:
            raise RefusedError("search.option_too_small", what=what, option=name, value=value, least=_LEAST[name])
    with without_experimental_warnings():
        try:
            return kind(**options, **ours)
        except (TypeError, ValueError) as error:
            raise RefusedError("search.options_refused", what=what, options=dict(options), error=error) from None


def _plain_types(annotation: object) -> list[str]:
    """Return which of the types that a file can hold an option takes, from its annotation: a type, or its text."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation).strip("'")
    return [name for name in _PLAIN if name in text.split(" | ")]


def open_storage(url: str | None, folder: Path) -> optuna.storages.BaseStorage:
    """Open a journal in the search's folder, or the database of --storage.

    Nobody else may open or write it meanwhile. Raises RefusedError if it cannot be opened.
    """
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    register_address("--storage", url or "")
    if url is None:
        path = folder / JOURNAL
        _cut_torn_line(path)
        try:
            lock: Any = _FileLock(path)  # Optuna's base class for it is not public
            return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))
        except (ValueError, KeyError) as error:
            raise RefusedError("search.not_a_journal", path=path, error=error) from None
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return _open_database(url)
    except (SQLAlchemyError, ImportError, ValueError, RuntimeError) as error:
        raise RefusedError("search.storage_cannot_be_opened", url=without_password(url), cause=_cause(error)) from None


@contextmanager
def reporting_storage_errors(url: str | None) -> Iterator[None]:
    """Turn failures of the storage in mid-search into a BenchError with the cause."""
    from optuna.exceptions import StorageInternalError

    try:
        yield
    except StorageInternalError as error:
        raise BenchError("search.storage_lost", url=without_password(url or JOURNAL), cause=_cause(error)) from None


def _cause(error: BaseException) -> str:
    """Return what the driver said, without what Optuna and SQLAlchemy add."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).splitlines()[0]


def _open_database(url: str) -> optuna.storages.RDBStorage:
    """Open a database; its tables are made if it is new.

    When several workers make them at once, all but one fail because a table exists already, and succeed a moment later.
    """
    import optuna
    from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

    for _ in range(_OPENING_TRIES):
        try:
            with without_experimental_warnings():
                return optuna.storages.RDBStorage(url)
        except (IntegrityError, OperationalError, ProgrammingError) as error:
            if not _MADE_MEANWHILE.search(str(error)):
                raise
            time.sleep(SETTLED_AFTER_S)
    return optuna.storages.RDBStorage(url)


def _cut_torn_line(path: Path) -> None:
    """Remove a torn last line from the journal.

    A kill or a full disk can leave the beginning of a line at the end, to which the next one would be appended.
    """
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as handle:
            handle.truncate(whole)


class _FileLock:
    """A journal's lock. Unlike Optuna's own locks, which are files, it ends with its process, however that dies."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f".{path.name}.lock")
        self._handle: IO[str] | None = None

    def acquire(self) -> bool:
        """Wait for the lock and take it."""
        handle = self._path.open("a", encoding="utf-8")
        fcntl.flock(handle, fcntl.LOCK_EX)
        self._handle = handle
        return True

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None


@contextmanager
def without_experimental_warnings() -> Iterator[None]:
    """Silence Optuna's warnings about experimental parts, which the user chose by name."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield
