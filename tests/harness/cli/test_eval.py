"""`bench eval`, on the tiny model; MLflow is stood in for, but once."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import harness.tracking as tracking
from harness.records import CellRecord, cell_directory_name
from harness.records.files import append_jsonl, read_jsonl, read_problems
from tests.frozen import frozen
from tests.harness.cli.conftest import Bench
from tests.harness.shelves.code.sums_with_tests import write_sums

pytestmark = pytest.mark.slow

SMALL = ("--tasks", "arithmetic", "--problems", "6", "--max-completion-tokens", "40", "--home", "home")


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What would be sent to MLflow."""
    documents: list[dict[str, Any]] = []
    monkeypatch.setattr(tracking, "log_evaluation", lambda uri, home, label, document: documents.append(document))
    return documents


def test_a_model_is_evaluated_and_the_same_command_draws_nothing(bench: Bench, logged: list[Any]) -> None:
    first = bench("eval", "builtin:tiny", *SMALL, "--samples", "4", "--temperature", "1", "--json")
    assert first.code == 0, first.err
    assert first.document["model"] == "tiny"
    (evaluation,) = first.document["evaluations"]
    assert (evaluation["task"], evaluation["n_problems"], evaluation["n_samples"]) == ("arithmetic", 6, 4)
    assert {"pass@1", "pass@2", "pass@4", "avg@n"} <= evaluation["metrics"].keys()
    assert json.loads(json.dumps(logged)) == [evaluation]
    assert "loading" in first.err and "sample 24/24" in first.err
    again = bench("eval", "builtin:tiny", *SMALL, "--samples", "4", "--temperature", "1", "--json")
    assert again.document == first.document
    assert "loading" not in again.err


