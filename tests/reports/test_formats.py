from __future__ import annotations

import math

import pytest

from reports.formats import interval


@pytest.mark.parametrize(
    ("low", "high", "written"),
    [
        (-0.01, 0.4, "[-0.0, +0.4]"),
        (0.01, 0.4, "[+0.0, +0.4]"),
        (-0.4, -0.01, "[-0.4, -0.0]"),
        (-0.4, 0.01, "[-0.4, +0.0]"),
        (-0.0, 0.0, "[+0.0, +0.0]"),
        (math.nan, 0.4, "–"),
    ],
)
def test_an_end_that_rounds_to_0_keeps_its_sign(low, high, written):
    assert interval(low, high) == written


def test_an_interval_of_a_score_has_no_sign():
    assert interval(-0.01, 47.31, signed=False) == "[0.0, 47.3]"
