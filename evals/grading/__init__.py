"""Grading: a completion's answer is extracted, then compared with the reference by a named grader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from evals.errors import EvalError, UnknownNameError
from evals.grading.extract import VERSION as EXTRACTION_VERSION
from evals.grading.extract import extract_answer, get_extraction
from evals.grading.numbers import parse_number
from evals.grading.text import bare, normalise

Reason = Literal["match", "mismatch", "unparsed", "timeout", "crash"]
OwnComparison = Callable[[str], Reason]
"""A problem's own way to judge an extracted answer, where more than one is right."""


@dataclass(frozen=True)
class Verdict:
    """What a grader says of one completion.

    extracted: the answer's text, or None where none was found.
    reason: `unparsed`: no answer, or none that the grader can read; `timeout`, `crash`: the comparison did not end, so
        `correct` is False for want of a proof; count these.
    """

    correct: bool
    extracted: str | None
    reason: Reason


@dataclass(frozen=True)
class Grader:
    """A way to compare an extracted answer with the reference. Raise `version` whenever a verdict can change."""

    version: int
    compare: Callable[[str, str], Reason]


def _compare_exact(candidate: str, answer: str) -> Reason:
    return "match" if candidate == bare(normalise(answer)) else "mismatch"


def _compare_numeric(candidate: str, answer: str) -> Reason:
    reference = parse_number(answer)
    if reference is None:
        raise EvalError(
            f"the reference answer {answer[:80]!r} is not a number, and the grader 'numeric' compares numbers; "
            "use the grader 'math' or 'exact' for this task"
        )
    value = parse_number(candidate)
    if value is None:
        return "unparsed"
    return "match" if value == reference else "mismatch"


def _compare_math(candidate: str, answer: str) -> Reason:
    reference = bare(normalise(answer))
    if candidate == reference:
        return "match"
    value = parse_number(candidate)
    if value is not None and value == parse_number(reference):
        return "match"

    from evals.grading.math_process import PROCESS

    return PROCESS.compare(candidate, reference)


def _compare_own(candidate: str, answer: str) -> Reason:
    raise EvalError(
        "the grader 'own' is the task's own comparison, and this problem has none: only tasks reasoning_gym:<name> "
        "have one; use 'math', 'numeric' or 'exact', which compare with a reference answer"
    )


OWN = "own"
GRADERS: dict[str, Grader] = {
    "exact": Grader(version=1, compare=_compare_exact),
    "numeric": Grader(version=1, compare=_compare_numeric),
    "math": Grader(version=1, compare=_compare_math),
    OWN: Grader(version=1, compare=_compare_own),
}


def get_grader(name: str) -> Grader:
    """The grader of that name. Raises UnknownNameError."""
    if name not in GRADERS:
        raise UnknownNameError("grader", name, GRADERS)
    return GRADERS[name]


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
        `math` accepts what `exact` or `numeric` accept and asks math-verify about the rest, in a process with limits on
        time and memory; `own` asks the problem itself.
    extract: `boxed`, `answer_tag` (`<answer>`), `gsm8k` (`####`), `hash` (after the last `#`), `last_number`, or None
        for `chain`: what follows `</think>`, there the last box, else `####`, else "answer is", else the last number.
    own: the problem's own comparison (`Problem.own_comparison`), read by the grader `own`.

    Raises UnknownNameError for an unknown grader or extraction, EvalError if `numeric` is given a reference that is no
    number, or `own` a problem without a comparison.
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
    "extract_answer",
    "get_extraction",
    "get_grader",
    "grade",
    "judge",
]