def test_for_people(bench: Bench, logged: list[Any]) -> None:
    text = bench("eval", "builtin:tiny", *SMALL).out
    (page,) = Path("home/evals/tiny").glob("*/samples.html")
    assert page.read_text().count('<article class="sample">') == 6
    # Another processor may round otherwise, so the scores are left out.
    text = re.sub(r"\d+\.\d+", "N", re.sub(r"arithmetic-\w+", "arithmetic-HASH", text))
    frozen("cli/eval", re.sub(" +", " ", text))


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with room for the words that end a thought."""
    from harness.models.language_model import load_model

    language_model = load_model("builtin:tiny")
    language_model.model.config.max_position_embeddings = 512
    language_model.save(tmp_path_factory.mktemp("roomy") / "model")
    return tmp_path_factory.getbasetemp() / "roomy0" / "model"


def test_each_thinking_budget_is_an_evaluation(bench: Bench, logged: list[Any], roomy: Path) -> None:
    result = bench("eval", roomy, *SMALL, "--thinking-budget", "2,60,60", "--json")
    assert result.code == 0, result.err
    assert [one["thinking_budget_tokens"] for one in result.document["evaluations"]] == [2, 60]
    assert len({one["path"] for one in result.document["evaluations"]}) == 2
    assert bench("eval", "builtin:tiny", *SMALL, "--thinking-budget", "2").code == 2


def test_a_presets_length_is_fitted_to_the_context(bench: Bench, logged: list[Any], roomy: Path) -> None:
    words = ("--tasks", "arithmetic", "--problems", "4", "--home", "home", "--json")
    result = bench("eval", "builtin:tiny", *words)
    assert result.code == 0, result.err
    longest = 128 - int(re.search(r"up to (\d+) tokens", result.err)[1])  # type: ignore[index]
    assert 10 < longest < 40
    assert bench("eval", roomy, *words, "--thinking-budget", "30").code == 0
    bench("eval", "builtin:tiny", *words, "--max-completion-tokens", "32768").refused("models.context_exceeded")
    bench("eval", "builtin:tiny", *words, "--thinking-budget", "30").refused("sampling.no_room_for_answer")


def test_a_server_that_is_away_costs_only_a_warning(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*given: object) -> None:
        raise tracking.MirrorError("MLflow is away")

    monkeypatch.setattr(tracking, "log_evaluation", away)
    result = bench("eval", "builtin:tiny", *SMALL, "--json")
    assert result.code == 0 and result.document["evaluations"]
    assert "MLflow is away" in [line.removeprefix("warning: ").rstrip(".") for line in result.err.splitlines()]


def test_problems_of_another_source_are_another_evaluation(bench: Bench, logged: list[Any]) -> None:
    """Same pin, same name: what counts is what was loaded, ids included."""
    Path("mine.yaml").write_text("name: mine\ntemplate: plain\ngrader: numeric\nsplits:\n  test: {file: mine.jsonl}\n")
    paths = set()
    for rows in ([("a", "1+1"), ("b", "2+2")], [("a", "1+1"), ("c", "2+2")], [("a", "1+1"), ("b", "3+1")]):
        lines = [json.dumps({"id": name, "problem": text, "answer": "4"}) for name, text in rows]
        Path("mine.jsonl").write_text("\n".join(lines) + "\n")
        words = ("--tasks", "mine.yaml", "--max-completion-tokens", "40", "--home", "home", "--json")
        result = bench("eval", "builtin:tiny", *words)
        assert result.code == 0, result.err
        paths.add(result.document["evaluations"][0]["path"])
    assert len(paths) == 3


def test_another_extraction_grades_again(bench: Bench, logged: list[Any]) -> None:
    Path("mine.jsonl").write_text(json.dumps({"problem": "1+2=", "answer": "3"}) + "\n")
    found = []
    for extract in ("last_number", "boxed"):
        Path("mine.yaml").write_text(
            f"name: mine\ntemplate: plain\ngrader: numeric\nextract: {extract}\nsplits:\n  test: {{file: mine.jsonl}}\n"
        )
        words = ("--tasks", "mine.yaml", "--max-completion-tokens", "40", "--home", "home", "--json")
        (evaluation,) = bench("eval", "builtin:tiny", *words).document["evaluations"]
        found.append((evaluation["path"], evaluation["metrics"]["unparsed_frac"]))
    (path, before), (again, after) = found
    assert (path, before, after) == (again, 0.0, 1.0)


def test_two_tasks_of_one_name_are_refused_and_one_named_twice_is_one(bench: Bench, logged: list[Any]) -> None:
    Path("mine.jsonl").write_text(json.dumps({"problem": "1+2=", "answer": "3"}) + "\n")
    for name in ("one", "other"):
        Path(f"{name}.yaml").write_text(
            "name: mine\ntemplate: plain\ngrader: exact\nsplits:\n  test: {file: mine.jsonl}\n"
        )
    result = bench("eval", "builtin:tiny", "--tasks", "one.yaml,other.yaml", "--home", "home")
    result.refused("evaluate.duplicate_task_name")
    twice = bench("eval", "builtin:tiny", *SMALL, "--tasks", "arithmetic,arithmetic", "--json")
    assert len(twice.document["evaluations"]) == 1


def test_a_cell_that_was_renamed_is_refused(bench: Bench) -> None:
    Path("renamed/checkpoints/step-000003").mkdir(parents=True)
    Path("renamed/checkpoints/step-000003/checkpoint.json").write_text("{}")
    for given in ("renamed", "renamed/checkpoints/step-000003"):
        bench("eval", given).refused("plan.checkpoint_of_no_cell")


def test_bad_input(bench: Bench, logged: list[Any]) -> None:
    for words, code, fields in [
        (["--tasks", "arithmetik"], "bench.unknown_name", {"noun": "task"}),
        (["--preset", "gredy"], "evaluate.unknown_preset", {}),
        (["--tasks", ","], "cli.not_a_name_list", {"option": "--tasks"}),
        (["--k", "8"], "evaluate.k_above_samples", {}),
        (["--k", "0"], "cli.not_numbers", {"option": "--k"}),
        (["--samples", "4"], "evaluate.identical_greedy_samples", {}),
        (["--grader", "numerical"], "bench.unknown_name", {"noun": "grader"}),
        (["--template", "box"], "bench.unknown_name", {"noun": "template"}),
        (["--engine", "tgi"], "bench.unknown_name", {"noun": "engine"}),
        (["--regrade"], "evaluate.samples_not_stored", {}),
        (["--top-p", "0"], "cli.top_p_zero", {}),
        (["--k", ""], "cli.not_a_name_list", {"option": "--k"}),
        (["--thinking-budget", "a"], "cli.not_numbers", {"option": "--thinking-budget"}),
    ]:
        bench("eval", "builtin:tiny", *SMALL, *words).refused(code, **fields)
    assert logged == []


@pytest.mark.parametrize(
    ("words", "code", "fields"),
    [
        ([], "cli.nothing_to_evaluate", {}),
        (["--lm-eval", "gsm8k", "--samples", "4"], "cli.options_without_effect", {"options": "--samples"}),
        (
            ["--lm-eval", "gsm8k", "--k", "1", "--memorisation"],
            "cli.options_without_effect",
            {"options": "--k, --memorisation"},
        ),
        (["--tasks", "arithmetic", "--apply-chat-template"], "cli.options_without_effect", {"needed": "--lm-eval"}),
        (["--tasks", "arithmetic", "--regrade", "--memorisation"], "cli.regrade_with_drawing", {}),
        (["--tasks", "arithmetic", "--baseline", "nowhere"], "plan.not_a_model", {"given": "nowhere"}),
        (["--tasks", "arithmetic", "--preset", "cell"], "evaluate.preset_without_cell", {}),
    ],
)
def test_options_that_go_together(bench: Bench, words: list[str], code: str, fields: dict[str, str]) -> None:
    bench("eval", "builtin:tiny", *words, "--home", "home").refused(code, **fields)
    bench("eval", "nowhere", *SMALL).refused("plan.not_a_model", given="nowhere")


def test_change_from_a_baseline_on_the_same_problems(bench: Bench, logged: list[Any], tmp_path: Path) -> None:
    from tests.harness.evaluate.test_subject import cell_of
    from tests.harness.run.small import small_spec

    cell = cell_of(tmp_path / "home", small_spec(), change=0.5)
    result = bench("eval", cell, *SMALL, "--baseline", "builtin:tiny", "--json")
    assert result.code == 0, result.err
    changes, baseline = result.document["changes"], result.document["baseline"]
    assert [change["task"] for change in changes] == ["arithmetic"]
    for change, before, after in zip(changes, baseline["evaluations"], result.document["evaluations"], strict=True):
        assert (change["before"], change["after"]) == (before["metrics"]["avg@n"], after["metrics"]["avg@n"])
        assert change["n_problems"] == 6
    assert len(logged) == 2


def test_accuracy_against_thinking_budget_is_drawn(bench: Bench, logged: list[Any], roomy: Path) -> None:
    out = bench("eval", roomy, *SMALL, "--thinking-budget", "40,60").out
    (path,) = Path("home/evals/model").glob("thinking_budget-*.svg")
    assert str(path) in out
    assert path.read_text().startswith("<?xml") and path.with_suffix(".png").exists()
    assert ".svg" not in bench("eval", roomy, *SMALL, "--thinking-budget", "40").out


def test_statements_known_by_heart_are_looked_for(bench: Bench, logged: list[Any]) -> None:
    # Sums are too short to be known by heart.
    bench("eval", "builtin:tiny", *SMALL, "--memorisation").ended(2, "shelves.memorisation.statements_too_short")
    Path("mine.jsonl").write_text(json.dumps({"problem": "1 + 2 + 3 + 4 + 5 + 6 + 7 = what", "answer": "28"}) + "\n")
    Path("mine.yaml").write_text("name: mine\ntemplate: plain\ngrader: numeric\nsplits:\n  test: {file: mine.jsonl}\n")
    words = ("--tasks", "mine.yaml", "--max-completion-tokens", "40", "--home", "home", "--memorisation")
    result = bench("eval", "builtin:tiny", *words, "--json")
    assert result.code == 0, result.err
    (found,) = result.document["memorisation"]
    assert (found["task"], found["problems"], found["skipped"]) == ("mine", 1, 0)


@pytest.fixture(scope="module")
def done_cell(tmp_path_factory: pytest.TempPathFactory) -> CellRecord:
    """A cell that was trained and evaluated, in a home of its own."""
    from harness.config.hashing import semantic_hash
    from harness.config.machine import resolved_for_machine
    from tests.harness.run.small import run_cell, small_spec

    spec = resolved_for_machine(
        small_spec({"eval.temperature": 0.9, "eval.stop": ["5"], "train.steps": 3}, seed=3), lambda: False
    )
    path = tmp_path_factory.mktemp("cell") / "home/mine/cells" / cell_directory_name("one", 3, semantic_hash(spec))
    path.mkdir(parents=True)
    (path / "spec.json").write_text(spec.model_dump_json())
    cell = CellRecord.at(path)
    run_cell(cell, spec)
    return cell


@pytest.fixture(params=["finished", "unfinished"])
def cell(request: pytest.FixtureRequest, done_cell: CellRecord, tmp_path: Path) -> CellRecord:
    """The cell as it is now, and before its samples were compacted."""
    path = tmp_path / "home/mine/cells" / done_cell.path.name
    shutil.copytree(done_cell.path, path)
    if request.param == "unfinished":
        rows = pyarrow.parquet.read_table(path / "evals.parquet").to_pylist()
        append_jsonl(path / "evals.jsonl", [row | {"epoch": 1} for row in rows])
        (path / "evals.parquet").unlink()
        (path / "status.json").unlink()
    return CellRecord.at(path)


def test_a_cells_own_evaluation_draws_nothing(bench: Bench, logged: list[Any], cell: CellRecord) -> None:
    (score,) = [row for row in cell.read_scores() if row["final"]]
    found = bench("eval", cell.path, "--home", "home", "--json")
    assert found.code == 0, found.err
    (evaluation,) = found.document["evaluations"]
    own = {name: value for name, value in score["metrics"].items() if name != "ece"}
    assert evaluation["metrics"] == own
    assert " 32 samples " in found.err and "loading" not in found.err
    again = bench("eval", cell.path, "--tasks", "arithmetic", "--preset", "cell", "--home", "home", "--json")
    assert again.document == found.document and " 32 samples " not in again.err
    store = Path(evaluation["path"])
    problems = [row["problem_id"] for row in read_problems(store / "problems.jsonl")]
    rows = pyarrow.parquet.read_table(store / "evals.parquet").to_pylist()
    assert len(rows) == 32 and sorted(problems) == sorted({row["problem_id"] for row in rows})


def test_more_samples_of_a_cell_are_added_to_its_own(
    bench: Bench, logged: list[Any], done_cell: CellRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those that would have been drawn at once."""
    more = bench("eval", done_cell.path, "--samples", "6", "--home", "home", "--json")
    assert more.code == 0, more.err
    assert " 32 samples " in more.err and "sample 16/16" in more.err
    monkeypatch.setattr("harness.run.evaluator.EarlierEvaluations.samples", lambda self, step, conditions: [])
    fresh = bench("eval", done_cell.path, "--samples", "6", "--home", "other", "--json")
    assert "sample 48/48" in fresh.err
    (one,), (other,) = more.document["evaluations"], fresh.document["evaluations"]
    assert one["metrics"] == other["metrics"]


