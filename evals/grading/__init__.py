"""Grading: the answer of a completion is found (`extract`), then compared with the reference by a named grader.

A grader is a file of this folder, or of a plug-in, with a `Grader(...)` at its top level. This module holds what all of
them stand on: verdicts, how a grader is found and asked, and the text of an answer as a reader sees it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from evals.errors import EvalError
from harness.plugins import Kind

Reason = Literal["match", "mismatch", "unparsed", "timeout", "crash"]
OwnComparison = Callable[[str], Reason]
"""A problem's own way to judge an extracted answer, where more than one answer is right."""
OWN = "own"
"""The grader that leaves the verdict to the problem's own comparison (see own.py)."""


@dataclass(frozen=True)
class Verdict:
    """What a grader says of one completion.

    extracted: the answer's text, or None where none was found.
    reason: `unparsed`: there is no answer, or none that the grader can read. `timeout`, `crash`: the comparison did not
        end, so `correct` is False for want of a proof; count these.
    """

    correct: bool
    extracted: str | None
    reason: Reason


@dataclass(frozen=True)
class Grader:
    """A way to compare an extracted answer with the reference.

    version: raise it whenever a verdict can change; it is part of a run's semantic hash.
    meaning: when it says that an answer is right, in a line.
    compare: (extracted answer, reference) -> reason.
    fault: why a reference cannot be compared with, for an error message that ends with a remedy; None if it can.
    compares_faulty: whether `compare` is asked even about references with a fault, of which it then knows the text.
    """

    name: str
    version: int
    meaning: str
    compare: Callable[[str, str], Reason]
    fault: Callable[[str], str | None] = lambda reference: None
    compares_faulty: bool = False

    def can_compare_with(self, reference: str) -> bool:
        return self.compares_faulty or self.fault(reference) is None


GRADERS: Kind[Grader] = Kind(
    "grader",
    lambda thing: isinstance(thing, Grader),
    "evals.grading",
    "bench ls graders",
    summary_of=lambda grader: grader.meaning,
)


def get_grader(name: str) -> Grader:
    """The grader of that name. Raises UnknownNameError."""
    return GRADERS.find(name)


def grader_version(name: str) -> int | str:
    """What stands for a grader in a hash: the version of a shipped one, the digest of a plug-in's source. Raises
    UnknownNameError."""
    source = GRADERS.source(name)
    return get_grader(name).version if source is None else source.digest


def applicable_graders(answer: str) -> list[str]:
    """The graders that can compare with this reference."""
    return [name for name, grader in GRADERS.all().items() if grader.can_compare_with(answer)]


def require_gradable(answer: str, grader: str, own: OwnComparison | None = None) -> None:
    """Find out whether a reference can be compared with, without an answer to compare it with. Starts no process.

    Raises UnknownNameError for an unknown grader, EvalError for a reference that is empty or has a fault.
    """
    found = get_grader(grader)
    if not answer:
        raise EvalError("there is no answer to compare with. Give all rows their answers, or take another task.")
    if (grader != OWN or own is None) and (fault := found.fault(answer)) is not None:
        raise EvalError(fault)


def judge(
    extracted: str | None, answer: str, grader: str | Grader = "math", own: OwnComparison | None = None
) -> Verdict:
    """The verdict on an answer that was extracted already. Raises as `grade`."""
    found = grader if isinstance(grader, Grader) else get_grader(grader)
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
    text: str, answer: str, grader: str | Grader = "math", extract: str | None = None, own: OwnComparison | None = None
) -> Verdict:
    """Whether a completion gives the reference answer.

    text: the completion. answer: the reference, without working.
    grader: `exact` compares text. `numeric` compares numbers exactly, without units (see `numeric.parse_number`).
        `choice` compares the letters of a multiple choice (see `choice.parse_choice`). `math` accepts what these accept
        and asks math-verify about the rest, in a process with limits on time and memory (see `math.compare_math`).
        `own` asks the problem itself. Plug-ins may add others. The grader itself instead of its name saves the search.
    extract: `boxed`, `answer_tag` (`<answer>`), `gsm8k` (`####`), `hash` (after the last `#`), `last_number`, `choice`,
        or None for `chain`: what follows `</think>`, there the last box, else `####`, else "answer is", else the last
        number.
    own: the problem's own comparison (`Problem.own_comparison`), for the grader `own`.

    Raises UnknownNameError for an unknown grader, EvalError for an unknown extraction, and where the grader cannot
    compare with the reference: `numeric` with one that is not a number, `choice` with one that is not a letter, `own`
    for a problem without a comparison.
    """
    from evals.grading.extract import extract_answer

    found = grader if isinstance(grader, Grader) else get_grader(grader)
    return judge(extract_answer(text, extract or "chain"), answer, found, own)


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
        inner = _TEX_SPACE_AT_END.sub("", answer.strip().removeprefix(":")).rstrip(".,;: ")
        for wrapper in _WRAPPERS:
            if whole := wrapper.fullmatch(inner):
                inner = whole[1]
        if inner == answer:
            break
        answer = inner
    return answer
