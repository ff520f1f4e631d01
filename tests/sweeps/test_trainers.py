"""The shipped comparisons of trainers, in full: TRL trains as bench does, within their margin."""

from __future__ import annotations

import pytest

from tests.harness.cli.conftest import Bench, bench

__all__ = ["bench"]

pytestmark = pytest.mark.long


@pytest.mark.parametrize("sweep", ["trainers_grpo", "trainers_dr_grpo", "trainers_dapo", "trainers_dpo"])
def test_trl_and_bench_are_equivalent(sweep: str, bench: Bench) -> None:
    found = bench("run", sweep, "--json")
    assert found.code == 0, found.err
    (contrast,) = found.document["contrasts"]
    assert (contrast["arm"], contrast["n_pairs"], contrast["verdict"]) == ("trl", 12, "equivalent"), contrast
