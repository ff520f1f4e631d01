"""Grading: the answer of a completion is found (`extract`), then compared with the reference by a named grader.

A grader is a file of this folder, or of a plug-in, with a `Grader(...)` at its top level. A judge, a grader that asks a
model, is a YAML file of the user's own (see `model_judge`). This module holds what all of them stand on: verdicts, how
a grader is found and asked, and the text of an answer as a reader sees it.
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from evals.errors import EvalError
from evals.yaml_file import ENDINGS
from harness.plugins import Kind

if TYPE_CHECKING:
    from evals.tasks.base import Problem

Reason = Literal["match", "mismatch", "unparsed", "undecided", "timeout", "crash"]
NO_VERDICT: frozenset[Reason] = frozenset({"undecided", "timeout", "crash"})
"""Reasons that prove nothing: scores count the answer as wrong, but training gives it no reward at all."""
OwnComparison = Callable[[str], Reason]
"""A problem's own way to judge an extracted answer, where more than one answer is right."""
OWN = "own"
"""The grader that leaves the verdict to the problem's own comparison (see own.py)."""


@dataclass(frozen=True)
class Verdict:
    """What a grader says of one completion.

    extracted: the answer's text, or None where none was found.
    reason: `unparsed`: there is no answer, or none that the grader can read. `timeout`, `crash`: the comparison did not
        end; `undecided`: a judge's reply states no verdict. Then `correct` is False for want of a proof; count these.
    reply: what a judge said; None of other graders.
    score: of a judge that gives numbers, and the share of unit tests passed; in [0, 1].
    """

    correct: bool
    extracted: str | None
    reason: Reason
    reply: Reply | None = None
    score: float | None = None


@dataclass(frozen=True)
class Reply:
    """A judge model's reply to one question, with its cost in tokens.

    question: names the question; equal questions of one judge have one reply.
    """

    question: str
    text: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Submission:
    """A completion with its problem, the reference answer and the answer that was extracted."""

    problem: str
    answer: str
    completion: str
    extracted: str | None


@dataclass(frozen=True)
class Grader:
    """A way to compare an extracted answer with the reference.

    version: raise it whenever a verdict can change; it is part of a run's semantic hash.
    meaning: when it says that an answer is right, in a line.
    compare: (extracted answer, reference) -> reason.
    fault: why a reference cannot be compared with, for an error message that ends with a remedy; None if it can.
    compares_faulty: whether `compare` is asked even about references with a fault, of which it then knows the text.
    needs_answer: whether it cannot grade without a reference.
    """

    name: str
    version: int | str
    meaning: str
    compare: Callable[[str, str], Reason]
    fault: Callable[[str], str | None] = lambda reference: None
    compares_faulty: bool = False
    needs_answer: bool = True

    def can_compare_with(self, reference: str) -> bool:
        return self.compares_faulty or self.fault(reference) is None


@dataclass(frozen=True)
class GradesWhole(Grader, ABC):
    """A grader that reads whole submissions: many of them at once, where it can."""

    @abstractmethod
    def verdicts(self, submissions: Sequence[Submission]) -> list[Verdict]:
        """A verdict for each submission, in order. Raises EvalError without what it needs, and what grading raises."""

    @property
    @abstractmethod
    def at_once(self) -> int:
        """How many it grades at a time."""


@dataclass(frozen=True)
class AsksModel(GradesWhole, ABC):
    """A grader that asks a model."""


GRADERS: Kind[Grader] = Kind(
    "grader",
    lambda thing: isinstance(thing, Grader),
    "evals.grading",
    "bench ls graders",
    summary_of=lambda grader: grader.meaning,
    besides={"file.yaml": "a judge of your own, which asks a model; its path"},
)


def get_grader(name: str) -> Grader:
    """The grader of that name; a judge by the path of its YAML file (see `plugins.user_file`).

    Raises UnknownNameError, and EvalError if the file is missing or faulty.
    """
    if name.endswith(ENDINGS):
        from evals.grading.model_judge import read_judge

        return read_judge(name)
    return GRADERS.find(name)


def grader_version(name: str) -> int | str:
    """What represents a grader in a hash: a shipped grader's version, the digest of a plug-in's source, or the digest
    of those fields of a judge's file that can change a verdict. Raises as `get_grader`."""
    source = None if name.endswith(ENDINGS) else GRADERS.source(name)
    return get_grader(name).version if source is None else source.digest


