"""The parent run: the question as parameters, the results as metrics, tags and a description, the report as files.

Parameters cannot change in MLflow, so they contain what defines the question. Anything that more seeds or trials can
change is a metric or a tag. Results are read from the report; the mirror computes none.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from harness.records import CellRecord, SweepRecord
from harness.records.files import read_json
from harness.records.study import STUDY, StudyRecord
from harness.tracking.cell import commit_tag
from harness.tracking.client import modified_ms
from harness.tracking.curves import mlflow_name
from harness.tracking.run import MAX_TAG_LENGTH, MirroredRun, dataset_inputs, flat_params

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput

QUESTION_TAG = "bench.question_id"
_ASKED_TAG = "bench.asked"
_REPORT_TAG = "bench.report"
_PAGE = "index.html"
FIRST_SAMPLES_PAGE = "first_samples.html"
_PAGES = (FIRST_SAMPLES_PAGE, _PAGE)
_REPORT_FILES = ("report.md", "report.json", "figures/*", "data/*", *_PAGES)
_RESULTS = ("difference_pp", "low_pp", "high_pp", "p", "p_holm")


def question_id(sweep: SweepRecord) -> str:
    """Return a digest of what is compared and how.

    It covers every setting of the arms. With more seeds, the question stays the same.
    """
    content: list[object]
    if sweep.is_search:  # its arms grow in number while it asks the same question
        content = [sweep.name, sweep.profile, sweep.ablate, sweep.metric]
    else:
        hashes = {cell.arm: _hash(cell) for cell in sweep.cells if cell.seed == min(sweep.seeds)}
        content = [sweep.name, sweep.arms, hashes, sweep.baseline, sweep.metric, sweep.margin_pp, sweep.alpha]
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()


def _hash(cell: CellRecord) -> str:
    return cell.hash if cell.evaluation is None else f"{cell.hash}/{cell.evaluation}"


def create_question(client: MlflowClient, experiment_id: str, sweep: SweepRecord) -> MirroredRun:
    begins_s = [begin_s for cell in sweep.cells for begin_s in cell.read_begins()[:1]]
    start_ms = round(1000 * min(begins_s)) if begins_s else modified_ms(sweep.path / "sweep.json")
    tags = {QUESTION_TAG: question_id(sweep), "mlflow.note.content": sweep.question} | sweep_tags(sweep)
    return MirroredRun.create(client, experiment_id, f"{sweep.name} ({sweep.profile})", start_ms, tags)


def sweep_tags(sweep: SweepRecord) -> dict[str, str]:
    """Return the tags that the runs of cells share with the question."""
    return {"profile": sweep.profile, "mlflow.source.name": sweep.command}


def sync_question(run: MirroredRun, sweep: SweepRecord, study: StudyRecord | None) -> int:
    """Update the parent run. Return the number of points sent."""
    cells = [cell for cell in sweep.cells if (cell.evaluation_folder / "spec.json").exists()]
    if cells and sweep.is_search == (study is not None) and _ASKED_TAG not in run.tags:
        run.log_params(_asked(sweep, study, cells[0]))
        run.log_inputs(inputs_of(sweep, cells[0]))
        run.set_tags({_ASKED_TAG: "1"})
    tuned = {} if sweep.tuning is None else sweep.tuning.arms
    searches = {} if sweep.tuning is None else sweep.tuning.searches
    tags = {
        mlflow_name(f"tuned.{arm}"): f"trial {found.trial} of {searches[arm]}: {json.dumps(found.values)}"
        for arm, found in tuned.items()
    }
    tags |= {"baseline": sweep.baseline, "metric": sweep.metric, "seeds": ", ".join(map(str, sweep.seeds))}
    for cell in cells:
        tags |= commit_tag(cell.read_starts())
    run.set_tags(tags | sweep_tags(sweep))
    return 0 if study is None else _sync_best(run, study, sweep.path)


def _asked(sweep: SweepRecord, study: StudyRecord | None, cell: CellRecord) -> dict[str, str]:
    """Return the question, the settings that all arms share, and the settings that differ.

    The latter are listed by arm (`varied`) or, in a search, by knob (`search`).
    """
    differ = {*sweep.varied.get(cell.arm, {}), "seed"}
    under_test = tuple(f"{knob}." for knob in sweep.ablate)
    shared = flat_params(cell.spec)
    document = {
        "question": {
            **{"text": sweep.question, "metric": sweep.metric, "baseline": sweep.baseline, "profile": sweep.profile},
            **{"margin_pp": sweep.margin_pp, "alpha": sweep.alpha, "tasks": sweep.tasks, "ablate": sweep.ablate},
            **({} if sweep.checkpoint is None else {"checkpoint": sweep.checkpoint}),
            **({"grid": sweep.grid} if sweep.grid else {}),
        },
        **({} if sweep.is_search else {"varied": sweep.varied}),
    }
    if study is not None:
        ranges = {
            name: {key: value for key, value in vars(knob).items() if value not in (None, {})}
            for name, knob in study.knobs.items()
        }
        document["search"] = {name: json.dumps(one) for name, one in ranges.items()}
    return flat_params(document) | {
        name: value
        for name, value in shared.items()
        if not f"{name}.".startswith(under_test) and name not in {mlflow_name(knob) for knob in differ}
    }


def inputs_of(sweep: SweepRecord, cell: CellRecord) -> list[DatasetInput]:
    """Return the rows on which a cell is trained and evaluated, as MLflow's data sets."""
    trained_on = cell.spec.get("task", {}).get("train")
    trains = sweep.checkpoint is None and isinstance(trained_on, str)
    tasks = [*([(trained_on, "train")] if trains else []), *((task, "test") for task in sweep.tasks)]
    return dataset_inputs(tasks, [source.model_dump() for source in sweep.data])


