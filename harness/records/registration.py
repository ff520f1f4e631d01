"""registered.json: a sweep's question, written before any of its cells ran, with a digest to publish.

The proof needs no trusted clock. The digest covers the whole question, so a published digest fits no other question.
Each start of a cell records the digest of the registration that existed then. This shows whether a registration was
made later or swapped.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness.errors import few
from harness.records.cell import CellRecord
from harness.records.files import DamagedRecordError, read_object, write_json
from harness.records.schema import SCHEMA, require_schema
from harness.records.sweep import SweepRecord

REGISTERED = "registered.json"
STARTED_WITH = "registered"
"""The field of a start that contains the digest of the registration that existed then, or null."""

_STATED = ("question", "profile", "baseline", "metric", "margin_pp", "alpha", "new_problems", "seeds", "tasks")
"""The fields of sweep.json that state the question."""
_MOST_NAMED = 8


@dataclass(frozen=True)
class Registration:
    asked: dict[str, object]
    """The question's text, comparison and seeds."""
    cells: dict[str, dict[str, str]]
    """Maps arm and then seed to the hash of the cell."""
    specs: dict[str, dict[str, object]]
    """Maps each arm to all its settings at its first seed."""
    cells_before: list[str]
    """Cells of other versions of the question that had run before the registration."""
    time: str
    """When the question was registered, by the clock of that machine. It proves nothing."""
    digest: str
    """The blake2b digest of all fields except the time and the digest itself."""

    @classmethod
    def of(cls, sweep: SweepRecord, specs: Mapping[str, dict[str, object]]) -> Registration:
        """Return the registration of the question that sweep.json states now.

        specs: maps each arm to its settings at its first seed.
        """
        before = [cell.path.name for cell in sweep.other_cells if cell.read_starts()]
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        unsigned = cls(_asked(sweep), _hashes(sweep), dict(specs), before, now, digest="")
        return replace(unsigned, digest=unsigned._digest_of_contents)

    @property
    def is_as_written(self) -> bool:
        return self.digest == self._digest_of_contents

    @property
    def _digest_of_contents(self) -> str:
        return _digest({key: value for key, value in asdict(self).items() if key not in _NOT_DIGESTED})

    def write(self, folder: Path) -> None:
        write_json(folder / REGISTERED, {"schema": SCHEMA, **asdict(self)})

    def changes(self, sweep: SweepRecord) -> list[str]:
        """Describe what has changed in the question since its registration, e.g. `margin_pp 1 -> 2`."""
        now = _asked(sweep)
        found = [
            f"{key} {_short(self.asked.get(key))} -> {_short(now.get(key))}"
            for key in self.asked | now
            if self.asked.get(key) != now.get(key)
        ]
        hashes = _hashes(sweep)
        # Arms are compared by name here. If an arm is in both but its hashes differ, `_changed_settings` says why.
        found += [f"arm {arm} added" for arm in hashes if arm not in self.cells]
        found += [f"arm {arm} left out" for arm in self.cells if arm not in hashes]
        return found + list(dict.fromkeys(self._changed_settings(sweep, hashes)))

    def _changed_settings(self, sweep: SweepRecord, hashes: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
        """Yield the knobs that differ in each arm whose cell hashes have changed, or a note that other content changed.

        Knobs that are tuned first are left out: their values come from the search, so they are unknown at registration.
        """
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
    """Return the registration in a sweep's folder, or None if there is none. Raises DamagedRecordError."""
    path = folder / REGISTERED
    if not path.exists():
        return None
    document = read_object(path)
    require_schema(path, document)
    try:
        return Registration(**{key: value for key, value in document.items() if key != "schema"})
    except TypeError:
        raise DamagedRecordError("records.no_registration", path=path) from None


def registration_found(sweep_folder: Path) -> dict[str, object]:
    """Return the field `registered` of a cell's start: the digest of the registration, or None if none is readable."""
    try:
        registration = read_registration(sweep_folder)
    except DamagedRecordError:
        registration = None
    return {STARTED_WITH: None if registration is None else registration.digest}


@dataclass(frozen=True)
class RegistrationCheck:
    """The result of comparing a sweep's records with its registration."""

    digest: str | None
    """The digest of the registration. None if registered.json is gone although cells name a registration."""
    time: str | None
    altered: bool
    """True if the contents of registered.json do not match its digest."""
    changes: list[str]
    """See `Registration.changes`."""
    cells_before: list[str]
    """See `Registration.cells_before`."""
    cells_without: list[str]
    """Cells with a start that does not name this registration."""

    @property
    def holds(self) -> bool:
        """True if the question was registered before its first cell and has not changed since."""
        return self.digest is not None and not (self.altered or self.changes or self.cells_before or self.cells_without)

    @property
    def sentence(self) -> str:
        without, before = few(self.cells_without, _MOST_NAMED), few(self.cells_before, _MOST_NAMED)
        if self.digest is None:
            return f"The registration that {without} started with is gone: {REGISTERED} is missing."
        if self.altered:
            return f"{REGISTERED} was altered: its contents do not have the digest {self.digest} that it names."
        faults = []
        if self.changes:
            faults.append(f"changed since: {few(self.changes, _MOST_NAMED)}")
        if self.cells_without:
            faults.append(f"{without} started without it")
        if self.cells_before:
            faults.append(f"cells of other versions of the question had run before ({before})")
        when = f", but {'; '.join(faults)}" if faults else " before the first cell"
        return f"Registered{when}. Digest {self.digest}."


def check_registration(sweep: SweepRecord) -> RegistrationCheck | None:
    """Compare the records with the registration; return None if the sweep was never registered.

    Raises DamagedRecordError if a record is damaged.
    """
    named = {cell.path.name: [start.get("registered") for start in cell.read_starts()] for cell in sweep.cells}
    registration = read_registration(sweep.path)
    if registration is None:
        # A start that names a digest proves that a registration existed, even if its file is gone.
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
    """Return the names of the cells that have run, at least in part."""
    return [cell.path.name for cell in cells if cell.read_starts() or cell.state != "pending"]


def _asked(sweep: SweepRecord) -> dict[str, object]:
    """Return the parts of the question that the digest covers, except the cells."""
    asked = {key: getattr(sweep, key) for key in _STATED}
    asked["settings"] = [] if sweep.asked is None else list(sweep.asked.settings)
    if (design := sweep.design) is not None:
        # The stopping rule decides after which look the sweep ends, so all planned seeds are part of the question.
        asked |= {"looks": design.looks} | ({"seeds": design.seeds} if sweep.look.planned else {})
    if (screening := sweep.screening) is not None:
        asked |= {"screening.best": screening.best, "screening.seeds": screening.seeds}
    if (tuning := sweep.tuning) is not None:
        asked |= {"tune.trials": tuning.trials, "tune.seeds": tuning.seeds}
        asked |= {f"tune.{knob}": searched for knob, searched in tuning.ranges.items()}
    return asked


def _hashes(sweep: SweepRecord) -> dict[str, dict[str, str]]:
    """Map arm and then seed, as text as in JSON, to the cell's hash.

    For a cell that is read under another evaluation, the name of the evaluation follows the hash.
    """
    hashes: dict[str, dict[str, str]] = {arm: {} for arm in sweep.arms}
    for cell in sweep.cell_entries:
        hashes[cell.arm][str(cell.seed)] = "/".join(filter(None, (cell.hash, cell.evaluation)))
    return hashes


def _digest(content: Mapping[str, object]) -> str:
    """Return the blake2b digest of the canonical JSON of the content."""
    # Keys are sorted and separators fixed, so that equal contents have equal bytes.
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def _differences(then: object, now: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield (knob, "old -> new") for every knob that differs between two specs."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in [*then, *(key for key in now if key not in then)]:
            # The seed of a spec is skipped, because the question lists its seeds separately.
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