def applicable_graders(answer: str) -> list[str]:
    """The graders that can compare an extracted answer with this reference, none of them with unit tests."""
    from evals.grading.unit_tests import has_tests

    if has_tests(answer):
        return []
    return [
        name
        for name, grader in GRADERS.all().items()
        if not isinstance(grader, GradesWhole) and grader.can_compare_with(answer)
    ]


def require_gradable(answer: str, grader: str, own: OwnComparison | None = None) -> None:
    """Check, before any completion exists, that the grader can compare with this reference. Starts no process.

    Raises as `get_grader`, and EvalError if the reference has a fault, or is empty although the grader needs one.
    """
    found = get_grader(grader)
    if not answer and found.needs_answer:
        raise EvalError("there is no answer to compare with. Give all rows their answers, or take another task.")
    if (grader != OWN or own is None) and (fault := found.fault(answer)) is not None:
        raise EvalError(fault)


def judge(
    extracted: str | None,
    answer: str,
    grader: str | Grader = "math",
    own: OwnComparison | None = None,
    submission: Submission | None = None,
) -> Verdict:
    """The verdict on an answer that was extracted already. submission: the whole completion, which some graders need.
    Raises as `grade`."""
    found = grader if isinstance(grader, Grader) else get_grader(grader)
    if isinstance(found, GradesWhole):
        if submission is None:
            raise EvalError(
                f"the grader {found.name} reads whole completions, but only an extracted answer is known here. Name a "
                "grader that compares answers: exact, numeric or math."
            )
        return found.verdicts([submission])[0]
    reason: Reason
    if extracted is None:
        reason = "unparsed"
    elif found.name == OWN and own is not None:
        reason = own(extracted)
    elif not found.compares_faulty and (fault := found.fault(answer)) is not None:
        raise EvalError(fault)
    else:
        reason = found.compare(extracted, answer)
    return Verdict(correct=reason == "match", extracted=extracted, reason=reason)


def grade(
    text: str,
    answer: str,
    grader: str | Grader = "math",
    extract: str | None = None,
    own: OwnComparison | None = None,
    problem: str = "",
) -> Verdict:
    """Whether a completion gives the reference answer.

    text: the completion. answer: the reference, without working.
    grader: `exact` compares text. `numeric` compares numbers exactly, without units (see `numeric.parse_number`).
        `choice` compares the letters of a multiple choice (see `choice.parse_choice`). `math` accepts what these accept
        and asks math-verify about the rest, in a process with limits on time and memory (see `math.compare_math`).
        `own` asks the problem itself. Plug-ins may add others. The grader itself instead of its name saves the search.
    extract: `boxed`, `answer_tag` (`<answer>`), `gsm8k` (`####`), `hash` (after the last `#`), `last_number`, `choice`,
        `code` (the last block between fences), or None for `chain`: what follows `</think>`, there the last box, else
        `####`, else "answer is", else the last number.
    own: the problem's own comparison (`Problem.own_comparison`), for the grader `own`. problem: its statement, for a
        judge.

    Raises UnknownNameError for an unknown grader, EvalError for an unknown extraction, and where the grader cannot
    compare with the reference: `numeric` with one that is not a number, `choice` with one that is not a letter, `own`
    for a problem without a comparison. A grader of whole submissions raises as `GradesWhole.verdicts`.
    """
    from evals.grading.extract import extract_answer

    found = grader if isinstance(grader, Grader) else get_grader(grader)
    extracted = extract_answer(text, extract or "chain")
    return judge(extracted, answer, found, own, Submission(problem, answer, text, extracted))


def rule_beside(grader: Grader, own: str | None) -> Grader | None:
    """The rule that grades beside a judge: the task's own grader (named `own`). None if `grader` is no judge, or if the
    task's own grader reads whole submissions too."""
    rule = None if own is None or not isinstance(grader, AsksModel) else get_grader(own)
    return None if isinstance(rule, GradesWhole) else rule


class Graded(NamedTuple):
    """Verdicts on some completions. by_rule: those of a second, rule-based grader; None where it was not asked."""

    verdicts: list[Verdict]
    by_rule: list[Verdict | None]


