"""The change of a score from one model to another on the same problems: the gain of training, or its cost elsewhere."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evals.errors import EvalError
from evals.lm_eval_results import LmEvalResult, LmEvalRow
from evals.samples import SampleRow
from harness.errors import InvalidError


@dataclass(frozen=True)
class PairedChange:
    """The change of a task's metric from one model to another on the same problems.

    The standard error is over problems. It does not cover training seeds: two models show a single run.
    """

    task: str
    metric: str
    filter: str
    """The filter of lm-eval that read the answers; "" for bench's own tasks."""
    n_problems: int
    before: float
    """The mean over problems."""
    after: float
    """The mean over problems."""
    difference: float
    """after - before."""
    stderr: float | None
    """The standard error of the difference: sd / sqrt(n_problems), ddof 1. None for a single problem."""
    gained: int
    """The number of problems on which the metric rose."""
    lost: int
    """The number of problems on which the metric fell."""


def change_of(task: str, metric: str, filter_name: str, pairs: Sequence[tuple[float, float]]) -> PairedChange:
    """Compute the change from (before, after) pairs [n_problems]. Raises ValueError if there are no pairs."""
    if not pairs:
        raise InvalidError("evals.no_pairs_for_change", task=task)
    differences = [after - before for before, after in pairs]
    n = len(pairs)
    return PairedChange(
        task=task,
        metric=metric,
        filter=filter_name,
        n_problems=n,
        before=math.fsum(before for before, _ in pairs) / n,
        after=math.fsum(after for _, after in pairs) / n,
        difference=math.fsum(differences) / n,
        stderr=statistics.stdev(differences) / math.sqrt(n) if n > 1 else None,
        gained=sum(difference > 0 for difference in differences),
        lost=sum(difference < 0 for difference in differences),
    )


def change_of_samples(before: Iterable[SampleRow], after: Iterable[SampleRow]) -> PairedChange:
    """Compute the change of avg@n between two evaluations of the same task, paired by problem.

    Raises EvalError if the two differ in task or problems.
    """
    earlier, later = _correct_frac(before), _correct_frac(after)
    if earlier.keys() != later.keys():
        (task, problem), *_ = sorted(earlier.keys() ^ later.keys())
        raise EvalError("evals.problems_not_paired", problem=problem, task=task)
    (task, _), *_ = earlier
    return change_of(task, "avg@n", "", [(earlier[key], later[key]) for key in earlier])


def changes_of_lm_eval(before: LmEvalResult, after: LmEvalResult) -> list[PairedChange]:
    """Compute the change of every metric between two models' results, paired by document.

    On tasks that were not trained on, this is a side effect of training. Metrics without a value per document (such as
    corpus BLEU) are left out.

    Raises EvalError if the results differ in tasks, versions, decodings, documents or prompts.
    """
    if before.tasks != after.tasks:
        differing = sorted({task.name for task in {*before.tasks} ^ {*after.tasks}})
        raise EvalError("evals.lm_eval_tasks_differ", tasks=", ".join(differing))
    earlier, later = _by_document(before), _by_document(after)
    values: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for key, row in earlier.items():
        task, _, filter_name = key
        other = later.get(key)
        if other is None or (row["doc_hash"], row["prompt"]) != (other["doc_hash"], other["prompt"]):
            what = "document" if other is None or row["doc_hash"] != other["doc_hash"] else "prompt"
            raise EvalError("evals.lm_eval_documents_differ", document=row["doc_id"], task=task, differing=what)
        for metric, value in row["metrics"].items():
            values[task, metric, filter_name].append((value, other["metrics"][metric]))
    return [change_of(*key, pairs) for key, pairs in values.items()]


def _by_document(result: LmEvalResult) -> dict[tuple[str, int, str], LmEvalRow]:
    return {(row["task"], row["doc_id"], row["filter"]): row for row in result.rows}


def _correct_frac(rows: Iterable[SampleRow]) -> dict[tuple[str, str], float]:
    """Return the share of correct samples by (task, problem)."""
    samples: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for row in rows:
        samples[row["task"], row["problem_id"]].append(row["correct"])
    return {key: sum(correct) / len(correct) for key, correct in samples.items()}