def test_a_baseline_is_evaluated_as_the_cell_was(bench: Bench, logged: list[Any], done_cell: CellRecord) -> None:
    found = bench("eval", done_cell.path, "--baseline", "builtin:tiny", "--home", "home", "--json")
    assert found.code == 0, found.err
    (baseline,), (own,) = found.document["baseline"]["evaluations"], found.document["evaluations"]
    one, other = (json.loads((Path(row["path"]) / "spec.json").read_text()) for row in (baseline, own))
    assert one["model"] != other["model"] and one | {"model": other["model"]} == other
    assert other["decoding"]["temperature"] == 0.9 and other["decoding"]["stop"] == ["5"] and other["seed"] == 3


@pytest.mark.parametrize(
    "words", [["--seed", "4"], ["--temperature", "1"], ["--template", "boxed"], ["--dtype", "bfloat16"]]
)
def test_samples_of_other_conditions_are_not_the_cells(
    bench: Bench, logged: list[Any], done_cell: CellRecord, words: list[str]
) -> None:
    found = bench("eval", done_cell.path, *words, "--problems", "1", "--samples", "2", "--home", "home", "--json")
    assert found.code == 0, found.err
    assert "taken over" not in found.err and "sample 2/2" in found.err


def test_a_cell_is_told_what_its_training_gives_away(bench: Bench, logged: list[Any], tmp_path: Path) -> None:
    from tests.harness.evaluate.test_subject import cell_of
    from tests.harness.run.small import small_spec

    cell = cell_of(tmp_path / "home", small_spec(), change=0.0)
    result = bench("eval", cell, *SMALL, "--json")
    assert result.code == 0, result.err
    assert re.search("arithmetic: .* 6 .* 0 ", result.err), "of so many problems none is a training prompt"
    spec = json.loads((Path(result.document["evaluations"][0]["path"]) / "spec.json").read_text())
    assert spec["seed"] == 0


