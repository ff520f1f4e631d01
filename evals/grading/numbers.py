"""Reading a number from an answer, exactly: no floating point, no tolerance."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

from evals.grading.text import bare, normalise

# Longer texts are not numbers anyone wrote as an answer. The bound keeps big-integer arithmetic cheap.
MAX_CHARACTERS = 500

_MULTIPLIERS = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
# Words after a number that change its value or say that there is a second one.
_NOT_UNITS = re.compile(
    "pi|sqrt|sin|cos|tan|log|ln|exp|mod|and|or|to|plus|minus|times|over|point|half|quarter|third|not|but|more|less|than"
)
# Letters and short words are units only if known: `2x` and `2ab` are algebra. A single letter also needs a space.
_SHORT_UNITS = re.compile("mm|cm|km|ml|mg|kg|lbs?|oz|ft|yd|mph|hrs?|min|sec|st|nd|rd|th|am|pm|usd")
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

_DIGITS = r"\{\s*([-+]?[0-9]+)\s*\}"
_LATEX = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:(?:left|right)(?![a-zA-Z])|!)", ""),
        (r"\{,\}", ","),
        (r"\\[,;: ]|~|\\q?quad", " "),
        (rf"\\[dt]?frac\s*{_DIGITS}\s*{_DIGITS}", r" \1/\2 "),
        (r"\\[dt]?frac\s*([0-9])\s*([0-9])", r" \1/\2 "),
        (r"\\(?:text|textbf|textrm|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}", r" \1"),
        (r"\^\s*\{?\s*\\circ\s*\}?|\\degree|[°º]", " degrees "),
        (r"\\([%$])", r"\1"),
        (r"\\times|\\cdot|×", "*"),
    )
]


def parse_number(text: str) -> Fraction | None:
    """The number that an answer states, or None if it states none or more than one.

    Reads signs, thousands separators, currency, percent (`50%` is 50), decimals, `3/4`, `\\frac{3}{4}`, `3 1/2`, `1e3`,
    `2 \\times 10^3`, `5 million`, and what is right of the last `=`. Units are dropped: `18 dollars` is 18, `90^\\circ`
    is 90. `2x`, `2\\pi`, `3-4`, `1,2` and `1,00` are no numbers.
    """
    return None if len(text) > MAX_CHARACTERS else _parsed(text)


@lru_cache(maxsize=16_384)  # the samples of a prompt mostly give the same few answers
def _parsed(text: str) -> Fraction | None:
    text = re.split(r"=|≈|\\approx", bare(normalise(text)))[-1]
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


def _unit_factor(unit: str) -> int | None:
    """What the text after a number multiplies it by: 1 for a unit, 10**6 for `million`; None if it is neither."""
    if _UNIT.fullmatch(unit) is None:
        return None
    factor = 1
    for word in _LETTERS.findall(unit):
        name = word.lower()
        if name in _MULTIPLIERS:
            factor *= _MULTIPLIERS[name]
        elif _NOT_UNITS.fullmatch(name) or (len(word) == 1 and word not in _LETTER_UNITS):
            return None
    first = _LETTERS.match(unit)
    if first and len(first[0]) < 4 and not _SHORT_UNITS.fullmatch(first[0].lower()):
        return None
    return factor
