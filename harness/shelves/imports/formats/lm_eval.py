"""lm-eval: `samples_<task>_<time>.jsonl` of --log_samples, and `results_<time>.json` next to them (0.4.13)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import RefusedError
from harness.records.scores import content_of
from harness.settings import dotted
from harness.shelves.imports.base import ImportedRun, ImportedSample, ImportFormat, Score, finite
from harness.shelves.imports.names import metric_name

_FILE = re.compile(r"(?:samples_(?P<task>.+)|results)_(?P<time>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl?")
_CONDITIONS = (
    *("num_fewshot", "doc_to_text", "doc_to_target", "description", "fewshot_config", "generation_kwargs"),
    *("filter_list", "repeats", "output_type", "dataset_path", "dataset_name", "test_split"),
)
"""The settings of a task that can change its scores."""
_OF_RUN = ("limit", "gen_kwargs", "random_seed", "numpy_seed", "torch_seed", "fewshot_seed", "system_instruction")
_NO_FILTER = "none"
"""The filter of a task that declares none: it takes the first completion."""
_OF_SEVERAL = re.compile(r"@(?!1$)")
"""Metrics over several completions, such as maj@4 and pass@8."""


def _reads(source: str) -> bool:
    return _FILE.fullmatch(Path(source).name) is not None and Path(source).is_file()


def _read(sources: Sequence[str]) -> list[ImportedRun]:
    """Read one run for each folder and time: an invocation of lm-eval."""
    groups: dict[tuple[Path, str], list[Path]] = {}
    for path in map(Path, sources):
        found = _FILE.fullmatch(path.name)
        if found is None:
            raise RefusedError("shelves.imports.not_an_lm_eval_file", path=path)
        groups.setdefault((path.parent, found["time"]), []).append(path)
    return [_run(folder, paths) for (folder, _), paths in groups.items()]


def _run(folder: Path, paths: Sequence[Path]) -> ImportedRun:
    run = ImportedRun(str(paths[0]), folder.name)
    for path in sorted(paths, key=lambda path: path.suffix != ".json"):  # results say what a filter does to samples
        if path.suffix == ".json":
            _add_results(run, path)
        else:
            found = _FILE.fullmatch(path.name)
            assert found is not None
            _add_samples(run, path, found["task"])
    return run


def _add_results(run: ImportedRun, path: Path) -> None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RefusedError("shelves.imports.lm_eval_results_not_json", path=path, error=error) from None
    if not isinstance(document, dict) or not isinstance(document.get("results"), dict):
        raise RefusedError("shelves.imports.lm_eval_without_results", path=path)
    run.name = str(document.get("model_name") or run.name)
    for task, settings in (document.get("configs") or {}).items():
        run.config |= dotted({name: settings.get(name) for name in _CONDITIONS}, f"eval.{task}.")
    for task, scores in document["results"].items():
        filters = {name.partition(",")[2] for name in scores if "," in name}
        for name, value in finite(scores.items()).items():
            metric, comma, of_filter = name.partition(",")
            if comma and not metric.endswith("_stderr"):
                metric = f"{metric}/{of_filter}" if _is_vote(run, task, of_filter) else metric
                run.scores.append(Score(_task(task, of_filter, filters), metric_name(metric), value))
    run.config |= dotted({name: (document.get("config") or {}).get(name) for name in _OF_RUN}, "eval.")
    run.config |= {f"eval.{task}.version": version for task, version in (document.get("versions") or {}).items()}


def _add_samples(run: ImportedRun, path: Path, task: str) -> None:
    """Add the samples of a file to the run. Raises RefusedError for a row without a verdict on one completion."""
    rows = [*_rows(path)]
    filters = {str(row.get("filter", _NO_FILTER)) for _, row in rows}
    for number, row in rows:
        # lm-eval records one verdict per document and filter. It tells whether a sample is right only if the filter
        # looks at a single completion.
        completions, filtered = row.get("resps") or [[]], row.get("filtered_resps") or [None]
        of_filter = str(row.get("filter", _NO_FILTER))
        if _is_vote(run, task, of_filter) or not (len(completions[0]) < 2 or _takes_first(run, task, of_filter)):
            if run.scores:
                continue  # results_<time>.json has its score, by its name
            raise RefusedError(
                "shelves.imports.lm_eval_verdict_of_several",
                path=path,
                number=number,
                of_filter=of_filter,
                n_completions=len(completions[0]),
            )
        metrics = [name for name in row["metrics"] if name in row and not _OF_SEVERAL.search(name)]
        verdict = next((row[name] for name in metrics if row[name] in (0, 1)), None)
        if verdict is None:
            raise RefusedError(
                "shelves.imports.lm_eval_without_verdict",
                path=path,
                number=number,
                metrics=", ".join(row["metrics"]) or "none",
            )
        text = completions[0][0] if completions[0] and isinstance(completions[0][0], str) else None
        run.samples.append(
            ImportedSample(
                task=_task(task, of_filter, filters),
                problem_id=str(row["doc_id"]),
                sample=0,
                correct=bool(verdict),
                text=text,
                extracted=filtered[0] if isinstance(filtered[0], str) else None,
                prompt=_prompt(row),
                answer=str(row.get("target", "")),
                content=_content(row),
            )
        )


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise RefusedError("shelves.imports.lm_eval_row_not_json", path=path, number=number, error=error) from None
        missing = [name for name in ("doc_id", "metrics") if not isinstance(row, dict) or name not in row]
        if missing:
            raise RefusedError("shelves.imports.lm_eval_row_lacks_key", path=path, number=number, missing=missing[0])
        yield number, row


def _prompt(row: Mapping[str, object]) -> str | None:
    arguments = row.get("arguments")
    first = next(iter(arguments.values()), None) if isinstance(arguments, dict) else None
    prompt = first.get("arg_0") if isinstance(first, dict) else None
    return prompt if isinstance(prompt, str) else None


def _content(row: Mapping[str, object]) -> str | None:
    """Return a digest of the data set's row and the reference.

    The prompt also holds the task's template and examples.
    """
    question = row.get("doc", _prompt(row))
    return None if question is None else content_of(question, row.get("target"))


def _is_vote(run: ImportedRun, task: str, of_filter: str) -> bool:
    """Return whether a filter takes a vote of several completions, which is maj@k and not pass@1."""
    return of_filter.startswith("maj@") or "majority_vote" in _functions(run, task, of_filter)


def _takes_first(run: ImportedRun, task: str, of_filter: str) -> bool:
    return of_filter == _NO_FILTER or "take_first" in _functions(run, task, of_filter)


def _functions(run: ImportedRun, task: str, of_filter: str) -> list[str]:
    """Return the functions of a filter, in order; [] if results_<time>.json does not say."""
    declared = run.config.get(f"eval.{task}.filter_list") or []
    return [
        step.get("function") for one in declared if one.get("name") == of_filter for step in one.get("filter") or []
    ]


def _task(task: str, of_filter: str, filters: set[str]) -> str:
    """Name a task per filter, since each filter has its own verdicts.

    The plain name is used if there is only one filter.
    """
    return task if len(filters) == 1 else f"{task},{of_filter}"


LM_EVAL = ImportFormat("lm-eval", "samples_<task>_<time>.jsonl and results_<time>.json of lm-eval", _reads, _read)
