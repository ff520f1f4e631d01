"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells may hold bars and line breaks."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(str(cell).replace("|", "\\|").split()) for cell in line) + " |" for line in lines
    )
