"""The shipped comparisons of trainers, in full: TRL trains as bench does, within their margin."""

from __future__ import annotations

import pytest

from tests.harness.cli.conftest import Bench, bench

__all__ = ["bench"]

pytestmark = pytest.mark.long


MARGIN_PP = 2.0


@pytest.mark.parametrize("sweep", ["trainers_grpo", "trainers_dr_grpo", "trainers_dapo", "trainers_dpo"])
def test_trl_and_bench_differ_by_less_than_the_margin(sweep: str, bench: Bench) -> None:
    """The interval may leave 0 out by chance, which the verdict then calls a difference; it lies within the margin."""
    found = bench("run", sweep, "--json")
    assert found.code == 0, found.err
    (contrast,) = found.document["contrasts"]
    assert (contrast["arm"], contrast["n_pairs"]) == ("trl", 12)
    assert -MARGIN_PP < contrast["low_pp"] <= contrast["high_pp"] < MARGIN_PP, contrast
