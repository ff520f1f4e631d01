"""A screening ranks arms on a few seeds; verdicts come from fresh ones."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.plan import make_plan
from harness.records import read_sweep
from harness.run.screening import best_arms
from tests.harness.cli.conftest import Bench, bench
from tests.harness.cli.test_run_outcomes import words
from tests.harness.search.fake_cells import Recording, without_pages

__all__ = ["bench"]

QUESTION = """
name: rates
question: Which learning rate is best?
profile: tiny
ablate: [train.learning_rate]
base: {algorithm: grpo, train.steps: 3, train.warmup_steps: 0}
arms:
  none: {train.learning_rate: 1e-9}
  low: {train.learning_rate: 1e-6}
  good: {train.learning_rate: 1e-3}
  wild: {train.learning_rate: 1.0}
seeds: 2
screening: {best: 1, seeds: 3}
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "rates.yaml"
    path.write_text(QUESTION)
    return path


@pytest.mark.slow
def test_fresh_seeds_judge_what_was_picked_for_its_luck(
    bench: Bench, sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over cells that are not trained: the arm `wild` is lucky with the seeds of the screening, and no better."""

    def score(spec: RunSpec) -> float:
        noise = np.random.default_rng([spec.seed, int(1e9 * spec.train.learning_rate)]).normal(0, 0.005)
        return 0.5 + float(noise) + (0.1 if spec.train.learning_rate == 1.0 and spec.seed < 2 else 0.0)

    pool = Recording(score=score)
    pool.stand_in(monkeypatch)
    without_pages(monkeypatch)
    result = bench("run", sweep, "--json")
    assert result.code == 0, result.err
    (screening,) = result.document["screening"]
    assert screening["best"] == ["wild"]
    (contrast,) = screening["contrasts"]
    assert contrast["arm"] == "wild" and contrast["verdict"] != "better" and abs(contrast["difference_pp"]) < 2
    home = sweep.parent / "runs"
    confirmed = read_sweep(home / screening["confirmed_in"])
    assert (confirmed.arms, confirmed.seeds) == (["none", "wild"], [2, 3, 4])
    assert len(pool.trained) == 4 * 2 + 2 * 3

    assert bench("run", "rates-confirmed", "--seeds", 4).code == 0
    assert len(pool.trained) == 4 * 2 + 2 * 4
    assert "With 4 fresh seeds: " in bench("run", "rates").out
    assert len(pool.trained) == 4 * 2 + 2 * 4, "nothing is trained again"
    refused = bench("run", "rates", "--until", "verdict")
    assert refused.code == 2 and "`bench run rates-confirmed --until verdict`" in refused.err

    # More samples are drawn for both, with the seeds that each has, and train nothing.
    more = bench("run", "rates", "--eval-samples", 32, "--json")
    assert more.code == 0, more.err
    assert len(pool.trained) == 4 * 2 + 2 * 4 and len(pool.evaluated) == len(pool.trained)
    assert more.document["screening"][0]["seeds"] == 4


@pytest.mark.long
def test_the_best_is_confirmed_on_fresh_seeds(bench: Bench, sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.tracking.MirrorThread", lambda mirror: contextlib.nullcontext())
    result = bench("run", sweep, *words({}), "--json")
    assert result.code == 0, result.err
    (screening,) = result.document["screening"]
    means = {arm["arm"]: arm["mean_pp"] for arm in result.document["arms"] if arm["arm"] != "none"}
    assert screening["best"] == [max(means, key=lambda arm: means[arm])]

    home = sweep.parent / "runs"
    confirmed = read_sweep(home / screening["confirmed_in"])
    assert (confirmed.arms, confirmed.seeds) == (["none", *screening["best"]], [2, 3, 4])
    assert set(confirmed.seeds).isdisjoint(read_sweep(home / "rates").seeds)
    assert [row["arm"] for row in screening["contrasts"]] == screening["best"]
    page = (home / "rates" / "report" / "report.md").read_text()
    assert "With 3 fresh seeds" in page
    assert "ranked, not judged" in page

    cells = {cell.path: cell.path.stat().st_mtime_ns for cell in confirmed.cells}
    again = bench("run", sweep, *words({}))
    assert again.code == 0, again.err
    assert "Screening: 4 arms with 2 seeds each are ranked, not judged." in again.out
    assert cells == {cell.path: cell.path.stat().st_mtime_ns for cell in confirmed.cells}, "nothing is trained again"

    # More seeds of the confirmation lie above its own, and stay when the screening is run again.
    assert confirmed.command == "bench run rates-confirmed"
    assert bench("run", "rates-confirmed", "--seeds", 4).code == 0
    assert read_sweep(home / "rates-confirmed").seeds == [2, 3, 4, 5]
    assert "With 4 fresh seeds: " in bench("run", "rates").out
    refused = bench("run", "rates", "--until", "verdict")
    assert refused.code == 2 and "`bench run rates-confirmed --until verdict`" in refused.err

    # Before all cells of the screening have ended nothing is picked.
    assert best_arms(screening["best"], ["done", "failed", "invalid"]) == screening["best"]
    assert best_arms(screening["best"], ["done", "interrupted"]) == []


def test_a_plan_says_what_a_screening_will_detect(bench: Bench, sweep: Path) -> None:
    document = bench("plan", sweep, "--json").document
    assert document["screening"] == {"best": 1, "seeds": 3}
    judged = sweep.with_name("judged.yaml")
    judged.write_text(
        QUESTION.replace("screening: {best: 1, seeds: 3}", "").replace("seeds: 2", "seeds: 3").replace("  low", "  #")
        .replace("  wild", "  #")
    )  # fmt: skip
    assert document["detectable_pp"] == bench("plan", judged, "--json").document["detectable_pp"]


@pytest.mark.parametrize(("more", "message"), [
    ("screening: {best: 3}", r"screening.best is 3 of 4 arms, the baseline among them"),
    ("screening: {seeds: 2}", r"screening.seeds is 2: input should be greater than or equal to 3"),
])  # fmt: skip
def test_a_screening_that_picks_nothing_is_refused(sweep: Path, more: str, message: str) -> None:
    sweep.write_text(QUESTION.replace("screening: {best: 1, seeds: 3}", more))
    with pytest.raises(RefusedError, match=message):
        make_plan(str(sweep))
