"""The grader `choice`: the letter of an option of a multiple choice, A to J."""

from __future__ import annotations

import re

from evals.grading import Grader, Reason, bare, normalise

# Longer texts are not the answer to a multiple choice.
_MAX_CHARACTERS = 1_000

_REFERENCE = re.compile(r"\(\s*([A-Ja-j])\s*\)|([A-J])")
_MARK_UP = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)(?![a-zA-Z])|\\[,;:! ]|[{}$*`~]")
_NAMED = r"(?:(?i:the|correct|option|choice|answer|letter|is)\b(?:\s*[:=])?\s*)*"
# A letter alone; one in brackets or before a full stop, a colon or a bracket, which the option's text may follow.
_CANDIDATE = re.compile(
    rf"{_NAMED}(?:[(\[]\s*([A-Ja-j])\s*[)\]]|([A-Ja-j])(?=[).:\]]|$))[).:\]]?(?P<rest>\s.*)?", re.DOTALL
)
_ANOTHER = re.compile(r"\([A-J]\)|\b(?:and|or)\s+[A-J]\b")

# `A` and `I` before a word in small letters are words themselves, unless that word goes on with the sentence.
_LETTER = r"([B-HJ]|[AI](?!\s+(?!(?:is|because|since|as|which|for|and|or)\b)[a-z]))"
_STATED = re.compile(
    rf"\b(?i:answer|option|choice)\s*(?i:is\b|:|=)?\s*:?\s*(?i:(?:the\s+)?(?:option|choice)\s+)?"
    rf"(?:\(\s*([A-Ja-j])\s*\)|{_LETTER}(?![\w'’]))"
)
_BRACKETED = re.compile(r"\(([A-J])\)")


def choice_letter(reference: str) -> str | None:
    """The letter that a reference answer is: `B`, `(B)`, `(b)` and these in a text macro; None for any other."""
    if len(reference) > _MAX_CHARACTERS:
        return None
    whole = _REFERENCE.fullmatch(bare(normalise(reference)))
    return (whole[1] or whole[2]).upper() if whole else None


def parse_choice(text: str) -> str | None:
    """The letter that an answer states, as a capital, or None if it states none or more than one.

    Reads `B`, `(B)`, `[B]`, `B.`, `B)`, `\\text{(B)}`, `option B`, `the answer is B`, and each of these with the
    option's text after it (`(B) 12`, `B. Paris`). Small letters count as capitals: an answer of one letter
    leaves no doubt.
    """
    if len(text) > _MAX_CHARACTERS:
        return None
    plain = " ".join(_MARK_UP.sub(" ", bare(normalise(text))).split())
    whole = _CANDIDATE.fullmatch(plain)
    if whole is None or _ANOTHER.search(whole["rest"] or ""):
        return None
    return (whole[1] or whole[2]).upper()


def last_stated_choice(text: str) -> str | None:
    """The letter that a text names last: after "answer", "option" or "choice", else in brackets, else as the whole
    text.

    In running text small letters count only in brackets: "a" is a word.
    """
    plain = " ".join(_MARK_UP.sub(" ", text).split())
    stated = [first or second for first, second in _STATED.findall(plain)] or _BRACKETED.findall(plain)
    return stated[-1].upper() if stated else parse_choice(text)


def compare_choice(candidate: str, answer: str) -> Reason:
    """The same letter."""
    letter = parse_choice(candidate)
    if letter is None:
        return "unparsed"
    return "match" if letter == choice_letter(answer) else "mismatch"


def _fault(answer: str) -> str | None:
    if choice_letter(answer) is not None:
        return None
    return (
        f"the reference answer {answer[:80]!r} is not a letter from A to J, and the grader 'choice' compares the "
        "letters of a multiple choice; use the grader 'math' or 'exact' for this task"
    )


choice = Grader("choice", version=2, meaning="the same letter in multiple choice", compare=compare_choice, fault=_fault)
