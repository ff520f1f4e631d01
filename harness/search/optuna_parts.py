"""Samplers, pruners and storages by name. Optuna is imported in these functions, when a search starts."""

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
"""Rows that several workers write to a database at the same moment can be read by all of them after this time."""
_OPENING_TRIES = 5
"""How often opening is tried again if another worker is creating the database's tables."""
_MADE_MEANWHILE = re.compile("already exists|UNIQUE|unique|duplicate")
"""Matches what databases report if a table exists already."""
_PLAIN = ("int", "float", "bool", "str")
"""The types of options that a file can contain."""
_LEAST = {"n_startup_trials": 0, "n_ei_candidates": 1}
"""Lower bounds of options that Optuna does not check, or checks only when it samples."""
_LEAVING = ("consider_prior", "prior_weight", "consider_magic_clip", "consider_endpoints", "warn_independent_sampling")
"""TPE's options that Optuna warns about at each use, because version 6 removes them."""
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
    """Return the sampler for the values of one trial. Raises RefusedError for unknown options.

    Its seed depends only on the search's seed and the trial's number, so an interrupted search samples the same values
    as an uninterrupted one. There are two exceptions after a kill during sampling: qmc skips a point, and gp sees what
    it had stored for the trial.
    """
    import optuna

    # The points of a quasi-random sequence belong together, so they share one seed.
    seed = sampler.seed if sampler.type == "qmc" else (1_000_003 * sampler.seed + trial) % 2**31
    kind: Callable[..., optuna.samplers.BaseSampler] = getattr(optuna.samplers, _SAMPLERS[sampler.type])
    ours: dict[str, object] = {"seed": seed}
    # Conditional knobs are sampled independently on purpose, so no warning is needed each time.
    if sampler.type in ("gp", "qmc"):
        ours["warn_independent_sampling"] = False
    if sampler.type == "qmc":
        # Conditional knobs are not part of the sequence. As in other samplers, they get a seed for each trial.
        alone = optuna.samplers.RandomSampler(seed=(1_000_003 * sampler.seed + trial) % 2**31)
        ours["independent_sampler"] = alone
    return _made(f"search.sampler ({sampler.type})", kind, sampler.options, ours)


def make_pruner(pruner: Pruner) -> optuna.pruners.BasePruner:
    """Return the pruner. Raises RefusedError for unknown options."""
    import optuna

    kind: Callable[..., optuna.pruners.BasePruner] = getattr(optuna.pruners, _PRUNERS[pruner.type])
    return _made(f"search.pruner ({pruner.type})", kind, pruner.options, {})


def _made(what: str, kind: Callable[..., Made], options: Mapping[str, object], ours: Mapping[str, object]) -> Made:
    """Return an object of this class, created with the user's options and bench's own.

    Raises RefusedError for options that the class does not accept.
    """
    # An option is known if its annotation in Optuna's signature names a type that a file can contain.
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
    """Return the types that an option accepts and a file can contain. annotation: a type, or its text."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation).strip("'")
    return [name for name in _PLAIN if name in text.split(" | ")]


def open_storage(url: str | None, folder: Path) -> optuna.storages.BaseStorage:
    """Open a journal in the search's folder, or the database of --storage.

    No other process may open or write it at the same time. Raises RefusedError if it cannot be opened.
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
    """Turn failures of the storage during a search into a BenchError with the cause."""
    from optuna.exceptions import StorageInternalError

    try:
        yield
    except StorageInternalError as error:
        raise BenchError("search.storage_lost", url=without_password(url or JOURNAL), cause=_cause(error)) from None


def _cause(error: BaseException) -> str:
    """Return the driver's message, without what Optuna and SQLAlchemy add."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).splitlines()[0]


def _open_database(url: str) -> optuna.storages.RDBStorage:
    """Open a database. Its tables are created if it is new.

    If several workers create them at once, all but one fail because a table exists already. They succeed a moment
    later.
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

    A kill or a full disk can leave an incomplete line, to which the next line would be appended.
    """
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as handle:
            handle.truncate(whole)


class _FileLock:
    """The lock of a journal. Unlike Optuna's own locks, which are files, it is released when its process dies."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(f".{path.name}.lock")
        self._handle: IO[str] | None = None

    def acquire(self) -> bool:
        handle = self._path.open("a", encoding="utf-8")
        fcntl.flock(handle, fcntl.LOCK_EX)
        self._handle = handle
        return True

    def release(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None


@contextmanager
def without_experimental_warnings() -> Iterator[None]:
    """Suppress Optuna's warnings about experimental parts, which the user has chosen by name."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield
