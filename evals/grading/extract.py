"""Extraction of the answer in a completion. Every extraction returns the answer's text, or None if there is none."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from evals.grading import bare, normalise
from evals.grading.choice import last_stated_choice
from evals.grading.numeric import AMOUNT, ELLIPSIS, REPEATING, is_amount, is_percentage, parse_number
from harness.plugins import Kind

# Raise this whenever an extraction returns a different text than before; it is part of a run's semantic hash.
EXTRACTION_VERSION = 6

# A line break (`\\`) before a brace is matched as one token, so that it does not look like an escaped brace.
_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\\\(?=[{}])|\\[{}]|[{}]")
_BOX_AT_END = re.compile(r"\\(?:boxed|fbox)\s*$")
_HASHES = re.compile(r"####([^\n]*)")
_WORD = re.compile(r"(?<!\\)\b[^\W\d_]{2,}")
# The text between the boxes of one answer: "$x_1=\boxed{2}$ and $x_2=\boxed{3}$". It continues a list, by punctuation,
# "and", "or" or the name of the next value. Any other word ("so", "in total", "correction") or an equals sign between
# two boxes means a derivation or a correction: then the last box is the answer.
_LABEL = r"(?:\\[a-zA-Z]+|[a-zA-Z])(?:_\{?\w+)?(?:\([^()]{0,20}\))?"
_MARK_UP = re.compile(r"\\text\w*\s*\{|[}$*~]|\\[()\[\],;:! ]|\\q?quad|\\\\")
_BETWEEN_BOXES = re.compile(
    r"\s*(?:(?!so\b|then\b|thus\b|hence\b)[^\W\d_]+\s*(?=[,;/&]|and\b|or\b))?"  # A unit: "\boxed{3} cm, \boxed{4} cm".
    r"(?:[-+,;:/&·×x^()\s]|\\(?:times|cdot|pm|div)|\b(?:and|or|also|respectively)\b)*"
    rf"(?:\(?(?:[a-z]|[0-9]|i{{1,3}})[.)])?\s*(?:the\s+(?:other|second|third)(?:\s+is)?|{_LABEL}\s*(?:=|:|\bis\b))?\s*"
)
_MAX_BETWEEN_BOXES = 80
_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
# A minus sign between two terms is a subtraction, not a sign.
_SIGN = r"(?:(?<![\w)\]}])-)?"
_BRACED = r"\{\s*-?[0-9]+\s*\}"
_LAST_NUMBER = re.compile(
    rf"{_SIGN}(?:\\?[$£€¥₹]\s?)?"
    rf"(?:(?:(?<![\w.,])[0-9]{{1,9}}\s?)?\\[dt]?frac\s*(?:{_BRACED}|[0-9])\s*(?:{_BRACED}|[0-9])"
    rf"|(?<![^\W\d_])(?:(?<![\w.,])[0-9]{{1,9}}[ ](?=[0-9]+/[0-9]))?"
    rf"(?:(?:{_INTEGER})?{REPEATING}|{_INTEGER}(?:\.[0-9]+(?:{ELLIPSIS})?)?|(?<![\w.])\.[0-9]+(?:{ELLIPSIS})?)"
    r"(?:[eE][-+]?[0-9]+(?!\w)|/[0-9]+)?)"
)
# Numbers that together are one answer, or none: amounts in several units, ranges, alternatives.
_ONE_OF = rf"(?:\*\*|\\\()?(?:\\?[$£€¥₹]\s?)?{_INTEGER}(?:\.[0-9]+)?(?:/[0-9]+)?\s?\\?%?(?:\$|\\\))?(?:\*\*)?"
_UNIT = r"(?:(?:\s|\\text\s*\{\s*)+(?!(?:and|or|to)\b)[^\W\d_]+\}?){0,2}"
_PERHAPS = r"(?:\s+(?:maybe|perhaps|possibly|even|about|up\s+to))?"
_LINK = rf"(?:,?(?:\s|\\text\s*\{{\s*)*\b(?:or|to|through){_PERHAPS}[\s}}]+|\s?-\s?)"
_LINK_AND = r"(?:\s|\\text\s*\{\s*)*\band[\s}]+"
# Excludes a term of a longer expression: "+ $160 or ...".
_NOT_WITHIN = (
    r"(?=[0-9$£€¥₹\\*])(?<![\w.,/^_+=×-])(?<![-+*/=×]\s)(?<![-+*/=×][$\\])(?<![-+*/=×]\s[$\\])(?<![-+*/=×]\s\\\$)"
    r"(?<![^*]\*)"
)
_TOGETHER = re.compile(
    rf"{_NOT_WITHIN}(?:{AMOUNT}|[0-9]+['′]\s?[0-9]+|(?:{_ONE_OF}{_UNIT}{_LINK})+{_ONE_OF})"
    rf"|\bbetween\s+{_ONE_OF}{_UNIT}{_LINK_AND}{_ONE_OF}",
    re.IGNORECASE,
)
# After "the answer is".
_BOTH = re.compile(rf"{_ONE_OF}{_UNIT}{_LINK_AND}{_ONE_OF}", re.IGNORECASE)
_MAX_TOGETHER = 120
_ONE_NUMBER = re.compile(rf"{_INTEGER}(?:\.[0-9]+)?(?:/[0-9]+)?\s?\\?%?")
_APPROXIMATELY = re.compile(r"(?:(?:about|around|roughly|approximately|either|both|from|anywhere)\s+)*", re.IGNORECASE)
# A number is part of a longer expression if _GOES_ON matches after it or _PART_OF before it. The last alternative of
# _GOES_ON is an equation or a sum whose right side was never written.
_GOES_ON = re.compile(
    r"[ ]?(?:\\(?:pi|sqrt|sin|cos|tan|log|ln|cdot|times|pm)(?![a-zA-Z])|[π√²³=]|\^(?!\s*\{?\s*\\circ))|[ ][+×][ ]"
    r"|[a-zA-Z](?![a-zA-Z])(?<![mgshlLCF])|\s*[-=+×/]\s*$"
)
_PART_OF = re.compile(r"(?:\w[_^]\{?|√|sqrt\s?[({]|\\(?:sqrt|binom)\s?\{)$")
_MATHS_IN_LINE = re.compile(r"\$(?![\s$])([^$\n]*[^$\s\\])\$(?![0-9])|\\\(((?:(?!\\[()])[^\n])*)\\\)")
_DISPLAYS = (("$$", "$$"), ("\\[", "\\]"))
# An array with an equals sign does not match: its rows are steps of a calculation.
_MATRIX = re.compile(r"\\begin\{([bpvBV]?(?:small)?matrix|array)\}(?:(?!\\(?:begin|end)\{)[^=])*\\end\{\1\}", re.DOTALL)

# A sign in words before a number, and what may precede the sign. After anything else, "minus" subtracts.
_SIGN_IN_WORDS = re.compile(
    r"(?P<macro>\\text[a-z]*\{\s*)?(?<![\w-])(?P<word>negative|minus)(?(macro)\s*\}\s*|\s+)"
    r"(?P<dollar>\$?)(?=\\?\$?\s?\.?[0-9]|\\[dt]?frac|\\sqrt)",
    re.IGNORECASE,
)
_BEFORE_A_SIGN = re.compile(
    r"(?:^|[=:(\[{\n]|\b(?:is|are|was|be|equals?|to|gives?|gets?|makes?|becomes|of|at|only|exactly|about|so|thus|or))"
    r"[\s*$]*$",
    re.IGNORECASE,
)
_MAX_BEFORE_A_SIGN = 24
# A base model may continue with a problem of its own. A text that quotes problems first has no answer before them.
_NEXT_PROBLEM = re.compile(
    r"^[ \t]*(?:\*\*|#{1,6}[ ])?(?:(?:next|new|another)[ ])?(?:question|problem|exercise|instruction|q|human|user)[ ]?"
    r"(?:[0-9]+[.)]|[0-9]*(?:\*\*)?:)|(?<=[\s.])(?-i:Question:)",
    re.I | re.M,
)
_MARKED = re.compile(r"\\boxed\s*\{|####\s*[-$\\]?[0-9]")
_FIRST_ANSWER = re.compile(r"\\boxed\s*\{|####\s*[-$\\]?[0-9]|\banswers?\s*(?:is\b|are\b|\*{0,2}:)", re.I)


def extract_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{}`, or None if the last box was cut off.

    If boxes are nested, the inner one counts. Boxes of one list, such as "$x_1=\boxed{4}, x_2=\boxed{-1}$", count
    together, or as one if they are equal.
    """
    return _boxed(text)[0]


