r"""The grader `math`, which compares answers as mathematics.

Most answers are decided by their text, letters, words or numbers. The others go to math-verify, in separate processes,
after both expressions are rewritten to plain LaTeX. math-verify's own removal of units is disabled: it takes `2h`, `5c`
and `x + 3d` for quantities with units, and drops everything after the first `\text` of `3 \text{ or } 4 \text{ cm}`.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import threading
from collections import Counter
from fractions import Fraction
from queue import LifoQueue

from evals.grading import Grader, Reason, bare, normalise
from evals.grading.choice import choice_letter, compare_choice
from evals.grading.numeric import (
    is_percentage,
    is_unit,
    parse_number,
    reference_number,
    same_number,
    without_unending_side,
)
from evals.grading.worker_process import CPU_LIMIT_S, WALL_LIMIT_S, WorkerProcess

# Longer texts are not answers, and rewriting them would cost more than the verdict is worth. A request of this length
# fits into a pipe's buffer, so writing it never waits for the worker.
MAX_CHARACTERS = 5_000
MEMORY_BYTES = 1 << 30
# One worker serves a thread that grades one answer after another. The second worker starts only if two threads ask at
# the same time.
WORKERS = 2
# The samples of a prompt mostly share a few answers.
MAX_REMEMBERED = 4_096

_IN_TEXT_MACRO = re.compile(r"\$?\\(?:text|textbf|textit|textrm|textnormal|mbox)\s*\{[^{}]*\}\$?\.?")
_WORDS = re.compile(r"(?=.*[^\W\d_]{4})[^\W\d_]+(?:[ '’-][^\W\d_]+)*")
_ARTICLE = re.compile(r"(?:an?|the)\s+")


def compare_math(candidate: str, answer: str) -> Reason:
    r"""Compare as mathematics.

    Text, letters, words and numbers are decided here; math-verify decides the rest.

    Numbers must be exactly equal: 0.3333 is not 1/3, and 3.141593 is not pi. `50%` equals both 50 and 1/2. `x = 5` may
    be written as `5`, but not as `y = 5`. A numeral in another base, `52_8`, may be written without the base. The order
    of a list counts only in brackets, and a set in braces is not a tuple. Units are not compared, and the case of
    variables is ignored. `1, 1, 2` is not `1, 2`, but `\{1, 1, 2\}` is `\{1, 2\}`.
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
    # No worker was needed so far. math-verify, the expensive step, comes last.
    exact = without_unending_side(candidate)
    return "unparsed" if exact is None else _compare_expressions(exact, reference)


def _fault(answer: str) -> str | None:
    """Return the fault of a reference that cannot be read as mathematics, or None.

    Only the reference's own text would be accepted.
    """
    if choice_letter(answer) is not None or _is_words(answer) or reference_number(answer) is not None:
        return None
    if len(answer) <= MAX_CHARACTERS and is_well_formed(plain_latex(bare(normalise(answer)))):
        return None
    return (
        f"the reference answer {answer[:80]!r} cannot be read as mathematics, which the grader 'math' compares; "
        "correct it, or use the grader 'exact' for this task"
    )


def _same_quantity(candidate: str, answer: str) -> bool | None:
    """Return whether two numbers or percentages are equal, or None if either is something else."""
    same = same_number(candidate, answer)
    if same is not False or is_percentage(candidate) == is_percentage(answer):
        return same
    value, reference = parse_number(candidate), parse_number(answer)
    assert value is not None and reference is not None
    return value / 100 == reference if is_percentage(candidate) else value == reference / 100


def _compare_expressions(candidate: str, reference: str) -> Reason:
    """Compare two expressions, at most one of which is a number."""
    given, wanted = plain_latex(candidate), plain_latex(reference)
    if spelling(given) == spelling(wanted):
        return "match" if given else "unparsed"
    if (numeral := based_digits(spelling(wanted))) is not None:
        return "match" if spelling(given) == numeral[0] else "mismatch"
    if (numeral := based_digits(spelling(given))) is not None:  # math-verify would drop the base.
        return "match" if numeral == (spelling(wanted), "10") else "mismatch"
    if reference_number(reference) is not None and not is_mathematical(given):
        return "unparsed"
    # math-verify compares lists as sets, so it would accept these.
    if differ_in_kind(given, wanted) or differ_in_length(given, wanted) or differ_in_elements(given, wanted):
        return "mismatch"
    return POOL.compare(given, wanted)


