"""The files of a page: index.html and report.md from templates, report.json, the figures and their numbers.

Text written by a model is untrusted: templates escape it, and control characters are replaced.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from harness import plugins
from harness.secrets import redact
from reports.drawing.rendering import RenderedFigure
from reports.formats import percent, tokens
from reports.page.glossary import with_terms

if TYPE_CHECKING:
    from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"

_CONTROLS = (code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n\r")
_BIDI_CONTROLS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_REPLACED = dict.fromkeys((*_CONTROLS, *_BIDI_CONTROLS), "\N{REPLACEMENT CHARACTER}")
"""Control characters except tabs and line breaks, including those that reverse the direction of adjacent text."""

# Three alternatives: after _ = / or :; after . , or - unless a digit follows; after 20 characters without a mark.
_BREAKS = re.compile(r"(?<=[_=/:])(?=\S)|(?<=[.,-])(?=[^\s\d])|(?<=[^\s_=/:.,-]{20})(?=\S)")


def write_page(
    out_dir: Path, kind: str, content: dict[str, object], document: dict[str, object], figures: Sequence[RenderedFigure]
) -> None:
    """Write index.html, report.md, report.json, figures/*.svg and *.png, and the figures' numbers as data/*.csv.

    kind: the name of the templates, `sweep` or `search`.
    content: what the templates show besides the figures.
    document: the contents of report.json.

    Figures of an earlier report are deleted first, because it may have had figures that this one lacks. index.html,
    report.md and report.json name the plug-ins that were left out.
    """
    left_out = plugins.left_out()
    document = document | ({"left_out": [{"sentence": one} for one in left_out]} if left_out else {})
    for folder in (out_dir / "figures", out_dir / "data"):
        folder.mkdir(parents=True, exist_ok=True)
    for earlier in list((out_dir / "figures").glob("*.svg")):
        for stale in (earlier, earlier.with_suffix(".png"), out_dir / "data" / f"{earlier.stem}.csv"):
            stale.unlink(missing_ok=True)
    for figure in figures:
        if figure.views:
            write_text(out_dir / "figures" / f"{figure.name}.svg", figure.svg)
            (out_dir / "figures" / f"{figure.name}.png").write_bytes(figure.png)
        write_text(out_dir / "data" / f"{figure.name}.csv", figure.csv)
    # iterencode yields the document in pieces, so that it is never one string in memory.
    encoder = json.JSONEncoder(indent=2, ensure_ascii=False, allow_nan=False)
    write_text(out_dir / "report.json", chain(encoder.iterencode(document), "\n"))
    content = content | {"figures": figures, "left_out": left_out}
    write_text(out_dir / "index.html", render_html(f"{kind}.html.j2", content))
    write_text(out_dir / "report.md", render_markdown(f"{kind}.md.j2", content))


def write_text(path: Path, text: Iterable[str]) -> None:
    """Write a file atomically: readers see the old contents or the new, never a part.

    A reader may have the page open, and `bench run` and `bench ui` may write it at the same time. text: a string, or
    its pieces if the complete text is too large for memory.
    """
    # The process id keeps two writers apart. The leading dot hides the temporary file until replace() moves it into
    # place.
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with aside.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(map(redact, [text] if isinstance(text, str) else text))
    aside.replace(path)


def render_html(template: str, content: Mapping[str, object]) -> str:
    return _render(template, content)


def render_markdown(template: str, content: Mapping[str, object]) -> str:
    # Escaping leaves no tag in Markdown, so quotes are harmless, and as entities they would be hard to read.
    return _render(template, content).replace("&#39;", "'").replace("&#34;", '"')


def _render(template: str, content: Mapping[str, object]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: readable(value) if isinstance(value, str) else value,
    )
    environment.filters |= {"markdown": _markdown, "percent": percent, "breakable": _breakable, "tokens": tokens}
    environment.filters |= {"code": _code, "terms": with_terms}
    return environment.get_template(template).render(content)


def shipped_scripts() -> list[str]:
    """Return the scripts that the templates put into pages, exactly as they appear there."""
    return [f"\n{(TEMPLATES / name).read_text(encoding='utf-8')}" for name in ("page.js", "samples.js")]


def readable(text: str) -> str:
    """Replace each character that a page must not contain, keeping the length of the text."""
    return text.translate(_REPLACED)


def _breakable(text: str) -> Markup:
    """Return a name as HTML that may break after punctuation and inside very long words, but not inside a number.

    This makes tables with long names fit.
    """
    from markupsafe import Markup

    return Markup("<wbr>").join(_BREAKS.split(text))


def _code(text: str) -> Markup:
    """Return text as HTML, with text between backticks shown as code."""
    from markupsafe import Markup, escape

    # Escape first: the only tags in the result are ours.
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(readable(text)))))


def _markdown(text: str) -> str:
    """Return text as one line of Markdown, or one cell of a table, with special characters and links escaped.

    Autoescaping takes care of HTML.
    """
    return re.sub(r"([\\`*|]|(?<=\])\()", r"\\\1", " ".join(text.split()))
