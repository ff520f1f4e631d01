"""Grading: `extract` finds the answer in a completion, then a named grader compares it with the reference.

A grader is a file in this folder or in a plug-in, with a `Grader(...)` at its top level. A judge is a grader that asks
a model: a YAML file of the user's own (see `asked_model`). This module defines what all graders share: verdicts, and
the text of an answer as a reader sees it. `evals.graders` finds and calls graders.
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
"""Reasons that prove nothing. Scores count the answer as wrong, but training gives it no reward at all."""
OwnComparison = Callable[[str], Reason]
"""A problem's own comparison of an extracted answer, for problems with more than one correct answer."""
OWN = "own"
"""The name of the grader that uses the problem's own comparison (see own.py)."""


@dataclass(frozen=True)
class Verdict:
    """The verdict of a grader on one completion."""

    correct: bool
    extracted: str | None
    """The answer's text, or None if there is no answer."""
    reason: Reason
    """`unparsed`: there is no answer, or none that the grader can read. `timeout`, `crash`: the comparison did not
    finish. `undecided`: a judge's reply states no verdict. In all these cases `correct` is False only for lack of
    proof, so count them separately.
    """
    reply: JudgeReply | None = None
    """The judge's reply; None for graders that are not judges."""
    score: float | None = None
    """The score of a judge that gives scores, or the share of unit tests passed, in [0, 1]; otherwise None."""


@dataclass(frozen=True)
class JudgeReply:
    """A judge model's reply to one question, with its cost in tokens."""

    question: str
    """The name of the question. If a judge is asked equal questions, they share one reply."""
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
    """The problem's own comparison, if it has one."""


@dataclass(frozen=True)
class Grader:
    """A way to compare an extracted answer with the reference."""

    reads_whole: ClassVar[bool] = False
    """True if the grader reads whole completions, many at once, by `verdicts`; `compare` is then unused."""
    asks_model: ClassVar[bool] = False
    runs_code: ClassVar[bool] = False
    """True if the grader runs programs that a model wrote, which must be allowed. Its references are tests."""

    name: str
    version: int | str
    """Raise this whenever a verdict can change; it is part of a run's semantic hash."""
    meaning: str
    """When an answer counts as correct, in one line."""
    compare: Callable[[str, str], Reason]
    """(extracted answer, reference) -> reason."""
    fault: Callable[[str], str | None] = lambda reference: None
    """Returns why the grader cannot compare with a reference, for a message that ends with a remedy, or None."""
    compares_faulty: bool = False
    """True if `compare` also accepts references with a fault, of which it compares only the text."""
    needs_answer: bool = True
    """True if it cannot grade without a reference."""

    def can_compare_with(self, reference: str) -> bool:
        """Return whether `compare` takes this reference."""
        return self.compares_faulty or self.fault(reference) is None

    def verdicts(self, submissions: Sequence[Submission]) -> list[Verdict]:
        """Return a verdict for each submission, in order.

        Raises EvalError for a reference that the grader cannot compare with, or if something that it needs is missing.
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
        """Return what a launch's provenance records about the grader."""
        return {}

    def reference_in(self, row: Mapping[str, Any]) -> str | None:
        """Return the reference from the grader's own columns of a task's row, or None to use the answer column.

        Raises EvalError for a value that cannot be a reference.
        """
        return None

    @property
    def gives_scores(self) -> bool:
        """True if this grader's verdicts have scores."""
        return self.runs_code

    @property
    def at_once(self) -> int:
        """The number of submissions that it grades at a time."""
        return 1


def never_compares(candidate: str, answer: str) -> Reason:
    """Serve as `compare` in a grader that never compares two answers."""
    raise AssertionError("this grader compares no two answers")


# Hyphens and dashes that people and models use as minus signs.
_MINUS_SIGNS = "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"


class _Visible(dict[int, str]):
    """A table for `str.translate` that is filled as characters occur."""

    def __missing__(self, code: int) -> str:
        self[code] = replacement = self._replacement(chr(code))
        return replacement

    @staticmethod
    def _replacement(character: str) -> str:
        if character == "\n":
            return "\n"
        if character in _MINUS_SIGNS:
            return "-"
        # These characters are in ASCII order, at a fixed distance.
        if "\uff01" <= character <= "\uff5e":  # Full-width forms of ASCII.
            return chr(ord(character) - 0xFEE0)
        match unicodedata.category(character):
            case "Cf":  # Zero-width, direction marks, soft hyphen.
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
# A TeX space at the end of an answer (`18\,`, `18\quad`), or the backslash of a space whose second character was
# removed as punctuation.
_TEX_SPACE_AT_END = re.compile(
    r"(?:~|\\(?:[,;:!> \\]?|q?quad|en(?:space|skip)|(?:thin|med|thick)space|hfill|hspace\*?\s*\{[^{}]*\}))$"
)
# An ellipsis after decimals means that they continue: `2.66...` is not 2.66.
_ELLIPSIS_AT_END = re.compile(r"\.[0-9]+ ?\.{3,}$")
# Mark-up around a complete answer: maths delimiters, bold, code, and text macros.
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
    """Return the text without invisible characters, and with a single form for look-alike characters.

    Spaces, minus signs and digits of any script become ASCII.
    """
    return _LINE_ENDS.sub("\n", text).translate(_VISIBLE)


def bare(answer: str) -> str:
    """Return a normalised answer with single spaces, without surrounding mark-up, full stops and TeX spaces."""
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
