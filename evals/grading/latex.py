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
_ARGUMENT = re.compile(r"\s*(?:\\[a-zA-Z]+|\w|(?=\{))")
_ENDS_OPEN = re.compile(r"(?:[-+*/^_=<>\\]|\\(?:cdot|times|pm|mp|div|cup|cap|in|le|ge|ne|sqrt|text|frac))$")
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


def is_well_formed(plain: str) -> bool:
    """Whether a plain expression can be read: it says something, what it opens it closes, each fraction has two parts,
    and it does not end in an operator. Without math-verify, whose start alone takes longer than all references of a
    task may take."""
    braces = re.sub(r"\\[\\{}]", "", plain)
    depth = 0
    for brace in re.findall(r"[{}]", braces):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    n_opened, n_closed = (sum(map(braces.count, brackets)) for brackets in ("([", ")]"))
    return (
        any(character.isalnum() for character in plain)
        and depth == 0
        and n_opened == n_closed
        and plain.count("\\begin{") == plain.count("\\end{")
        and _ENDS_OPEN.search(plain) is None
        and all(_has_two_arguments(plain, command.end()) for command in re.finditer(r"\\frac(?![a-zA-Z])", plain))
    )


def _has_two_arguments(plain: str, start: int) -> bool:
    """Of an expression whose braces match."""
    for _ in range(2):
        argument = _ARGUMENT.match(plain, start)
        if argument is None:
            return False
        start = argument.end()
        is_letter = argument[0].strip().isalnum()  # as in `\\frac1{2x}`: what is in the braces is the next one
        if not is_letter and plain[start : start + 1] == "{":
            start = _closing(plain, start)
    return True


def _closing(plain: str, start: int) -> int:
    """Just behind the brace that closes the one at `start`."""
    depth = 0
    for brace in re.finditer(r"\\[\\{}]|[{}]", plain[start:]):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return start + brace.end()
    return len(plain)


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
