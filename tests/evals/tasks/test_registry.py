from __future__ import annotations

import pytest

from evals import get_task, grade, task_names
from evals.contamination import overlap
from evals.errors import EvalError, UnknownNameError

MINIMAL = """
name: mine
grader: exact
splits:
  train: {file: train.jsonl, fields: {problem: question}}
  test:
    hub: {id: me/data, split: test, revision: abc}
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> str:
        (tmp_path / "mine.yaml").write_text(text)
        return str(tmp_path / "mine.yaml")

    return write


def test_every_shipped_task_loads_and_is_pinned_without_data(monkeypatch):
    monkeypatch.delenv("BENCH_DATA", raising=False)
    assert task_names() == ["arithmetic", "gsm8k", "math"]
    for name in task_names():
        task = get_task(name)
        assert task.name == name
        assert {"train", "test"} <= task.splits.keys()
        assert all(source.fingerprint for source in task.splits.values())


def test_gsm8k_has_the_rows_it_was_pinned_to(data_folder, monkeypatch):
    monkeypatch.setenv("BENCH_DATA", str(data_folder))
    task = get_task("gsm8k")
    sizes = {}
    for split, source in task.splits.items():
        problems = source.load()
        sizes[split] = len(problems)
        assert problems[0].id == f"gsm8k-{split}-00000"
        assert all(
            grade(problem.solution or "", problem.answer, task.require_grader(), task.extract).correct
            for problem in problems
        )
    assert sizes == {"train": 7473, "test": 1319}


def test_math_has_the_rows_it_was_pinned_to(data_folder, monkeypatch):
    monkeypatch.setenv("BENCH_DATA", str(data_folder))
    task = get_task("math")
    train, test = task.split("train").load(), task.split("test").load()
    assert (len(train), len(test)) == (11_998, 500)
    assert test[0].id == "test/precalculus/807.json"
    assert {problem.difficulty for problem in (*train, *test)} == {1.0, 2.0, 3.0, 4.0, 5.0}
    every_tenth = [*test, *train[::10]]
    assert all(grade(p.solution or "", p.answer, task.require_grader(), task.extract).correct for p in every_tenth)


def test_maths_training_problems_are_not_the_held_out_ones(data_folder, monkeypatch):
    monkeypatch.setenv("BENCH_DATA", str(data_folder))
    train, test = (get_task("math").split(split).load() for split in ("train", "test"))
    assert {problem.problem for problem in train}.isdisjoint(problem.problem for problem in test)
    found = overlap((p.problem for p in train), (p.problem for p in test))
    # As the task's file says. The one is the same but for a sign, which words do not show.
    assert (found.exact, found.n_gram, found.problems) == (1, 237, 500)


def test_a_task_of_ones_own(write, tmp_path):
    (tmp_path / "train.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    task = get_task(write(MINIMAL))
    assert (task.name, task.template, task.grader, task.extract, task.margin_pp) == (
        "mine",
        "boxed",
        "exact",
        "chain",
        1.0,
    )
    assert [problem.answer for problem in task.split("train").load()] == ["2"]
    assert task.split("test").fingerprint.startswith("hub:me/data@abc")


def test_without_a_grader_rows_need_no_answers(write, tmp_path):
    (tmp_path / "train.jsonl").write_text('{"question": "1+1"}\n{"question": "2+2", "answer": "4"}\n')
    task = get_task(write(MINIMAL.replace("grader: exact", "grader: null")))
    assert task.grader is None
    assert [problem.answer for problem in task.split("train").load()] == ["", "4"]
    with pytest.raises(EvalError, match="no field 'answer'"):
        get_task(write(MINIMAL)).split("train").load()
    with pytest.raises(EvalError, match="no field 'problem'"):
        get_task(
            write(MINIMAL.replace("grader: exact", "grader: null").replace(", fields: {problem: question}", ""))
        ).split("train").load()


@pytest.mark.parametrize("name", ["gsm8", "GSM8K", "base", "declarative", "../tasks/gsm8k"])
def test_unknown_tasks(name):
    with pytest.raises(UnknownNameError, match="arithmetic, gsm8k"):
        get_task(name)


def test_all_faults_of_a_file_are_named_at_once(write):
    with pytest.raises(EvalError) as error:
        get_task(
            write(
                "name: mine\ngradr: math\nsplits:\n  train: {file: a.jsonl, row: 3, fields: {problm: q}}\n"
                "  test: {hub: {id: x, splt: y}, digest: md5}\n"
            )
        )
    for part in (
        "mine.yaml",
        "gradr: unknown key; did you mean 'grader'?",
        "splits.train.row: unknown key; did you mean 'rows'?",
        "splits.train.fields.problm: unknown key; did you mean 'problem'?",
        "splits.test.hub.splt: unknown key; did you mean 'split'?",
        "splits.test.hub.split: Field required",
        "splits.test.digest:",
    ):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "cannot be read"),
        ("", "the document: "),
        ("name: x\nsplits: {}", "splits: "),
        (MINIMAL.replace("exact", "exat"), "did you mean 'exact'"),
        (MINIMAL.replace(", revision: abc", ""), "pin it with `revision"),
        (MINIMAL + "    rows: yes", "splits.test.rows"),
    ],
)
def test_faulty_files(write, text, message):
    with pytest.raises(EvalError, match=message):
        get_task(write(text))


def test_a_missing_file():
    with pytest.raises(EvalError, match=r"no task file absent.yaml"):
        get_task("./absent.yaml")
