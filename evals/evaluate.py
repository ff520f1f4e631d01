"""Evaluation without a sampler: which samples are still to be drawn, the record of a sample, the scores of records."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

from evals.canonical import canonical_answer
from evals.errors import EvalError
from evals.estimators import (
    Votes,
    avg_at_n,
    cons_at_n,
    count_votes,
    maj_at_k,
    mean_pass_at_k,
    pass_hat_k,
    se_over_problems,
    se_over_samples,
)
from evals.grading import applicable_graders, extract_answer, judge
from evals.prompts import Message, Template
from evals.tasks.base import Problem, Task


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
    faulty_steps: whether a written step is wrong; None where the task does not check or no step was written.
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
    faulty_steps: bool | None


def missing_requests(
    problems: Iterable[Problem], template: Template, n_samples: int, finished: Collection[tuple[str, int]] = frozenset()
) -> Iterator[Request]:
    """The samples that are not in `finished`, a collection of (problem id, sample). Problems keep their order, and all
    samples of a problem come together."""
    for problem in problems:
        missing = [sample for sample in range(n_samples) if (problem.id, sample) not in finished]
        if missing:
            prompt = template.render(problem.problem)
            yield from (Request(problem, sample, prompt) for sample in missing)


def grade_sample(
    task: Task, request: Request, text: str, n_tokens: int, truncated: bool, grader: str | None = None
) -> SampleRow:
    """The record of a drawn sample.

    grader: decides `correct`; the task's own if None. `verdicts` adds all others that apply: `exact` and `math`
        always, `numeric` where the reference is a number, `choice` where it is a choice's letter. `math` asks its
        process only about what text, letters, words and numbers leave open, and once about each pair of answer and
        reference. To a problem with a comparison of its own the others have nothing to say: its reference is one right
        answer of several.

    Raises UnknownNameError for an unknown grader, EvalError if it cannot grade the task's references, if there is
    neither a grader nor one of the task's own, and for a problem without an answer.
    """
    deciding = grader or task.require_grader()
    answer = request.problem.answer
    if not answer:
        raise EvalError(
            f"problem {request.problem.id} of task {task.name} has no answer to compare with. Give all its rows their "
            "answers, or take another task."
        )
    extracted = extract_answer(text, task.extract)
    own = request.problem.own_comparison
    verdict = judge(extracted, answer, deciding, own)
    applicable = applicable_graders(answer) if own is None else []
    verdicts = {name: judge(extracted, answer, name).correct for name in applicable if name != deciding}
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
        verdicts=json.dumps({deciding: verdict.correct, **verdicts}, sort_keys=True),
        faulty_steps=task.check_steps(request.problem, text) if task.check_steps else None,
    )


def scores(rows: Sequence[SampleRow], ks: Iterable[int]) -> dict[str, float | None]:
    """Metrics of one task's finished evaluation; None for one that does not exist (e.g. a mean over no rows).

    For each k, of k of a problem's n samples, as fractions: `pass@k`: one is right; `pass^k`: all are; `maj@k`: their
    majority vote is. `avg@n`: of all samples; `cons@n`: the majority vote of all. Votes are over canonical answers (see
    `evals.canonical`), ties are shared, and a sample that counts in `unparsed_frac` votes for nothing.
    `distinct_answers`: how many answers a problem's n samples give between them.
    `se_problems_pp`, `se_samples_pp`: standard errors of avg@n in percentage points for new problems and for these
    problems; `mean_tokens`, `mean_tokens_correct`, `mean_tokens_incorrect`; `truncated_frac`; `unparsed_frac`: no
    answer that the grader can read; `ungraded_frac`: the grader timed out or crashed; `faulty_steps_frac`: of the
    correct samples whose steps could be checked.

    Raises ValueError if there are no rows, if problems differ in their number of samples, or if k exceeds it.
    """
    problems, n = _samples_by_problem(rows)
    counts = [sum(row["correct"] for row in samples) for samples in problems]
    votes = [_votes(samples) for samples in problems]
    wanted = list(ks)
    correct = [row for row in rows if row["correct"]]
    incorrect = [row for row in rows if not row["correct"]]
    return {
        **{f"pass@{k}": mean_pass_at_k(counts, n, k) for k in wanted},
        **{f"pass^{k}": _mean(pass_hat_k(n, c, k) for c in counts) for k in wanted},
        **{f"maj@{k}": _mean(maj_at_k(vote, k) for vote in votes) for k in wanted},
        "avg@n": _mean(avg_at_n(n, c) for c in counts),
        "cons@n": _mean(map(cons_at_n, votes)),
        "distinct_answers": _mean(len(vote.right) + len(vote.wrong) for vote in votes),
        "se_problems_pp": _percent(se_over_problems(counts, n)),
        "se_samples_pp": _percent(se_over_samples(counts, n)),
        "mean_tokens": _mean(row["n_tokens"] for row in rows),
        "mean_tokens_correct": _mean(row["n_tokens"] for row in correct),
        "mean_tokens_incorrect": _mean(row["n_tokens"] for row in incorrect),
        "truncated_frac": _mean(row["truncated"] for row in rows),
        "unparsed_frac": _mean(row["reason"] == "unparsed" for row in rows),
        "ungraded_frac": _mean(row["reason"] in {"timeout", "crash"} for row in rows),
        "faulty_steps_frac": _mean(row["faulty_steps"] for row in correct if row["faulty_steps"] is not None),
    }


def _samples_by_problem(rows: Sequence[SampleRow]) -> tuple[list[list[SampleRow]], int]:
    """The rows of each problem, and the number of samples that each has."""
    if not rows:
        raise ValueError("scores: no rows given; an evaluation has at least one problem and one sample")
    problems: dict[str, list[SampleRow]] = {}
    for row in rows:
        problems.setdefault(row["problem_id"], []).append(row)
    drawn = {problem: len(samples) for problem, samples in problems.items()}
    fewest, most = min(drawn, key=drawn.__getitem__), max(drawn, key=drawn.__getitem__)
    if drawn[fewest] != drawn[most]:
        raise ValueError(
            f"scores: problem {fewest!r} has {drawn[fewest]} samples and {most!r} has {drawn[most]}; all problems need "
            "the same number: finish the evaluation first"
        )
    return list(problems.values()), drawn[most]


def _votes(samples: Sequence[SampleRow]) -> Votes:
    answers = [None if row["reason"] == "unparsed" else canonical_answer(row["extracted"]) for row in samples]
    return count_votes(answers, [row["correct"] for row in samples])


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else None


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction
