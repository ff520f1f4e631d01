"""The grader `numeric`: numbers are read and compared exactly, without floating point and without a tolerance."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

from evals.grading import Grader, Reason, bare, normalise

# Longer texts are not numbers anyone wrote as an answer. The bound keeps big-integer arithmetic cheap.
MAX_CHARACTERS = 500

_MULTIPLIERS = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "bn": 10**9, "lakh": 10**5, "crore": 10**7, "dozen": 12,
}  # fmt: skip
# Words after a number that change its value, or say that a second one follows. Ordinals do so only in the plural: "18
# fifth graders", but "18 fifths".
_NOT_UNITS = re.compile(
    "pi|sqrt|sin|cos|tan|log|ln|exp|mod|and|or|to|plus|minus|times|over|point|not|but|more|less|than|fewer"
    "|half|halves|halved|quarters?|thirds?|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|twentie|hundred|thousand)ths"
    "|factorial|divided|multiplied|raised|doubled|tripled|quadrupled|mil|mn"
)
# Right after the number "squared" is an operation, after a unit it belongs to that: "18 metres squared".
_NO_UNIT = re.compile(r"\s*(?:squared|cubed)\b|.*\bis\s+(?:wrong|incorrect|false)\b", re.IGNORECASE)
# Letters and short words are units only if known: `2x` and `2ab` are algebra. A single letter also needs a space.
_SHORT_UNITS = re.compile("mm|cm|km|ml|mg|kg|lbs?|oz|ft|yd|mph|hrs?|min|sec|rad|sq|cu|st|nd|rd|th|am|pm|usd")
_LETTER_UNITS = frozenset("mgshlLCF")

_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?:[ ][0-9]{3})+|[0-9]+)(?![0-9])"
_CURRENCY = r"(?:[$£€¥₹]|USD|EUR|GBP|Rs\.?)"
_NUMBER = re.compile(
    rf"""
    (?P<sign>[-+]?) \s* (?:{_CURRENCY} \s* (?P<inner_sign>[-+]?) \s*)?
    (?:(?P<whole>[0-9]+) \s+ (?=[0-9]+/[0-9]))?
    (?P<numerator>{_INTEGER} (?:\.[0-9]+)? | \.[0-9]+)
    (?: \s*/\s* (?P<denominator>{_INTEGER} (?:\.[0-9]+)?) )?
    (?: [eE] (?P<exponent>[-+]?[0-9]{{1,3}}) (?![0-9])
      | \s*\*\s* 10\s*\^\s* (?P<brace>\{{)? (?P<power>[-+]?[0-9]{{1,3}}) (?(brace)\}}) )?
    (?P<unit>.*)
    """,
    re.VERBOSE,
)
_POWER = r"(?:\^\{?-?[0-9]\}?|[²³])"
_LETTER = r"[^\W\d_²³]"
_WORD = rf"{_LETTER}+(?:['’]{_LETTER}+)?{_POWER}?"
_UNIT = re.compile(rf"(?:[%°¢£€¥₹$]|{_CURRENCY})?\s*(?:{_WORD}(?:[\s/*.-]+{_WORD})*)?\.?\s*")
_LETTERS = re.compile(rf"{_LETTER}+")

_APPROXIMATELY = r"≈|\\approx(?![a-zA-Z])"
# Where the right side of an equation begins; `>=` is none.
_EQUALS = re.compile(rf"(?<![<>!])=+(?!>)|{_APPROXIMATELY}")
_APPROXIMATION = re.compile(rf"(.*)(?:{_APPROXIMATELY})[^./]*(?:\.(?P<decimals>[0-9]+)[^./]*)?", re.DOTALL)
# In the middle of a chain of equations: the end of one answer and the start of the next, `x = 3, y = 4`.
_SEVERAL = re.compile(r",\s*[^\d\s]|;|\b(?:and|or)\b")
_SYMBOL = re.compile(r"\\?[a-zA-Z]+(?:_(?:\w|\{\w+\}))?(?:\([^()]*\))?")
_ALGEBRA = re.compile(r"[-+*/^]|[0-9][a-zA-Z]|[a-zA-Z]\\|\\(?:frac|sqrt)")
_VARIABLE = re.compile(r"(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])")
_PERCENT = re.compile(r"%|percent", re.IGNORECASE)

_TEXT = r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}"
_DIGITS = r"(?:\{\s*([-+]?[0-9][0-9.,]*)\s*\}|([0-9]))"
_LATEX = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right|displaystyle|textstyle|large|Large|bf|rm)(?![a-zA-Z])|\\!\s*", ""),
        (r"\{,\}", ","),
        (r"\\[,;: ]|~|\\q?quad", " "),
        (rf"\\[dt]?frac\s*{_DIGITS}\s*{_DIGITS}", r" \1\2/\3\4 "),
        (_TEXT, r" \1"),
        (r"\^\s*\{?\s*\\circ\s*\}?|\\degree|[°º]", " degrees "),
        (r"\\([%$])", r"\1"),
        (r"\\times|\\cdot|×|(?<=[0-9])\s*x\s*(?=10\s*\^)", "*"),
        (r"^\s*\{([^{},]*)\}\s*$", r"\1"),
        (r"\s\(([^()0-9]*)\)", r" \1 "),
    )
]


def parse_number(text: str) -> Fraction | None:
    """The number that an answer states, or None if it states none or more than one.

    Reads signs, thousands separators, currency, percent (`50%` is 50), decimals, `3/4`, `\\frac{3}{4}`, `3 1/2`, `1e3`,
    `2 \\times 10^3`, `5 million`, and what is right of the last `=`. Units are dropped: `18 dollars` is 18, `90^\\circ`
    is 90. `2x`, `2\\pi`, `3-4`, `1,2` and `1,00` are not numbers.
    """
    return None if len(text) > MAX_CHARACTERS else _parsed(text)


def reference_number(answer: str) -> Fraction | None:
    """The number that a reference answer is, or None. An equation is not a number (`x + y = 5` is a line), unless it
    gives the value of a symbol (`x = 5`)."""
    if len(answer) > MAX_CHARACTERS:
        return None
    *left, _ = _EQUALS.split(bare(normalise(answer)))
    return None if any(_is_algebra(part) for part in left) else parse_number(answer)


def same_number(candidate: str, answer: str) -> bool | None:
    """Whether an answer states the reference's number; None unless both state one.

    `y = 5` is not `x = 5`. `1/3 \\approx 0.333` states two numbers, of which either may be the reference's.
    """
    value, reference = parse_number(candidate), reference_number(answer)
    if value is None or reference is None:
        return None
    symbol = _symbol(answer)
    if symbol is not None:
        *left, _ = _EQUALS.split(bare(normalise(candidate)))
        if any(_is_algebra(part) for part in left):
            return None
        if _symbol(candidate) not in (symbol, None):
            return False
    return reference in (value, _rounded_number(candidate, value))


def _rounded_number(text: str, value: Fraction) -> Fraction | None:
    """The number left of the last `\\approx`, if rounding it or cutting off decimals gives the value right of it."""
    sides = _APPROXIMATION.fullmatch(bare(normalise(text)))
    exact = parse_number(sides[1]) if sides else None
    if sides is None or exact is None:
        return None
    last_place = Fraction(1, 10 ** len(sides["decimals"] or ""))
    cut_off = abs(exact) - abs(value)
    return exact if exact * value >= 0 and -last_place / 2 <= cut_off < last_place else None


def is_percentage(text: str) -> bool:
    """Whether a number is written with a percent sign or the word."""
    return len(text) <= MAX_CHARACTERS and _PERCENT.search(text) is not None


def _is_algebra(side: str) -> bool:
    side = re.sub(_TEXT, "", side)
    return _ALGEBRA.search(side) is not None and _VARIABLE.search(side) is not None


def _symbol(text: str) -> str | None:
    """The symbol left of the first `=`; None where words or nothing are."""
    name, equals, _ = bare(normalise(text)).partition("=")
    name = name.replace(" ", "").casefold()
    is_word = name.isalpha() and len(name) > 2
    return name if equals and not is_word and _SYMBOL.fullmatch(name) else None


@lru_cache(maxsize=16_384)  # the samples of a prompt mostly give the same few answers
def _parsed(text: str) -> Fraction | None:
    *left, text = _EQUALS.split(bare(normalise(text)))
    if any(_SEVERAL.search(part) for part in left[1:]):
        return None
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    match = _NUMBER.fullmatch(_spell_out_fractions(text).strip())
    if match is None:
        return None
    factor = _unit_factor(match["unit"])
    denominator = _decimal(match["denominator"] or "1")
    if factor is None or denominator == 0:
        return None
    value = _decimal(match["whole"] or "0") + _decimal(match["numerator"]) / denominator
    value *= Fraction(10) ** int(match["exponent"] or match["power"] or 0) * factor
    return -value if (match["sign"] == "-") != (match["inner_sign"] == "-") else value


def _spell_out_fractions(text: str) -> str:
    """`3½` -> `3 1/2`."""
    if text.isascii():
        return text
    forms = (unicodedata.normalize("NFKC", character) for character in text)
    return "".join(
        f" {form.replace('⁄', '/')} " if "⁄" in form else original for form, original in zip(forms, text, strict=True)
    )


def _decimal(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace(" ", ""))


def is_unit(text: str) -> bool:
    """Whether a text is a unit that may follow a number. Short words count only if they are known units, or if the text
    has a space before them."""
    return _unit_factor(text) == 1


def _unit_factor(unit: str) -> int | None:
    """What the text after a number multiplies it by: 1 for a unit, 10**6 for `million`; None if it is neither."""
    if _UNIT.fullmatch(unit) is None or _NO_UNIT.match(unit):
        return None
    factor = 1
    for word in _LETTERS.findall(unit):
        name = word.lower()
        if (multiplier := _MULTIPLIERS.get(name) or _MULTIPLIERS.get(name.removesuffix("s"))) is not None:
            factor *= multiplier
        elif _NOT_UNITS.fullmatch(name) or (len(word) == 1 and word not in _LETTER_UNITS):
            return None
    first = _LETTERS.match(unit)
    if first and len(first[0]) < 4 and not _SHORT_UNITS.fullmatch(first[0].lower()):
        return None
    return factor


def canonical_answer(extracted: str | None) -> Fraction | str | None:
    """A key that equal answers share: the value of those that state a number (`012` and `12`, `1/2` and `0.5`), the
    text of others. None where there is no answer.

    Expressions that are equal but written differently (`x+1`, `1+x`) count as two answers: comparing every pair of them
    by math-verify would cost more than the evaluation.
    """
    if extracted is None:
        return None
    value = parse_number(extracted)
    return bare(normalise(extracted)) if value is None else value


def compare_numeric(candidate: str, answer: str) -> Reason:
    """Equal as numbers, exactly: `50%` is 50, and units do not count."""
    if parse_number(candidate) is None:
        return "unparsed"
    return "match" if same_number(candidate, answer) else "mismatch"


def _fault(answer: str) -> str | None:
    if reference_number(answer) is not None:
        return None
    return (
        f"the reference answer {answer[:80]!r} is not a number, and the grader 'numeric' compares numbers; use the "
        "grader 'math' or 'exact' for this task"
    )


numeric = Grader(
    "numeric", version=4, meaning="equal as numbers, exactly; units are ignored", compare=compare_numeric, fault=_fault
)
