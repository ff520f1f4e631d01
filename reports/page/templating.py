"""The files of a page: index.html and report.md from templates, report.json, the figures and their numbers.

What a model wrote is untrusted: templates escape it, and control characters are replaced.
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
"""Control characters except tabs and line breaks, among them those that turn round the text beside them."""

_BREAKS = re.compile(r"(?<=[_=/:])(?=\S)|(?<=[.,-])(?=[^\s\d])|(?<=[^\s_=/:.,-]{20})(?=\S)")


def write_page(
    out_dir: Path, kind: str, content: dict[str, object], document: dict[str, object], figures: Sequence[RenderedFigure]
) -> None:
    """Write index.html, report.md, report.json, figures/*.svg and *.png, and the numbers of figures as data/*.csv.

    kind: `sweep` or `search`, the templates' name. content: what they show besides the figures. document: the contents
    of report.json. The figures of an earlier report go, since it may have had records for more of them. Plug-ins that
    were left out are named in all three.
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
    encoder = json.JSONEncoder(indent=2, ensure_ascii=False, allow_nan=False)
    write_text(out_dir / "report.json", chain(encoder.iterencode(document), "\n"))
    content = content | {"figures": figures, "left_out": left_out}
    write_text(out_dir / "index.html", render_html(f"{kind}.html.j2", content))
    write_text(out_dir / "report.md", render_markdown(f"{kind}.md.j2", content))


def write_text(path: Path, text: Iterable[str]) -> None:
    """Write the file whole or not at all: somebody may be reading the page that it replaces, and `bench run` and
    `bench ui` may write it at once. text: a string, or the parts of one that is never to be held as a whole."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with aside.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(map(redact, [text] if isinstance(text, str) else text))
    aside.replace(path)


def render_html(template: str, content: Mapping[str, object]) -> str:
    return _render(template, content)


def render_markdown(template: str, content: Mapping[str, object]) -> str:
    # Escaping leaves no tag in Markdown, so quotes are harmless, and as entities they are hard to read.
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
    """Return the scripts that the templates put into pages, as they stand there."""
    return [f"\n{(TEMPLATES / name).read_text(encoding='utf-8')}" for name in ("page.js", "samples.js")]


def readable(text: str) -> str:
    """The text, as long as it was, with a replacement for each character that a model may write and a page must not
    hold."""
    return text.translate(_REPLACED)


def _breakable(text: str) -> Markup:
    """A name as HTML that may continue on the next line after its marks, but not within a number, and within a word
    that is too long, so that tables with long names fit."""
    from markupsafe import Markup

    return Markup("<wbr>").join(_BREAKS.split(text))


def _code(text: str) -> Markup:
    """Text as HTML, with what stands between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(readable(text)))))


def _markdown(text: str) -> str:
    """Text as one line of Markdown or one cell of a table: marks and links escaped, no line breaks. Autoescape does the
    HTML."""
    return re.sub(r"([\\`*|]|(?<=\])\()", r"\\\1", " ".join(text.split()))
