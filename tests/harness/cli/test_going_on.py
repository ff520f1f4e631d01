"""`bench run NAME` and `bench plan NAME`, where NAME was run before: its own question goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.cli.executor import ChosenExecutor
from harness.cli.options import question_in
from harness.cli.run import say_what_differs, say_whether_equal
from harness.errors import RefusedError
from harness.executors.slots import Slot
from harness.plan import make_plan
from harness.records import read_sweep
from harness.records.files import append_jsonl, write_json
from harness.run.question import write_question
from tests.harness.cli.conftest import Bench
from tests.harness.plan.files import finish, write_sweep_file
from tests.refusals import refuses

SAMPLES = 20


def asked(home: Path, given: str, **options: Any) -> None:
    """Write the question as `bench run` does, with its cells done."""
    plan = make_plan(given, **options)
    for cell in plan.cells:
        record = finish(cell, plan.folder(home))
        write_json(record.path / "spec.json", cell.spec.model_dump(mode="json"))
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
    assert "--set train.steps=7 --seeds 2" in bench("plan", "mine", "--home", "home").err


def changed(bench: Bench, *words: Any) -> dict[str, dict[str, list[Any]]]:
    """By arm what `bench plan` says has changed against the nearest finished cell."""
    result = bench("plan", "mine", "--home", "home", "--json", *words)
    assert result.code == 0, result.err
    return {row["arm"]: row["knobs"] for row in result.document["changes"]}


def test_a_plan_says_what_changed_against_the_nearest_finished_cell(bench: Bench, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for steps in (7, 9):
        asked(home, str(write_sweep_file(tmp_path)), seeds=1, settings=[f"train.steps={steps}", "train.epochs=2"])
    assert changed(bench) == {}, "all is finished"
    assert changed(bench, "--seeds", "2") == {}, "another seed is no change"
    assert changed(bench, "--set", "train.steps=8") == {arm: {"train.steps": [9, 8]} for arm in ("with", "without")}
    nearer = changed(bench, "--set", "train.steps=7", "--set", "train.epochs=1")
    assert nearer["with"] == {"train.epochs": [2, 1]}, "not the one asked for last"
    assert changed(bench, "--set", "eval.temperature=0.5")["with"] == {"eval.temperature": [1.0, 0.5]}
    other = changed(bench, "--set", "objective.rule.type=cispo", "--set", "objective.rule.weight_max=5")["without"]
    assert other["objective.rule.type"] == ["ppo_clip", "cispo"]
    assert "(absent)" in other["objective.rule.clip_low"]
    people = bench("plan", "mine", "--home", "home", "--set", "train.steps=8").out
    assert ": train.steps 9 -> 8\n" in people


def test_a_plan_says_when_no_knob_has_changed(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(tmp_path / "home", str(write_sweep_file(tmp_path)), seeds=1)
    monkeypatch.setattr("harness.config.hashing.NUMERICS_VERSION", 999)
    assert changed(bench) == {"with": {}, "without": {}}


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


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((), "cli.no_sweep_given"),
        (("--from", "nowhere"), "bench.no_records_of_sweep"),
        (("--from", "home/mine", "--home", "home"), "cli.repeat_in_same_home"),
        (("std_norm", "--from", "home/mine"), "cli.from_with_question"),
        (("--from", "home/mine", "--seeds", "3"), "cli.from_with_question"),
    ],
)
def test_a_run_that_cannot_be_repeated(bench: Bench, tmp_path: Path, words: tuple[str, ...], code: str) -> None:
    asked(tmp_path / "home", str(write_sweep_file(tmp_path)), seeds=1)
    bench("run", *words).refused(code)
    assert not (tmp_path / "runs").exists()


def test_cells_of_a_repeated_run_that_differ_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    then, now = tmp_path / "then", tmp_path / "now"
    for home in (then, now):
        asked(home, str(write_sweep_file(tmp_path)), seeds=1)
        for cell in read_sweep(home / "mine").cells:
            start = {"epoch": 1, "from_step": 0, "python": "2.7", "packages": {}}
            append_jsonl(cell.path / "starts.jsonl", [start])
            cell.write_status("done", digest=f"{cell.arm}{home.name if cell.arm == 'without' else ''}")
    say_whether_equal(then / "mine", now / "mine")
    said = capsys.readouterr().err
    assert " 1 of 2 " in said and "without-s0" in said and "with-s0" not in said
    say_what_differs(then / "mine", make_plan(str(then / "mine")))
    said = capsys.readouterr().err
    assert " 2.7, is 3." in said and "with-s0" not in said
    monkeypatch.setattr("harness.config.hashing.NUMERICS_VERSION", 999)
    say_what_differs(then / "mine", make_plan(str(then / "mine")))
    assert "with-s0, without-s0" in capsys.readouterr().err


AUTO = ["train.device=auto", "model.dtype=auto", "rollout.engine=torch"]


def test_what_was_left_to_the_machine_goes_on_as_it_was(bench: Bench, tmp_path: Path) -> None:
    """A head without a GPU reports what nodes with one have trained."""
    asked(tmp_path / "home", str(write_sweep_file(tmp_path)), seeds=1, settings=AUTO, on_gpu=lambda: True)
    assert states(bench, "mine") == {("done", None)}
    anew = [word for setting in AUTO for word in ("--set", setting)]
    assert states(bench, "mine.yaml", "--seeds", 1, *anew) == {("pending", "training")}, (
        "asked anew, it is another question"
    )


def test_cells_for_a_gpu_are_refused_where_there_is_none(tmp_path: Path) -> None:
    plan = make_plan(str(write_sweep_file(tmp_path)), seeds=1, settings=AUTO, on_gpu=lambda: True)
    where = ChosenExecutor("local", tmp_path)
    assert where.at_once(plan.arms.values()) == 1, "which is said only where a cell is to run"
    with refuses(RefusedError, "executors.device_not_in_executor", devices="cuda", n_gpus=0):
        where.opener(plan.arms.values())(1)


@pytest.mark.parametrize(
    ("name", "code"), [("lokal", "bench.unknown_name"), ("local:8", "executors.address_not_taken")]
)
def test_an_executor_that_cannot_be_is_refused(bench: Bench, tmp_path: Path, name: str, code: str) -> None:
    bench("plan", write_sweep_file(tmp_path), "--home", "home", "--executor", name).refused(code)


def test_a_plan_warns_where_cells_exceed_their_share_of_a_gpu(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def warnings(gb: float, *words: str) -> list[str]:
        slots = [Slot("cuda", "GPU 0", round(gb * 1e9))]
        monkeypatch.setattr("harness.cli.executor.ChosenExecutor.slots", slots)
        options = [word for setting in AUTO for word in ("--set", setting)]
        plan = bench("plan", write_sweep_file(tmp_path), "--home", "home", "--json", *options).document
        return [one for one in plan["warnings"] if "memory" in one]

    assert warnings(80) == []
    (warned,) = warnings(0.5)
    assert " 0.5 GB " in warned