def _boxed(text: str) -> tuple[str | None, bool]:
    """Return the result of `extract_boxed`, and whether an answer was cut off in its box."""
    boxes, is_cut_off = _boxes(text) if "\\box" in text or "\\fbox" in text else ([], False)
    if not boxes or is_cut_off:
        return None, is_cut_off
    contents = [text[boxes[-1][1] : boxes[-1][2]]]
    # Go backwards from the last box, as long as the text between two boxes continues a list.
    for earlier, later in zip(reversed(boxes[:-1]), reversed(boxes), strict=False):
        between = " ".join(text[earlier[3] : min(later[0], earlier[3] + _MAX_BETWEEN_BOXES)].split())
        if later[0] - earlier[3] > _MAX_BETWEEN_BOXES or not _BETWEEN_BOXES.fullmatch(_MARK_UP.sub(" ", between)):
            break
        contents.append(text[earlier[1] : earlier[2]])
    if len(contents) == 1:
        return contents[0], False
    values = {parse_number(content) for content in contents}
    is_one = len(set(contents)) == 1 or (len(values) == 1 and None not in values)
    return contents[0] if is_one else ", ".join(reversed(contents)), False


def _boxes(text: str) -> tuple[list[tuple[int, int, int, int]], bool]:
    """Return the closed boxes, and whether an answer was cut off in a box after or around the last of them.

    A box is (start, start of its content, end of its content, end).
    """
    # The start of a box and of its content, or None for any other brace.
    open_braces: list[tuple[int, int] | None] = []
    boxes: list[tuple[int, int, int, int]] = []
    for token in _BRACES.finditer(text):
        match token[0]:
            case "{":
                open_braces.append(None)
            case "}":
                opened = open_braces.pop() if open_braces else None
                if opened is None:
                    continue
                inner = len(boxes)
                while inner and boxes[inner - 1][0] > opened[0]:
                    inner -= 1
                if inner < len(boxes):  # It encloses other boxes, which replace it.
                    boxes[inner] = (opened[0], *boxes[inner][1:])
                    boxes[-1] = (*boxes[-1][:3], token.end())
                else:
                    boxes.append((*opened, token.start(), token.end()))
            case "\\{" | "\\}" | "\\\\":
                pass
            case _:
                open_braces.append((token.start(), token.end()))
    last = boxes[-1] if boxes else (0, 0, 0, 0)
    # A box left open on an earlier line is a slip, because the text continued after it.
    line = text.rfind("\n", 0, last[0]) + 1
    is_cut_off = any(opened is not None and opened[0] >= line for opened in open_braces)
    return boxes, is_cut_off or _BOX_AT_END.search(text, max(last[3], len(text) - 40)) is not None


