"""`bench run NAME` and `bench plan NAME`, where NAME was run before: its own question goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.cli.options import question_in
from harness.plan import make_plan
from harness.run.question import write_question
from tests.harness.cli.conftest import Bench
from tests.harness.plan.files import finish, write_sweep_file

SAMPLES = 20


def asked(home: Path, given: str, **options: Any) -> None:
    """Write the question as `bench run` does, with its cells done."""
    plan = make_plan(given, **options)
    for cell in plan.cells:
        finish(cell, plan.folder(home))
    write_question(plan, home, "bench run")


def states(bench: Bench, *words: Any) -> set[tuple[str, str | None]]:
    result = bench("plan", *words, "--home", "home", "--json")
    assert result.code == 0, result.err
    return {(cell["state"], cell["lacks"]) for cell in result.document["cells"]}


def test_more_samples_lack_only_the_evaluation(bench: Bench, tmp_path: Path) -> None:
    asked(tmp_path / "home", str(write_sweep_file(tmp_path)), seeds=2, settings=["train.steps=7"])
    assert states(bench, "mine") == {("done", None)}
    assert states(bench, "mine", "--eval-samples", SAMPLES) == {("pending", "evaluation")}
    assert states(bench, "mine", "--set", "eval.temperature=0.7") == {("pending", "evaluation")}
    assert states(bench, "mine", "--set", "train.steps=8") == {("pending", "training")}
    assert states(bench, "mine", "--seeds", "3") == {("done", None), ("pending", "training")}
    told = bench("plan", "mine", "--home", "home").err
    assert "continuing home/mine with the options of its last run: --set train.steps=7 --seeds 2" in told
    people = bench("plan", "mine", "--home", "home", "--eval-samples", SAMPLES).out
    assert "pending, only its evaluation" in people


def test_of_two_settings_of_a_knob_the_later_counts(tmp_path: Path) -> None:
    home = tmp_path / "home"
    asked(home, str(write_sweep_file(tmp_path)), seeds=1, settings=["eval.samples=8", "train.steps=7"])
    plan = make_plan(str(home / "mine"), settings=["eval.samples=32"])
    assert plan.request.settings == ("eval.samples=32", "train.steps=7")
    assert plan.first_spec.eval.samples == 32


@pytest.mark.parametrize(("asks_anew", "goes_on"), [(False, True), (True, False)])
def test_options_that_state_the_question_ask_the_shipped_one(tmp_path: Path, asks_anew: bool, goes_on: bool) -> None:
    asked(tmp_path, "std_norm", seeds=1, settings=["train.steps=7"])
    given = question_in(tmp_path, "std_norm", asks_anew)
    assert given == (str(tmp_path / "std_norm") if goes_on else "std_norm")


def test_a_sweep_of_ones_own_is_only_known_by_its_records(tmp_path: Path) -> None:
    asked(tmp_path / "home", str(write_sweep_file(tmp_path)), seeds=1)
    assert question_in(tmp_path / "home", "mine", asks_anew=True) == str(tmp_path / "home/mine")
    for other in ("mine.yaml", "other", str(tmp_path / "home/mine")):
        assert question_in(tmp_path / "home", other, asks_anew=False) == other
