"""The output of `bench eval` for users: scores, spread, changes from another model, and memorised statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.cli.console import print_link, print_table, print_text
from harness.cli.verb import added
from harness.evaluate.probe import StatementProbe

if TYPE_CHECKING:
    from evals.lm_eval_results import LmEvalResult
    from evals.paired_change import PairedChange
    from harness.evaluate.suite import SuiteResult


def print_suite(result: SuiteResult, figure: Path | None) -> None:
    """Print all results of one model. figure: a figure of accuracy against thinking budget, if there is one."""
    if result.evaluations:
        print_evaluations(result.label, result.evaluations)
    if figure is not None:
        print_link("accuracy against thinking budget", figure)
    if result.lm_eval is not None and result.lm_eval_folder is not None:
        print_lm_eval(result.label, result.lm_eval, result.lm_eval_folder)
    for probe in added(StatementProbe) if result.memorisation else ():
        probe.show(result.memorisation)


def print_evaluations(label: str, documents: Sequence[dict[str, Any]]) -> None:
    """Print a table of the metrics in scores.json documents, and a sentence on each evaluation."""
    columns = ["task", "problems", "samples", "metric", "value (%)", "standard error (pp)"]
    rows = []
    for document in documents:
        first = [_name(document), str(document["n_problems"]), str(document["n_samples"])]
        for (value, error), metrics in _by_value(document).items():
            rows.append([*(first or ["", "", ""]), " = ".join(metrics), percent(value), percent(error)])
            # Only the first row of a task names it.
            first = []
    print_table(label, columns, rows)
    for document in documents:
        metrics, alone, steps = document["metrics"], "", ""
        if metrics["se_samples_pp"] is not None:
            alone = f", for new samples of these problems {metrics['se_samples_pp']:.1f} pp of avg@n"
        if metrics["faulty_steps_frac"] is not None:
            steps = f", {metrics['faulty_steps_frac']:.0%} of right answers with a wrong step"
        print_text(
            f"{_name(document)}: standard errors are for new problems of the kind{alone}; "
            f"{metrics['mean_tokens']:.0f} tokens per completion, {metrics['truncated_frac']:.0%} truncated, "
            f"{metrics['unparsed_frac']:.0%} without an answer, {metrics['ungraded_frac']:.0%} not graded{steps}"
        )
        for pair in document["disagreement"]:
            if pair["count"]:
                one, other = pair["graders"]
                kappa = "" if pair.get("kappa") is None else f" (Cohen's kappa {pair['kappa']:.2f})"
                differ = f"{one} and {other} disagree on {pair['count']} of {pair['n']} samples{kappa}"
                print_text(f"{document['task']}: {differ}")
        print_link("samples", Path(document["path"]) / "samples.html")


def print_lm_eval(label: str, result: LmEvalResult, folder: Path) -> None:
    n_docs = {task.name: str(task.n_docs) for task in result.tasks}
    print_table(
        f"{label}, lm-eval's tasks",
        ["task", "documents", "metric", "filter", "value", "stderr"],
        [
            [one.task, n_docs[one.task], one.name, one.filter, f"{one.value:.4f}", _number(one.stderr)]
            for one in result.metrics
        ],
    )
    print_link("samples", folder / "samples.html")


def print_changes(before: str, after: str, changes: Sequence[PairedChange]) -> None:
    """Print the changes from one model to another, paired by problem."""
    print_table(
        f"{after} against {before}, paired by problem",
        ["task", "metric", "filter", "problems", "before", "after", "difference", "stderr", "gained", "lost"],
        [
            [
                *(one.task, one.metric, one.filter, str(one.n_problems)),
                *(f"{one.before:.4f}", f"{one.after:.4f}", f"{one.difference:+.4f}", _number(one.stderr)),
                *(str(one.gained), str(one.lost)),
            ]
            for one in changes
        ],
    )
    print_text("The standard error is over problems; it knows nothing of training seeds.")


def _by_value(document: dict[str, Any]) -> dict[tuple[float | None, float | None], list[str]]:
    """Map (value, standard error) to the metrics that have them. Equal metrics, e.g. pass@1 and avg@n, share a row."""
    found: dict[tuple[float | None, float | None], list[str]] = {}
    for metric, value in document["metrics"].items():
        if "@" in metric or "^" in metric:
            error = document["standard_errors"].get(metric)
            # Rounding merges values that differ only in the order of summation.
            key = tuple(None if number is None else round(number, 12) for number in (value, error))
            found.setdefault((key[0], key[1]), []).append(metric)
    return found


def _name(document: Mapping[str, object]) -> str:
    """Return the name of the task, with the thinking budget if there is one."""
    budget = document["thinking_budget_tokens"]
    return str(document["task"]) if budget is None else f"{document['task']}, thinking {budget}"


def percent(value: float | None) -> str:
    """Return a fraction in percent, or `-` for None."""
    return "-" if value is None else f"{100 * value:.1f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
