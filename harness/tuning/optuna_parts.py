"""Samplers, pruners and storages by name. Optuna is imported here, when a search starts."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import RefusedError, nearest
from harness.spec.search import Pruner, Sampler

if TYPE_CHECKING:
    import optuna

JOURNAL = "study.journal"
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


def make_sampler(sampler: Sampler, trial: int) -> optuna.samplers.BaseSampler:
    """The sampler for one trial's values. Its seed is that of the search and the trial's number, so that a search that
    was interrupted draws what an unbroken one would have drawn. Raises RefusedError for options that it does not have.
    """
    import optuna

    # The points of a quasi-random sequence belong together: one seed for all.
    seed = sampler.seed if sampler.type == "qmc" else (1_000_003 * sampler.seed + trial) % 2**31
    kind = getattr(optuna.samplers, _SAMPLERS[sampler.type])
    made: optuna.samplers.BaseSampler = _made(f"search.sampler ({sampler.type})", kind, sampler.options, {"seed": seed})
    return made


def make_pruner(pruner: Pruner) -> optuna.pruners.BasePruner:
    """Raises RefusedError for options that it does not have."""
    import optuna

    kind = getattr(optuna.pruners, _PRUNERS[pruner.type])
    made: optuna.pruners.BasePruner = _made(f"search.pruner ({pruner.type})", kind, pruner.options, {})
    return made


def _made(what: str, kind: Any, options: Mapping[str, Any], ours: Mapping[str, Any]) -> Any:
    known = [name for name in inspect.signature(kind).parameters if name not in ours]
    for name in options:
        if name not in known:
            raise RefusedError(
                f"{what} has no option {name!r}{nearest(name, known)} Its options: {', '.join(known) or 'none'}."
            )
    with without_experimental_warnings():
        try:
            return kind(**options, **ours)
        except (TypeError, ValueError) as error:
            raise RefusedError(f"{what} refuses its options {dict(options)}: {error}") from None


def open_storage(url: str | None, folder: Path) -> optuna.storages.BaseStorage:
    """A journal in the search's folder, or the database of --storage. Raises RefusedError if it cannot be opened."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if url is None:
        path = folder / JOURNAL
        try:
            return JournalStorage(JournalFileBackend(str(path)))
        except (ValueError, KeyError) as error:
            raise RefusedError(f"{path}: is no journal of a study ({error}). Restore it, or move it away.") from None
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with without_experimental_warnings():
            return optuna.storages.RDBStorage(url, skip_compatibility_check=False)
    except (SQLAlchemyError, ImportError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise RefusedError(
            f"--storage {url!r} cannot be opened ({reason}). Give the URL of a database that is there and whose "
            "driver is installed, e.g. sqlite:///study.db or postgresql://user@host/name."
        ) from None


@contextmanager
def without_experimental_warnings() -> Iterator[None]:
    """What Optuna calls experimental was chosen by name."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield
