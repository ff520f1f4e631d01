from __future__ import annotations

import json
from typing import NoReturn

import pytest

from evals import get_task, grade, task_names
from evals.contamination import is_contaminated, overlap
from evals.errors import DataMissingError, EvalError
from evals.tasks.base import Problem, with_options, written_options
from evals.tasks.rows import LoadedRows, TaskRows
from harness.errors import RefusedError, UnknownNameError
from tests.refusals import codes_of, refuses

EVALUATION_ONLY = {"aime24", "aime25", "amc23", "arithmetic_many", "math500"}

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
    assert task_names() == [
        *sorted(
            {"arithmetic", "arithmetic_hard", "arithmetic_mixed", "calculator", "gsm8k", "guess", "math", "programs"}
            | EVALUATION_ONLY
        )
    ]
    for name in task_names():
        task = get_task(name)
        assert task.name == name
        assert task.splits.keys() == ({"test"} if name in EVALUATION_ONLY else {"train", "test"})
        assert all(source.fingerprint for source in task.splits.values())


def test_many_sums_begin_with_the_usual_ones_and_none_is_trained_on():
    sums, many = get_task("arithmetic"), get_task("arithmetic_many").split("test").load()
    assert many[:256] == sums.split("test").load()
    assert len({problem.id for problem in many}) == len(many) == 8192
    assert not {problem.id for problem in many} & {problem.id for problem in sums.split("train").load()}


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
    verdicts = [(p, grade(p.solution or "", p.answer, task.require_grader(), task.extract)) for p in every_tenth]
    wrong = [(p.answer, verdict.extracted) for p, verdict in verdicts if not verdict.correct]
    # A fault of the data: the solution boxes two answers, and the reference is the second alone.
    assert [str(extracted).endswith(f", {answer}") for answer, extracted in wrong] == [True]


def test_maths_training_problems_are_not_the_held_out_ones(data_folder, monkeypatch):
    monkeypatch.setenv("BENCH_DATA", str(data_folder))
    train, test = (get_task("math").split(split).load() for split in ("train", "test"))
    assert {problem.problem for problem in train}.isdisjoint(problem.problem for problem in test)
    found = overlap(((p.id, p.problem) for p in train), ((p.id, p.problem) for p in test))
    # As the task's file says. The one is the same but for a sign, which words do not show.
    assert (found.exact, found.near_copies, found.n_gram, found.problems) == (1, 16, 237, 500)
    assert is_contaminated(found)


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


def test_ten_lines_add_a_task_from_a_local_file(write, tmp_path):
    riddle = {"question": "How many legs have 2 cats?", "legs": 8}
    (tmp_path / "riddles.jsonl").write_text(json.dumps(riddle) + "\n")
    text = """\
name: riddles
template: boxed
grader: numeric
splits:
  test:
    file: riddles.jsonl   # beside this file
    fields: {problem: question, answer: legs}
"""
    assert len(text.splitlines()) <= 10
    (problem,) = get_task(write(text)).split("test").load()
    assert problem == Problem("riddles-test-00000", str(riddle["question"]), "8")


