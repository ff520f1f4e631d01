"""Finding the answer in a completion. Every extraction gives the answer's text, or None if there is none."""

from __future__ import annotations

import re
from collections.abc import Callable

from evals.errors import UnknownNameError
from evals.grading.numbers import parse_number
from evals.grading.text import bare, normalise

# Raise it whenever an extraction gives another text than before; it is part of a run's semantic hash.
VERSION = 1

_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[{}]|[{}]")
_HASHES = re.compile(r"####([^\n]*)")
_ANSWER_IS = re.compile(r"answer\s+is\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|\.(?=[\s*$]|$)")
_WORD = re.compile(r"(?<!\\)\b[^\W\d_]{2,}")
_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
# A minus sign between two terms is a subtraction, not a sign.
_SIGN = r"(?:(?<![\w)\]}])-)?"
_LAST_NUMBER = re.compile(
    rf"{_SIGN}(?:\\?[$£€¥₹]\s?)?(?:\\[dt]?frac\s*\{{\s*-?[0-9]+\s*\}}\s*\{{\s*[0-9]+\s*\}}"
    rf"|(?<![^\W\d_])(?:{_INTEGER}(?:\.[0-9]+)?|(?<![\w.])\.[0-9]+)(?:[eE][-+]?[0-9]+(?!\w)|/[0-9]+)?)"
)


def extract_boxed(text: str) -> str | None:
    """Content of the last `\\boxed{}` that was closed; of nested boxes, the inner one."""
    open_braces: list[int | None] = []  # where a box's content starts; None for any other brace
    start, end = -1, -1
    for token in _BRACES.finditer(text):
        match token[0]:
            case "{":
                open_braces.append(None)
            case "}":
                opened = open_braces.pop() if open_braces else None
                if opened is not None and opened > start:
                    start, end = opened, token.start()
            case "\\{" | "\\}":
                pass
            case _:
                open_braces.append(token.end())
    return text[start:end] if end >= 0 else None


def extract_gsm8k(text: str) -> str | None:
    """The rest of the last line that has `####`. Markdown headings of that level, with text below, are passed over."""
    end = len(text.rstrip())
    for line in reversed(list(_HASHES.finditer(text))):
        content = line[1].strip()
        is_heading = line.end() < end and _WORD.search(content) and parse_number(content) is None
        if content and not is_heading:
            return content
    return None


def extract_hash(text: str) -> str | None:
    """What follows the last `#`."""
    _, mark, after = text.rpartition("#")
    return after if mark else None


def extract_answer_tag(text: str) -> str | None:
    """Content of the last `<answer>` element, else of the last box, as it is written: line breaks and spaces count,
    since the answer may be a board."""
    opened, tag, _ = text.rpartition("</answer>")[0].rpartition("<answer>")
    if not tag:
        return extract_boxed(text)
    return text[len(opened) + len(tag) :].partition("</answer>")[0].strip()


def extract_last_number(text: str) -> str | None:
    """The last number, with its sign."""
    numbers = _LAST_NUMBER.findall(text)
    return numbers[-1] if numbers else None


def extract_chain(text: str) -> str | None:
    """The last box, else `####`, else what "answer is" says, else the last number."""
    for extraction in (extract_boxed, extract_gsm8k, _extract_answer_is, extract_last_number):
        found = extraction(text)
        if found is not None and bare(found):
            return found
    return None


def _extract_answer_is(text: str) -> str | None:
    """The end of the last sentence "... answer is ..."; of a number inside more words, the number if it comes first."""
    phrases = list(_ANSWER_IS.finditer(text))
    if not phrases:
        return None
    content = bare(_SENTENCE_END.split(text[phrases[-1].end() :].lstrip(" \n:"), maxsplit=1)[0])
    wordy = _WORD.search(content) and any(character.isdigit() for character in content)
    if not wordy or parse_number(content) is not None:
        return content
    leading = _LAST_NUMBER.match(content)
    return leading[0] if leading else None


EXTRACTIONS: dict[str, Callable[[str], str | None]] = {
    "chain": extract_chain,
    "boxed": extract_boxed,
    "answer_tag": extract_answer_tag,
    "gsm8k": extract_gsm8k,
    "hash": extract_hash,
    "last_number": extract_last_number,
}
# What these find is left as it is written, for comparisons that mind every character.
_VERBATIM = ("answer_tag",)


def get_extraction(name: str) -> Callable[[str], str | None]:
    """The extraction of that name. Raises UnknownNameError."""
    if name not in EXTRACTIONS:
        raise UnknownNameError("extraction", name, EXTRACTIONS)
    return EXTRACTIONS[name]


def extract_answer(text: str, name: str = "chain") -> str | None:
    """The answer in a completion, or None; without mark-up, but by `answer_tag` as it is written.

    Only what follows `</think>` counts; a thought that was never closed holds no answer. Raises UnknownNameError.
    """
    extraction = get_extraction(name)
    if name in _VERBATIM:
        return extraction(_spoken(text)) or None
    found = extraction(_spoken(normalise(text)))
    return None if found is None else bare(found) or None


def _spoken(text: str) -> str:
    _, closed, after = text.rpartition("</think>")
    if closed:
        return after
    return "" if "<think>" in text else text
