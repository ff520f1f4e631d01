from __future__ import annotations

import pytest

from reports.analysis import analyse
from reports.document import report_document
from reports.validity import Check, validity_checks
from tests.reports.synthetic import write_sweep


@pytest.mark.parametrize(
    ("base", "up", "expected"),
    [
        (200_000, 202_000, Check("Tokens, arm / baseline", "1.010", ok=True)),
        (200_000, 260_000, Check("Tokens, arm / baseline", "1.300", ok=False)),
        (200_000, 0, Check("Tokens, arm / baseline", "0.000", ok=False)),
        (0, 200_000, Check("Tokens, arm / baseline", "–", ok=False)),
        (0, 0, Check("Tokens", "none generated in training by any arm", ok=True)),
    ],
)
def test_tokens(tmp_path, base, up, expected):
    changes = {("base", 0): {"generated_tokens": base}, ("up", 0): {"generated_tokens": up}}
    analysis = analyse(write_sweep(tmp_path, {"base": 0.0, "up": 1.0}, seeds=1, changes=changes))
    assert expected in validity_checks(analysis, report_document(analysis))
