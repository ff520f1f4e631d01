"""Evaluation without a model: missing samples, graded records, scores, regrading, and disagreement between graders."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

from evals.errors import EvalError
from evals.graders import applicable_graders, get_grader
from evals.grading import OWN, Grader, Submission, Verdict
from evals.grading.asked_model import cohens_kappa
from evals.grading.extract import extract_answer
from evals.metrics import Samples, metrics_for
from evals.prompts import Template
from evals.sampler import Draw, Drawn
from evals.samples import SampleRow, turns_of
from evals.tasks.base import Problem, Task
from evals.tasks.environment import turns_as_json

# A thread only waits for a process that compares expressions, so there are as many threads as processes.
_THREADS = 2
_MAX_EXAMPLES = 5


def missing_draws(
    problems: Iterable[Problem], template: Template, n_samples: int, finished: Collection[tuple[str, int]] = frozenset()
) -> Iterator[Draw]:
    """Yield the samples that are not in `finished`, which contains pairs (problem id, sample number).

    Problems keep their order, and the samples of a problem are consecutive.
    """
    for problem in problems:
        missing = [sample for sample in range(n_samples) if (problem.id, sample) not in finished]
        if missing:
            prompt = template.ask(problem)
            yield from (Draw(prompt, problem.id, sample, problem) for sample in missing)


def grade_all(
    problems: Sequence[Problem],
    texts: Sequence[str],
    extract: str,
    grader: Grader,
    beside: Callable[[Problem], Sequence[Grader]] = lambda problem: (),
    each: Callable[..., Iterable[Any]] = map,
) -> list[dict[str, Verdict]]:
    """Return the verdicts on each text as a completion of its problem, by grader name.

    grader: decides; its verdict comes first. A grader of whole completions receives all of them at once.
    beside: returns the additional graders of a problem.
    each: maps over the completions, e.g. the built-in `map` or that of a thread pool.
    Raises as `grade`.
    """
    submissions = [
        Submission(one.problem, one.answer, text, extract_answer(text, extract), one.own_comparison)
        for one, text in zip(problems, texts, strict=True)
    ]
    decided = grader.verdicts(submissions) if grader.reads_whole else [None] * len(submissions)

    def by_name(problem: Problem, submission: Submission, verdict: Verdict | None) -> dict[str, Verdict]:
        others = {one.name: one.verdicts([submission])[0] for one in beside(problem)}
        return {grader.name: verdict or grader.verdicts([submission])[0], **others}

    return list(each(by_name, problems, submissions, decided))


def graded_rows(
    task: Task,
    draws: Sequence[Draw],
    drawn: Sequence[Drawn],
    grader: str | None = None,
    ask_others: bool = True,
    each: Callable[..., Iterable[Any]] = map,
) -> list[SampleRow]:
    """Grade samples, and return their records.

    `Task.graded_text` selects the text to grade if a sample has several turns.
    grader: decides `correct`; None for the task's own grader.

    ask_others: True to add the verdicts of all other graders that can compare with the reference, in `verdicts` and
    `reasons`. For a problem with its own comparison, the reference is only one of several correct answers. There the
    own comparison is added to a judge, and no grader is added otherwise. `math` starts its process only for answers
    that cannot be decided by text, letters, words and numbers, and receives each pair of answer and reference once.
    each: as in `grade_all`.

    Raises UnknownNameError for an unknown grader. Raises EvalError if there is no grader, if it cannot grade the task's
    references, or if a problem lacks an answer.
    """
    # Check every problem before grading the first, so that a fault does not waste a judge's replies.
    deciding, problems = get_grader(grader or task.require_grader()), [draw.require_problem() for draw in draws]
    for problem in problems:
        if not problem.answer and deciding.needs_answer:
            raise EvalError("evals.problem_without_answer", problem=problem.id, task=task.name)

    def beside(problem: Problem) -> list[Grader]:
        names = applicable_graders(problem.answer) if problem.answer else []
        if problem.own_comparison is not None:
            names = [OWN] if deciding.asks_model else []
        return [get_grader(name) for name in names if ask_others and name != deciding.name]

    texts = [task.graded_text(one.text, one.turns) for one in drawn]
    graded = grade_all(problems, texts, task.extract, deciding, beside, each)
    return [
        SampleRow(
            task=task.name,
            problem_id=problem.id,
            sample=draw.sample,
            text=one.text,
            n_tokens=one.n_tokens,
            truncated=one.truncated,
            extracted=by_grader[deciding.name].extracted,
            correct=by_grader[deciding.name].correct,
            reason=by_grader[deciding.name].reason,
            verdicts=json.dumps({name: verdict.correct for name, verdict in by_grader.items()}, sort_keys=True),
            reasons=json.dumps({name: verdict.reason for name, verdict in by_grader.items()}),
            faulty_steps=task.check_steps(problem, one.text) if task.check_steps else None,
            turns=turns_as_json(one.turns) if one.turns else None,
        )
        for draw, problem, one, by_grader in zip(draws, problems, drawn, graded, strict=True)
    ]


def scores(rows: Iterable[SampleRow], ks: Iterable[int]) -> dict[str, float | None]:
    """Return every metric of one task's finished evaluation, by name (see `evals.metrics`).

    A metric that cannot be computed is None, e.g. a mean over no rows. Raises ValueError if there are no rows, if
    problems differ in their number of samples, or if a k exceeds that number.
    """
    samples = Samples.of(rows)
    return {name: metric.value(samples, k) for name, (metric, k) in metrics_for(ks).items()}


def standard_errors(rows: Iterable[SampleRow], ks: Iterable[int]) -> dict[str, float]:
    """Return the standard error of each metric, as an estimate for new problems of this kind, by name.

    It is the standard deviation of the metric over problems divided by sqrt(P), in the metric's unit. Only metrics that
    are means over problems have one, and only for at least two problems. Raises ValueError, like `scores`.
    """
    samples = Samples.of(rows)
    problems = [Samples([of_problem]) for of_problem in samples.by_problem]
    errors = {}
    for name, (metric, k) in metrics_for(ks).items():
        # A metric is a mean over problems if the mean of its values on individual problems equals its value on all.
        total, values = metric.value(samples, k), [metric.value(problem, k) for problem in problems]
        known = [value for value in values if value is not None]
        if total is None or not len(known) == len(values) > 1 or not math.isclose(statistics.fmean(known), total):
            continue
        errors[name] = statistics.stdev(known) / math.sqrt(len(known))
    return errors


def regrade(
    task: Task, problems: Iterable[Problem], rows: Sequence[SampleRow], grader: str | None = None
) -> list[SampleRow]:
    """Grade the records again from their text. Fields that do not depend on grading stay unchanged.

    grader: decides `correct`; None for the task's own grader.

    Raises EvalError for a record of another task or of a problem that is not among `problems`, and the errors of
    `graded_rows`.
    """
    by_id = {problem.id: problem for problem in problems}
    for row in rows:
        if row["task"] != task.name:
            raise EvalError("evals.record_of_other_task", record_task=row["task"], task=task.name)
        if row["problem_id"] not in by_id:
            raise EvalError("evals.problem_not_given", problem=row["problem_id"], n_problems=len(by_id), task=task.name)

    draws = [Draw("", row["problem_id"], row["sample"], by_id[row["problem_id"]]) for row in rows]
    drawn = [Drawn(row["text"], row["n_tokens"], row["truncated"], turns=turns_of(row)) for row in rows]
    with ThreadPoolExecutor(_THREADS) as pool:
        graded = graded_rows(task, draws, drawn, grader, each=pool.map)
    return [{**row, **again} for row, again in zip(rows, graded, strict=True)]


class DisagreementExample(TypedDict):
    """A sample on which two graders differ."""

    task: str
    problem_id: str
    sample: int
    extracted: str | None
    verdicts: dict[str, bool]


class Disagreement(TypedDict):
    """How often two graders disagree."""

    graders: tuple[str, str]
    """The graders' names, in alphabetical order."""
    count: int
    """The number of samples on which they disagree."""
    n: int
    """The number of samples that both graded."""
    kappa: float | None
    """Cohen's kappa (see `cohens_kappa`)."""
    examples: list[DisagreementExample]
    """The first samples on which they disagree, at most 5."""


def disagreement(rows: Iterable[SampleRow]) -> list[Disagreement]:
    """Return how often graders disagree, for each pair with verdicts on the same samples, sorted by name."""
    pairs: dict[tuple[str, str], Disagreement] = {}
    said: dict[tuple[str, str], list[tuple[bool, bool]]] = defaultdict(list)
    for row in rows:
        verdicts: dict[str, bool] = json.loads(row["verdicts"])
        for first, second in itertools.combinations(sorted(verdicts), 2):
            empty = Disagreement(graders=(first, second), count=0, n=0, kappa=None, examples=[])
            pair = pairs.setdefault((first, second), empty)
            pair["n"] += 1
            said[first, second].append((verdicts[first], verdicts[second]))
            if verdicts[first] == verdicts[second]:
                continue
            pair["count"] += 1
            if len(pair["examples"]) < _MAX_EXAMPLES:
                pair["examples"].append(
                    DisagreementExample(
                        task=row["task"],
                        problem_id=row["problem_id"],
                        sample=row["sample"],
                        extracted=row["extracted"],
                        verdicts={name: verdicts[name] for name in (first, second)},
                    )
                )
    return [pairs[names] | {"kappa": cohens_kappa(said[names])} for names in sorted(pairs)]
