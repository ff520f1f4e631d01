"""A sweep with `tune:` from the command line, over cells that are not trained.

Planted: the arm `slow` carries a hidden factor of .2 on the learning rate, and nothing else.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness.config.run_spec import RunSpec
from harness.config.search import TUNING_SEED
from harness.records import CellRecord, read_sweep
from tests.harness.cli.conftest import Bench
from tests.harness.run.small import SETTINGS
from tests.harness.search.fake_cells import Recording, without_pages

pytestmark = pytest.mark.slow

LR = "train.learning_rate"
TRIALS, TRIAL_SEEDS, SEEDS = 8, 2, 12


def hidden_factor(spec: RunSpec) -> float:
    """The score peaks where learning rate times factor is 1e-4; noise of half a point comes with seed and setting."""
    factor = 0.2 if spec.train.warmup_steps else 1.0
    away = math.log10(spec.train.learning_rate * factor) + 4
    name = [spec.seed, int(1e9 * spec.train.learning_rate), spec.train.warmup_steps]
    noise = np.random.default_rng(name).normal(0, 0.005)
    return 0.8 - 0.06 * away**2 + float(noise)


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Recording:
    pool = Recording(score=hidden_factor)
    pool.stand_in(monkeypatch)
    return pool


def write_sweep(folder: Path, **changes: Any) -> Path:
    settings = {k: v for k, v in SETTINGS.items() if k != "algorithm"} | {LR: 1e-4}
    (folder / "small.yaml").write_text(yaml.safe_dump(settings))
    document = {
        "name": "mine", "question": "?", "profile": "small.yaml", "base": {"algorithm": "grpo"},
        "ablate": ["train.warmup_steps"], "arms": {"plain": {}, "slow": {"train.warmup_steps": 1}},
        "seeds": SEEDS, "compare": {"margin_pp": 2.0},
        "tune": {"per_arm": {LR: {"log": [1e-5, 1e-3]}}, "trials": TRIALS, "seeds": TRIAL_SEEDS},
    }  # fmt: skip
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in (document | changes).items() if v is not None}))
    return path


def test_a_hidden_factor_on_the_learning_rate_is_no_verdict_once_each_arm_is_at_its_best(
    bench: Bench, tmp_path: Path, pool: Recording
) -> None:
    naive = bench("run", write_sweep(tmp_path, name="naive", tune=None), "--json").document
    assert naive["contrasts"][0]["verdict"] == "worse" and naive["tuning"] == []
    pool.trained.clear()

    path = write_sweep(tmp_path)
    before = bench("plan", path, "--json").document
    assert {cell["state"] for cell in before["cells"]} == {"after its search"}
    assert before["cost"]["cells"] == 2 * (TRIALS * TRIAL_SEEDS + SEEDS)

    document = bench("run", path, "--json").document
    (contrast,) = document["contrasts"]
    assert contrast["verdict"] == "equivalent"
    assert contrast["bests"]["settles"] and contrast["bests"]["trials"] == TRIALS
    rows = {row["arm"]: row for row in document["tuning"]}
    rates = {arm: row["values"][LR] for arm, row in rows.items()}
    assert 2.5 < rates["slow"] / rates["plain"] < 10, "the factor is found"
    for row in rows.values():
        assert row["complete"] == TRIALS
        assert row["generated_tokens"] == 1000 * TRIALS * TRIAL_SEEDS
        assert row["verdict_tokens"] == 1000 * SEEDS
    seeds = {name.rpartition("-s")[2].partition("-")[0] for name in pool.trained if name.startswith("trial")}
    assert seeds == {str(TUNING_SEED), str(TUNING_SEED + 1)}
    assert len(pool.trained) == 2 * (TRIALS * TRIAL_SEEDS + SEEDS)
    assert f" {TRIALS} trials of {LR}" in (tmp_path / "runs" / "mine" / "report" / "report.md").read_text()
    bench("freeze", path).refused("cli.cells_already_run")

    # Further seeds, where the searches are not at hand any more, go on from what was found.
    for search in (tmp_path / "runs").glob("mine-tune-*"):
        shutil.rmtree(search)
    pool.trained.clear()
    again = bench("run", path, "--seeds", SEEDS + 2, "--json").document
    assert {row["arm"]: row["values"][LR] for row in again["tuning"]} == rates
    assert len(pool.trained) == 4
    assert bench("plan", path, "--json").document["searches"][0]["values"] == {LR: rates["plain"]}


@pytest.mark.long
def test_a_search_that_was_broken_off_goes_on(bench: Bench, tmp_path: Path, pool: Recording) -> None:
    path = write_sweep(tmp_path)

    class BrokenOffError(Exception):
        pass

    begun = pool.begun

    def break_off(cell: CellRecord) -> None:
        if cell.arm == "trial_5" and "slow" in str(cell.path):
            raise BrokenOffError

    pool.begun = break_off  # type: ignore[method-assign]
    with pytest.raises(BrokenOffError):
        bench("run", path, "--workers", 1)
    pool.begun = begun  # type: ignore[method-assign]
    pool._steps.clear()
    record = read_sweep(tmp_path / "runs" / "mine")
    assert record.cells == [] and record.tuning is not None and set(record.tuning.arms) == {"plain"}
    status = bench("status", "mine", "--json").document["searches"]
    assert [(row["arm"], row["ended"]) for row in status] == [("plain", TRIALS), ("slow", 5)]
    assert "mine-tune-slow" in bench("status", "mine").out
    bench("freeze", path).refused("cli.search_already_begun")
    pool.trained.clear()
    assert bench("run", path, "--workers", 1, "--eval-samples", 8).code == 2
    assert pool.trained == []
    document = bench("run", path, "--workers", 1, "--json").document
    assert [row["complete"] for row in document["tuning"]] == [TRIALS, TRIALS]
    trials = {name.partition("-")[0] for name in pool.trained if name.startswith("trial")}
    assert trials <= {"trial_5", "trial_6", "trial_7"}, "the draws of ended trials are not made again"
    assert sum(not name.startswith("trial") for name in pool.trained) == 2 * SEEDS
    # More trials of one arm, by hand, change nothing in the comparison: each arm has the same number.
    assert bench("tune", tmp_path / "runs" / "mine-tune-slow", "--trials", TRIALS + 2).code == 0
    trained = len(pool.trained)
    assert bench("run", path).code == 0
    assert len(pool.trained) == trained


def test_one_arm_alone_then_looks_fixed_beforehand_then_more_samples(
    bench: Bench, tmp_path: Path, pool: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pages(monkeypatch)
    path = write_sweep(tmp_path)
    alone = bench("run", path, "--arms", "plain", "--json")
    assert alone.code == 0, alone.err
    assert alone.document["contrasts"] == [] and [row["arm"] for row in alone.document["tuning"]] == ["plain"]
    assert {name.partition("-")[0] for name in pool.trained if not name.startswith("trial")} == {"plain"}
    pool.trained.clear()

    result = bench("run", path, "--until", "verdict", "--most-seeds", SEEDS, "--json")
    assert result.code == 0, result.err
    (contrast,) = result.document["contrasts"]
    assert contrast["look"]["planned"] == [6, 9, 12] and contrast["bests"]["settles"]
    assert contrast["verdict"] == "equivalent"
    taken = [(len(look.seeds), look.planned) for look in read_sweep(tmp_path / "runs" / "mine").looks]
    assert taken == [(n, True) for n in (6, 9, 12)][: len(taken)]
    assert sum(name.startswith("trial") for name in pool.trained) == TRIALS * TRIAL_SEEDS, "those of the other arm"
    assert {name.partition("-")[0] for name in pool.trained if not name.startswith("trial")} == {"slow"}
    pool.trained.clear()

    found = result.document["tuning"]
    more = bench("run", "mine", "--eval-samples", 8, "--json")
    assert more.code == 0, more.err
    assert pool.trained == [] and len(pool.evaluated) == 2 * taken[-1][0]
    assert [row["values"] for row in more.document["tuning"]] == [row["values"] for row in found]
    assert more.document["contrasts"][0]["look"]["number"] == len(taken) + 1


def test_an_arm_that_cannot_be_scored_is_refused(bench: Bench, tmp_path: Path, pool: Recording) -> None:
    pool.ends = {f"trial_{number}": ("failed", "out of luck") for number in range(TRIALS)}
    result = bench("run", write_sweep(tmp_path))
    assert result.code == 2
    assert "mine-tune-plain" in result.err and "out of luck" in result.err
    assert json.loads((tmp_path / "runs" / "mine" / "sweep.json").read_text())["cells"] == []
