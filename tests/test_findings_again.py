"""Two findings run anew with other seeds: what is committed can be found again."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from docs.findings.answer import Kept
from docs.findings.source import RECORDS
from harness.plan.sweep_file import SHIPPED
from reports.statistics import compare_unpaired
from tests.harness.cli.conftest import Bench, bench

__all__ = ["bench"]

pytestmark = pytest.mark.long

OTHER_SEEDS = list(range(1000, 1012))
ALPHA = 0.01


@pytest.mark.parametrize("sweep", ["std_norm", "length_norm"])
def test_other_seeds_show_no_other_effect(sweep: str, bench: Bench, tmp_path: Path) -> None:
    """By Welch's test on the paired differences, at 1% over the contrasts of the sweep: the seeds are others, so they
    share no noise with those that are committed."""
    if not (record := RECORDS / f"{sweep}-tiny").is_dir():
        pytest.skip(f"{sweep} on tiny has not been run: `make findings`")
    asked = yaml.safe_load((SHIPPED / f"{sweep}.yaml").read_text(encoding="utf-8")) | {"seeds": OTHER_SEEDS}
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(asked), encoding="utf-8")
    again = bench("run", "again.yaml", "--json")
    assert again.code == 0, again.err
    now = {row["arm"]: row["differences_pp"] for row in again.document["contrasts"]}
    then = {row.arm: row.differences_pp for row in Kept(record).report.contrasts}
    assert {*now} == {*then}
    for arm in now:
        found = compare_unpaired(now[arm], then[arm], alpha=ALPHA / len(now))
        assert found.low <= 0 <= found.high, f"{arm}: {now[arm]} now, {then[arm]} then"
