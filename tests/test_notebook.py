"""docs/notebook.ipynb runs from its first cell to its last, and prints what is kept in it, in kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from docs.notebook import NOTEBOOK, SVG, as_markdown, executed


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    before, now = nbformat.read(NOTEBOOK, as_version=4), executed(tmp_path)
    assert len(before.cells) == 10
    for cell, again in zip(before.cells, now.cells, strict=True):
        assert kinds(cell) == kinds(again), again.source


def kinds(cell: Any) -> list[tuple[str, bool]]:
    """Without progress on stderr, which depends on how long things take here; nothing else may stand there."""
    outputs = cell.get("outputs", [])
    said = "".join(output["text"] for output in outputs if output.get("name") == "stderr").lower()
    assert not [word for word in ("warning", "error", "traceback", "refused") if word in said], said
    return [kind(output) for output in outputs if output.get("name") != "stderr"]


def kind(output: dict[str, Any]) -> tuple[str, bool]:
    return output["output_type"], SVG in output.get("data", {})


def test_the_page_shows_code_text_and_figure() -> None:
    page = as_markdown()
    assert page.count("```python") == 9 and page.count(f'<img src="data:{SVG};base64,') == 1
    assert "better than" in page.replace("\n", " ") and "/tmp" not in page