def extract_gsm8k(text: str) -> str | None:
    """Return the rest of the last line with `####`. Markdown headings of that level, with text below, are skipped."""
    end = len(text.rstrip())
    for line in reversed(list(_HASHES.finditer(text))):
        content = line[1].strip()
        is_heading = line.end() < end and _WORD.search(content) and parse_number(content) is None
        if content and not is_heading:
            return stated_answer(content) or content
    return None


def extract_hash(text: str) -> str | None:
    """Return the text after the last `#`."""
    _, mark, after = text.rpartition("#")
    return after if mark else None


def extract_answer_tag(text: str) -> str | None:
    """Return the content of the last `<answer>` element, else of the last box, as written.

    Line breaks and spaces count, since the answer may be a board. None if the last element was cut off.
    """
    opened, tag, after = text.rpartition("</answer>")[0].rpartition("<answer>")
    if "<answer>" in text and text.rfind("<answer>") != len(opened):
        return None
    if not tag:
        return extract_boxed(text)
    return after.partition("</answer>")[0].strip()


def extract_last_number(text: str) -> str | None:
    """Return the last number, with its sign, and with the numbers before it that are one answer together: "6 to 9"."""
    last = _last(_LAST_NUMBER, text)
    if last is None:
        return None
    return last[0] if (together := _numbers_together(text, last)) is None else together[0]


