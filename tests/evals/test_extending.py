"""The examples of docs/extending.md: a task, a grader, a metric and a template from outside the package."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evals import get_task, get_template, grade, task_names
from evals.evaluate import scores
from evals.graders import GRADERS, require_gradable
from evals.metrics import METRICS
from evals.prompts import TEMPLATES
from evals.tasks import TASKS
from harness import plugins
from harness.config.hashing import semantic_hash, user_code
from harness.errors import RefusedError, UnknownNameError
from harness.plan import make_plan
from harness.plan.sweep_file import SHIPPED
from harness.plugins import Kind, UserModule
from harness.records import CellRecord
from tests.evals.scripted import draw_of, graded_row
from tests.harness.run.small import run_cell, small_spec
from tests.refusals import refuses

EXAMPLES = Path(__file__).parents[1] / "examples" / "extending"
Use = Callable[..., UserModule]


@pytest.fixture
def use(tmp_path: Path) -> Iterator[Use]:
    """Copies an example into an empty folder, with a line at its end, and makes it a plug-in."""

    def use(*names: str, comment: str = "") -> UserModule:
        for name in names:
            shutil.copy(EXAMPLES / f"{name}.py", tmp_path)
            with (tmp_path / f"{name}.py").open("a", encoding="utf-8") as file:
                file.write(comment)
        return plugins.use(names, [tmp_path])[0]

    yield use
    plugins.use([], [])


@pytest.mark.parametrize(
    ("example", "kind", "name"),
    [
        ("task", TASKS, "two_digit_sums"),
        ("grader", GRADERS, "within_1_percent"),
        ("metric", METRICS, "g_pass@{k}"),
        ("template", TEMPLATES, "terse"),
    ],
)
def test_it_is_found_by_its_name_and_leaves_again(use: Use, example: str, kind: Kind[object], name: str) -> None:
    source = use(example)
    assert name in kind.names()
    assert kind.source(name) == source
    assert source.path.name == f"{example}.py"
    plugins.use([], [])
    with pytest.raises(UnknownNameError):
        kind.find(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "settings"),
    [
        ("task", {"task.train": "two_digit_sums"}),
        ("task", {"eval.tasks": ["two_digit_sums"]}),
        ("grader", {"reward.grader": "within_1_percent"}),
        ("grader", {"eval.grader": "within_1_percent"}),
        ("template", {"task.template": "terse"}),
        ("template", {"eval.template": "terse"}),
        ("metric", {}),
    ],
)
def test_cells_are_filed_under_its_source(use: Use, example: str, settings: dict[str, object]) -> None:
    shipped = semantic_hash(small_spec())
    use(example)
    unedited = semantic_hash(small_spec(settings))
    use(example, comment="# edited\n")
    assert len({shipped, unedited, semantic_hash(small_spec(settings))}) == 3
    if settings:
        assert semantic_hash(small_spec()) == shipped, "only what the spec uses counts"


def test_the_task(use: Use) -> None:
    use("task")
    assert "two_digit_sums" in task_names()
    task = get_task("two_digit_sums")
    train, test = (task.split(name).load() for name in ("train", "test"))
    assert (len(train), len(test)) == (6942, 1158)
    assert {problem.id for problem in train}.isdisjoint(problem.id for problem in test)
    problem = train[0]
    assert graded_row(task, draw_of(problem, 0), f"#{problem.answer}", 3, False)["correct"]


def test_the_grader(use: Use) -> None:
    use("grader")
    verdicts = [grade(f"\\boxed{{{value}}}", "200", "within_1_percent").reason for value in (198, 197, "x")]
    assert verdicts == ["match", "mismatch", "unparsed"]
    with refuses(RefusedError, "evals.reference_not_gradable"):
        require_gradable("blue", "within_1_percent")
    row = graded_row(get_task("arithmetic"), draw_of(get_task("arithmetic").split("test").load()[0], 0), "#0", 1, False)
    assert '"within_1_percent": false' in row["verdicts"], "its verdict stands beside those of the shipped ones"


def test_the_metric(use: Use, tmp_path: Path) -> None:
    use("metric")
    task = get_task("arithmetic")
    problem = task.split("test").load()[0]
    rows = [
        graded_row(task, draw_of(problem, number), f"#{answer}", 2, False)
        for number, answer in enumerate([problem.answer, problem.answer, "0", "0"])
    ]
    # Two right samples and two wrong ones make six pairs; five have a right one.
    assert scores(rows, [2])["g_pass@2"] == pytest.approx(5 / 6)
    sweep = (SHIPPED / "std_norm.yaml").read_text(encoding="utf-8").replace("final.pass@1", "final.g_pass@2")
    (tmp_path / "mine.yaml").write_text(f"{sweep}plugins: [metric]\n", encoding="utf-8")
    assert make_plan(str(tmp_path / "mine.yaml")).metric_name == "g_pass@2", "arms can be compared by it"


def test_the_template(use: Use) -> None:
    use("template")
    template = get_template("terse")
    assert template.stop == ("\n",)
    messages = template.render("1+1?")
    assert isinstance(messages, list)
    system, user = messages
    assert (system["role"], user) == ("system", {"role": "user", "content": "1+1?"})


def test_a_template_by_the_path_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the file lies: what identifies it is its content."""
    shutil.copy(EXAMPLES / "template.yaml", tmp_path)
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(EXAMPLES / "template.yaml", tmp_path / "elsewhere" / "again.yaml")
    knobs = ("task.template", "eval.template")
    first = small_spec(dict.fromkeys(knobs, str(tmp_path / "template.yaml")))
    again = small_spec(dict.fromkeys(knobs, str(tmp_path / "elsewhere" / "again.yaml")))
    assert semantic_hash(first) == semantic_hash(again) != semantic_hash(small_spec())
    plugins.use([], [tmp_path])
    try:
        assert semantic_hash(small_spec(dict.fromkeys(knobs, "template.yaml"))) == semantic_hash(first)
    finally:
        plugins.use([], [])
    assert str(get_template(first.task.template).render("1+1?")).splitlines() == ["Problem: 1+1?", "Solution:"]


