"""The answer of the kept reports to a claim: each prediction is shown, refuted or undecided."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from docs.findings.measures import Values, difference, kept_values
from docs.findings.source import NO_DIFFERENCE, Finding, Prediction, Run
from harness.errors import RefusedError
from harness.records import SweepRecord
from harness.records.files import read_object
from reports.formats import count
from reports.page.kept import KEPT, is_kept, kept_report
from reports.page.requirements import Judgement, Requirement, judge
from reports.report import CellRow, Report, VerdictRow

BEFORE_AND_AFTER = "before_and_after.json"
Outcome = Literal["shown", "refuted", "undecided"]
OUTCOMES: tuple[Outcome, ...] = ("shown", "refuted", "undecided")

_OPPOSITES = {"better": "not better", "worse": "not worse", "equivalent": "not equivalent"}
"""By relation, what refutes it: a gain is refuted where one as large as the margin is ruled out."""

_COVERAGE: dict[str, Outcome] = {"sharpened": "shown", "discovered": "refuted", "both": "refuted"}
"""What the word of `reports.statistics.coverage_word` says of the claim that training sharpens only."""


@dataclass(frozen=True)
class Kept:
    """The kept report of a run."""

    folder: Path

    @cached_property
    def sweep(self) -> SweepRecord:
        return kept_report(self.folder)[0]

    @cached_property
    def report(self) -> Report:
        return kept_report(self.folder)[1]

    def measured(self, measure: str) -> Values:
        """What was kept of a measure, e.g. `final_scores.mean_tokens`."""
        return kept_values(self.folder, measure)

    @cached_property
    def numerics(self) -> int:
        """The NUMERICS_VERSION under which its cells were trained."""
        return int(read_object(self.folder / KEPT)["numerics"])

    @property
    def contrasts(self) -> list[VerdictRow]:
        """Those that the sweep declares."""
        return self.report.declared

    @property
    def registered_at(self) -> str | None:
        """The time, as ISO 8601 in UTC; None if it was not registered."""
        return next((row.time for row in self.report.registration), None)

    def settings(self, arm: str | None = None) -> frozenset[str]:
        """The hashes of its cells, or of those of an arm: what they were asked to train."""
        return frozenset(cell.hash for cell in self._cells(arm))

    def trained(self, arm: str | None = None) -> frozenset[str]:
        """Its cells, or those of an arm, told apart by their weights: the same settings may be trained again."""
        return frozenset(map(weights_of, self._cells(arm)))

    def _cells(self, arm: str | None) -> list[CellRow]:
        return [cell for cell in self.report.cells if arm is None or cell.arm == arm]

    @property
    def task(self) -> str:
        """The task on which arms are compared."""
        return self.report.arms[0].task

    @cached_property
    def before(self) -> dict[str, float | None]:
        """The metrics on the compared task of the model that the baseline starts from; empty if they were not
        measured."""
        rows = reversed(self.sweep.base_scores_of(self.sweep.baseline))
        return next((dict(row["metrics"]) for row in rows if row["task"] == self.task), {})

    @cached_property
    def elsewhere(self) -> dict[str, Any]:
        """What `bench eval --baseline` found for one cell on other tasks; {} if it was not run."""
        path = self.folder / BEFORE_AND_AFTER
        return read_object(path) if path.is_file() else {}


def weights_of(cell: CellRow) -> str:
    """A cell by its settings and the checksum of its weights."""
    return f"{cell.hash} {cell.digest}"


def cells_of(kept: Iterable[Kept]) -> list[CellRow]:
    """The rows of the cells, each once: a cell that was evaluated in two ways was trained only once."""
    return [*{weights_of(cell): cell for one in kept for cell in one.report.cells}.values()]


def distinct_contrasts(kept: Iterable[Kept]) -> list[VerdictRow]:
    """The declared contrasts of the runs, each once: two sweeps may compare the same cells under other names."""
    found: dict[tuple[Any, ...], VerdictRow] = {}
    for one in kept:
        for row in one.contrasts:
            cells = one.trained(row.arm), one.trained(row.baseline)  # none for an effect of a grid
            found.setdefault((*cells, *row.differences_pp), row)
    return [*found.values()]


def registered_before(run: Kept, others: Iterable[Kept]) -> list[Kept]:
    """The other runs that were registered before it. One run follows another, so they had ended by then."""
    at = run.registered_at
    return [one for one in others if at is not None and one.registered_at is not None and one.registered_at < at]


def known_before(run: Kept, others: Iterable[Kept]) -> dict[str, str]:
    """By arm, the name of the first run that was registered before and had trained its settings and the baseline's."""
    known: dict[str, str] = {}
    for one in sorted(registered_before(run, others), key=lambda earlier: earlier.registered_at or ""):
        asked = one.settings()
        if run.settings(run.sweep.baseline) & asked:
            for arm in run.sweep.arms:
                if arm != run.sweep.baseline and run.settings(arm) & asked:
                    known.setdefault(arm, one.folder.name)
    return known


