"""lm-eval's tasks as held-out tasks of a training sweep. `make test-lm-eval` runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from evals.errors import EvalError
from evals.shelves.lm_eval.adapter import run_lm_eval
from evals.tasks import get_task
from evals.tasks.base import Problem
from harness.config.hashing import semantic_hash
from harness.errors import RefusedError
from harness.records import CellRecord
from harness.sampling.conditions import Conditions
from tests.evals.scripted import Scripted, write_rows
from tests.harness.run.small import run_cell, small_spec
from tests.refusals import refuses

pytest.importorskip("lm_eval", reason="needs lm-eval: pip install -e '.[lm-eval]'")

SUMS = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: generate_until
test_split: test
num_fewshot: 0
doc_to_text: "{{{{problem}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n\\n"]}}
filter_list:
  - name: last
    filter:
      - {{function: regex, regex_pattern: "(-?[0-9]+)", group_select: -1}}
      - {{function: take_first}}
metric_list:
  - {{metric: {metric}, aggregation: mean, higher_is_better: true}}
"""
N_PROBLEMS = 6


def task_file(folder: Path, name: str = "sums", metric: str = "exact_match", first: int = 0) -> str:
    """What `eval.tasks` names: a task file over problems of the tiny model's own kind."""
    problems = get_task("arithmetic").split("test").load()[first : first + N_PROBLEMS]
    rows = [{"problem": one.problem, "answer": one.answer} for one in problems]
    folder = write_rows(folder, {f"{name}.jsonl": rows})
    path = folder / f"{name}.yaml"
    path.write_text(SUMS.format(name=name, file=folder / f"{name}.jsonl", metric=metric))
    return f"lm_eval:{path}"


def own_verdict(problem: Problem, text: str) -> str:
    assert problem.own_comparison is not None
    return problem.own_comparison(text)


def test_a_tiny_cell_is_evaluated_on_it_and_every_sample_has_a_0_or_a_1(tmp_path: Path) -> None:
    name = task_file(tmp_path)
    (tmp_path / "cell").mkdir()
    cell = CellRecord(tmp_path / "cell", "arm", 0, "0")
    run_cell(cell, small_spec({"eval.tasks": ["arithmetic", name], "eval.template": "boxed", "train.steps": 2}))
    scores = {row["task"]: row for row in cell.read_scores() if row["final"]}
    assert list(scores) == ["arithmetic", "lm_eval:sums"]
    table = cell.read_evals()
    assert table is not None
    rows = [row for row in table.to_pylist() if row["task"] == "lm_eval:sums" and row["final"]]
    answers = {one.id: one.answer for one in get_task(name).split("test").load()}
    assert len(rows) == 4 * N_PROBLEMS
    assert any(row["correct"] for row in rows), "prompted as lm-eval does, without the template of `eval`"
    for row in rows:
        numbers = re.findall(r"-?[0-9]+", row["text"].partition("\n\n")[0])
        assert row["correct"] == (numbers[-1:] == [answers[row["problem_id"]]]), row
    assert scores["lm_eval:sums"]["metrics"]["pass@1"] == sum(row["correct"] for row in rows) / len(rows)


def test_verdicts_are_those_of_lm_evals_own_run(tmp_path: Path) -> None:
    name = task_file(tmp_path)
    problems = get_task(name).split("test").load()
    texts = [f"{one.answer}\n\n7" if number % 2 else f"{one.answer}, no, -1" for number, one in enumerate(problems)]
    replies = dict(zip((one.problem for one in problems), texts, strict=True))
    result = run_lm_eval(["sums"], Scripted(lambda draw: replies[str(draw.prompt)]), include_path=tmp_path)
    theirs = [row["metrics"]["exact_match"] for row in result.rows]
    ours = [own_verdict(one, text) == "match" for one, text in zip(problems, texts, strict=True)]
    assert ours == [bool(score) for score in theirs] == [bool(number % 2) for number in range(N_PROBLEMS)]


def test_its_documents_identify_it_and_not_where_they_are(tmp_path: Path) -> None:
    one, elsewhere = task_file(tmp_path / "a"), task_file(tmp_path / "b")
    others = task_file(tmp_path / "c", first=N_PROBLEMS)
    hashes = [semantic_hash(small_spec({"eval.tasks": [name]})) for name in (one, elsewhere, others)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_shots_of_the_task_file_stand_before_the_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"problem": f"1+{n}=?", "answer": str(n + 1), "solution": f"#### {n + 1}"} for n in range(6)]
    monkeypatch.setenv("BENCH_DATA", str(write_rows(tmp_path, {f"gsm8k_{s}.jsonl": rows for s in ("train", "test")})))
    (problem, *_) = get_task("lm_eval:gsm8k_local").split("test").load()
    assert problem.problem.count("Question: ") == 6
    text = "so #### 1\nQuestion: #### 2"
    assert own_verdict(problem, text) == "match"


def test_stop_strings_of_the_task_file_end_a_completion(tmp_path: Path) -> None:
    task = get_task(task_file(tmp_path))
    assert Conditions.of_evaluation(small_spec().eval, task, 0).params.stop == ("\n\n",)


def test_a_metric_of_no_single_completion_is_refused_when_planning(tmp_path: Path) -> None:
    with refuses(RefusedError, "evals.shelves.lm_eval.in_task", task="sums"):
        small_spec({"eval.tasks": [task_file(tmp_path, metric="bleu")]})


def test_a_file_that_names_no_task_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.yaml").write_text(json.dumps({"group": "x"}))
    with refuses(EvalError, "evals.shelves.lm_eval.task_file_without_name", path="none.yaml"):
        get_task(f"lm_eval:{tmp_path / 'none.yaml'}")
