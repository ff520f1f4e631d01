"""The grader `numeric`, which reads and compares numbers exactly, without floating point and without a tolerance."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

from evals.grading import Grader, Reason, bare, normalise

# Nobody gives a longer number as an answer. The bound keeps big-integer arithmetic cheap.
MAX_CHARACTERS = 500

_MULTIPLIERS = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "bn": 10**9, "lakh": 10**5, "crore": 10**7, "dozen": 12,
}  # fmt: skip
# Words after a number that change its value or announce a second number. Ordinals do so only in the plural: "18 fifth
# graders" is 18, "18 fifths" is not.
_NOT_UNITS = re.compile(
    "pi|sqrt|sin|cos|tan|log|ln|exp|mod|and|or|to|plus|minus|times|over|point|not|but|more|less|than|fewer"
    "|half|halves|halved|quarters?|thirds?|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|twentie|hundred|thousand)ths"
    "|factorial|divided|multiplied|raised|doubled|tripled|quadrupled|mil|mn"
)
# Directly after the number, "squared" is an operation. After a unit, it belongs to the unit: "18 metres squared".
_NO_UNIT = re.compile(r"\s*(?:squared|cubed)\b|.*\bis\s+(?:wrong|incorrect|false)\b", re.IGNORECASE)
# Letters and short words count as units only if they are known: `2x` and `2ab` are algebra. A single letter also needs
# a space.
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
# Units that can be combined in one amount, such as `12 feet 4 inches`. A size is the number of smallest units of the
# same kind.
_UNIT_SIZES = {
    name: (kind, size)
    for kind, size, names in (
        ("money", 100, "dollar dollars"), ("money", 1, "cent cents"),
        ("length", 63_360, "mile miles"), ("length", 36, "yard yards yd"), ("length", 12, "foot feet ft"),
        ("length", 1, "inch inches in"),
        ("metres", 100_000, "km kilometer kilometers kilometre kilometres"),
        ("metres", 100, "m meter meters metre metres"),
        ("metres", 1, "cm centimeter centimeters centimetre centimetres"),
        ("time", 604_800, "week weeks"), ("time", 86_400, "day days"), ("time", 3_600, "hour hours hr hrs h"),
        ("time", 60, "minute minutes min mins"), ("time", 1, "second seconds sec secs s"),
        ("months", 12, "year years"), ("months", 1, "month months"),
        ("weight", 16, "pound pounds lb lbs"), ("weight", 1, "ounce ounces oz"),
        ("grams", 1_000, "kg kilogram kilograms"), ("grams", 1, "g gram grams"),
        ("litres", 1_000, "l liter liters litre litres"),
        ("litres", 1, "ml milliliter milliliters millilitre millilitres"),
    )
    for name in names.split()
}  # fmt: skip
_LARGE, _ANY = (
    rf"\s*(?i:{'|'.join(sorted((name for name, (_, size) in _UNIT_SIZES.items() if size >= least), reverse=True))})\b"
    for least in (2, 1)
)
_AND = r"(?:,?\s+and\s+|,?\s*)"
AMOUNT = (
    rf"(?:{_INTEGER}{_LARGE}(?:{_AND}{_INTEGER}(?:\.[0-9]+)?{_ANY})+"
    rf"|\\?\$\s?{_INTEGER}(?:\s*(?i:dollars?))?{_AND}{_INTEGER}\s*(?i:cents?)\b)"
)
"""A pattern for an amount in several units."""
_AMOUNT = re.compile(AMOUNT)
_MAY_BE_AMOUNT = re.compile(r"[0-9][^0-9]*[a-zA-Z][^0-9]*[0-9]")
_PIECES = re.compile(rf"(?P<dollar>\$)?\s*(?P<amount>{_INTEGER}(?:\.[0-9]+)?)\s*(?P<unit>[a-zA-Z]*)")

_POWER = r"(?:\^\{?-?[0-9]\}?|[²³])"
_LETTER = r"[^\W\d_²³]"
_WORD = rf"{_LETTER}+(?:['’]{_LETTER}+)?{_POWER}?"
_UNIT = re.compile(rf"(?:[%°¢£€¥₹$]|{_CURRENCY})?\s*(?:{_WORD}(?:[\s/*.-]+{_WORD})*)?\.?\s*")
_LETTERS = re.compile(rf"{_LETTER}+")

_APPROXIMATELY = r"≈|\\approx(?![a-zA-Z])"
# The start of an equation's right side. `>=` does not count.
_EQUALS = re.compile(rf"(?<![<>!])=+(?!>)|{_APPROXIMATELY}")
_APPROXIMATION = re.compile(rf"(.*)(?:{_APPROXIMATELY})[^./]*(?:\.(?P<decimals>[0-9]+)[^./]*)?", re.DOTALL)
REPEATING = r"\.[0-9]*\\(?:overline|bar)\s*(?:\{[0-9]+\}|[0-9])"
"""A pattern for decimals whose last digits repeat for ever: `.1\\overline{6}`."""
_REPEATING = re.compile(r"(?<![0-9,])([0-9]*)\.([0-9]*)\\(?:overline|bar)\s*(?:\{([0-9]+)\}|([0-9]))")
ELLIPSIS = r"\s?(?:\.{3,}|…|\\(?:[lc]?dots|dots[oc])(?![a-zA-Z]))"
"""A pattern for an ellipsis: the decimals before it continue in an unknown way."""
_UNENDING = re.compile(rf"(?<=\.)([0-9]+){ELLIPSIS}")
_UNENDING_SIDE = re.compile(rf"\s*(?:=|{_APPROXIMATELY})\s*-?[0-9]*\.[0-9]+{ELLIPSIS}\W*$")
# Within a chain of equations, this ends one answer and starts the next: `x = 3, y = 4`.
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
    r"""Return the number that an answer states, or None if it states no number or more than one.

    Reads signs, thousands separators, currency, percent (`50%` is 50), decimals, `3/4`, `\frac{3}{4}`, `3 1/2`, `1e3`,
    `2 \times 10^3`, `5 million`, and the right side of the last `=`. Units are dropped: `18 dollars` is 18, `90^\circ`
    is 90. `7 dollars and 25 cents` is 7.25. `2.\overline{6}` is 8/3, and so is `8/3 = 2.66\ldots`. `2x`, `2\pi`, `3-4`,
    `1,2`, `1,00`, `12 feet 4 inches` and `2.66\ldots` are not numbers.
    """
    return None if len(text) > MAX_CHARACTERS else _parsed(text)


def reference_number(answer: str) -> Fraction | None:
    """Return the number that a reference answer states, or None if it is not a number.

    An equation is not a number (`x + y = 5` is a line), unless it gives the value of a symbol (`x = 5`).
    """
    if len(answer) > MAX_CHARACTERS:
        return None
    *left, _ = _EQUALS.split(bare(normalise(answer)))
    return None if any(_is_algebra(part) for part in left) else parse_number(answer)


def same_number(candidate: str, answer: str) -> bool | None:
    r"""Return whether an answer states the reference's number, or None if either does not state a number.

    `y = 5` is not `x = 5`. `1/3 \approx 0.333` states two numbers, either of which may match. `12 feet 4 inches` is
    compared with a reference that has a unit of length.
    """
    if (same := _same_amount(candidate, answer)) is not None:
        return same
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
    r"""Return the number to the left of the last `\approx`, or None if there is none.

    Rounding or truncating its decimals must give the value to the right of the sign.
    """
    sides = _APPROXIMATION.fullmatch(bare(normalise(text)))
    exact = parse_number(sides[1]) if sides else None
    if sides is None or exact is None:
        return None
    return exact if _is_shown_by(exact, value, len(sides["decimals"] or "")) else None


def _is_shown_by(exact: Fraction, value: Fraction, n_decimals: int) -> bool:
    """Return whether rounding `exact`, or truncating its decimals, gives `value`."""
    last_place = Fraction(1, 10**n_decimals)
    return exact * value >= 0 and -last_place / 2 <= abs(exact) - abs(value) < last_place


def without_unending_side(text: str) -> str | None:
    r"""Return an answer without its side of unending decimals (`\sqrt2 = 1.41\ldots`), or None if it has only that."""
    rest = _UNENDING_SIDE.sub("", text)
    return None if _UNENDING.search(rest) else rest


def _same_amount(candidate: str, answer: str) -> bool | None:
    """Compare two amounts of the same kind, at least one of which is in several units; None for anything else."""
    if len(candidate) + len(answer) > MAX_CHARACTERS or not any(map(_MAY_BE_AMOUNT.search, (candidate, answer))):
        return None
    plain = [_plain(bare(normalise(text))) for text in (candidate, answer)]
    if not any(_AMOUNT.fullmatch(text) for text in plain):
        return None
    amounts = [_amount(text) for text in plain]
    if amounts[0] is None or amounts[1] is None or amounts[0][0] != amounts[1][0]:
        return None
    return amounts[0] == amounts[1]


def is_amount(text: str) -> bool:
    """Return whether a text is an amount in several units of the same kind."""
    plain = _plain(text)
    return _AMOUNT.fullmatch(plain) is not None and _amount(plain) is not None


def _amount(plain: str) -> tuple[str, Fraction] | None:
    """Return the kind of an amount, and its size in the smallest unit of that kind; None if it is not an amount."""
    if not _AMOUNT.fullmatch(plain):
        number = _NUMBER.fullmatch(plain)
        unit = _UNIT_SIZES.get(number["unit"].strip(" .").lower()) if number else None
        value = parse_number(plain)
        return None if unit is None or value is None else (unit[0], value * unit[1])
    pieces = [
        (_decimal(piece["amount"]), *_UNIT_SIZES["dollar" if piece["dollar"] else piece["unit"].lower()])
        for piece in _PIECES.finditer(plain)
    ]
    sizes = [size for _, _, size in pieces]
    if len({kind for _, kind, _ in pieces}) > 1 or sizes != sorted(set(sizes), reverse=True):
        return None
    return pieces[0][1], sum((amount * size for amount, _, size in pieces), Fraction(0))


def is_percentage(text: str) -> bool:
    """Return whether a text contains a percent sign or the word "percent"."""
    return len(text) <= MAX_CHARACTERS and _PERCENT.search(text) is not None


def _is_algebra(side: str) -> bool:
    """Return whether a side of an equation contains an operation and a variable."""
    side = re.sub(_TEXT, "", side)
    return _ALGEBRA.search(side) is not None and _VARIABLE.search(side) is not None


def _symbol(text: str) -> str | None:
    """Return the symbol to the left of the first `=`, or None if there is no `=` or no symbol before it."""
    name, equals, _ = bare(normalise(text)).partition("=")
    name = name.replace(" ", "").casefold()
    is_word = name.isalpha() and len(name) > 2
    return name if equals and not is_word and _SYMBOL.fullmatch(name) else None


@lru_cache(maxsize=16_384)  # The samples of a prompt mostly share a few answers.
def _parsed(text: str) -> Fraction | None:
    """Parse like `parse_number`, for texts within the length limit."""
    *left, text = _EQUALS.split(bare(normalise(text)))
    if any(_SEVERAL.search(part) for part in left[1:]):
        return None
    if (unending := _UNENDING.search(text)) is not None:
        exact, shown = parse_number(left[-1]) if left else None, parse_number(_UNENDING.sub(r"\1", text))
        # An exact side, as in `8/3 = 2.66...`, is the answer if it agrees with the decimals shown.
        known = exact is not None and shown is not None and _is_shown_by(exact, shown, len(unending[1]))
        return exact if known else None
    plain = _plain(text)
    match = _NUMBER.fullmatch(plain)
    if match is None:
        return None
    # If the text after the number is neither a unit nor a multiplier, the number is not the complete answer.
    factor = _unit_factor(match["unit"])
    if factor is None:
        amount = _amount(plain) if _AMOUNT.fullmatch(plain) else None
        return amount[1] / 100 if amount is not None and amount[0] == "money" else None
    denominator = _decimal(match["denominator"] or "1")
    if denominator == 0:
        return None
    value = _decimal(match["whole"] or "0") + _decimal(match["numerator"]) / denominator
    value *= Fraction(10) ** int(match["exponent"] or match["power"] or 0) * factor
    return -value if (match["sign"] == "-") != (match["inner_sign"] == "-") else value


def _plain(text: str) -> str:
    """Return the right side of an equation, with LaTeX converted to plain text."""
    if "\\" in text:
        text = _REPEATING.sub(_repeating, text)
    for pattern, replacement in _LATEX:
        text = pattern.sub(replacement, text)
    return _spell_out_fractions(text).strip()


def _repeating(decimal: re.Match[str]) -> str:
    r"""Return a repeating decimal as a fraction: `2.\overline{6}` -> `8/3`."""
    whole, before, repeated = decimal[1], decimal[2], decimal[3] or decimal[4]
    without = int(f"{whole}{before}" or "0")
    # For r repeated digits after b others: (all digits - those before the repetition) / (10^b (10^r - 1)).
    value = Fraction(int(f"{whole}{before}{repeated}") - without, 10 ** len(before) * (10 ** len(repeated) - 1))
    return f"{value.numerator}/{value.denominator}"


def _spell_out_fractions(text: str) -> str:
    """Replace single-character fractions: `3½` -> `3 1/2`."""
    if text.isascii():
        return text
    forms = (unicodedata.normalize("NFKC", character) for character in text)
    return "".join(
        f" {form.replace('⁄', '/')} " if "⁄" in form else original for form, original in zip(forms, text, strict=True)
    )


def _decimal(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace(" ", ""))


def is_unit(text: str) -> bool:
    """Return whether a text is a unit that may follow a number.

    A short word counts only if it is a known unit; a single letter also needs a space before it.
    """
    return _unit_factor(text) == 1


def _unit_factor(unit: str) -> int | None:
    """Return the factor that the text after a number stands for: 1 for a unit, 10**6 for `million`, else None."""
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
    """Return a key that is the same for equal answers, or None if there is no answer.

    The key is the value of an answer that states a number (`012` and `12`, `1/2` and `0.5`), and the text of any other.
    Equal expressions with different spellings (`x+1`, `1+x`) count as two answers: comparing every pair by math-verify
    would cost more than the evaluation.
    """
    if extracted is None:
        return None
    value = parse_number(extracted)
    return bare(normalise(extracted)) if value is None else value


def compare_numeric(candidate: str, answer: str) -> Reason:
    """Compare as numbers, exactly. `50%` is 50, and units are ignored."""
    if same_number(candidate, answer):
        return "match"
    return "unparsed" if parse_number(candidate) is None else "mismatch"


def _fault(answer: str) -> str | None:
    if reference_number(answer) is not None:
        return None
    return (
        f"the reference answer {answer[:80]!r} is not a number, and the grader 'numeric' compares numbers; use the "
        "grader 'math' or 'exact' for this task"
    )


numeric = Grader(
    "numeric", version=5, meaning="equal as numbers, exactly; units are ignored", compare=compare_numeric, fault=_fault
)
