"""The numbers of the demo on the pages are those of its kept report."""

from __future__ import annotations

from docs import demo
from reports.page.kept import verify_kept


def test_pages_show_the_kept_report() -> None:
    texts = {str(page.relative_to(demo.ROOT)): page.read_text(encoding="utf-8") for page in demo.pages()}
    marked = {name: text for name, text in texts.items() if "<!-- demo: " in text}
    assert {*marked} == {"README.md", "docs/explanation/seeds.md", "docs/explanation/statistics.md"}
    assert {name: demo.with_demo(text) for name, text in marked.items()} == marked


def test_the_kept_report_agrees_with_its_scores() -> None:
    assert verify_kept(demo.KEPT).difference is None
