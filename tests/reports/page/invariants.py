"""What holds of every page and of its Markdown, whatever records it is of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reports.page.templating import TEMPLATES

SCRIPT = "<script>alert(1)</script>"
"""What records may say."""
PAGE_SCRIPT = "<script>\n" + (TEMPLATES / "page.js").read_text(encoding="utf-8")[:200]


def check_page(folder: Path) -> None:
    """Check index.html and report.md of records that somewhere say `SCRIPT`."""
    html, markdown = ((folder / name).read_text(encoding="utf-8") for name in ("index.html", "report.md"))
    for text in (html, markdown):
        # Our script alone, in the page and not in Markdown.
        assert text.lower().count("<script") == text.count(PAGE_SCRIPT)
        assert "&lt;script&gt;alert(1)" in text and "</b>" not in text.partition("<main")[0]
    assert not re.search(r"@import|url\((?!#)", html)
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    for reference in re.findall(r'(?:src|href)="([^"]*)"', html):
        file, _, target = reference.partition("#")
        assert (folder / file).is_file() if file else target in ids, reference
    for image in re.findall(r"!\[[^]]*\]\(([^)]*)\)", markdown):
        assert (folder / image).is_file()
    targets = re.findall(r'href="#([^"]+)"', html[html.index("<ol>") : html.index("</ol>")])
    headings = re.findall(r'<(?:h2|h3|figure) id="([^"]+)"', html)
    assert [one for one in headings if not one.startswith("group-")] == targets
    for table in re.findall(r"(?:^\|.*\n)+", markdown, flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def check_same_files(one: Path, other: Path, least: int) -> None:
    """Check that all files of a folder, at least so many, are in the other with the same bytes."""
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert len(files) >= least
    for file in files:
        assert (one / file).read_bytes() == (other / file).read_bytes(), file


@contextmanager
def only_figures(*names: str) -> Iterator[None]:
    """Let pages have these figures alone: all are drawn and laid out alike, and drawing each takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reports.figures.in_reading_order", lambda kind: [kind.find(name) for name in names])
        yield
