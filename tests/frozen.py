"""Words that people read, frozen in text files: one for each verb or page, where a change of words is seen.

`FREEZE=1 make test ONLY=...` writes them anew. Read the difference before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden/text"


def frozen(name: str, text: str) -> None:
    """Compare a text with `tests/golden/text/<name>.txt`. The caller replaces what changes from run to run."""
    path = FOLDER / f"{name}.txt"
    text = "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())
    if os.environ.get("FREEZE"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()
