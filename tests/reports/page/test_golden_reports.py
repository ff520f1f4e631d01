"""The same records give the same report, number by number, as when it was looked at last."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.reports.page.golden_reports import FOLDER, SETS, report_of


@pytest.mark.parametrize("name", SETS)
def test_a_report_is_what_it_was(name: str) -> None:
    expected = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert list(differences(report_of(name), expected, name)) == []


def differences(found: Any, expected: Any, place: str) -> Any:
    """Where two documents differ, in words; numbers may differ by rounding."""
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        for key in found:
            yield from differences(found[key], expected[key], f"{place}.{key}")
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from differences(one, other, f"{place}[{index}]")
    elif isinstance(found, float) and isinstance(expected, float | int):
        if not math.isclose(found, expected, rel_tol=1e-5, abs_tol=1e-9):
            yield f"{place} is {found}, was {expected}"
    elif found != expected:
        yield f"{place} is {str(found)[:80]}, was {str(expected)[:80]}"


def test_a_difference_is_seen() -> None:
    one = {"a": [1.0, {"b": 2.0}]}
    assert list(differences(one, {"a": [1.0, {"b": 2.0000001}]}, "x")) == []
    (difference,) = differences(one, {"a": [1.0, {"b": 2.001}]}, "x")
    assert difference.split()[::2] == ["x.a[1].b", "2.0,", "2.001"]
    assert list(differences(one, {"a": [1.0]}, "x")) != []