def extract_choice(text: str) -> str | None:
    """Return the last box, else the letter that the text names last. None if the last box was cut off."""
    boxed, is_cut_off = _boxed(text)
    if is_cut_off or (boxed is not None and bare(boxed)):
        return boxed
    return last_stated_choice(text)


def extract_chain(text: str) -> str | None:
    r"""Return the last box, else `####`, else what "answer is" says, else the last number.

    None if the last box was cut off. A last number inside mathematics stands for all of it (`$2\sqrt{3}$`), one inside
    a matrix for the matrix. A number that an expression continues from is no answer.
    """
    # Put each matrix on one line, so that no later step takes its line breaks for the end of the answer.
    text = _MATRIX.sub(lambda matrix: " ".join(matrix[0].split()), text)
    boxed, is_cut_off = _boxed(text)
    if is_cut_off or (boxed is not None and bare(boxed)):
        return boxed
    for extraction in (extract_gsm8k, stated_answer, _extract_last_result):
        found = extraction(text)
        if found is not None and bare(found):
            return found
    return None


def whole(text: str) -> str:
    """All of the completion, for graders that read it themselves."""
    return text


def _of_own_solution(text: str, extraction: Callable[[str], str | None]) -> str | None:
    """Return the answer before a next problem that the model made up, if there is one; else that of the whole text.

    A text that quotes problems first has no answer before them. A problem also counts as quoted if the text before it
    states numbers without marking them, and an answer after it is marked by a box or `####`: the model would have
    marked its own answer.
    """
    problem = _NEXT_PROBLEM.search(text)
    if problem is not None:
        own = text[: problem.start()].rstrip()
        is_quoted = own.endswith(":") or (
            extraction is extract_chain
            and not _FIRST_ANSWER.search(own)
            and parse_number(own) is None
            and _MARKED.search(text, problem.end())
        )
        found = None if is_quoted else extraction(own)
        if (found is not None and bare(found)) or (not is_quoted and _boxed(own)[1]):
            return found
    return extraction(text)


def _extract_last_result(text: str) -> str | None:
    """Return the last number, or the formula or matrix around it; None if an expression continues after it."""
    last = _last(_LAST_NUMBER, text)
    if last is None:
        return None
    together = _numbers_together(text, last)
    maths = _maths_around(text, last.start(), last.end())
    goes_on = _GOES_ON.match(text, last.end())
    if together is not None and (maths is None or together[0].strip("$\\()*") not in maths):
        return None if goes_on else together[0]
    if maths is not None:
        return maths
    for matrix in _MATRIX.finditer(text):
        if matrix.start() < last.start() < matrix.end():
            return matrix[0]
    if goes_on or _PART_OF.search(text[max(0, last.start() - 8) : last.start()]):
        return None
    return last[0]


def _numbers_together(text: str, last: re.Match[str]) -> re.Match[str] | None:
    """Return the match of the last number with those that form one answer with it, or None if it stands alone."""
    # The numbers of one answer are close together, which bounds the search.
    for together in _TOGETHER.finditer(text, max(0, last.start() - _MAX_TOGETHER), last.end() + _MAX_TOGETHER):
        if together.start() < last.start() and together.end() >= last.end():
            return together if _are_several(together[0]) else None
    return None


