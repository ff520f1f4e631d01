"""Templates and text files of a page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports.figures.rendering import RenderedFigure
from reports.formats import percent

if TYPE_CHECKING:
    from markupsafe import Markup

_CONTROLS = (code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n\r")
_BIDI_CONTROLS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_REPLACED = dict.fromkeys((*_CONTROLS, *_BIDI_CONTROLS), "\N{REPLACEMENT CHARACTER}")
"""Control characters but tab and line break; also those that would turn round the text beside them."""

TEMPLATES = Path(__file__).parent / "templates"


def render_html(template: str, content: dict[str, Any]) -> str:
    return _render(template, content)


def render_markdown(template: str, content: dict[str, Any]) -> str:
    # Quotes open nothing in Markdown, where no tag survives the escaping; as entities they are only hard to read.
    return _render(template, content).replace("&#39;", "'").replace("&#34;", '"')


def write_text(path: Path, text: str) -> None:
    """Whole or not at all: somebody may be reading the page that a live report replaces."""
    aside = path.with_name(f".{path.name}.tmp")
    aside.write_text(text, encoding="utf-8", newline="\n")
    aside.replace(path)


def write_figures(out_dir: Path, figures: Sequence[RenderedFigure]) -> None:
    """Write the pictures into out_dir/figures, and make out_dir/data for their numbers. Those of an earlier report,
    which may have had records for more of them, go."""
    for folder in (out_dir / "figures", out_dir / "data"):
        folder.mkdir(parents=True, exist_ok=True)
    for earlier in list((out_dir / "figures").glob("*.svg")):
        for stale in (earlier, earlier.with_suffix(".png"), out_dir / "data" / f"{earlier.stem}.csv"):
            stale.unlink(missing_ok=True)
    for figure in figures:
        write_text(out_dir / "figures" / f"{figure.name}.svg", figure.svg)
        (out_dir / "figures" / f"{figure.name}.png").write_bytes(figure.png)


def _render(template: str, content: dict[str, Any]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_without_control_characters,
    )
    environment.filters |= {"markdown": _markdown, "percent": percent, "breakable": _breakable}
    return environment.get_template(template).render(content)


def _without_control_characters(value: Any) -> Any:
    """What a model writes may hold characters that no page may: a replacement for each."""
    return value.translate(_REPLACED) if isinstance(value, str) else value


def _breakable(text: str) -> Markup:
    """HTML of a name that may go on in the next line after each of its underscores: a table of many of them fits."""
    from markupsafe import Markup, escape

    return Markup(escape(text).replace("_", Markup("_<wbr>")))


def _markdown(text: str) -> str:
    """Text as one Markdown line or table cell: marks and links escaped, line breaks gone; autoescape does the HTML."""
    return re.sub(r"([\\`*|]|(?<=\])\()", r"\\\1", " ".join(text.split()))
