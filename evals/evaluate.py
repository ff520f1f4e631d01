"""Evaluation without a sampler: which samples are still to be drawn, their records, and what records give: scores, new
verdicts by another grader, and where graders disagree."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypedDict

from evals.errors import EvalError
from evals.grading import (
    OWN,
    AsksModel,
    GradesWhole,
    Submission,
    applicable_graders,
    get_grader,
    grade_ahead,
    judge,
)
from evals.grading.extract import extract_answer
from evals.grading.model_judge import cohens_kappa
from evals.metrics import Samples, metrics_for
from evals.prompts import Message, Template
from evals.tasks.base import Problem, Task
from evals.tasks.environment import Turn, turns_as_json, turns_from_json

# A thread only waits for the process that compares expressions; there are as many of those.
_THREADS = 2
_MAX_EXAMPLES = 5


@dataclass(frozen=True)
class Request:
    """One sample to be drawn: sample number `sample` (from 0) of a problem."""

    problem: Problem
    sample: int
    prompt: str | list[Message]


class SampleRow(TypedDict):
    """The record of one sample. It holds the text, so that it can be graded again.

    reason: of the verdict that decides `correct` (see `evals.grading.Verdict`).
    verdicts: JSON object, grader -> correct.
    reasons: JSON object, grader -> reason, the one that decides first.
    faulty_steps: whether a written step is wrong; None where the task does not check or no step was written.
    turns: JSON list of the completion's turns (see `evals.tasks.environment.Turn`), whose words of the environment are
        not in the text; None where no environment answers, and in records of versions that knew none.
    """

    task: str
    problem_id: str
    sample: int
    text: str
    n_tokens: int
    truncated: bool
    extracted: str | None
    correct: bool
    reason: str
    verdicts: str
    reasons: str | None
    faulty_steps: bool | None
    turns: str | None


def missing_requests(
    problems: Iterable[Problem], template: Template, n_samples: int, finished: Collection[tuple[str, int]] = frozenset()
) -> Iterator[Request]:
    """The samples that are not in `finished`, a collection of (problem id, sample). Problems keep their order, and all
    samples of a problem come together."""
    for problem in problems:
        missing = [sample for sample in range(n_samples) if (problem.id, sample) not in finished]
        if missing:
            prompt = template.ask(problem)
            yield from (Request(problem, sample, prompt) for sample in missing)


def grade_sample(
    task: Task,
    request: Request,
    text: str,
    n_tokens: int,
    truncated: bool,
    grader: str | None = None,
    ask_others: bool = True,
    turns: Sequence[Turn] = (),
) -> SampleRow:
    """The record of a drawn sample. `Task.graded_text` says what is graded if it has several turns.

    grader: decides `correct`; the task's own if None.
    ask_others: `verdicts` and `reasons` add those of all other graders that can compare with the reference, except
        where the problem has a comparison of its own: then the reference is one of several right answers. `math` starts
        its process only for what text, letters, words and numbers leave open, and asks it once about each pair of
        answer and reference.

    Raises UnknownNameError for an unknown grader, EvalError if it cannot grade the task's references, if there is
    neither a grader nor one of the task's own, and for a problem without an answer.
    """
    deciding = grader or task.require_grader()
    answer, asks_model = request.problem.answer, isinstance(get_grader(deciding), AsksModel)
    if not answer and get_grader(deciding).needs_answer:
        raise EvalError(
            f"problem {request.problem.id} of task {task.name} has no answer to compare with. Give all its rows their "
            "answers, or take another task."
        )
    answering = task.graded_text(text, turns)
    extracted = extract_answer(answering, task.extract)
    own = request.problem.own_comparison
    submission = Submission(request.problem.problem, answer, answering, extracted)
    verdict = judge(extracted, answer, deciding, own, submission)
    applicable = applicable_graders(answer) if ask_others and own is None and answer else []
    if ask_others and own is not None and asks_model:
        applicable = [OWN]
    others = {name: judge(extracted, answer, name, own) for name in applicable if name != deciding}
    by_grader = {deciding: verdict, **dict(sorted(others.items()))}
    return SampleRow(
        task=task.name,
        problem_id=request.problem.id,
        sample=request.sample,
        text=text,
        n_tokens=n_tokens,
        truncated=truncated,
        extracted=extracted,
        correct=verdict.correct,
        reason=verdict.reason,
        verdicts=json.dumps({name: one.correct for name, one in by_grader.items()}, sort_keys=True),
        reasons=json.dumps({name: one.reason for name, one in by_grader.items()}),
        faulty_steps=task.check_steps(request.problem, text) if task.check_steps else None,
        turns=turns_as_json(turns) if turns else None,
    )


def scores(rows: Iterable[SampleRow], ks: Iterable[int]) -> dict[str, float | None]:
    """Every metric of one task's finished evaluation, by name (see `evals.metrics`); None for one that does not exist,
    e.g. a mean over no rows.

    Raises ValueError if there are no rows, if problems differ in their number of samples, or if a k exceeds it.
    """
    samples = Samples.of(rows)
    return {name: metric.value(samples, k) for name, (metric, k) in metrics_for(ks).items()}


def standard_errors(rows: Iterable[SampleRow], ks: Iterable[int]) -> dict[str, float]:
    """The standard error of each metric as an estimate for new problems of the kind, in the metric's unit, by name.

    The spread of the metric between problems, sd / sqrt(P). Only metrics that are means over problems have one, and
    only with two problems or more. Raises as `scores`.
    """
    samples = Samples.of(rows)
    problems = [Samples([of_problem]) for of_problem in samples.by_problem]
    errors = {}
    for name, (metric, k) in metrics_for(ks).items():
        total, values = metric.value(samples, k), [metric.value(problem, k) for problem in problems]
        known = [value for value in values if value is not None]
        if total is None or not len(known) == len(values) > 1 or not math.isclose(statistics.fmean(known), total):
            continue
        errors[name] = statistics.stdev(known) / math.sqrt(len(known))
    return errors


def regrade(
    task: Task, problems: Iterable[Problem], rows: Sequence[SampleRow], grader: str | None = None
) -> list[SampleRow]:
    """The records, graded again from their text. What does not depend on grading stays as it is.

    grader: decides `correct`; the task's own if None.

    Raises EvalError for a record of another task or of a problem that is not among `problems`, and as `grade_sample`.
    """
    by_id = {problem.id: problem for problem in problems}
    for row in rows:
        if row["task"] != task.name:
            raise EvalError(
                f"a record of task {row['task']} was given to be graded as one of {task.name}: grade the records of "
                "each task by themselves"
            )
        if row["problem_id"] not in by_id:
            raise EvalError(
                f"problem {row['problem_id']!r} of a record is not among the {len(by_id)} problems of task {task.name} "
                "that were given, so there is no answer to grade it by: give the problems that the samples were drawn "
                "from"
            )

    deciding = get_grader(grader or task.require_grader())
    if isinstance(deciding, GradesWhole):
        answering = [(by_id[row["problem_id"]], task.graded_text(row["text"], turns_of(row))) for row in rows]
        grade_ahead(answering, deciding, task.extract)

    def again(row: SampleRow) -> SampleRow:
        request = Request(by_id[row["problem_id"]], row["sample"], "")
        tokens, truncated, turns = row["n_tokens"], row["truncated"], turns_of(row)
        graded = grade_sample(task, request, row["text"], tokens, truncated, grader, turns=turns)
        return {**row, **graded}

    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(again, rows))


def turns_of(row: SampleRow) -> Sequence[Turn]:
    """The turns of a record's completion; none where no environment answered."""
    return () if row["turns"] is None else turns_from_json(row["turns"])


class Example(TypedDict):
    """A sample on which two graders differ."""

    task: str
    problem_id: str
    sample: int
    extracted: str | None
    verdicts: dict[str, bool]


class Disagreement(TypedDict):
    """How often two graders differ.

    graders: their names, in alphabetical order. n: the number of samples with a verdict of both. count: the number of
    those on which they differ. kappa: Cohen's (see `cohens_kappa`). examples: the first of those, at most 5.
    """

    graders: tuple[str, str]
    count: int
    n: int
    kappa: float | None
    examples: list[Example]


def disagreement(rows: Iterable[SampleRow]) -> list[Disagreement]:
    """How often graders differ, for each pair of them with verdicts on the same samples, by name."""
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
                    Example(
                        task=row["task"],
                        problem_id=row["problem_id"],
                        sample=row["sample"],
                        extracted=row["extracted"],
                        verdicts={name: verdicts[name] for name in (first, second)},
                    )
                )
    return [pairs[names] | {"kappa": cohens_kappa(said[names])} for names in sorted(pairs)]