def test_mlflow_shows_the_scores_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    for problems in ("6", "3"):
        words = ("--tasks", "arithmetic", "--problems", problems, "--max-completion-tokens", "40", "--home", "home")
        assert bench("eval", "builtin:tiny", *words).code == 0
    client = MlflowClient(f"sqlite:///{Path('home').resolve() / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("evals")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params["n_problems"] == "3"
    assert run.data.params["decoding.temperature"] == "0.0"
    assert "eval/arithmetic/pass_at_1" in run.data.metrics
    assert run.info.status == "FINISHED"

    # A server that was away, or is new, is filled from what is kept.
    uri = f"sqlite:///{Path('other.db').resolve()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    synced = bench("sync", "--home", "home", "--json")
    assert synced.code == 0, synced.err
    assert synced.document["evaluations"] == 1
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("evals")
    assert experiment is not None
    (again,) = client.search_runs([experiment.experiment_id])
    assert again.data.metrics == run.data.metrics and again.data.params == run.data.params
    assert {item.path for item in client.list_artifacts(again.info.run_id)} == {
        *("scores.json", "completions.json", "first_samples.html")
    }
    assert again.data.tags["mlflow.source.git.commit"]
    assert bench("sync", "--home", "home").code == 0
    (same,) = client.search_runs([experiment.experiment_id])
    assert same.info.run_id == again.info.run_id


def test_programs_are_run_only_if_that_is_allowed(
    bench: Bench, logged: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, by_number = write_sums(tmp_path, monkeypatch)
    command = ("eval", "builtin:tiny", "--max-completion-tokens", "40", "--home", "home", "--json", "--tasks")
    refused = bench(*command, task)
    refused.refused("evaluate.code_not_allowed")
    assert "loading" not in refused.err
    (by_tests,) = bench(*command, task, "--allow-code").document["evaluations"]
    (known,) = bench(*command, by_number, "--home", "other").document["evaluations"]
    assert by_tests["metrics"]["pass@1"] == known["metrics"]["pass@1"]
    assert by_tests["disagreement"] == [], "no other grader reads programs"
    (start,) = read_jsonl(Path(by_tests["path"]) / "starts.jsonl")
    assert start["code"]["namespaces"] in ("own", "those of bench")
