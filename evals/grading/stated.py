"""The answer that a text states in words: "The answer is 18.", "Final answer: **18**"."""

from __future__ import annotations

import re

from evals.grading.numbers import parse_number
from evals.grading.text import bare

_PHRASE = re.compile(
    r"\banswers?\s+(?:is|are|would\s+be|will\s+be|should\s+be|must\s+be)\b[ ]*:?"
    r"|\banswers?(?:\*\*)?[ ]?[:=]|\bfinal\s+answer(?:\*\*)?[ ]*\n",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"\n|\.(?=[\s*$]|$)")
# In a box, before the answer itself.
_LEAD = r"\s*(?:the\s+)?(?:final\s+)?answers?\s*(?:(?:is|are)\b\s*:?|[:=])\s*"
_LEAD_IN = re.compile(rf"\\text\w*\s*\{{{_LEAD}\}}|{_LEAD}", re.IGNORECASE)
# What a formula is written between, at the start of a sentence and anywhere in it.
_DISPLAY = re.compile(r"\s*(?:\$\$(.+?)\$\$|\\\[(.+?)\\\])", re.DOTALL)
_IN_LINE = re.compile(r"\$(?![\s$])((?:[^$\\\n]|\\.)*(?<!\s))\$(?![0-9])|\\\(([^\n]*?)\\\)")
_COMMAND = re.compile(r"\\[a-zA-Z]+(?:\s*\{[a-zA-Z .,]*\})?")
_WORD = re.compile(r"\b[^\W\d_]{2,}")
_OR = re.compile(r"\bor\b")
_LONG_WORD = re.compile(r"\b[^\W\d_]{4,}")
_LEADING_NUMBER = re.compile(
    r"-?(?:\\?[$£€¥₹]\s?)?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?(?:/[0-9]+)?(?![\w,]*[\w])"
)
# "I hope the answer is helpful."
_NO_ANSWER = re.compile(
    r"(?:not |now |indeed |therefore )?(?:in)?(?:correct|right|wrong|helpful|reasonable|clear|complete|as follows|below"
    r"|above|verified|confirmed|unique|found|given|known|obtained)\b.*",
    re.IGNORECASE | re.DOTALL,
)
# A number that one of the first precedes, or one of the second follows, is not itself the answer.
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
# Answers in words are short; after more of them only a number or a formula counts.
_MAX_WORDS = 4
_MAX_CHARACTERS = 2_000


def stated_answer(text: str) -> str | None:
    """What follows the last "answer is", "answer:" or "Final answer" up to the sentence's end, without mark-up.

    In a sentence with more words than an answer has, it is the number or the formula that the sentence begins with,
    else its only formula, else the number right of its "=". Of "twice 9, which is 18" it is the result, and all of
    "twice 9", which is no number. None if no such phrase is there or none of it is an answer.
    """
    for phrase in reversed(list(_PHRASE.finditer(text))):
        rest = text[phrase.end() : phrase.end() + _MAX_CHARACTERS]
        display = _DISPLAY.match(rest)
        if display is not None:
            return bare(display[1] or display[2])
        sentence = _SENTENCE_END.split(rest.lstrip(" \n:"), maxsplit=1)[0]
        if sentence.count("**") % 2 == 1:  # of "**Answer:** 18" and "**Answer: 18**" one half is in the phrase
            sentence = sentence.replace("**", "", 1) if sentence.startswith("**") else sentence.removesuffix("**")
        sentence = sentence.strip()
        if sentence and not _NO_ANSWER.fullmatch(sentence):
            return _answer_of(sentence)
    return None


def without_lead_in(answer: str) -> str:
    """Without "The answer is" at its start, in a text macro or bare."""
    lead_in = _LEAD_IN.match(answer[:_MAX_CHARACTERS])
    return bare(answer[lead_in.end() :]) if lead_in else answer


def _answer_of(sentence: str) -> str | None:
    content = bare(sentence)
    prose = _COMMAND.sub(" ", content)
    n_words = len(_WORD.findall(prose))
    has_digits = any(character.isdigit() for character in content)
    if n_words < 2 and not _LONG_WORD.search(prose):
        return content
    if parse_number(content) is not None and ("=" not in content or n_words <= _MAX_WORDS):
        return content
    if not has_digits and n_words <= _MAX_WORDS and "$" not in content and "\\(" not in content:
        return content
    before = _BEFORE.match(content)
    leading = _LEADING_NUMBER.match(content, before.end() if before else 0)
    if leading is not None and (before or _AFTER.match(content, leading.end())):
        *operation, result = _RESULT.split(content)
        return _answer_of(result) if operation else content
    formulas = list(_IN_LINE.finditer(sentence))
    if formulas and (formulas[0].start() == 0 or len(formulas) == 1):
        return bare(formulas[0][1] or formulas[0][2] or "")
    if _OR.search(prose):  # more answers than one
        return content
    if leading is not None:
        return leading[0]
    return content if parse_number(content) is not None else None
