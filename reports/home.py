"""The overview of a home: every sweep, search and evaluation with its verdicts, date, tokens and progress.

Verdicts come from reports already written; everything else is read from the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, TypedDict
from urllib.parse import quote

from harness.errors import BenchError, few
from harness.records import CellRecord, read_sweep
from harness.records.cell import STARTS_FILE
from harness.records.files import DamagedRecordError, read_last_row, read_object, typed_rows
from harness.records.scores import METRIC_PREFIX, lm_eval_files
from harness.records.study import STUDY, read_study
from harness.records.sweep import ENDED
from harness.words import said
from reports.formats import points
from reports.page.effects import verdict_word
from reports.page.templating import render_html, write_text
from reports.page.verdict import SIGNS
from reports.report import VerdictRow, read_report
from reports.search.sentences import confirmed_contrast, current_confirmation, headline

if TYPE_CHECKING:
    from harness.records import SweepRecord

INDEX = "index.html"
PAGE = "report/index.html"
"""The page of a sweep or a search, below its folder."""
SAMPLES_PAGE = "samples.html"
SPARK_SIZE = (100, 20)
"""The width and the height of a sparkline, in its own units."""
EVALUATIONS = "evals"
SWEEP = "sweep.json"
_OTHER_FOLDERS = frozenset({EVALUATIONS, "cache", "mlartifacts", "mlruns"})
_OURS = '<meta name="generator" content="bench">'
_NAMED_ARMS = 4


@dataclass(frozen=True)
class Badge:
    """A verdict and the names of the arms that have it."""

    verdict: str
    """A key of SIGNS."""
    word: str
    names: str = ""

    @property
    def sign(self) -> str:
        return SIGNS[self.verdict]


@dataclass(frozen=True)
class Sparkline:
    """The compared metric over training, without axes: a line for each arm, the baseline's drawn on top."""

    lines: list[str]
    """One string per line: the points of an SVG polyline in a box of SPARK_SIZE."""
    description: str
    """The same curves in words."""


@dataclass(frozen=True)
class Entry:
    """A line of the overview."""

    name: str
    question: str = ""
    badges: Sequence[Badge] = ()
    answer: str = ""
    last_start: str = ""
    """When the last cell was launched, such as "2026-11-23 03:14", in UTC; "" if that was not recorded."""
    tokens: float | None = None
    """Tokens generated in training or, for an evaluation, in its samples; None if unknown."""
    done: int = 0
    """The number of cells ended, of trials ended, or of samples."""
    total: int | None = None
    """The largest value that `done` can reach; None if there is no bound."""
    running: int = 0
    """The number of cells that are running now."""
    page: str | None = None
    """The URL of the page relative to the home; None if it has not been written."""
    fault: str = ""
    """Why the records could not be read, or ""."""
    sparkline: Sparkline | None = None

    @property
    def is_interim(self) -> bool:
        return self.total is not None and self.done < self.total

    @property
    def progress(self) -> str:
        return f"{self.done}" if self.total is None else f"{self.done}/{self.total}"


@dataclass(frozen=True)
class Home:
    """The entries of a home by kind, newest first."""

    sweeps: list[Entry] = field(default_factory=list)
    searches: list[Entry] = field(default_factory=list)
    evaluations: list[Entry] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    """Folders that are not runs of bench."""

    @property
    def groups(self) -> list[tuple[str, str, list[Entry]]]:
        """(title, what its progress counts, entries) for each kind that has entries."""
        groups = [
            ("Sweeps", "cells ended", self.sweeps),
            ("Searches", "trials ended", self.searches),
            ("Evaluations", "samples", self.evaluations),
        ]
        return [group for group in groups if group[2]]


