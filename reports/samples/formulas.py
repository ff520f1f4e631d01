"""Formulas in a model's text, found and translated to MathML.

The text is untrusted. So the result is a tree of known elements with known attributes, never markup: the page creates
an element for each node and inserts text as text. A formula that cannot be translated, for whatever reason, stays as
the model wrote it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from reports.page.templating import readable

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

Tree: TypeAlias = "tuple[str, dict[str, str], str, list[Tree]]"
"""(element, attributes, text, children): an element of MathML Core, {attribute: value} with names from `ATTRIBUTES`,
the text, and a list of trees.
"""

MOST_CHARACTERS = 400
"""A longer formula is not translated."""

ELEMENTS = frozenset(
    {
        *("math", "mrow", "mi", "mn", "mo", "ms", "mtext", "mspace", "mstyle", "mpadded", "mphantom", "menclose"),
        *("mfrac", "msqrt", "mroot", "msub", "msup", "msubsup", "munder", "mover", "munderover", "mmultiscripts"),
        *("mprescripts", "mtable", "mtr", "mtd"),
    }
)
ATTRIBUTES = frozenset({
    *("display", "displaystyle", "scriptlevel", "stretchy", "fence", "separator", "form", "symmetric", "largeop"),
    *("movablelimits", "accent", "accentunder", "minsize", "maxsize", "linethickness", "lspace", "rspace", "width"),
    *("height", "depth", "voffset", "columnalign", "mathvariant"),
})  # fmt: skip

# A dollar sign may also be a price: a formula does not begin or end with a space, and no digit follows it. Lengths are
# bounded. Otherwise a text full of opening delimiters would be scanned to its end from each of them.
_DELIMITED = re.compile(
    r"\$\$(?P<display>[^$]{1,N})\$\$|\\\[(?P<bracket>.{1,N}?)\\\]|\\\((?P<inline>.{1,N}?)\\\)"
    r"|(?<![\\$])\$(?P<dollar>(?![\s$])[^$\n]{1,N}?(?<![\s\\]))\$(?!\d)".replace("N", str(MOST_CHARACTERS)),
    re.DOTALL,
)
# Commands that define commands: with them, a short formula could expand endlessly.
_DEFINES = re.compile(r"\\(?:re|provide)?(?:newcommand|def|let|edef|gdef|xdef|DeclareMathOperator)")


def find_formulas(text: str) -> Iterator[tuple[int, int, Tree]]:
    """Yield the start, end and tree of each formula that can be translated. Start and end include the delimiters."""
    if "$" not in text and "\\" not in text:
        return
    for match in _DELIMITED.finditer(text):
        is_block = match["display"] is not None or match["bracket"] is not None
        tree = translate(str(match[match.lastgroup or 0]).strip(), is_block)
        if tree is not None:
            yield match.start(), match.end(), tree


@lru_cache(maxsize=20_000)
def translate(latex: str, is_block: bool = False) -> Tree | None:
    """Translate a formula without delimiters to MathML; return None if any part of it cannot be translated."""
    from latex2mathml.converter import convert_to_element

    if not latex or len(latex) > MOST_CHARACTERS or _DEFINES.search(latex):
        return None
    try:
        element = convert_to_element(latex, display="block" if is_block else "inline")
        return _tree(element)
    except Exception:  # noqa: BLE001 - the library names few of the ways in which it fails on what is no LaTeX
        return None


class _UnknownError(ValueError):
    """latex2mathml returned an element or a command that it does not know."""


def _tree(element: Element) -> Tree:
    """Convert an element and its children, dropping unknown attributes.

    Raises _UnknownError for an unknown element, or for a command that the library left unchanged.
    """
    text = readable(html.unescape(element.text or ""))  # The library writes operators as character references.
    if element.tag not in ELEMENTS or text.startswith("\\"):
        raise _UnknownError(text or element.tag)
    attributes = {name: value for name, value in sorted(element.attrib.items()) if name in ATTRIBUTES}
    return element.tag, attributes, text, [_tree(child) for child in element]
