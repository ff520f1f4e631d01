"""A screening ranks arms on a few seeds; verdicts come from fresh ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harness.config.run_spec import RunSpec
from harness.errors import RefusedError
from harness.plan import make_plan
from harness.records import read_sweep
from harness.run.screening import best_arms
from tests.harness.cli.conftest import Bench, bench
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
    assert bench("run", "rates").code == 0
    assert len(pool.trained) == 4 * 2 + 2 * 4, "nothing is trained again"
    refused = bench("run", "rates", "--until", "verdict")
    assert refused.error and refused.error.code == "run.screening_has_no_verdict"

    assert best_arms(["wild"], ["done", "failed", "invalid"]) == ["wild"]
    assert best_arms(["wild"], ["done", "interrupted"]) == [], "before all of the screening have ended"

    # More samples are drawn for both, with the seeds that each has, and train nothing.
    more = bench("run", "rates", "--eval-samples", 32, "--json")
    assert more.code == 0, more.err
    assert len(pool.trained) == 4 * 2 + 2 * 4 and len(pool.evaluated) == len(pool.trained)
    assert more.document["screening"][0]["seeds"] == 4


def test_a_plan_says_what_a_screening_will_detect(bench: Bench, sweep: Path) -> None:
    document = bench("plan", sweep, "--json").document
    assert document["screening"] == {"best": 1, "seeds": 3}
    judged = sweep.with_name("judged.yaml")
    judged.write_text(
        QUESTION.replace("screening: {best: 1, seeds: 3}", "").replace("seeds: 2", "seeds: 3").replace("  low", "  #")
        .replace("  wild", "  #")
    )  # fmt: skip
    assert document["detectable_pp"] == bench("plan", judged, "--json").document["detectable_pp"]


@pytest.mark.parametrize(("more", "message"), [("best: 3", "best is 3 of 4"), ("seeds: 2", "seeds is 2")])
def test_a_screening_that_picks_nothing_is_refused(sweep: Path, more: str, message: str) -> None:
    sweep.write_text(QUESTION.replace("best: 1, seeds: 3", more))
    with pytest.raises(RefusedError, match=message):
        make_plan(str(sweep))
