"""Does a model complete the problems' own statements? A probe for evaluation problems in its training data.

Partial prompts (Wu et al., arXiv:2507.10532): the prompt is the beginning of a statement and nothing else. A model that
writes the rest word for word, or even the answer, has seen the problem. A statement can be guessed in part. Compare
with a model that is older than the problems, or with problems that are newer than the model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from evals.errors import EvalError
from evals.graders import grade
from evals.grading import normalise
from evals.sampler import Draw, Sampler, SamplingParams
from evals.tasks.base import Problem, Task

GIVEN_FRAC = 0.6
"""The share of a statement's words in the prompt; the paper's 60%."""
MIN_REST_WORDS = 5
"""The least number of words to complete; fewer can be right by chance."""

_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Completion:
    """A model's continuation of the beginning of one problem."""

    problem_id: str
    given: str
    """The first part of the statement: the prompt."""
    rest: str
    """The second part of the statement."""
    text: str
    """The model's continuation."""
    exact: bool
    """True if the continuation begins with the rest, white space apart."""
    rouge_l: float
    """The likeness of the rest to as many words of the continuation (see `rouge_l`)."""
    correct: bool
    """True if the right answer follows those words. The model saw a part of the statement, so it knew the rest or
    the answer, or guessed.
    """


@dataclass(frozen=True)
class Memorisation:
    """Means over the completed problems, as fractions."""

    exact_frac: float
    """Completed word for word."""
    rouge_l: float
    """Mean likeness."""
    correct_frac: float
    """With the right answer."""
    problems: int
    """The number of completed problems."""
    skipped: int
    """The number of problems that were not completed, because fewer than 5 words would have been left."""


def probe(
    task: Task,
    problems: Sequence[Problem],
    sampler: Sampler,
    max_completion_tokens: int,
) -> list[Completion]:
    """Complete the beginnings of the problems greedily, in their order, without those that are too short.

    The prompt is plain text without a chat template. max_completion_tokens: must hold the rest of a statement, and its
    solution if the answer is to appear.

    Raises EvalError for a task without a grader, and if all problems are too short.
    """
    grader = task.require_grader()
    require_statements(task, problems)
    halves = [(problem, *split_statement(problem.problem)) for problem in problems]
    kept = [(problem, given, rest) for problem, given, rest in halves if _is_long_enough(rest)]
    drawn = sampler.draw(
        [Draw(prompt=given, example=problem.id, sample=0) for problem, given, _ in kept],
        SamplingParams(max_completion_tokens=max_completion_tokens, temperature=0.0),
    )
    return [
        _completion(task, grader, problem, given, rest, completed.text)
        for (problem, given, rest), completed in zip(kept, drawn, strict=True)
    ]


def require_statements(task: Task, problems: Sequence[Problem]) -> None:
    """Raise EvalError if all statements are too short to be completed by anything but chance."""
    if not any(_is_long_enough(split_statement(problem.problem)[1]) for problem in problems):
        raise EvalError(
            "shelves.memorisation.statements_too_short",
            task=task.name,
            n_problems=len(problems),
            min_rest_words=MIN_REST_WORDS,
            given_frac=GIVEN_FRAC,
        )


def summarise(completions: Sequence[Completion], problems: int) -> Memorisation:
    """Return the means over the completions. Raises ValueError for none.

    problems: the number that the probe started from.
    """
    if not completions:
        raise ValueError("summarise: no completions given; a mean needs at least one")
    return Memorisation(
        exact_frac=fmean(completion.exact for completion in completions),
        rouge_l=fmean(completion.rouge_l for completion in completions),
        correct_frac=fmean(completion.correct for completion in completions),
        problems=len(completions),
        skipped=problems - len(completions),
    )


def split_statement(statement: str, given_frac: float = GIVEN_FRAC) -> tuple[str, str]:
    """Split a statement between two words, after the share `given_frac` of its words (rounded down)."""
    cut = _end_of_word(statement, int(given_frac * len(statement.split())))
    return statement[:cut], statement[cut:]


def rouge_l(reference: Sequence[str], candidate: Sequence[str]) -> float:
    """Return ROUGE-L of two texts as words, in [0, 1]; 0 if both are empty.

    Twice their longest common subsequence over both lengths, the F-measure that weighs recall and precision equally
    (Lin, 2004, eq. 2-4 with beta = 1).
    """
    # One row of the usual table: the longest common subsequence of the reference so far with each beginning of the
    # candidate.
    lengths = [0] * (len(candidate) + 1)
    for word in reference:
        diagonal = 0
        for place, other in enumerate(candidate, start=1):
            above = lengths[place]
            lengths[place] = diagonal + 1 if word == other else max(above, lengths[place - 1])
            diagonal = above
    total = len(reference) + len(candidate)
    return 2 * lengths[-1] / total if total else 0.0


def _is_long_enough(rest: str) -> bool:
    return len(rest.split()) >= MIN_REST_WORDS


def _completion(task: Task, grader: str, problem: Problem, given: str, rest: str, text: str) -> Completion:
    continuation = normalise(text)
    expected, written = normalise(rest).split(), continuation.split()
    statement, continued = " ".join(expected), " ".join(written)
    # The continuation may repeat the statement differently, so its answer is looked for after as many words as the rest
    # has.
    behind = continuation[_end_of_word(continuation, len(expected)) :]
    verdict = grade(task.graded_text(behind, ()), problem.answer, grader, task.extract, problem.own_comparison)
    return Completion(
        problem_id=problem.id,
        given=given,
        rest=rest,
        text=text,
        # The rest must not end inside a word or a number of the continuation.
        exact=continued.startswith(statement) and not continued[len(statement) : len(statement) + 1].isalnum(),
        rouge_l=rouge_l(expected, written[: len(expected)]),
        correct=verdict.correct,
    )


def _end_of_word(text: str, count: int) -> int:
    """Return where the first `count` words of a text end; the text's end if it has fewer."""
    end = 0
    for number, word in enumerate(_WORD.finditer(text), start=1):
        if number > count:
            return end
        end = word.end()
    return len(text)
