"""registered.json: what a sweep asks, written before any of its cells ran, with a digest to publish.

Nobody here keeps a clock that others must believe. What can be shown is this: the digest covers the whole question, so
one that was published cannot be met by another; and each start of a cell names the registration that it found, so that
one which was made afterwards, or exchanged, is named by no cell.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.records.cell import CellRecord
from harness.records.files import DamagedRecordError, read_object, write_json
from harness.records.schema import SCHEMA, require_schema
from harness.records.sweep import SweepRecord

REGISTERED = "registered.json"
STARTED_WITH = "registered"
"""The field of a start that holds the digest of the registration it found; null without one."""

_STATED = ("question", "profile", "baseline", "metric", "margin_pp", "alpha", "new_problems", "seeds", "tasks")
_MOST_NAMED = 8


@dataclass(frozen=True)
class Registration:
    """A registered question.

    asked: its words, comparison and seeds. cells: arm -> seed -> hash. specs: of each arm at its first seed, with every
    knob. cells_before: cells of other versions of the question that had run by then. time: of the machine that
    registered it, which proves nothing. digest: of all but the time.
    """

    asked: dict[str, Any]
    cells: dict[str, dict[str, str]]
    specs: dict[str, dict[str, object]]
    cells_before: list[str]
    time: str
    digest: str

    @classmethod
    def of(cls, sweep: SweepRecord, specs: Mapping[str, dict[str, Any]]) -> Registration:
        """The question as sweep.json states it now. specs: of each arm at its first seed."""
        content: dict[str, Any] = {
            "asked": _asked(sweep),
            "cells": _hashes(sweep),
            "specs": dict(specs),
            "cells_before": [cell.path.name for cell in sweep.other_cells if cell.read_starts()],
        }
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return cls(**content, time=now, digest=_digest(content))

    @property
    def is_as_written(self) -> bool:
        """Whether the digest is that of the contents."""
        return self.digest == _digest({key: value for key, value in asdict(self).items() if key not in _NOT_DIGESTED})

    def write(self, folder: Path) -> None:
        write_json(folder / REGISTERED, {"schema": SCHEMA, **asdict(self)})

    def changes(self, sweep: SweepRecord) -> list[str]:
        """What the question is now and was not when it was registered: `margin_pp 1 -> 2`."""
        now = _asked(sweep)
        found = [
            f"{key} {_short(self.asked.get(key))} -> {_short(now.get(key))}"
            for key in self.asked | now
            if self.asked.get(key) != now.get(key)
        ]
        hashes = _hashes(sweep)
        found += [f"arm {arm} added" for arm in hashes if arm not in self.cells]
        found += [f"arm {arm} left out" for arm in self.cells if arm not in hashes]
        return found + list(dict.fromkeys(self._changed_settings(sweep, hashes)))

    def _changed_settings(self, sweep: SweepRecord, hashes: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
        """Knobs of arms whose cells have other hashes, or what else a hash covers. An arm that is tuned first has the
        hashes of what its search found, which no registration can know."""
        tuned = {*sweep.tuning.knobs} if sweep.tuning is not None else set()
        for arm, by_seed in hashes.items():
            then = self.cells.get(arm, {})
            if all(by_seed[seed] == then[seed] for seed in by_seed.keys() & then.keys()):
                continue
            now = next(cell for cell in sweep.cells if cell.arm == arm)
            has_spec = (now.evaluation_folder / "spec.json").exists()
            differences = dict(_differences(self.specs.get(arm, {}), now.spec)) if has_spec else {}
            if not differences:
                yield f"the data, model or code behind {arm}"
            yield from (f"{knob} {values}" for knob, values in differences.items() if knob not in tuned)


_NOT_DIGESTED = ("time", "digest")


def read_registration(folder: Path) -> Registration | None:
    """Return the registration in the folder of a sweep; None without one.

    Raises DamagedRecordError for a file that is none, and as `require_schema`.
    """
    path = folder / REGISTERED
    if not path.exists():
        return None
    document = read_object(path)
    require_schema(path, document)
    try:
        return Registration(**{key: value for key, value in document.items() if key != "schema"})
    except TypeError:
        raise DamagedRecordError(f"{path}: is damaged (it holds no registration). Restore it from a copy.") from None


def registration_found(sweep_folder: Path) -> dict[str, object]:
    """What the start of a cell says of it: its digest, None without one. A damaged registration is none."""
    try:
        registration = read_registration(sweep_folder)
    except DamagedRecordError:
        registration = None
    return {STARTED_WITH: None if registration is None else registration.digest}


@dataclass(frozen=True)
class RegistrationCheck:
    """What the records say of a sweep's registration.

    digest: None if there is none any more, though cells name one. altered: registered.json does not have its digest.
    changes: as `Registration.changes`. cells_before: as there. cells_without: cells that started without it.
    """

    digest: str | None
    time: str | None
    altered: bool
    changes: list[str]
    cells_before: list[str]
    cells_without: list[str]

    @property
    def holds(self) -> bool:
        """Whether the question stood before its first cell, and stands unchanged."""
        return self.digest is not None and not (self.altered or self.changes or self.cells_before or self.cells_without)

    @property
    def sentence(self) -> str:
        if self.digest is None:
            return f"The registration that {_some(self.cells_without)} started with is gone: {REGISTERED} is missing."
        if self.altered:
            return f"{REGISTERED} was altered: its contents do not have the digest {self.digest} that it names."
        faults = []
        if self.changes:
            faults.append(f"changed since: {_some(self.changes, ', ')}")
        if self.cells_without:
            faults.append(f"{_some(self.cells_without)} started without it")
        if self.cells_before:
            faults.append(f"cells of other versions of the question had run before ({_some(self.cells_before)})")
        when = f", but {'; '.join(faults)}" if faults else " before the first cell"
        return f"Registered{when}. Digest {self.digest}."


def check_registration(sweep: SweepRecord) -> RegistrationCheck | None:
    """None if the sweep was never registered. Raises DamagedRecordError."""
    named = {cell.path.name: [start.get("registered") for start in cell.read_starts()] for cell in sweep.cells}
    registration = read_registration(sweep.path)
    if registration is None:
        orphans = [name for name, digests in named.items() if any(digests)]
        return RegistrationCheck(None, None, False, [], [], orphans) if orphans else None
    return RegistrationCheck(
        digest=registration.digest,
        time=registration.time,
        altered=not registration.is_as_written,
        changes=registration.changes(sweep),
        cells_before=registration.cells_before,
        cells_without=[
            name for name, digests in named.items() if any(digest != registration.digest for digest in digests)
        ],
    )


def started_cells(cells: Iterable[CellRecord]) -> list[str]:
    """The names of those that ran, wholly or in part."""
    return [cell.path.name for cell in cells if cell.read_starts() or cell.state != "pending"]


def _asked(sweep: SweepRecord) -> dict[str, object]:
    asked = {key: getattr(sweep, key) for key in _STATED}
    asked["settings"] = [] if sweep.asked is None else list(sweep.asked.settings)
    if (design := sweep.design) is not None:
        # Which look it stops at is found by the rule, and no choice.
        asked |= {"looks": design.looks} | ({"seeds": design.seeds} if sweep.look.planned else {})
    if (screening := sweep.screening) is not None:
        asked |= {"screening.best": screening.best, "screening.seeds": screening.seeds}
    if (tuning := sweep.tuning) is not None:
        asked |= {"tune.trials": tuning.trials, "tune.seeds": tuning.seeds}
        asked |= {f"tune.{knob}": searched for knob, searched in tuning.ranges.items()}
    return asked


def _hashes(sweep: SweepRecord) -> dict[str, dict[str, str]]:
    """Seeds as text, as JSON has them; a hash with that of an evaluation which is not the cell's own."""
    hashes: dict[str, dict[str, str]] = {arm: {} for arm in sweep.arms}
    for cell in sweep.cell_entries:
        hashes[cell.arm][str(cell.seed)] = "/".join(filter(None, (cell.hash, cell.evaluation)))
    return hashes


def _digest(content: Mapping[str, object]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def _differences(then: object, now: object, place: str = "") -> Iterator[tuple[str, str]]:
    """The knobs that two specs do not share a value of, each with both values."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in [*then, *(key for key in now if key not in then)]:
            if place or key != "seed":
                yield from _differences(then.get(key), now.get(key), f"{place}.{key}" if place else key)
    elif then != now:
        yield place, f"{_short(then)} -> {_short(now)}"


def _short(value: object) -> str:
    if isinstance(value, list) and len(value) > 1 and value == list(range(value[0], value[0] + len(value))):
        return f"{value[0]}..{value[-1]}"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _some(names: list[str], separator: str = ", ") -> str:
    more = len(names) - _MOST_NAMED
    return separator.join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
