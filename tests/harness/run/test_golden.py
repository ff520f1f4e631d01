from __future__ import annotations

from typing import Any

import pytest

from harness.records.files import read_json
from tests.harness.run.five_steps import FROZEN, five_steps

REMEDY = (
    "The same spec gives other numbers than before. If that is intended, raise NUMERICS_VERSION in "
    "harness/config/hashing.py, so that no old cell passes for a new one, and run `python -m "
    "tests.harness.run.freeze_five_steps`. (Only the built-in model is new: freeze, and leave the version.)"
)


def flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {name: leaf for key in value for name, leaf in flat(value[key], f"{path}.{key}").items()}
    if isinstance(value, list):
        return {name: leaf for index, item in enumerate(value) for name, leaf in flat(item, f"{path}[{index}]").items()}
    return {path: value}


def test_five_steps_are_as_frozen() -> None:
    """Tolerances for another CPU: sums of rounding errors in float32; a near-zero mean of signed terms has only an
    absolute one. Tokens, and so rewards and lengths, are the same."""
    expected, got = flat(read_json(FROZEN)), flat(five_steps())
    assert got.keys() == expected.keys(), REMEDY
    changed = {
        name: (got[name], value)
        for name, value in expected.items()
        if got[name] != (pytest.approx(value, rel=1e-4, abs=2e-6) if isinstance(value, float) else value)
    }
    assert not changed, f"{REMEDY}\n(got, frozen): {changed}"


def test_the_frozen_run_says_something() -> None:
    """Every step learns, some groups are skipped, ratios leave 1."""
    steps = read_json(FROZEN)["steps"]
    assert len(steps) == 5
    assert all(step["grad_norm"] > 0.01 and 0 < step["reward/mean"] < 1 for step in steps)
    assert 0 < sum(step["groups_skipped"] for step in steps) < 10
    assert max(step["ratio/max"] for step in steps) > 1.01