def test_ten_lines_add_a_task_from_the_hub(write, tmp_path, monkeypatch):
    """The real `load_dataset`, on a folder in the layout of a data set on the hub: no network."""
    (tmp_path / "set").mkdir()
    rows = [{"q": "1+1?", "a": "It is two.\n#### 1,002"}, {"q": "2+2?", "a": "#### 4"}]
    (tmp_path / "set" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    text = f"""\
name: sums
grader: numeric
splits:
  test:
    hub:
      id: {tmp_path / "set"}   # an id on the hub: owner/name
      revision: abc            # its commit
      split: test
      fields: {{problem: q, answer: a, answer_after: "####"}}
"""
    assert len(text.splitlines()) <= 10
    problems = get_task(write(text)).split("test").load()
    assert [(p.problem, p.answer) for p in problems] == [("1+1?", "1002"), ("2+2?", "4")]


def test_an_answer_that_the_grader_cannot_read_is_named(write, tmp_path):
    (tmp_path / "train.jsonl").write_text(
        '{"question": "1+1", "answer": "2"}\n\n{"question": "sky?", "answer": "blue"}\n'
    )
    numeric = MINIMAL.replace("grader: exact", "grader: numeric")
    with refuses(EvalError, "evals.in_answer", where=f"{tmp_path / 'train.jsonl'}, line 3"):
        get_task(write(numeric)).split("train").load()
    assert len(get_task(write(MINIMAL)).split("train").load()) == 2


def test_without_a_grader_rows_need_no_answers(write, tmp_path):
    (tmp_path / "train.jsonl").write_text('{"question": "1+1"}\n{"question": "2+2", "answer": "4"}\n')
    task = get_task(write(MINIMAL.replace("grader: exact", "grader: null")))
    assert task.grader is None
    assert [problem.answer for problem in task.split("train").load()] == ["", "4"]
    with refuses(EvalError, "evals.row_field_missing", field="answer"):
        get_task(write(MINIMAL)).split("train").load()
    with refuses(EvalError, "evals.row_field_missing", field="problem"):
        get_task(
            write(MINIMAL.replace("grader: exact", "grader: null").replace(", fields: {problem: question}", ""))
        ).split("train").load()


@pytest.mark.parametrize(("name", "rows"), [("aime24", 30), ("aime25", 30), ("amc23", 40), ("math500", 500)])
def test_benchmarks_have_the_rows_they_were_pinned_to(data_folder, monkeypatch, name, rows):
    monkeypatch.setenv("BENCH_DATA", str(data_folder))
    task = get_task(name)
    problems = task.split("test").load()
    assert isinstance(problems, LoadedRows)
    assert (len(problems), problems.matches_pin) == (rows, True)
    assert problems.origin == str(data_folder / f"{name}.jsonl")
    boxed = [grade(f"So it is \\boxed{{{p.answer}}}.", p.answer, task.require_grader(), task.extract) for p in problems]
    assert all(verdict.correct for verdict in boxed)


@pytest.mark.parametrize("name", ["aime24", "aime25", "amc23"])
def test_competition_answers_are_integers(data_folder, monkeypatch, name):
    monkeypatch.setenv("BENCH_DATA", str(data_folder))
    task = get_task(name)
    for problem in task.split("test").load():
        value = int(problem.answer)
        assert 0 <= value <= 999 or not name.startswith("aime")
        for text, right in (
            (f"{value:03d}", True),
            (f"{value}.0", True),
            (f"{value + 1}", False),
            (f"-{value}", False),
        ):
            if (value, text) == (0, "-0"):
                continue
            verdict = grade(f"The answer is \\boxed{{{text}}}", problem.answer, task.require_grader(), task.extract)
            assert verdict.correct is right, (problem.id, text)


def test_math500_is_what_math_evaluates_on():
    assert get_task("math500").split("test").fingerprint == get_task("math").split("test").fingerprint


def test_data_that_are_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("BENCH_DATA", str(tmp_path))
    monkeypatch.setattr("evals.tasks.rows.hub_rows", unreachable)
    for name in EVALUATION_ONLY - {"arithmetic_many"}:
        with refuses(DataMissingError, "evals.hub_rows_not_loaded") as refused:
            get_task(name).split("test").load()
        assert f"{tmp_path}/{name}.jsonl" in str(refused.value.fields["lookup"])


def unreachable(*address: object) -> NoReturn:
    raise DataMissingError("offline")


def test_another_file_under_the_name_of_a_benchmark(monkeypatch, tmp_path):
    monkeypatch.setenv("BENCH_DATA", str(tmp_path))
    rows = [{"id": str(n), "problem": f"{n}?", "answer": str(n)} for n in range(30)]
    file = tmp_path / "aime24.jsonl"
    source = get_task("aime24").split("test")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with refuses(EvalError, "evals.data_digest_differs", origin=str(file), name="aime24-test"):
        source.load()
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[1:]))
    with refuses(EvalError, "evals.row_count_differs", n_rows=29, name="aime24-test", n_expected=30):
        source.load()
    del rows[4]["answer"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with refuses(EvalError, "evals.row_field_missing", where=f"{file}, line 5", field="answer"):
        source.load()


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("aime24", {"id": 60, "problem": "1+1?", "answer": "002", "solution": "2", "url": "u", "year": "2024"}),
        ("aime25", {"id": "0", "problem": "1+1?", "answer": "2"}),
        ("amc23", {"id": 0, "question": "1+1?", "answer": "2.0", "url": "u"}),
        ("math500", {"unique_id": "a", "problem": "1+1?", "answer": "2", "solution": "", "level": 1, "subject": "s"}),
    ],
)
def test_columns_of_the_hub_are_mapped_and_other_rows_are_told(monkeypatch, tmp_path, name, columns):
    """The columns that the data sets on the hub have; their wording differs from the pinned file's."""
    monkeypatch.setenv("BENCH_DATA", str(tmp_path))
    task = get_task(name)
    source = task.split("test")
    assert isinstance(source, TaskRows)
    assert source.hub is not None
    rows = [columns | {key: f"{columns[key]}{n}" for key in ("id", "unique_id") if key in columns} for n in range(500)]
    monkeypatch.setattr(
        "evals.tasks.rows.hub_rows", lambda where, *address: [(where, row) for row in rows[: source.count]]
    )
    problems = source.load()
    assert problems.matches_pin is False
    assert problems.origin.startswith(f"hub:{source.hub.id}@")
    assert problems[0].problem == "1+1?"
    assert grade("\\boxed{2}", problems[0].answer, task.require_grader(), task.extract).correct