def test_a_cell_trains_and_is_measured_with_all_of_them(use: Use, tmp_path: Path) -> None:
    """The tiny model knows few characters: its template is a file of the user's own that adds none."""
    use("task", "grader", "metric")
    (tmp_path / "mine.yaml").write_text('text: "{problem}"\nstop: ["w"]\n', encoding="utf-8")
    settings = {
        "task.train": "two_digit_sums",
        "reward.grader": "within_1_percent",
        "eval.grader": "within_1_percent",
        "task.template": "mine.yaml",
        "eval.template": "mine.yaml",
        "train.steps": 1,
        "eval.every": 0,
    }
    (tmp_path / "cell").mkdir()
    cell = CellRecord(tmp_path / "cell", "x", 0, "0")
    run_cell(cell, small_spec(settings))
    (final,) = [row for row in cell.read_scores() if row["final"]]
    assert final["task"] == "two_digit_sums"
    assert {"pass@2", "g_pass@1", "g_pass@2", "g_pass@4"} <= final["metrics"].keys()


def test_an_extraction_of_ones_own_is_used_and_hashed_with_its_source(tmp_path: Path) -> None:
    code = (
        "from evals.grading.extract import Extraction\nLAST = Extraction('last_word', lambda text: text.split()[-1])\n"
    )
    (tmp_path / "words.py").write_text(code)
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nextract: last_word\nsplits: {train: {file: rows.jsonl}, test: {file: rows.jsonl}}\n"
    )
    (tmp_path / "rows.jsonl").write_text('{"problem": "1 + 1", "answer": "2"}\n' * 2)
    plugins.use(["words"], [tmp_path])
    try:
        assert grade("1, 2", "2", "numeric", "last_word").correct
        spec = small_spec({"task.train": str(tmp_path / "mine.yaml")})
        hashed = semantic_hash(spec)
        assert [module.name for module in user_code(spec)] == ["words"]
        (tmp_path / "words.py").write_text(code + "# edited")
        plugins.use(["words"], [tmp_path])
        assert semantic_hash(spec) != hashed
    finally:
        plugins.use([], [])