def _is_words(answer: str) -> bool:
    """Return whether a reference consists of words: it is in a text macro, or has more than three letters in a row."""
    reference = bare(normalise(answer))
    if not any(character.isalpha() for character in reference) or reference_number(answer) is not None:
        return False
    return _IN_TEXT_MACRO.fullmatch(answer.strip()) is not None or _WORDS.fullmatch(reference) is not None


def _words(answer: str) -> str:
    unmarked = re.sub(r"\\(?:text\w*|mbox|math(?:rm|bf|it))\s*\{([^{}]*)\}", r"\1", answer)
    words = " ".join(unmarked.replace("$", " ").split()).casefold().strip(" .,;:!'\"“”")
    return _ARTICLE.sub("", words, count=1) if _ARTICLE.match(words) else words


# Rewrite expressions into a canonical spelling, which math-verify receives. Equal spellings do not need math-verify.
_CHARACTERS = str.maketrans(
    {
        "π": r"\pi ", "θ": r"\theta ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "×": r"\times ",
        "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "∪": r"\cup ", "∩": r"\cap ", "±": r"\pm ", "∈": r"\in ",
        "∅": r"\emptyset ", "²": "^2", "³": "^3", "°": r"^\circ", "⟨": r"\langle ", "⟩": r"\rangle ",
    }
)  # fmt: skip
# `\\` is a line break, so the second of two backslashes does not start a command.
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
        (r"(?<![\w.])\.(?=[0-9])", "0."),  # math-verify reads `.01` differently from `0.01`.
    )
]
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}(\s*\^\s*\{?-?[0-9]\}?)?"
)
_CONNECTIVE = re.compile(r"\W*(?:and|or)\W*", re.IGNORECASE)
_UNIT_WORDS = re.compile(r"(?<=[0-9})a-z])\s+([a-zA-Z]{2,}(?:[ ./]+[a-zA-Z]+)*(?:\^\{?-?[0-9]\}?)?)[.\s]*$")
_ENDS_IN_QUANTITY = re.compile(r"(?:[0-9})]|\\[a-zA-Z]+)\s*$")
_PERCENT = re.compile(r"\s*\\?%\s*$")
# Characters of expressions that do not occur in words and lists of numbers.
_MATHEMATICAL = re.compile(r"[-+*/^_()!<>=|\\{}\[\]√²³⁰-⁹]")
_BRACKETS = re.compile(r"(\\\{|[(\[]|\\langle)(.*)(\\\}|[)\]]|\\rangle)")
_LIST_MARK = re.compile(
    r"(?P<opens>[({\[]|\\langle)|(?P<closes>[)}\]]|\\rangle)"
    r"|(?P<thousands>(?<=[0-9]),(?=[0-9]{3}(?![0-9])))|[,;]|(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])"
)
_STANDS_FOR_SEVERAL = re.compile(r"\\(?:pm|mp|[lc]?dots)|\.\.\.|…")
_ARGUMENT = re.compile(r"\s*(?:\\[a-zA-Z]+|\w|(?=\{))")
_ENDS_OPEN = re.compile(r"(?:[-+*/^_=<>\\]|\\(?:cdot|times|pm|mp|div|cup|cap|in|le|ge|ne|sqrt|text|frac))$")
_BASED = re.compile(r"(-?[0-9][0-9A-F]*)_\{?([0-9]+)\}?")