def _are_several(together: str) -> bool:
    """Return whether the numbers differ. "1/2 or 50%" is one value; `5-3` is a difference, not a range."""
    if re.match(AMOUNT, together, re.IGNORECASE):
        return is_amount(together)
    texts = _ONE_NUMBER.findall(together)
    values = [Fraction(parse_number(text) or 0) / (100 if is_percentage(text) else 1) for text in texts]
    if len(texts) == 2 and "-" in together:
        return values[0] < values[1]
    return len(set(values)) > 1


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the last match of a pattern."""
    matches = deque(pattern.finditer(text), maxlen=1)
    return matches[0] if matches else None


def _maths_around(text: str, start: int, end: int) -> str | None:
    r"""Return the formula in `$`, `\(`, `$$` or `\[` around this position of the text, or None if it contains prose."""
    for opening, closing in _DISPLAYS:
        opened, closed = text.rfind(opening, 0, start), text.find(closing, end)
        if opened >= 0 and closed >= 0 and text.find(closing, opened + 2, start) < 0:
            content = text[opened + 2 : closed]
            return None if _holds_prose(content) else content
    line_start, line_end = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    line = text[line_start : line_end if line_end >= 0 else len(text)]
    for formula in _MATHS_IN_LINE.finditer(line):
        content = formula[1] or formula[2] or ""
        if formula.start() <= start - line_start < formula.end() and not _holds_prose(content):
            return content
    return None


def _holds_prose(formula: str) -> bool:
    """Return whether a formula has words outside its matrices."""
    return _WORD.search(_MATRIX.sub(" ", formula)) is not None


# An answer that a text states in words: "The answer is 18.", "Final answer: **18**".
_PHRASE = re.compile(
    r"\banswers?\s+(?:is|are|would\s+be|will\s+be|should\s+be|must\s+be)\b[ ]*:?"
    r"|\banswers?(?:\*\*)?[ ]?[:=]|\bfinal\s+answer(?:\*\*)?[ ]*\n",
    re.IGNORECASE,
)
_BEFORE_SENTENCE = re.compile(r"[ \n:]*")
# An ellipsis does not end a sentence.
_SENTENCE_END = re.compile(r"\n|(?<!\.)\.(?=[\s*$]|$)")
# Words that may precede the answer itself, e.g. in a box.
_LEAD = r"\s*(?:the\s+)?(?:final\s+)?answers?\s*(?:(?:is|are)\b\s*:?|[:=])\s*"
_LEAD_IN = re.compile(rf"\\text\w*\s*\{{{_LEAD}\}}|{_LEAD}", re.IGNORECASE)
# A displayed formula at the start of a sentence, and formulas in running text.
_DISPLAY = re.compile(r"\s*(?:\$\$(.+?)\$\$|\\\[(.+?)\\\])", re.DOTALL)
_IN_LINE = re.compile(r"\$(?![\s$])((?:[^$\\\n]|\\.)*(?<!\s))\$(?![0-9])|\\\(([^\n]*?)\\\)")
# The text between a formula and its value: words of the same clause, then a verb.
_IS_VALUE = re.compile(
    r"(?:(?!\b(?:because|since|as|which|where|when|if|for|and|or|with|but|so)\b)[^\d$\\,;=:])*"
    r"(?:(?<=\bis)|(?<=\bare)|(?<=\bequals)|[=:])\s*(?P<value>[^\s].*)"
)
# The text after a formula that is only a name: "the largest $n$, which is 34", "the smallest $k$ for which it holds is
# 7".
_NAME = re.compile(r"[a-zA-Z](?:_(?:\w|\{\w+\}))?")
_VALUE_OF_A_NAME = re.compile(
    r"(?:\s*,\s*which|\s+(?:for\s+which|such\s+that)\s+(?:it|this|that)\s+(?:holds|works|happens|is\s+(?:true|possible)))"
    r"\s+(?:is|equals)\s+(?P<value>[^\s].*)"
)
_COMMAND = re.compile(r"\\[a-zA-Z]+(?:\s*\{[a-zA-Z .,]*\})?")
_PROSE_WORD = re.compile(r"\b[^\W\d_]{2,}")
_OR = re.compile(r"\bor\b")
_LONG_WORD = re.compile(r"\b[^\W\d_]{4,}")
_LEADING_NUMBER = re.compile(rf"-?(?:\\?[$£€¥₹]\s?)?{_INTEGER}(?:\.[0-9]+(?:{ELLIPSIS})?)?(?:/[0-9]+)?(?![\w,]*[\w])")
# "I hope the answer is helpful." states no answer.
_NO_ANSWER = re.compile(
    r"(?:not |now |indeed |therefore )?(?:in)?(?:correct|right|wrong|helpful|reasonable|clear|complete|as follows|below"
    r"|above|verified|confirmed|unique|found|given|known|obtained)\b.*",
    re.IGNORECASE | re.DOTALL,
)
# A number is not the answer itself if _BEFORE precedes it or _AFTER follows it.
_BEFORE = re.compile(
    r"(?:a\s+|one\s+)?(?:twice|thrice|double|triple|half|(?:two|three|four|five)\s+times"
    r"|(?:third|quarter)\s+of|(?:the\s+)?(?:square|cube)\b[^.]*\bof|(?:less|more|fewer|greater|other)\s+than"
    r"|(?:at\s+)?(?:least|most)|below|above|under|over|not)\b[^\d.]*",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"\$?\s*(?:minus|plus|times|over|divided|multiplied|squared|cubed|doubled|tripled|halved|factorial|(?:more|less|fewer)"
    r"\s+than|is\s+(?:wrong|incorrect|false|not))\b",
    re.IGNORECASE,
)
_RESULT = re.compile(r"=|\b(?:is|equals|gives|makes|but)\b(?!\s+(?:wrong|incorrect|false|not)\b)")
# Answers in words are short. In a longer sentence, only a number or a formula counts.
_MAX_WORDS = 4
_MAX_CHARACTERS = 2_000


def stated_answer(text: str) -> str | None:
    """Return what follows the last "answer is", "answer:" or "Final answer" in its sentence, without mark-up.

    If the sentence has more words than an answer, it is searched instead. The answer is then the number or formula at
    its beginning, else its only formula, else the number to the right of its "=". For "twice 9, which is 18" the answer
    is 18; "twice 9" alone is kept completely, because it is not a number. None if there is no such phrase, or no answer
    in the sentence.
    """
    for phrase in reversed(list(_PHRASE.finditer(text))):
        display = _DISPLAY.match(text, phrase.end())
        if display is not None:
            return bare(display[1] or display[2])
        before = _BEFORE_SENTENCE.match(text, phrase.end())
        start = phrase.end() if before is None else before.end()
        end = _SENTENCE_END.search(text, start)
        sentence = text[start : end.start() if end else len(text)]
        if len(sentence) > _MAX_CHARACTERS:
            return None
        if sentence.count("**") % 2 == 1:  # One half of the bold mark is in the phrase: "**Answer:** 18".
            sentence = sentence.replace("**", "", 1) if sentence.startswith("**") else sentence.removesuffix("**")
        sentence = sentence.strip()
        if sentence and not _NO_ANSWER.fullmatch(sentence):
            return _answer_of(sentence)
    return None


def without_lead_in(answer: str) -> str:
    """Return an answer without a leading "The answer is", plain or in a text macro."""
    lead_in = _LEAD_IN.match(answer[:_MAX_CHARACTERS])
    return bare(answer[lead_in.end() :]) if lead_in else answer


def _answer_of(sentence: str) -> str | None:
    """Return the answer in a sentence, or None, by the rules of `stated_answer`."""
    if (value := _value_of_a_formula(sentence)) is not None:
        return value
    content = bare(sentence)
    prose = _COMMAND.sub(" ", content)
    n_words = len(_PROSE_WORD.findall(prose))
    has_digits = any(character.isdigit() for character in content)
    # The order matters from here on: short answers unchanged, then several numbers, a number with an operation, a
    # formula, and last a number among words.
    if n_words < 2 and not _LONG_WORD.search(prose):
        return content
    if parse_number(content) is not None and ("=" not in content or n_words <= _MAX_WORDS):
        return content
    if not has_digits and n_words <= _MAX_WORDS and "$" not in content and "\\(" not in content:
        return content
    approximately = _APPROXIMATELY.match(content)
    start = approximately.end() if approximately else 0
    together = _TOGETHER.match(content, start) or _BOTH.match(content, start)
    if together is not None and _are_several(together[0]):
        return together[0] if parse_number(together[0]) is not None else content[: together.end()]
    before = _BEFORE.match(content)
    leading = _LEADING_NUMBER.match(content, before.end() if before else 0)
    if leading is not None and (before or _AFTER.match(content, leading.end())):
        *operation, result = _RESULT.split(content)
        return _answer_of(result) if operation else content
    formulas = list(_IN_LINE.finditer(sentence))
    if formulas and (formulas[0].start() == 0 or len(formulas) == 1):
        return bare(formulas[0][1] or formulas[0][2] or "")
    if _OR.search(prose):  # There is more than one answer.
        return content
    if leading is not None:
        return leading[0]
    return content if parse_number(content) is not None else None


def _value_of_a_formula(sentence: str) -> str | None:
    """Return `34` for "the largest $n$ is 34", where the formula only names the quantity; None for other sentences."""
    formula = _IN_LINE.search(sentence)
    stated = _IS_VALUE.fullmatch(sentence, formula.end()) if formula else None
    if formula and stated is None and _NAME.fullmatch(formula[1] or formula[2] or ""):
        stated = _VALUE_OF_A_NAME.fullmatch(sentence, formula.end())
    if stated is None:
        return None
    value = stated["value"].strip(" .*")
    return bare(value) if _IN_LINE.fullmatch(value) or parse_number(value) is not None else None


@dataclass(frozen=True)
class Extraction:
    """A way to find the answer in a completion.

    find: returns the answer in a text, or None or "" if there is none.
    reads: the text that `find` receives.
    * `answer`: what follows the thoughts, up to a next problem that the model made up, with look-alike characters
      unified. Mark-up is removed from the answer.
    * `verbatim`: the same part, as it was written.
    * `program`: everything that follows the thoughts, as it was written.
    * `all`: the completion, including thoughts.
    """

    name: str
    find: Callable[[str], str | None]
    reads: Literal["answer", "verbatim", "program", "all"] = "answer"


CHAIN = Extraction("chain", extract_chain)
BOXED = Extraction("boxed", extract_boxed)
ANSWER_TAG = Extraction("answer_tag", extract_answer_tag, "verbatim")
GSM8K = Extraction("gsm8k", extract_gsm8k)
HASH = Extraction("hash", extract_hash)
LAST_NUMBER = Extraction("last_number", extract_last_number)
CHOICE = Extraction("choice", extract_choice)
WHOLE = Extraction("whole", whole, "all")

EXTRACTIONS: Kind[Extraction] = Kind(
    "extraction",
    lambda thing: isinstance(thing, Extraction),
    "evals.grading",
    "bench ls extractions",
    summary_of=lambda one: " ".join((one.find.__doc__ or "").partition("\n\n")[0].split()),
)


def extraction_identity(name: str) -> str:
    """Return what represents an extraction in a hash, in addition to EXTRACTION_VERSION.

    It is the extraction's name and, for a plug-in, the digest of its source. Raises UnknownNameError.
    """
    source = EXTRACTIONS.source(name)
    return name if source is None else f"{name}@{source.digest}"


def extract_answer(text: str, name: str = "chain") -> str | None:
    """Return the answer in a completion, or None.

    Only the text after `</think>` is searched, unless the extraction reads all of it. A thought that was never closed
    contains no answer. Raises UnknownNameError for an unknown extraction.
    """
    extraction = EXTRACTIONS.find(name)
    if extraction.reads == "all":
        return extraction.find(text) or None
    own = _after_thinking(text)
    if extraction.reads == "program":
        return extraction.find(own) or None
    if extraction.reads == "verbatim":
        return _of_own_solution(own, extraction.find) or None
    found = _of_own_solution(_with_signs(_after_thinking(normalise(text))), extraction.find)
    return None if found is None else without_lead_in(bare(found)) or None


def _with_signs(text: str) -> str:
    """Replace "negative 18" by `-18`, and "minus 18" as well if there is nothing to subtract from."""

    def sign(words: re.Match[str]) -> str:
        subtracts = words["word"].casefold() == "minus" and not _BEFORE_A_SIGN.search(
            text, max(0, words.start() - _MAX_BEFORE_A_SIGN), words.start()
        )
        return words[0] if subtracts else f"{words['dollar']}-"

    return _SIGN_IN_WORDS.sub(sign, text)


def _after_thinking(text: str) -> str:
    """Return the text after the thought, or "" if the thought was never closed."""
    _, closed, after = text.rpartition("</think>")
    if closed:
        return after
    return "" if "<think>" in text else text