def grade_together(
    problems: Sequence[Problem], texts: Sequence[str], grader: Grader, extract: str, rule: Grader | None = None
) -> Graded:
    """The verdict on each text as a completion of its problem. A grader of whole submissions gets all at once.

    rule: a second grader, for problems with an answer. Raises as `grade`.
    """
    completions = list(zip(problems, texts, strict=True))
    if isinstance(grader, GradesWhole):
        grade_ahead(completions, grader, extract)

    def verdict(problem: Problem, text: str, grader: Grader) -> Verdict:
        return grade(text, problem.answer, grader, extract, problem.own_comparison, problem.problem)

    return Graded(
        [verdict(problem, text, grader) for problem, text in completions],
        [None if rule is None or not problem.answer else verdict(problem, text, rule) for problem, text in completions],
    )


def grade_ahead(completions: Iterable[tuple[Problem, str]], grader: GradesWhole, extract: str) -> None:
    """Grade all completions at once, so that grading them one by one later finds cached replies and outcomes. Raises as
    `GradesWhole.verdicts`."""
    from evals.grading.extract import extract_answer

    grader.verdicts(
        [
            Submission(problem.problem, problem.answer, text, extract_answer(text, extract))
            for problem, text in completions
        ]
    )


# Hyphens and dashes that people and models write for a minus sign.
_MINUS_SIGNS = "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"


class _Visible(dict[int, str]):
    """A table for `str.translate`, filled as characters are met."""

    def __missing__(self, code: int) -> str:
        self[code] = replacement = self._replacement(chr(code))
        return replacement

    @staticmethod
    def _replacement(character: str) -> str:
        if character == "\n":
            return "\n"
        if character in _MINUS_SIGNS:
            return "-"
        if "\uff01" <= character <= "\uff5e":  # full-width forms of ASCII
            return chr(ord(character) - 0xFEE0)
        match unicodedata.category(character):
            case "Cf":  # zero-width, direction marks, soft hyphen
                return ""
            case "Cc" | "Zs" | "Zl" | "Zp":
                return " "
            case "Nd":
                return str(unicodedata.digit(character))
            case _:
                return character


_VISIBLE = _Visible()
_LINE_ENDS = re.compile(r"\r\n?")
# Nobody nests mark-up deeper; the bound keeps the work linear in the text.
_NESTING = 8
# A space of TeX at an answer's end (`18\\,`, `18\\quad`), or the backslash of one whose sign went as punctuation.
_TEX_SPACE_AT_END = re.compile(
    r"(?:~|\\(?:[,;:!> \\]?|q?quad|en(?:space|skip)|(?:thin|med|thick)space|hfill|hspace\*?\s*\{[^{}]*\}))$"
)
# Full stops behind decimals say that these go on: `2.66...` is not 2.66.
_ELLIPSIS_AT_END = re.compile(r"\.[0-9]+ ?\.{3,}$")
# Mark-up around a whole answer: mathematics delimiters, bold, code, and text macros.
_WRAPPERS = (
    re.compile(r"\$\$?((?:[^$\\]|\\.)*)\$\$?", re.DOTALL),
    re.compile(r"\\\((.*)\\\)", re.DOTALL),
    re.compile(r"\\\[(.*)\\\]", re.DOTALL),
    re.compile(r"\*\*([^*]*)\*\*", re.DOTALL),
    re.compile(r"`([^`]*)`", re.DOTALL),
    re.compile(
        r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|boldsymbol|mbox)\s*\{([^{}]*)\}", re.DOTALL
    ),
)


def normalise(text: str) -> str:
    """One form for characters that look alike (spaces, minus signs, digits of any script), none for invisible ones."""
    return _LINE_ENDS.sub("\n", text).translate(_VISIBLE)


def bare(answer: str) -> str:
    """A normalised answer without mark-up, full stop and spaces of TeX around it, and with single spaces."""
    answer = " ".join(answer.split())
    for _ in range(_NESTING):
        inner = _TEX_SPACE_AT_END.sub("", answer.strip().removeprefix(":"))
        if not (inner.endswith("...") and _ELLIPSIS_AT_END.search(inner)):
            inner = inner.rstrip(".,;: ")
        for wrapper in _WRAPPERS:
            if whole := wrapper.fullmatch(inner):
                inner = whole[1]
        if inner == answer:
            break
        answer = inner
    return answer