def plain_latex(expression: str) -> str:
    r"""Return an expression in plain LaTeX: `$\dfrac12\pi \text{ cm}^2$` -> `\frac12\pi`.

    Mark-up, spacing, units, degrees and percent signs are removed. Words that are not units are kept.
    """
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
    """Return a canonical spelling of a plain expression, which ignores spaces and braces around single characters."""
    without_spaces = re.sub(r"(?<![0-9])\s+|\s+(?![0-9])", "", plain)
    return re.sub(r"([_^])\{(\w)\}", r"\1\2", without_spaces)


def is_well_formed(plain: str) -> bool:
    """Return whether a plain expression can be read.

    It must contain a letter or digit, close what it opens, give each fraction two parts, and not end in an operator.
    The check does not use math-verify, whose start alone takes longer than checking all references of a task may take.
    """
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
    """Return whether two arguments follow at this position. The braces of the expression must match."""
    for _ in range(2):
        argument = _ARGUMENT.match(plain, start)
        if argument is None:
            return False
        start = argument.end()
        is_letter = argument[0].strip().isalnum()  # In `\frac1{2x}` the braces enclose the next argument.
        if not is_letter and plain[start : start + 1] == "{":
            start = _closing(plain, start)
    return True


def _closing(plain: str, start: int) -> int:
    """Return the position after the brace that closes the one at `start`."""
    depth = 0
    for brace in re.finditer(r"\\[\\{}]|[{}]", plain[start:]):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return start + brace.end()
    return len(plain)


def is_mathematical(plain: str) -> bool:
    """Return whether an expression contains more than words and numbers."""
    return _MATHEMATICAL.search(plain) is not None


def differ_in_kind(candidate: str, reference: str) -> bool:
    """Return whether one of two plain expressions is a set in braces, and the other a tuple or an interval."""
    kinds = [_is_set(candidate), _is_set(reference)]
    return None not in kinds and kinds[0] != kinds[1]


def _is_set(plain: str) -> bool | None:
    """Return whether a list in brackets is a set, or None if the expression is not such a list."""
    brackets = _BRACKETS.fullmatch(plain)
    if brackets is None or "," not in brackets[2] or "\\cup" in brackets[2]:
        return None
    return brackets[1] == "\\{"


def differ_in_length(candidate: str, reference: str) -> bool:
    """Return whether two plain expressions are lists of different lengths, or a list and a number.

    Lists in brackets are not counted. The check is needed because math-verify compares lists as sets.
    """
    if _STANDS_FOR_SEVERAL.search(candidate) or _STANDS_FOR_SEVERAL.search(reference):
        return False
    lengths = _list_lengths(candidate), _list_lengths(reference)
    if any(length == {1} for length in lengths):
        single = candidate if lengths[0] == {1} else reference
        return parse_number(single) is not None and 1 not in lengths[0] & lengths[1]
    return not lengths[0] & lengths[1]


def differ_in_elements(candidate: str, reference: str) -> bool:
    """Return whether two plain expressions list the same elements in different multiplicity, or different numbers.

    `1, x, x` and `1, 1, x` differ, but math-verify compares sets. Returns False for lists that are left to math-verify:
    lists in brackets, with a `1,000` that may be one number, or with elements that may be equal in another spelling.
    """
    if any(mark["thousands"] for plain in (candidate, reference) for mark in _LIST_MARK.finditer(plain)):
        return False
    counts = [Counter(_key(element) for element in _elements(plain)[0]) for plain in (candidate, reference)]
    if counts[0] == counts[1] or any(count.total() < 2 for count in counts):
        return False
    are_numbers = not any(isinstance(key, str) for count in counts for key in count)
    return are_numbers or counts[0].keys() == counts[1].keys()


def _key(element: str) -> Fraction | str:
    value = parse_number(element)
    return spelling(element) if value is None else value


def _list_lengths(plain: str) -> set[int]:
    """Return the number of elements listed outside brackets; two numbers if `1,000` may be one element or two."""
    elements, n_thousands = _elements(plain)
    return {len(elements), len(elements) - n_thousands}


