"""The grader `choice`, which compares the letters of multiple-choice options, A to J."""

from __future__ import annotations

import re

from evals.grading import Grader, Reason, bare, normalise

# Longer texts are not answers to a multiple choice.
_MAX_CHARACTERS = 1_000

_REFERENCE = re.compile(r"\(\s*([A-Ja-j])\s*\)|([A-J])")
_MARK_UP = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)(?![a-zA-Z])|\\[,;:! ]|[{}$*`~]")
_NAMED = r"(?:(?i:the|correct|option|choice|answer|letter|is)\b(?:\s*[:=])?\s*)*"
# A letter alone, in brackets, or before a full stop, colon or bracket. The option's text may follow it.
_CANDIDATE = re.compile(
    rf"{_NAMED}(?:[(\[]\s*([A-Ja-j])\s*[)\]]|([A-Ja-j])(?=[).:\]]|$))[).:\]]?(?P<rest>\s.*)?", re.DOTALL
)
_AND = r"\s*(?:[,;/|&+]|(?:,\s*)?\b(?:and|or)\b)\s*(?i:(?:option|choice)\s+)?"
_ANOTHER = re.compile(rf"\([A-J]\)|\b(?:and|or)\s+[A-J]\b|^{_AND}(?:[(\[]\s*[A-Ja-j]\s*[)\]]|[A-J]\b)")

# `A` and `I` before a word in lower case are words themselves, unless that word continues the sentence.
_LETTER = r"([B-HJ]|[AI](?!\s+(?!(?:is|because|since|as|which|for|and|or)\b)[a-z]))"
_STATED = re.compile(
    rf"\b(?i:answers?|options?|choices?)\s*(?i:(?:is|are)\b|:|=)?\s*:?\s*(?i:(?:both|either)\s+)?"
    rf"(?i:(?:the\s+)?(?:options?|choices?)\s+)?(?:\(\s*([A-Ja-j])\s*\)|{_LETTER}(?![\w'’]))"
)
_BRACKETED = re.compile(r"\(([A-J])\)")
_BETWEEN = re.compile(rf"{_AND}|\s*")
# Another letter of the same answer, but not the subject of the next clause, as in "B, C is wrong".
_ONE_MORE = re.compile(
    rf"(?:{_AND}|\s*(?=\())(?:\(\s*[A-Ja-j]\s*\)|{_LETTER}(?![\w'’]))"
    r"(?!\s+(?:is|are|was|were|has|would|can|cannot|does|gives)\b)"
)


def choice_letter(reference: str) -> str | None:
    """Return the letter of a reference answer, or None if the reference is not a letter.

    Reads `B`, `(B)`, `(b)`, and each of these in a text macro.
    """
    if len(reference) > _MAX_CHARACTERS:
        return None
    whole = _REFERENCE.fullmatch(bare(normalise(reference)))
    return (whole[1] or whole[2]).upper() if whole else None


def parse_choice(text: str) -> str | None:
    r"""Return the letter that an answer states, as a capital, or None if it states none or more than one.

    Reads `B`, `(B)`, `[B]`, `B.`, `B)`, `\text{(B)}`, `option B`, `the answer is B`, and each of these with the
    option's text after it (`(B) 12`, `B. Paris`). Small letters count as capitals: an answer of one letter leaves no
    doubt.
    """
    if len(text) > _MAX_CHARACTERS:
        return None
    plain = " ".join(_MARK_UP.sub(" ", bare(normalise(text))).split())
    whole = _CANDIDATE.fullmatch(plain)
    if whole is None or _ANOTHER.search(whole["rest"] or ""):
        return None
    return (whole[1] or whole[2]).upper()


def last_stated_choice(text: str) -> str | None:
    """Return the letter that a text names last, or None if it names several together: "A or B", "(B), (C)".

    The letter follows "answer", "option" or "choice"; else it is in brackets; else it is the complete text. In running
    text, lower-case letters count only in brackets, because "a" is a word.
    """
    plain = " ".join(_MARK_UP.sub(" ", text).split())
    stated = list(_STATED.finditer(plain)) or list(_BRACKETED.finditer(plain))
    if not stated:
        return parse_choice(text)
    *earlier, last = stated
    letter = _named(last)
    if _ONE_MORE.match(plain, last.end()):
        return None
    together = bool(earlier) and _BETWEEN.fullmatch(plain, earlier[-1].end(), last.start()) is not None
    return None if together and _named(earlier[-1]) != letter else letter


def _named(stated: re.Match[str]) -> str:
    return stated[stated.lastindex or 0].upper()


def compare_choice(candidate: str, answer: str) -> Reason:
    """Compare the letter in an answer with that of the reference."""
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


choice = Grader("choice", version=3, meaning="the same letter in multiple choice", compare=compare_choice, fault=_fault)
