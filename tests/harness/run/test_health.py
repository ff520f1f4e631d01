from __future__ import annotations

from typing import Any

import pytest

from harness.run.health import health_flags


def steps(first: dict[str, float], last: dict[str, float], between: int = 0) -> list[dict[str, Any]]:
    usual = {"entropy/full": 1.0, "len/mean": 10.0, "len/truncated_frac": 0.0}
    return [usual | first] * 5 + [usual] * between + [usual | last] * 5


@pytest.mark.parametrize(
    ("first", "last", "flags"),
    [
        ({}, {}, []),
        ({}, {"entropy/full": 0.11}, []),
        ({}, {"entropy/full": 0.09}, ["entropy_collapse"]),
        ({"entropy/full": 2.0}, {"entropy/full": 0.19}, ["entropy_collapse"]),
        ({}, {"len/mean": 30.0}, []),
        ({}, {"len/mean": 30.1}, ["length_blowup"]),
        ({}, {"len/truncated_frac": 0.5}, []),
        ({}, {"len/truncated_frac": 0.51}, ["truncation"]),
        ({"len/truncated_frac": 0.9}, {}, []),
        (
            {},
            {"entropy/full": 0.0, "len/mean": 99.0, "len/truncated_frac": 1.0},
            ["entropy_collapse", "length_blowup", "truncation"],
        ),
    ],
)
def test_flags(first: dict[str, float], last: dict[str, float], flags: list[str]) -> None:
    assert health_flags(steps(first, last), diverged=False) == flags
    assert health_flags(steps(first, last, between=7), diverged=True) == ["nan", *flags]


def test_a_window_is_averaged() -> None:
    rows = steps({}, {})
    rows[-1] = rows[-1] | {"len/mean": 100.0}  # a mean of 28 over the last five
    assert health_flags(rows, diverged=False) == []


def test_too_short_to_tell() -> None:
    assert health_flags(steps({}, {"entropy/full": 0.0})[1:], diverged=False) == []
    assert health_flags([], diverged=True) == ["nan"]


def test_steps_that_learned_from_nothing_have_no_say() -> None:
    """All groups were dropped: there is no entropy in those rows, perhaps in a whole window."""
    none = {"entropy/full": None}
    rows = steps({}, {"entropy/full": 0.05})
    assert health_flags([row | none if index == 8 else row for index, row in enumerate(rows)], False) == [
        "entropy_collapse"
    ]
    assert health_flags([row | none for row in rows], diverged=False) == []