def _sync_best(run: MirroredRun, study: StudyRecord, folder: Path) -> int:
    """Update the best trial so far and its confirmation on fresh seeds. Return the number of points sent."""
    best = study.best_trial
    values: dict[str, object] = {}
    if best is not None:
        others = {name: "" for name in run.tags if name.startswith("best.")}  # knobs that only another trial had
        run.set_tags(others | {"best.trial": str(best.number)} | flat_params(best.params, "best."))
        metrics = [objective.metric for objective in study.objectives]
        values = {f"best/{metric}": value for metric, value in zip(metrics, best.values or [], strict=False)}
    if study.confirmation is not None:
        values |= _effect("confirmed", study.confirmation.contrast)
        run.set_tags({"confirmed": str(study.confirmation.contrast["verdict"])})
    return run.log_values(values, modified_ms(folder / STUDY))


def _effect(name: str, contrast: Mapping[str, object]) -> dict[str, object]:
    return {f"{name}/{key}": contrast.get(key) for key in _RESULTS}


def report_files(folder: Path) -> list[Path]:
    """Return the complete files of a report. The names of unfinished files begin with a dot."""
    found = [path for pattern in _REPORT_FILES for path in sorted(folder.glob(pattern))]
    return [path for path in found if not path.name.startswith(".")]


def sync_report(run: MirroredRun, folder: Path) -> int:
    """Send the report's files and conclusions if they have changed. Return the number of points sent."""
    files = report_files(folder)
    contents = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    digest = hashlib.blake2b(repr(sorted(contents.items())).encode(), digest_size=8).hexdigest()
    if not contents.keys() >= {_PAGE, "report.md", "report.json"} or run.tags.get(_REPORT_TAG) == digest:
        return 0
    for path in files:
        if path.name in _PAGES:
            run.log_text(path.name, apart(path.read_text(encoding="utf-8"), contents.keys() - {path.name}))
        else:
            run.log_file(path, None if path.parent == folder else path.parent.name)
    report = read_json(folder / "report.json")
    values = {f"result/{arm['arm']}/mean_pp": arm.get("mean_pp") for arm in report.get("arms", [])}
    verdicts = {name: "" for name in run.tags if name.startswith(("verdict.", "effect."))}
    # In MLflow, the effects of a factorial would look like arms, so their names have a separate prefix.
    for section, group, tag in (("contrasts", "result", "verdict"), ("interactions", "effect", "effect")):
        for contrast in report.get(section, []):
            values |= _effect(f"{group}/{contrast['arm']}", contrast)
            verdicts[mlflow_name(f"{tag}.{contrast['arm']}")] = str(contrast["verdict"])
    n_points = run.log_values(values, modified_ms(folder / "report.json"))
    text = description((folder / "report.md").read_text(encoding="utf-8"))
    run.set_tags({**verdicts, "mlflow.note.content": text, _REPORT_TAG: digest})
    return n_points


def description(report: str) -> str:
    """Return the part of a Markdown report before its first figure: the question, verdicts and table of results."""
    beginning, _, _ = report.partition("\n![")
    lines = re.sub(r"^# .*\n+", "", beginning).splitlines()  # the run's name is above it
    while lines and (not lines[-1].strip() or lines[-1].startswith("#")):
        lines.pop()  # the heading of the figure
    while len("\n".join(lines)) > MAX_TAG_LENGTH:
        lines.pop()
    return "\n".join(lines)


_LINK = re.compile(r'<a[^>]*\shref="(?!#|[a-z]+:)(?P<path>[^"]+)"[^>]*>(?P<text>.*?)</a>', re.DOTALL)
_SCRIPT = re.compile(r"(<script\b.*?</script>)", re.DOTALL)
_MAIN = '<main id="main">'


def apart(page: str, others: Collection[str]) -> str:
    """Return a page for MLflow, which shows it without its files: each link is replaced by a note on where its file is.

    others: the files that are also artifacts, relative to the folder of the page.
    """

    def told(found: re.Match[str]) -> str:
        path = found["path"].partition("#")[0]
        where = "among these artifacts" if path in others else "beside the page on disk"
        return f'<abbr title="{path}, {where}">{found["text"]}</abbr>'

    # Scripts are not changed, because their strings may contain markup.
    kept = "".join(part if part.startswith("<script") else _LINK.sub(told, part) for part in _SCRIPT.split(page))
    if not others:
        return kept
    names = sorted({path.partition("/")[0] for path in others})
    note = f"MLflow shows this page apart from its files, which are among the same artifacts: {', '.join(names)}."
    return kept.replace(_MAIN, f'{_MAIN}\n<p class="detail">{note}</p>', 1)