def _elements(plain: str) -> tuple[list[str], int]:
    """Return the elements outside brackets, and how often `1,000` was split into two elements."""
    depth, start, elements, n_thousands = 0, 0, [], 0
    for mark in _LIST_MARK.finditer(plain):
        if mark["opens"] or mark["closes"]:
            depth += 1 if mark["opens"] else -1
        elif depth == 0:
            elements.append(plain[start : mark.start()].strip())
            n_thousands += mark["thousands"] is not None
            start = mark.end()
    return [element for element in (*elements, plain[start:].strip()) if element], n_thousands


def based_digits(plain: str) -> tuple[str, str] | None:
    """Return the digits and base of a numeral such as `52_8`, or None for other expressions."""
    numeral = _BASED.fullmatch(plain)
    return (numeral[1], numeral[2]) if numeral else None


def _text(macro: re.Match[str]) -> str:
    """Return the replacement of a text macro: a comma for "and", a space for a unit after a quantity, else itself."""
    content = macro[1]
    if _CONNECTIVE.fullmatch(content):
        return ", "
    before = macro.string[: macro.start()].rstrip()[-1:]
    follows_a_quantity = before.isalnum() or before in ("}", ")")
    return " " if follows_a_quantity and is_unit(f" {content.strip(' ()')}") else macro[0]


class MathProcess(WorkerProcess):
    """A worker process that runs math-verify."""

    def __init__(self, cpu_limit_s: float = CPU_LIMIT_S, wall_limit_s: float = WALL_LIMIT_S) -> None:
        hint = (
            f"the grader 'math' needs math-verify: run `{sys.executable} -c 'import math_verify'` to see what is "
            "missing, or use the grader 'numeric'"
        )
        super().__init__("math", hint, MEMORY_BYTES, cpu_limit_s, wall_limit_s)

    def compare(self, candidate: str, answer: str) -> Reason:
        """Compare a candidate with the answer mathematically, both in LaTeX. Raises EvalError if no worker starts."""
        if len(candidate) + len(answer) > MAX_CHARACTERS:
            return "unparsed"
        return self.ask({"candidate": candidate, "answer": answer})


class MathPool:
    """Workers that several threads share. The pool remembers recent comparisons."""

    def __init__(self, workers: int = WORKERS, cpu_limit_s: float = CPU_LIMIT_S) -> None:
        self.workers = [MathProcess(cpu_limit_s) for _ in range(workers)]
        self._remembered: dict[tuple[str, str], Reason] = {}
        self._lock = threading.Lock()
        self._idle: LifoQueue[MathProcess] = LifoQueue()
        self._all_idle()

    def compare(self, candidate: str, answer: str) -> Reason:
        """Compare like `MathProcess.compare`. A crash is not remembered, because it may be the machine's fault."""
        pair = (candidate, answer)
        with self._lock:
            if pair in self._remembered:
                return self._remembered[pair]
        # The queue is last in, first out, so that a single thread always gets the same worker and no other is started.
        worker = self._idle.get()
        try:
            reason = worker.compare(candidate, answer)
        finally:
            self._idle.put(worker)
        if reason != "crash":
            with self._lock:
                self._remembered[pair] = reason
                if len(self._remembered) > MAX_REMEMBERED:
                    # Dictionaries keep insertion order, so this is the oldest pair.
                    del self._remembered[next(iter(self._remembered))]
        return reason

    def close(self) -> None:
        """End the workers. The next comparison starts new ones."""
        for worker in self.workers:
            worker.close()

    def forget(self) -> None:
        """Disown the workers in a forked child, leaving them to the parent."""
        # Another thread of the parent may have held the lock during the fork.
        self._lock = threading.Lock()
        for worker in self.workers:
            worker.forget()
        self._all_idle()

    def keep(self) -> None:
        """Register hooks that end the workers when the program exits, and disown them in a forked child."""
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self.forget)

    def _all_idle(self) -> None:
        self._idle = LifoQueue()
        for worker in reversed(self.workers):
            self._idle.put(worker)


POOL = MathPool()
POOL.keep()
math = Grader(
    "math",
    version=6,
    meaning="equal as mathematics, by text, numbers or math-verify",
    compare=compare_math,
    fault=_fault,
    compares_faulty=True,
)