def cost_s(kept: Iterable[Kept]) -> float:
    return math.fsum(cell.total_s or 0.0 for cell in cells_of(kept))


@dataclass(frozen=True)
class Judged:
    """A prediction with what became of it, and why."""

    what: str
    run: str
    outcome: Outcome
    why: str


def judged(finding: Finding, kept: dict[str, Kept]) -> list[Judged]:
    """Each prediction of a claim, judged by its run, if that run is kept. kept: by the names of the finding's runs."""
    return [_judged(one, kept[one.run], finding.measures) for one in finding.predicts if one.run in kept]


def _judged(prediction: Prediction, kept: Kept, measures: Mapping[str, str]) -> Judged:
    try:
        if prediction.measure is None:
            outcome, why = _by_verdict(prediction, kept)
        else:
            outcome, why = _by_measure(prediction, kept.measured(measures[prediction.measure]))
    except RefusedError as error:
        raise RefusedError(f"{kept.folder.name}, {prediction.says!r}: {error}") from None
    what = f"`{prediction.says}`" if prediction.measure is None else f"{prediction.measure}: `{prediction.says}`"
    return Judged(what, prediction.run, outcome, why)


def _by_verdict(prediction: Prediction, kept: Kept) -> tuple[Outcome, str]:
    arm, relation, baseline = prediction.arms
    rows = kept.report.judged

    def judgement(relation: str) -> Judgement:
        return judge(Requirement(prediction.says, arm, relation, baseline), rows)

    found = judgement(relation)
    if found.holds:
        return "shown", found.why
    against = judgement(_OPPOSITES[relation])
    return ("refuted", against.why) if against.holds else ("undecided", found.why)


def _by_measure(prediction: Prediction, values: Values) -> tuple[Outcome, str]:
    """By the sign of the 95% interval: a measure has no margin."""
    arm, relation, baseline = prediction.arms
    found = difference(values, arm, None if baseline == NO_DIFFERENCE else baseline)
    if found is None:
        return "undecided", "the measure was not recorded"
    low, high = (found.low, found.high) if relation == "more" else (-found.high, -found.low)
    outcome: Outcome = "shown" if low > 0 else "refuted" if high < 0 else "undecided"
    ends = f"95% interval {found.ends}" if found.ends else "without an interval"
    what = f"mean of {arm}" if baseline == NO_DIFFERENCE else f"{arm} minus {baseline}"
    return outcome, f"{what}: {found.mean:+.3g}, {ends}, {count(found.n, 'seed')}"


def judged_coverage(kept: Sequence[Kept]) -> list[Judged]:
    """Each arm of each run against the model before training: has training only sharpened? Of arms with the same cells
    the first counts."""
    found: dict[frozenset[str], Judged] = {}
    for one in kept:
        for row in one.report.coverage:
            if row.against is None:
                outcome = _COVERAGE.get(row.word, "undecided")
                what = f"{row.arm} sharpens"
                arm = one.trained(row.arm) | {row.task}
                found.setdefault(arm, Judged(what, one.folder.name, outcome, str(row.word)))
    return [*found.values()]


def summary(found: Sequence[Judged], about: str = "predictions") -> str:
    """Return `3 predictions: 2 shown, 1 undecided.`, with arms in place of predictions for a claim about coverage."""
    counts = Counter(one.outcome for one in found)
    parts = [f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome]]
    what = "arm" if about == "coverage" else "prediction"
    return f"{count(len(found), what)}: {', '.join(parts)}."


def kept_runs(finding: Finding) -> dict[str, Kept]:
    """The runs that are kept, by their names in the finding."""
    return {name: Kept(run.record) for name, run in finding.runs.items() if is_kept(run.record)}


def all_runs(findings: Sequence[Finding]) -> dict[Path, Run]:
    """Every run of the findings once, by the folder of its record."""
    return {run.record: run for finding in findings for run in finding.runs.values()}
