"""What trials cost: by what their worker told the study at their end, before that by the records of their cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.records import CellRecord
from harness.tuning.scores import seconds

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

_SPENT = "spent"


@dataclass(frozen=True)
class Spent:
    """Of the cells of one trial: tokens generated in training, and seconds of training and evaluating."""

    generated_tokens: int = 0
    seconds: float = 0.0


def spent_on(trial: FrozenTrial, folder: Path) -> Spent:
    """So far; nothing for a trial that shares the cells of another. Of one that another machine has in hand, nothing
    is known before it ends. folder: of the search."""
    if trial.user_attrs.get("same_as") is not None:
        return Spent()
    cells = _cells(trial, folder)
    # A pruned trial can be trained to the end, of which its study, for which it has ended, is not told.
    may_go_on = trial.state.name == "PRUNED" and all(cell.path.exists() for cell in cells)
    if _SPENT in trial.user_attrs and not may_go_on:
        return Spent(**trial.user_attrs[_SPENT])
    return _recorded(cells)


def note_spent(trial: Trial, folder: Path) -> None:
    """In the study, for workers that do not see our folder. Call when the trial ends."""
    trial.set_user_attr(_SPENT, asdict(_recorded(_cells(trial, folder))))


def _cells(trial: FrozenTrial | Trial, folder: Path) -> list[CellRecord]:
    return [CellRecord.at(folder / "cells" / name) for name in trial.user_attrs.get("cells", [])]


def _recorded(cells: Sequence[CellRecord]) -> Spent:
    return Spent(sum(cell.generated_tokens for cell in cells), sum(map(seconds, cells)))
