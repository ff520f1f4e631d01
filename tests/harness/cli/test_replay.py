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

    for words, code in (
        (("small", "--algorithms", "grop"), "bench.unknown_name"),
        (("small", "--algorithms", "dpo"), "shelves.replay.learns_from_pairs"),
        (("small", "--algorithms", ","), "cli.not_a_name_list"),
        (("small/no_stf", "--algorithms", "grpo"), "shelves.replay.no_arm"),
        (("smal", "--algorithms", "grpo"), "bench.no_records_of_sweep"),
        (("small", "--algorithms", "grpo", "--steps", "5-2"), "shelves.replay.steps_malformed"),
        (("small", "--algorithms", "grpo", "--steps", "1-3"), "shelves.replay.step_not_stored"),
    ):
        ran("replay", *words).refused(code)
