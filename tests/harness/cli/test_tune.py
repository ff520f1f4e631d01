"""`bench tune` on the command line, over cells that are not trained."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import optuna
import pytest
import yaml

from tests.harness.cli.conftest import Bench
from tests.harness.search.fake_cells import FakeCells, Recording, by_learning_rate, without_pages, write_search

pytestmark = pytest.mark.slow


@pytest.fixture
def pool(drawing_pool: FakeCells, monkeypatch: pytest.MonkeyPatch) -> FakeCells:
    without_pages(monkeypatch)
    return drawing_pool


@pytest.fixture
def drawing_pool(monkeypatch: pytest.MonkeyPatch) -> FakeCells:
    """Training in search is luckier than with fresh seeds: seed 0 is worth 5 points."""
    pool = Recording(score=lambda spec: by_learning_rate(spec) - (0.05 if spec.seed else 0.0))
    pool.stand_in(monkeypatch)
    return pool


def test_the_document(bench: Bench, tmp_path: Path, pool: FakeCells) -> None:
    path = write_search(tmp_path)
    result = bench("tune", path, "--trials", 4, "--json")
    assert result.code == 0
    assert {"trials", "best"} <= set(result.document)
    for number, trial in enumerate(result.document["trials"]):
        assert trial["number"] == number and trial["state"] == "complete"
        assert set(trial) == {"number", "state", "params", "values", "hash", "reason", "flags"}
    assert result.document["best"]["values"] == max(trial["values"] for trial in result.document["trials"])
    again = bench("tune", path, "--trials", 4, "--json")
    assert again.document == result.document
    assert len(pool.trained) == 4


def test_the_page_and_the_last_line(bench: Bench, tmp_path: Path, drawing_pool: FakeCells) -> None:
    result = bench("tune", write_search(tmp_path), "--trials", 3)
    *_, where = result.out.splitlines()
    page = (tmp_path / where.removeprefix("report: ")).read_text()
    assert "found" in page
    folder = (tmp_path / where.removeprefix("report: ")).parent
    assert all((folder / link).is_file() for link in re.findall(r'href="([^"#:]+)"', page)) and "samples.html" in page
    # The page again, from the records alone.
    assert bench("report", "found").code == 0
    assert (tmp_path / where.removeprefix("report: ")).read_text() == page


def test_confirming_uses_seeds_that_no_trial_had_and_says_how_much_was_luck(
    bench: Bench, tmp_path: Path, drawing_pool: FakeCells
) -> None:
    path = write_search(tmp_path, seeds=[0])
    result = bench("tune", path, "--trials", 6, "--confirm", 3, "--json")
    assert result.code == 0
    found = result.document["confirmation"]
    assert found["seeds"] == [1, 2, 3]
    assert found["shrinkage_pp"] == pytest.approx(5.0)
    assert found["default_search_pp"] - found["default_confirmed_pp"] == pytest.approx(5.0)
    # These scores are a function of the setting, so that their differences have no spread.
    assert found["contrast"]["verdict"] == "inconclusive"
    sweep = json.loads((tmp_path / "runs" / "found-confirm" / "sweep.json").read_text())
    assert sweep["arms"] == ["default", "best"]
    assert sweep["varied"]["best"]["train.learning_rate"] == result.document["best"]["params"]["train.learning_rate"]
    assert (tmp_path / "runs" / "found-confirm" / "report" / "index.html").exists()
    trained = len(drawing_pool.trained)
    assert bench("tune", path, "--trials", 6, "--confirm", 3, "--json").document == result.document
    assert len(drawing_pool.trained) == trained


def test_a_trial_without_values_has_a_dash_for_each_objective(bench: Bench, tmp_path: Path, pool: FakeCells) -> None:
    pool.ends = {"trial_1": ("failed", "out of luck")}
    objectives = {"objectives": ["eval.final.pass@1", "generated_tokens"]}
    result = bench("tune", write_search(tmp_path, objectives), "--trials", 3)
    assert result.code == 0
    (row,) = [line for line in result.out.splitlines() if line.startswith("1 ")]
    assert row.split()[:4] == ["1", "failed", "–", "–"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://user:s3cret@host/studies", "postgresql://user:***@host/studies"),
        ("postgresql://user:s3c/ret@host/studies", "postgresql://user:***@host/studies"),
        (
            "postgresql://host/studies?user=me&password=s3cret&sslmode=require",
            "postgresql://host/studies?user=me&password=***&sslmode=require",
        ),
        ("postgresql://user@host/studies", "postgresql://user@host/studies"),
        ("sqlite:////a/b@c/study.db", "sqlite:////a/b@c/study.db"),
    ],
)
def test_the_password_of_a_database_is_written_nowhere(
    bench: Bench, tmp_path: Path, pool: FakeCells, monkeypatch: pytest.MonkeyPatch, url: str, shown: str
) -> None:
    database = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    monkeypatch.setattr("harness.search.study.open_storage", lambda url, folder: database)
    monkeypatch.setattr("harness.search.study.SETTLED_AFTER_S", 0.0)
    result = bench("tune", write_search(tmp_path), "--trials", 6, "--confirm", 1, "--storage", url)
    assert result.code == 0
    written = [path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert not any(b"s3c" in content for content in written) and "s3c" not in result.out + result.err
    study = json.loads((tmp_path / "runs" / "found" / "study.json").read_text())
    assert shlex.split(study["command"])[-2:] == ["--storage", shown]


def test_arms_and_a_search_of_one_name_do_not_share_a_folder(bench: Bench, tmp_path: Path, pool: FakeCells) -> None:
    search, arms = write_search(tmp_path), tmp_path / "arms.yaml"
    document = yaml.safe_load(search.read_text()) | {"seeds": 1, "ablate": ["train.learning_rate"]}
    document["arms"] = {"a": {}, "b": {"train.learning_rate": 0.002}}
    arms.write_text(yaml.safe_dump({key: value for key, value in document.items() if key != "search"}))
    assert bench("tune", search, "--trials", 2).code == 0
    trained = len(pool.trained)
    bench("run", arms).refused("run.folder_of_another_kind")
    assert len(pool.trained) == trained
    assert bench("run", arms, "--home", "elsewhere").code == 0
    trained = len(pool.trained)
    bench("tune", search, "--trials", 2, "--home", "elsewhere").refused("run.folder_of_another_kind")
    assert len(pool.trained) == trained
    # Each goes on where it belongs.
    assert bench("tune", search, "--trials", 3).code == bench("run", arms, "--home", "elsewhere").code == 0


def test_a_default_that_won_is_not_confirmed(bench: Bench, tmp_path: Path, pool: FakeCells) -> None:
    result = bench("tune", write_search(tmp_path), "--trials", 1, "--confirm", 3)
    result.ended(2, "search.default_is_best")
    assert "report: " in result.out, "the findings are told all the same"


def test_comparing_with_a_default_that_was_no_trial_says_where_it_is(
    bench: Bench, tmp_path: Path, pool: FakeCells
) -> None:
    bench("tune", write_search(tmp_path), "--trials", 2)
    assert bench("compare", "found/trial_1", "found/default").code == 2


def test_confirming_cells_that_failed_are_told(bench: Bench, tmp_path: Path, pool: FakeCells) -> None:
    pool.ends = {"best": ("failed", "out of luck")}
    result = bench("tune", write_search(tmp_path), "--trials", 6, "--confirm", 3, "--json")
    result.ended(1, "cli.confirming_cells_not_done", n_not_done=3, n_cells=6)
    assert len(result.document["trials"]) == 6


def test_without_a_budget_a_search_is_refused(bench: Bench, tmp_path: Path, pool: FakeCells) -> None:
    bench("tune", write_search(tmp_path)).refused("cli.search_without_limit")


def test_a_search_in_which_nothing_could_be_measured(bench: Bench, tmp_path: Path, pool: FakeCells) -> None:
    pool.ends = {f"trial_{number}": ("failed", "out of luck") for number in range(2)}
    result = bench("tune", write_search(tmp_path), "--trials", 2, "--json")
    assert result.code == 1
    assert [trial["state"] for trial in result.document["trials"]] == ["failed", "failed"]
    assert result.document["best"] is None


def test_options_of_a_sampler_that_it_does_not_have(bench: Bench, tmp_path: Path, pool: FakeCells) -> None:
    path = write_search(tmp_path, {"sampler": {"type": "tpe", "options": {"n_startup": 3}}})
    bench("tune", path, "--trials", 1).refused("search.unknown_option")
    assert not (tmp_path / "runs" / "found" / "study.json").exists()


def test_run_and_plan_point_to_tune(bench: Bench, tmp_path: Path) -> None:
    for verb in ("run", "plan"):
        bench(verb, write_search(tmp_path)).refused("plan.search_has_no_arms")


def test_a_pruned_trial_is_finished_if_asked(bench: Bench, tmp_path: Path, pool: FakeCells) -> None:
    path = write_search(tmp_path, {"pruner": {"type": "median", "options": {"n_startup_trials": 2}}})
    trials = bench("tune", path, "--trials", 12, "--json").document["trials"]
    number = next(trial["number"] for trial in trials if trial["state"] == "pruned")
    pool.cancelled.clear()
    result = bench("tune", path, "--trials", 12, "--finish", number, "--json")
    assert result.code == 0
    finished = result.document["trials"][number]
    assert finished["state"] == "pruned" and finished["values"] is not None
    spent = json.loads((tmp_path / "runs" / "found" / "study.json").read_text())["trials"][number]
    assert spent["generated_tokens"] == 1000, "of all of its training, not of that before it was pruned"
    assert len(result.document["trials"]) == 12
    bench("tune", path, "--trials", 12, "--finish", "0,99").refused("search.trial_not_pruned")


def test_confirming_waits_for_a_trial_that_another_worker_has_in_hand(
    bench: Bench, tmp_path: Path, pool: FakeCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = [[7], [7], []]
    monkeypatch.setattr("harness.search.study.SearchStudy.running", lambda study: running.pop(0))
    monkeypatch.setattr("harness.cli.tune.WAIT_S", 0.0)
    result = bench("tune", write_search(tmp_path), "--trials", 6, "--confirm", 3, "--json")
    assert result.code == 0 and running == []
    assert result.err.count("waiting for trial 7") == 1
