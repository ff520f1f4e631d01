"""Three sets of records and what their reports said: `python -m tests.reports.page.golden_reports` writes them anew.

A change of report.json is then seen in a diff, whatever test missed it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from reports.measure import analyse
from reports.page.document import report_document
from tests.reports.synthetic import Changes, write_sweep

FOLDER = Path(__file__).with_name("golden")
SIGNIFICANT_DIGITS = 7
"""What machines agree on: sums run in another order elsewhere."""

TROUBLED: Changes = {
    ("up", 1): {"flags": ["nan"], "score": 0.1},
    ("up", 2): {"state": "failed", "reason": "broke"},
    ("same", 3): {"state": "invalid", "reason": "engine mismatch"},
}
SETS: dict[str, dict[str, Any]] = {
    "two_arms": {"arms": {"base": 0.0, "up": 3.0}, "seeds": 6},
    "troubled": {"arms": {"base": 0.0, "up": 3.0, "same": 0.0}, "seeds": 5, "changes": TROUBLED},
    "one_seed": {"arms": {"base": 0.0, "up": 3.0, "down": -3.0}, "seeds": 1, "base_scores": []},
}


def report_of(name: str) -> Any:
    """report.json of a set, as plain data with rounded numbers."""
    with tempfile.TemporaryDirectory() as folder:
        document = report_document(analyse(write_sweep(Path(folder) / name, **SETS[name]))).as_json()
    return _rounded(json.loads(json.dumps(document)))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for chosen in SETS:
        text = json.dumps(report_of(chosen), indent=1, ensure_ascii=False)
        (FOLDER / f"{chosen}.json").write_text(text + "\n", encoding="utf-8")