@pytest.mark.parametrize("name", ["gsm8", "GSM8K", "base", "../tasks/gsm8k"])
def test_unknown_tasks(name):
    with refuses(UnknownNameError, "bench.unknown_name", noun="task", name=repr(name)):
        get_task(name)


def test_all_faults_of_a_file_are_named_at_once(write):
    with refuses(EvalError, "evals.faults_in_yaml_file", kind="task") as refused:
        get_task(
            write(
                "name: mine\ngradr: math\nsplits:\n  train: {file: a.jsonl, row: 3, fields: {problm: q}}\n"
                "  test: {hub: {id: x, splt: y}, digest: md5}\n"
            )
        )
    assert {(code, fields["path"]) for code, fields in codes_of(refused.value) if "." not in code} == {
        ("extra_forbidden", "gradr"),
        ("extra_forbidden", "splits.train.row"),
        ("extra_forbidden", "splits.train.fields.problm"),
        ("extra_forbidden", "splits.test.hub.splt"),
        ("missing", "splits.test.hub.split"),
        ("string_pattern_mismatch", "splits.test.digest"),
    }
    faults = str(refused.value.fields["faults"]).splitlines()
    assert len(faults) == 6 and all(f" {near}? " in "".join(faults) for near in ("grader", "rows", "problem", "split"))


@pytest.mark.parametrize(
    ("text", "code", "fields"),
    [
        ("name: [", "evals.invalid_yaml", {}),
        ("", "model_type", {"path": ""}),
        ("name: x\nsplits: {}", "too_short", {"path": "splits"}),
        (MINIMAL.replace("exact", "exat"), "bench.unknown_name", {"nearest": "; did you mean exact?"}),
        (MINIMAL.replace(", revision: abc", ""), "evals.hub_rows_not_pinned", {}),
        (MINIMAL.replace("abc", "main"), "evals.hub_rows_not_pinned", {}),
        (MINIMAL + "    rows: yes", "int_type", {"path": "splits.test.rows"}),
    ],
)
def test_faulty_files(write, text, code, fields):
    with refuses(RefusedError, code, **fields):
        get_task(write(text))


def test_a_missing_file():
    with refuses(EvalError, "evals.yaml_file_missing", kind="task", path="absent.yaml"):
        get_task("./absent.yaml")


def test_options_in_a_name_are_read_and_written():
    assert written_options("pkg:t", 'b=[1,"x"]&a=y=z') == {"b": '[1,"x"]', "a": "y=z"}
    assert with_options("pkg:t", {"b": [1, "x"], "a": "y=z"}) == 'pkg:t?a=y=z&b=[1,"x"]'
    assert (written_options("pkg:t", ""), with_options("pkg:t", {})) == ({}, "pkg:t")
    for written, code in (("a", "option_without_value"), ("a=1&a=2", "option_given_twice")):
        with refuses(EvalError, f"evals.{code}", task="pkg:t", option="a"):
            written_options("pkg:t", written)