def read_home(home: Path) -> Home:
    """Read every sweep, search and evaluation of a home. An unreadable one becomes an entry that states its fault."""
    found = Home()
    for folder in _folders(home):
        if (folder / STUDY).is_file():
            found.searches.append(_entry(home, folder, _search))
        elif (folder / SWEEP).is_file():
            found.sweeps.append(_entry(home, folder, _sweep))
        elif folder.name not in _OTHER_FOLDERS:
            found.strangers.append(folder.name)
    for model in _folders(home / EVALUATIONS):
        found.evaluations.extend(_entry(home, store, _evaluation, SAMPLES_PAGE) for store in _folders(model))
    # The sort is stable: entries that started in the same minute stay in alphabetical order.
    for entries in (found.sweeps, found.searches, found.evaluations):
        entries.sort(key=lambda entry: entry.last_start, reverse=True)
    return found


def read_run(folder: Path) -> Home:
    """Read a single sweep or search, without the rest of its home."""
    if (folder / STUDY).is_file():
        return Home(searches=[_entry(folder.parent, folder, _search)])
    return Home(sweeps=[_entry(folder.parent, folder, _sweep)])


def home_page(home: Home, title: str, is_live: bool = False) -> str:
    """Return the page as HTML.

    is_live: True if the page shows the present state, so that it may say what is running.
    """
    content = {
        "page_title": title,
        "home": home,
        "strangers": few(home.strangers) if home.strangers else "",
        "is_live": is_live,
        "spark_size": SPARK_SIZE,
    }
    return render_html("home.html.j2", content)


def write_index(home: Path) -> Path | None:
    """Write index.html of a home and return its path.

    Returns None and writes nothing if another program's file has that name.
    """
    path = home / INDEX
    # Our pages carry a generator tag, so a page that somebody else wrote is never overwritten.
    if path.exists() and _OURS not in path.read_text(encoding="utf-8", errors="replace"):
        return None
    write_text(path, home_page(read_home(home), "Runs"))
    return path


def _folders(place: Path) -> list[Path]:
    if not place.is_dir():
        return []
    return sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))


def _entry(home: Path, folder: Path, read: Callable[[Path], Entry], page: str = PAGE) -> Entry:
    try:
        entry = read(folder)
    # A damaged run must not hide the others, so its entry states the fault.
    except (BenchError, OSError) as error:
        entry = Entry(folder.name, fault=str(error))
    path = folder / page
    return replace(entry, page=quote(path.relative_to(home).as_posix())) if path.is_file() else entry


def _sweep(folder: Path) -> Entry:
    sweep = read_sweep(folder).as_it_stands
    statuses = [cell.read_status() for cell in sweep.cells]
    badges, answer = _verdicts(folder / "report" / "report.json")
    return Entry(
        folder.name,
        sweep.question,
        badges,
        answer,
        _last_start(cell.path for cell in sweep.cells),
        sum(_generated_tokens(cell) for cell in sweep.cells),
        sum(status["state"] in ENDED for status in statuses),
        len(statuses),
        sum(status["state"] == "running" for status in statuses),
        sparkline=_sparkline(sweep),
    )


def _sparkline(sweep: SweepRecord) -> Sparkline | None:
    """Return the mean curve of each arm, or None if no cell was evaluated more than once."""
    task, _, name = sweep.metric.removeprefix(METRIC_PREFIX).rpartition(".")
    task = task or sweep.tasks[0]
    # False sorts before True: the baseline comes last and is drawn on top.
    by_arm: dict[str, list[list[float]]] = {
        arm: [] for arm in sorted(sweep.arms, key=lambda arm: arm == sweep.baseline)
    }
    for cell in sweep.cells:
        rows = [row["metrics"] for row in cell.read_scores() if row["task"] == task]
        by_arm[cell.arm].append([score for metrics in rows if (score := metrics.get(name)) is not None])
    # The seeds of an arm may stop at different steps, so average their first evaluations, their second, and so on.
    means = {
        arm: [fmean(known) for scores in zip_longest(*cells) if (known := [s for s in scores if s is not None])]
        for arm, cells in by_arm.items()
    }
    means = {arm: scores for arm, scores in means.items() if len(scores) > 1}
    if not means:
        return None
    # All arms share one vertical scale. SVG's y axis points down, hence 1 minus the height.
    low, high = min(map(min, means.values())), max(map(max, means.values()))
    width, height = SPARK_SIZE
    lines = [
        " ".join(
            # If all scores are equal, divide by 1 instead of 0: the lines lie at the bottom.
            f"{width * i / (len(scores) - 1):.1f},{height * (1 - (score - low) / (high - low or 1)):.1f}"
            for i, score in enumerate(scores)
        )
        for scores in means.values()
    ]
    ends = [f"{arm} {points(100 * scores[0])} to {points(100 * scores[-1])}%" for arm, scores in means.items()]
    return Sparkline(lines, said("reports.along_training_mean_over", name=name, task=task, few=few(ends)))


