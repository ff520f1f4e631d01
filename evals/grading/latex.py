"""One way of writing for an expression: what math-verify is given, and what tells two ways of writing apart.

math-verify's own removal of units is not used: it takes `2h`, `5c` and `x + 3d` for quantities with units, and drops
everything after the first `\\text` of `3 \\text{ or } 4 \\text{ cm}`.
"""

from __future__ import annotations

import re

from evals.grading.numbers import is_unit

_CHARACTERS = str.maketrans(
    {
        "π": r"\pi ", "θ": r"\theta ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "×": r"\times ",
        "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "∪": r"\cup ", "∩": r"\cap ", "±": r"\pm ", "∈": r"\in ",
        "∅": r"\emptyset ", "²": "^2", "³": "^3", "°": r"^\circ", "⟨": r"\langle ", "⟩": r"\rangle ",
    }
)  # fmt: skip
# `\\` is a line's end: the second of two backslashes starts no command.
_COMMAND = r"(?<!\\)\\"
_REWRITINGS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<!\\)\$|(?<!\\)\\[()\[\]]", " "),
        (rf"{_COMMAND}(?:left|right|[bB]igg?[lrm]?)(?![a-zA-Z])", ""),
        (rf"{_COMMAND}(?:displaystyle|textstyle|large|Large|limits)(?![a-zA-Z])", " "),
        (rf"{_COMMAND}!\s*", ""),
        (rf"{_COMMAND}(?:[,;: ]|q?quad(?![a-zA-Z]))|~", " "),
        (rf"{_COMMAND}[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (rf"{_COMMAND}(?:leq|leqslant)(?![a-zA-Z])|<=", r"\\le "),
        (rf"{_COMMAND}(?:geq|geqslant)(?![a-zA-Z])|>=", r"\\ge "),
        (r"\s*\{\s*,\s*\}", ","),
        (r"\*\*", "^"),
        (r"√\s*(?:\(([^()]*)\)|([0-9]+|[a-zA-Z]))", r"\\sqrt{\1\2}"),
        (r"(?<![a-zA-Z])\\?sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi "),
        (r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-zA-Z])", " "),
        (r"(?<![\w.])\.(?=[0-9])", "0."),  # math-verify reads `.01` as another number than `0.01`
    )
]
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}(\s*\^\s*\{?-?[0-9]\}?)?"
)
_CONNECTIVE = re.compile(r"\W*(?:and|or)\W*", re.IGNORECASE)
_UNIT_WORDS = re.compile(r"(?<=[0-9})a-z])\s+([a-zA-Z]{2,}(?:[ ./]+[a-zA-Z]+)*(?:\^\{?-?[0-9]\}?)?)[.\s]*$")
_ENDS_IN_QUANTITY = re.compile(r"(?:[0-9})]|\\[a-zA-Z]+)\s*$")
_PERCENT = re.compile(r"\s*\\?%\s*$")
# What an expression has and words and lists of numbers have not.
_MATHEMATICAL = re.compile(r"[-+*/^_()!<>=|\\{}\[\]√²³⁰-⁹]")
_BRACKETS = re.compile(r"(\\\{|[(\[]|\\langle)(.*)(\\\}|[)\]]|\\rangle)")
_BASED = re.compile(r"(-?[0-9][0-9A-F]*)_\{?([0-9]+)\}?")


def plain_latex(expression: str) -> str:
    """An expression without its mark-up, spacing, units, degrees and percent signs, in plain LaTeX: `$\\dfrac12\\pi
    \\text{ cm}^2$` -> `\\frac12\\pi`. Words that are no units are left where they are."""
    expression = expression.translate(_CHARACTERS)
    for pattern, replacement in _REWRITINGS:
        expression = pattern.sub(replacement, expression)
    expression = _TEXT.sub(_text, expression)
    expression = _PERCENT.sub("", " ".join(expression.split()))
    words = _UNIT_WORDS.search(expression)
    if words is not None and is_unit(words[1]) and _ENDS_IN_QUANTITY.search(expression[: words.start()][-40:]):
        expression = expression[: words.start()]
    return expression.strip(" .,;:")


def spelling(plain: str) -> str:
    """Equal for two ways of writing the same plain expression: spaces and single braces do not count."""
    without_spaces = re.sub(r"(?<![0-9])\s+|\s+(?![0-9])", "", plain)
    return re.sub(r"([_^])\{(\w)\}", r"\1\2", without_spaces)


def is_mathematical(plain: str) -> bool:
    """Whether it is more than words and numbers."""
    return _MATHEMATICAL.search(plain) is not None


def differ_in_kind(candidate: str, reference: str) -> bool:
    """Whether one of two plain expressions is a set in braces, and the other a tuple or an interval."""
    kinds = [_is_set(candidate), _is_set(reference)]
    return None not in kinds and kinds[0] != kinds[1]


def _is_set(plain: str) -> bool | None:
    """None for an expression that is no list in brackets."""
    brackets = _BRACKETS.fullmatch(plain)
    if brackets is None or "," not in brackets[2] or "\\cup" in brackets[2]:
        return None
    return brackets[1] == "\\{"


def based_digits(plain: str) -> tuple[str, str] | None:
    """Digits and base of a numeral such as `52_8`, else None."""
    numeral = _BASED.fullmatch(plain)
    return (numeral[1], numeral[2]) if numeral else None


def _text(macro: re.Match[str]) -> str:
    content = macro[1]
    if _CONNECTIVE.fullmatch(content):
        return ", "
    before = macro.string[: macro.start()].rstrip()[-1:]
    follows_a_quantity = before.isalnum() or before in ("}", ")")
    return " " if follows_a_quantity and is_unit(f" {content.strip(' ()')}") else macro[0]
