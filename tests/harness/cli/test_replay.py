from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.cli.conftest import Bench
from tests.harness.run.bench import write_sweep
from tests.harness.run.stages_here import without_workers

pytestmark = pytest.mark.slow

SMALL = ("--set", "train.steps=2", "--set", "eval.every=0", "--set", "eval.problems=2", "--set", "train.epochs=2")


@pytest.fixture
def ran(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """After `bench run` of a small sweep with the arms group_std and no_std, two seeds each."""
    without_workers(monkeypatch)
    sweep = write_sweep(tmp_path)
    result = bench("run", sweep, *SMALL)
    assert result.code == 0, result.err
    return bench


def test_replay(ran: Bench, tmp_path: Path) -> None:
    every = ran("replay", "small", "--algorithms", "grpo,dr_grpo", "--json")
    assert every.code == 0, every.err
    assert [arm["arm"] for arm in every.document["arms"]] == ["group_std", "no_std"]
    assert [len(arm["cells"]) for arm in every.document["arms"]] == [2, 2]
    (one,) = ran("replay", "small/no_std", "--algorithms", "grpo", "--steps", "2", "--json").document["arms"]
    assert (one["arm"], one["steps"]) == ("no_std", [2])
    (cell, *_) = sorted((tmp_path / "runs" / "small" / "cells").glob("no_std-*"))
    (alone,) = ran("replay", cell, "--algorithms", "grpo", "--json").document["arms"]
    assert alone["cells"] == [cell.name]

    table = ran("replay", "small", "--algorithms", "grpo,cispo").out
    assert "weight of a token: -d loss / d log-prob" in table
    assert "share of the gradient (summed sizes of weights) by completion tokens" in table
    assert "cispo: groups of equal rewards are dropped" in table

    for words, reason in (
        (("small", "--algorithms", "grop"), "did you mean grpo"),
        (("small", "--algorithms", "dpo"), "learns from pairs"),
        (("small", "--algorithms", ","), "must be one or more names"),
        (("small/no_stf", "--algorithms", "grpo"), "did you mean no_std"),
        (("smal", "--algorithms", "grpo"), "did you mean small"),
        (("small", "--algorithms", "grpo", "--steps", "5-2"), "neither a step nor a range"),
        (("small", "--algorithms", "grpo", "--steps", "1-3"), "has no rollouts of step 3; stored are steps 1 to 2"),
    ):
        refused = ran("replay", *words)
        assert refused.code == 2, words
        assert reason in refused.err
        assert "Traceback" not in refused.err
