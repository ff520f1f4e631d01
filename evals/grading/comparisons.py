"""Comparing an extracted answer with the reference. Each comparison takes (candidate, reference) and gives a reason."""

from __future__ import annotations

import re

from evals.errors import EvalError
from evals.grading.choice import choice_letter, parse_choice
from evals.grading.latex import based_digits, differ_in_kind, is_mathematical, is_well_formed, plain_latex, spelling
from evals.grading.numbers import is_percentage, parse_number, reference_number, same_number
from evals.grading.text import bare, normalise
from evals.grading.verdict import Reason

# Longer texts are not answers: rewriting them would cost more than the verdict is worth.
MAX_CHARACTERS = 5_000

_IN_TEXT_MACRO = re.compile(r"\$?\\(?:text|textbf|textit|textrm|textnormal|mbox)\s*\{[^{}]*\}\$?\.?")
_WORDS = re.compile(r"(?=.*[^\W\d_]{4})[^\W\d_]+(?:[ '’-][^\W\d_]+)*")
_ARTICLE = re.compile(r"(?:an?|the)\s+")


def compare_exact(candidate: str, answer: str) -> Reason:
    """Equal as text, but for mark-up, invisible characters and look-alikes."""
    return "match" if candidate == bare(normalise(answer)) else "mismatch"


def compare_numeric(candidate: str, answer: str) -> Reason:
    """Equal as numbers, exactly: `50%` is 50, units do not count. Raises EvalError if the reference is no number."""
    if reference_number(answer) is None:
        raise EvalError(
            f"the reference answer {answer[:80]!r} is not a number, and the grader 'numeric' compares numbers; "
            "use the grader 'math' or 'exact' for this task"
        )
    if parse_number(candidate) is None:
        return "unparsed"
    return "match" if same_number(candidate, answer) else "mismatch"


def compare_choice(candidate: str, answer: str) -> Reason:
    """The same letter. Raises EvalError if the reference is no choice's letter."""
    reference = choice_letter(answer)
    if reference is None:
        raise EvalError(
            f"the reference answer {answer[:80]!r} is not a letter from A to J, and the grader 'choice' compares the "
            "letters of a multiple choice; use the grader 'math' or 'exact' for this task"
        )
    letter = parse_choice(candidate)
    if letter is None:
        return "unparsed"
    return "match" if letter == reference else "mismatch"


def compare_math(candidate: str, answer: str) -> Reason:
    """Equal as mathematics. What follows from text, letters, words or numbers is settled here; math-verify is asked
    about the rest.

    Numbers are equal exactly: 0.3333 is not 1/3, and 3.141593 is not pi. `50%` is 50 and 1/2. `x = 5` may be given as
    `5`, but not as `y = 5`. Of a numeral in another base, `52_8`, the base may be left out. The order of a list counts
    in brackets only; sets in braces are no tuples. Units are not compared, and small and capital letters of variables
    are not told apart.
    """
    reference = bare(normalise(answer))
    if candidate == reference:
        return "match"
    if len(candidate) + len(reference) > MAX_CHARACTERS:
        return "unparsed"
    if choice_letter(answer) is not None and (letter := compare_choice(candidate, answer)) != "unparsed":
        return letter
    if _is_words(answer):
        return "match" if _words(candidate) == _words(reference) else "mismatch"
    if (same := _same_quantity(candidate, answer)) is not None:
        return "match" if same else "mismatch"
    return _compare_expressions(candidate, reference)


def require_mathematical(answer: str) -> None:
    """Raises EvalError if `compare_math` can make nothing of a reference, and would accept its own text alone."""
    if choice_letter(answer) is not None or _is_words(answer) or reference_number(answer) is not None:
        return
    if len(answer) > MAX_CHARACTERS or not is_well_formed(plain_latex(bare(normalise(answer)))):
        raise EvalError(
            f"the reference answer {answer[:80]!r} cannot be read as mathematics, which the grader 'math' compares; "
            "correct it, or use the grader 'exact' for this task"
        )


def _same_quantity(candidate: str, answer: str) -> bool | None:
    """Whether two numbers or percentages are equal; None unless both are."""
    same = same_number(candidate, answer)
    if same is not False or is_percentage(candidate) == is_percentage(answer):
        return same
    value, reference = parse_number(candidate), parse_number(answer)
    assert value is not None and reference is not None
    return value / 100 == reference if is_percentage(candidate) else value == reference / 100


def _compare_expressions(candidate: str, reference: str) -> Reason:
    given, wanted = plain_latex(candidate), plain_latex(reference)
    if spelling(given) == spelling(wanted):
        return "match" if given else "unparsed"
    if (numeral := based_digits(spelling(wanted))) is not None:
        return "match" if spelling(given) == numeral[0] else "mismatch"
    if (numeral := based_digits(spelling(given))) is not None:  # math-verify would drop the base
        return "match" if numeral == (spelling(wanted), "10") else "mismatch"
    if reference_number(reference) is not None and not is_mathematical(given):
        return "unparsed"
    if differ_in_kind(given, wanted):
        return "mismatch"

    from evals.grading.math_process import POOL

    return POOL.compare(given, wanted)


def _is_words(answer: str) -> bool:
    """Whether a reference is words and no product of variables: written as text, or more than three letters."""
    reference = bare(normalise(answer))
    if not any(character.isalpha() for character in reference) or reference_number(answer) is not None:
        return False
    return _IN_TEXT_MACRO.fullmatch(answer.strip()) is not None or _WORDS.fullmatch(reference) is not None


def _words(answer: str) -> str:
    unmarked = re.sub(r"\\(?:text\w*|mbox|math(?:rm|bf|it))\s*\{([^{}]*)\}", r"\1", answer)
    words = " ".join(unmarked.replace("$", " ").split()).casefold().strip(" .,;:!'\"“”")
    return _ARTICLE.sub("", words, count=1) if _ARTICLE.match(words) else words
