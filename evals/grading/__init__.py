"""Grading: a completion's answer is extracted, then compared with the reference by a named grader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evals.errors import EvalError, UnknownNameError
from evals.grading.choice import choice_letter
from evals.grading.comparisons import (
    compare_choice,
    compare_exact,
    compare_math,
    compare_numeric,
    require_mathematical,
)
from evals.grading.extract import VERSION as EXTRACTION_VERSION
from evals.grading.extract import extract_answer, get_extraction
from evals.grading.numbers import reference_number
from evals.grading.verdict import OwnComparison, Reason, Verdict


@dataclass(frozen=True)
class Grader:
    """A way to compare an extracted answer with the reference. Raise `version` whenever a verdict can change."""

    version: int
    compare: Callable[[str, str], Reason]


def _compare_own(candidate: str, answer: str) -> Reason:
    raise EvalError(
        "the grader 'own' is the task's own comparison, and this problem has none: only tasks reasoning_gym:<name> "
        "have one; use 'math', 'numeric' or 'exact', which compare with a reference answer"
    )


OWN = "own"
GRADERS: dict[str, Grader] = {
    "exact": Grader(version=2, compare=compare_exact),
    "numeric": Grader(version=3, compare=compare_numeric),
    "choice": Grader(version=1, compare=compare_choice),
    "math": Grader(version=3, compare=compare_math),
    OWN: Grader(version=1, compare=_compare_own),
}


def get_grader(name: str) -> Grader:
    """The grader of that name. Raises UnknownNameError."""
    if name not in GRADERS:
        raise UnknownNameError("grader", name, GRADERS)
    return GRADERS[name]


def applicable_graders(answer: str) -> list[str]:
    """The graders that can compare with this reference: `exact` and `math` with any, `numeric` with a number, `choice`
    with a choice's letter. Cheap ones first."""
    names = ["exact"]
    if reference_number(answer) is not None:
        names.append("numeric")
    if choice_letter(answer) is not None:
        names.append("choice")
    return [*names, "math"]


def require_gradable(answer: str, grader: str, own: OwnComparison | None = None) -> None:
    """Without an answer to compare it with, find out whether a reference can be compared. Needs no process.

    Raises UnknownNameError for an unknown grader, EvalError for a reference that is empty or that the grader cannot
    read.
    """
    compare = get_grader(grader).compare
    if not answer:
        raise EvalError("there is no answer to compare with. Give all rows their answers, or take another task.")
    if grader == "math":
        require_mathematical(answer)
    elif grader != OWN or own is None:
        compare("", answer)


def judge(extracted: str | None, answer: str, grader: str = "math", own: OwnComparison | None = None) -> Verdict:
    """The verdict on an answer that was extracted already. Raises as `grade`."""
    compare = get_grader(grader).compare
    reason: Reason
    if extracted is None:
        reason = "unparsed"
    elif grader == OWN and own is not None:
        reason = own(extracted)
    else:
        reason = compare(extracted, answer)
    return Verdict(correct=reason == "match", extracted=extracted, reason=reason)


def grade(
    text: str, answer: str, grader: str = "math", extract: str | None = None, own: OwnComparison | None = None
) -> Verdict:
    """Whether a completion gives the reference answer.

    text: the completion. answer: the reference, without working.
    grader: `exact` compares text; `numeric` compares numbers exactly, without units (see `numbers.parse_number`);
        `choice` compares the letters of a multiple choice (see `choice.parse_choice`); `math` accepts what the others
        accept and asks math-verify about the rest, in a process with limits on time and memory (see
        `comparisons.compare_math`); `own` asks the problem itself.
    extract: `boxed`, `answer_tag` (`<answer>`), `gsm8k` (`####`), `hash` (after the last `#`), `last_number`, `choice`,
        or None for `chain`: what follows `</think>`, there the last box, else `####`, else "answer is", else the last
        number.
    own: the problem's own comparison (`Problem.own_comparison`), read by the grader `own`.

    Raises UnknownNameError for an unknown grader or extraction; EvalError if `numeric` is given a reference that is no
    number, `choice` one that is no letter, or `own` a problem without a comparison.
    """
    get_grader(grader)
    return judge(extract_answer(text, extract or "chain"), answer, grader, own)


__all__ = [
    "EXTRACTION_VERSION",
    "GRADERS",
    "OWN",
    "Grader",
    "OwnComparison",
    "Reason",
    "Verdict",
    "applicable_graders",
    "extract_answer",
    "get_extraction",
    "get_grader",
    "grade",
    "judge",
    "require_gradable",
]
