"""Grading: `extract` finds the answer of a completion, then a named grader compares it with the reference.

A grader is a file of this folder, or of a plug-in, with a `Grader(...)` at its top level. A judge, a grader that asks a
model, is a YAML file of the user's own (see `asked_model`). This module holds what all of them share: verdicts, and the
text of an answer as a reader sees it. `evals.graders` finds and calls them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from evals.errors import EvalError

Reason = Literal["match", "mismatch", "unparsed", "undecided", "timeout", "crash"]
NO_VERDICT: frozenset[Reason] = frozenset({"undecided", "timeout", "crash"})
"""Reasons that prove nothing: scores count the answer as wrong, but training gives it no reward at all."""
OwnComparison = Callable[[str], Reason]
"""A problem's own comparison of an extracted answer, if more than one answer is right."""
OWN = "own"
"""The grader that uses the problem's own comparison (see own.py)."""


@dataclass(frozen=True)
class Verdict:
    """The verdict of a grader on one completion."""

    correct: bool
    extracted: str | None
    """The answer's text, or None if there is none."""
    reason: Reason
    """`unparsed`: there is no answer, or none that the grader can read. `timeout`, `crash`: the comparison did not
    end. `undecided`: a judge's reply states no verdict. In all of these `correct` is False for lack of a proof;
    count them.
    """
    reply: JudgeReply | None = None
    """The reply of a judge; None of other graders."""
    score: float | None = None
    """The number of a judge that gives numbers, or the share of unit tests passed; in [0, 1]."""


@dataclass(frozen=True)
class JudgeReply:
    """A judge model's reply to one question, with its cost in tokens."""

    question: str
    """The name of the question; equal questions of one judge have one reply."""
    text: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class Submission:
    """A completion with its problem, the reference answer and the extracted answer."""

    problem: str
    answer: str
    completion: str
    extracted: str | None
    own: OwnComparison | None = None
    """The problem's own comparison."""


@dataclass(frozen=True)
class Grader:
    """A way to compare an extracted answer with the reference."""

    reads_whole: ClassVar[bool] = False
    """It reads whole completions, many of them at once: it overrides `verdicts`, and nothing is compared."""
    asks_model: ClassVar[bool] = False
    runs_code: ClassVar[bool] = False
    """It runs programs that a model wrote, which must be allowed; their references are tests."""

    name: str
    version: int | str
    """Raise it whenever a verdict can change; it is part of a run's semantic hash."""
    meaning: str
    """The condition for a right answer, in one line."""
    compare: Callable[[str, str], Reason]
    """(extracted answer, reference) -> reason."""
    fault: Callable[[str], str | None] = lambda reference: None
    """Why it cannot compare with a reference, for an error message that ends with a remedy; None if it can."""
    compares_faulty: bool = False
    """True if `compare` also takes references with a fault, of which it then knows the text only."""
    needs_answer: bool = True
    """True if it cannot grade without a reference."""

    def can_compare_with(self, reference: str) -> bool:
        """Return whether `compare` takes this reference."""
        return self.compares_faulty or self.fault(reference) is None

    def verdicts(self, submissions: Sequence[Submission]) -> list[Verdict]:
        """Return a verdict for each submission, in order.

        Raises EvalError for a reference that cannot be compared with, and without what the grader needs.
        """
        return [self._compared(one) for one in submissions]

    def _compared(self, one: Submission) -> Verdict:
        reason: Reason
        if one.extracted is None:
            reason = "unparsed"
        elif self.name == OWN and one.own is not None:
            reason = one.own(one.extracted)
        elif not self.compares_faulty and (fault := self.fault(one.answer)) is not None:
            raise EvalError("evals.reference_not_gradable", fault=fault)
        else:
            reason = self.compare(one.extracted, one.answer)
        return Verdict(correct=reason == "match", extracted=one.extracted, reason=reason)

    def account(self) -> dict[str, Any]:
        """Return what the provenance of a start records about the grader."""
        return {}

    def reference_in(self, row: Mapping[str, Any]) -> str | None:
        """Return the reference in the grader's own columns of a task's row, or None if the answer's column holds it.

        Raises EvalError for a value that cannot be a reference.
        """
        return None

    @property
    def gives_scores(self) -> bool:
        """True if the verdicts of this grader have scores."""
        return self.runs_code

    @property
    def at_once(self) -> int:
        """The number of submissions that it grades at a time."""
        return 1


def never_compares(candidate: str, answer: str) -> Reason:
    """Stand in for `compare` in a grader that compares no two answers."""
    raise AssertionError("this grader compares no two answers")


# Hyphens and dashes that people and models write for a minus sign.
_MINUS_SIGNS = "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"


class _Visible(dict[int, str]):
    """A table for `str.translate`, filled as characters occur."""

    def __missing__(self, code: int) -> str:
        self[code] = replacement = self._replacement(chr(code))
        return replacement

    @staticmethod
    def _replacement(character: str) -> str:
        if character == "\n":
            return "\n"
        if character in _MINUS_SIGNS:
            return "-"
        # These forms have the order of ASCII, at a fixed distance.
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
# Mark-up is never nested deeper in practice. The bound keeps the work linear in the text.
_NESTING = 8
# A space of TeX at an answer's end (`18\,`, `18\quad`), or the backslash of a space whose sign was removed as
# punctuation.
_TEX_SPACE_AT_END = re.compile(
    r"(?:~|\\(?:[,;:!> \\]?|q?quad|en(?:space|skip)|(?:thin|med|thick)space|hfill|hspace\*?\s*\{[^{}]*\}))$"
)
# Full stops after decimals mean that the decimals continue: `2.66...` is not 2.66.
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
    """Return a text with one form for characters that look alike, and without invisible characters.

    Spaces, minus signs and digits of any script become those of ASCII.
    """
    return _LINE_ENDS.sub("\n", text).translate(_VISIBLE)


def bare(answer: str) -> str:
    """Return a normalised answer without mark-up, full stop and spaces of TeX around it, and with single spaces."""
    answer = " ".join(answer.split())
    # Each round removes one layer, until nothing changes.
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