def _search(folder: Path) -> Entry:
    study, cells = read_study(folder), read_sweep(folder).cells
    confirmed = current_confirmation(study)
    verdict = "" if confirmed is None else confirmed_contrast(confirmed).verdict
    return Entry(
        folder.name,
        study.question,
        [Badge(verdict, verdict.replace("_", " "), "with fresh seeds")] if verdict in SIGNS else [],
        headline(study).sentence,
        _last_start(cell.path for cell in cells),
        sum(trial.generated_tokens or 0 for trial in study.trials),
        sum(trial.state != "running" for trial in study.trials),
        study.budget.trials,
        sum(cell.state == "running" for cell in cells),
    )


def _evaluation(store: Path) -> Entry:
    # The name of a store ends in a dash and a hash, which tells a reader nothing.
    name = f"{store.parent.name}: {store.name.rpartition('-')[0]}"
    scored = store / "scores.json"
    if not scored.is_file():
        results = [path.stem for path in lm_eval_files(store)]
        return Entry(
            name, ", ".join(results), answer="" if results else "not scored yet", last_start=_last_start([store])
        )
    document = typed_rows(scored, [read_object(scored)], _Scores)[0]
    metrics = document["metrics"]
    mean, error_pp, length = (metrics.get(key) for key in ("avg@n", "se_problems_pp", "mean_tokens"))
    samples = document["n_problems"] * document["n_samples"]
    return Entry(
        name,
        f"{document['n_problems']} problems x {document['n_samples']} samples",
        answer=""
        if mean is None
        else said("reports.right_standard_error_pp", right=points(100 * mean), error_pp=points(error_pp)),
        last_start=_last_start([store]),
        tokens=None if length is None else length * samples,
        done=samples,
    )


class _Scores(TypedDict):
    """The fields of scores.json that the overview uses."""

    n_problems: int
    n_samples: int
    metrics: dict[str, float | None]


def _verdicts(path: Path) -> tuple[list[Badge], str]:
    """Return a badge for each verdict of a written report, and the report's headline.

    Both are empty if no report has been written.
    """
    if not path.is_file():
        return [], ""
    report = read_report(path)
    return _badges(report.declared), "".join(row.sentence for row in report.headline)


def _badges(rows: Sequence[VerdictRow]) -> list[Badge]:
    """Return the badges in the order of SIGNS, so that findings come before open questions."""
    named: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.verdict in SIGNS:
            named.setdefault((row.verdict, verdict_word(row)), []).append(row.arm)
    order = [*SIGNS]
    return [
        Badge(verdict, word, few(named[verdict, word], _NAMED_ARMS))
        for verdict, word in sorted(named, key=lambda badge: order.index(badge[0]))
    ]


def _generated_tokens(cell: CellRecord) -> int:
    """Return the tokens that a cell generated in training, or 0 if they are unknown or its records are damaged."""
    try:
        # One damaged cell must not turn the entry of its whole run into a fault.
        return cell.generated_tokens or 0
    except DamagedRecordError:
        return 0


def _last_row(path: Path) -> dict[str, object] | None:
    try:
        return read_last_row(path)
    except (DamagedRecordError, OSError):
        return None


def _last_start(folders: Iterable[Path]) -> str:
    """Return when the latest launch in these folders began, to the minute, in UTC."""
    rows = (_last_row(folder / STARTS_FILE) for folder in folders)
    times = [str(row.get("time", "")) for row in rows if row is not None]
    # ISO timestamps in one time zone sort as strings.
    return max(times, default="")[:16].replace("T", " ")
