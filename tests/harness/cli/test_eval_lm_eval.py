"""`bench eval --lm-eval`: tasks of lm-eval on our engines, before and after. `make test-lm-eval` runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import harness.tracking as tracking
from evals.tasks import get_task
from harness.models.language_model import load_model
from harness.run.evaluator import Evaluator
from harness.sampling.store import SampleStore
from tests.evals.scripted import write_rows
from tests.evals.shelves.lm_eval.test_lm_eval_choices import policy, task_file
from tests.harness.cli.conftest import Bench
from tests.harness.evaluate.test_subject import cell_of
from tests.harness.run.small import small_spec

pytest.importorskip("lm_eval", reason="needs lm-eval: pip install -e '.[lm-eval]'")

SUMS = """
task: sums
dataset_path: json
dataset_kwargs:
  data_files: {{test: {file}}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{problem}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n\\n"], do_sample: false}}
filter_list:
  - name: last
    filter:
      - {{function: regex, regex_pattern: "(-?[0-9]+)", group_select: -1}}
      - {{function: take_first}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
metadata: {{version: 1.0}}
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder with a task file of lm-eval over problems of the tiny model's own kind."""
    problems = get_task("arithmetic").split("test").load()[:6]
    folder = write_rows(
        tmp_path / "tasks", {"sums.jsonl": ({"problem": one.problem, "answer": one.answer} for one in problems)}
    )
    (folder / "sums.yaml").write_text(SUMS.format(file=folder / "sums.jsonl"))
    return folder


def words(tasks: Path) -> list[object]:
    return ["--lm-eval", "sums", "--include-path", tasks, "--max-completion-tokens", "40", "--home", "home"]


def test_a_task_is_run_once_and_logged(bench: Bench, tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []
    monkeypatch.setattr(tracking, "log_lm_eval", lambda uri, home, label, path: logged.append(path))
    first = bench("eval", "builtin:tiny", *words(tasks), "--problems", "4", "--json")
    assert first.code == 0, first.err
    assert first.document["evaluations"] == []
    found = first.document["lm_eval"]
    assert [(task["name"], task["n_docs"]) for task in found["tasks"]] == [("sums", 4)]
    (metric,) = found["metrics"]
    assert (metric["name"], metric["filter"]) == ("exact_match", "last")
    folder = Path(found["path"])
    kept = json.loads((folder / "sums.json").read_text())
    assert metric["value"] == sum(row["metrics"]["exact_match"] for row in kept["rows"]) / 4
    assert [row["reference"] for row in kept["rows"]] == [
        one.answer for one in get_task("arithmetic").split("test").load()[:4]
    ]
    page = (folder / "samples.html").read_text()
    assert page.count("exact_match of last") == 4 and f"reference: <code>{kept['rows'][0]['reference']}</code>" in page
    samples = (folder / "samples.jsonl").read_text()
    assert samples.count("\n") == 4
    assert "loading" in first.err and len(logged) == 1

    again = bench("eval", "builtin:tiny", *words(tasks), "--problems", "4", "--json")
    assert again.document == first.document
    assert "loading" not in again.err
    assert bench("eval", "builtin:tiny", *words(tasks), "--json").code == 0
    longer = (folder / "samples.jsonl").read_text()
    assert longer.startswith(samples) and longer.count("\n") == 6


def test_before_and_after_are_paired_by_document(
    bench: Bench, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "log_lm_eval", lambda *given: None)
    cell = cell_of(tmp_path / "home", small_spec(), change=0.5)
    asked = ["eval", cell, *words(tasks), "--baseline", "builtin:tiny"]
    result = bench(*asked, "--json")
    assert result.code == 0, result.err
    (change,) = result.document["changes"]
    rows = [
        json.loads((Path(one["lm_eval"]["path"]) / "sums.json").read_text())["rows"]
        for one in (result.document["baseline"], result.document)
    ]
    pairs = [(one["metrics"]["exact_match"], other["metrics"]["exact_match"]) for one, other in zip(*rows, strict=True)]
    assert change["difference"] == pytest.approx(sum(after - before for before, after in pairs) / 6)
    assert change["n_problems"] == 6
    text = bench(*asked).out
    assert "exact_match" in text
    page = Path(result.document["lm_eval"]["path"]) / "samples.html"
    assert f"samples: {page}" in text and page.read_text().count("exact_match of last") == 12


def test_a_multiple_choice_is_evaluated_as_in_a_sweep(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "log_evaluation", lambda *given: None)
    name = task_file(tmp_path / "choices", "by_length")
    asked = ["eval", "builtin:tiny", "--tasks", f"arithmetic,{name}", "--home", "home"]
    first = bench(*asked, "--problems", 6, "--json")
    assert first.code == 0, first.err
    assert bench(*asked, "--problems", 9, "--json").code == 0, "more of them are added"
    document = bench(*asked, "--problems", 9, "--json").document["evaluations"][1]
    spec = small_spec({"eval.tasks": [name], "eval.problems": 9})
    sampler = policy(load_model("builtin:tiny"))
    ((scores, samples),) = Evaluator(spec.eval, 0, lambda: sampler).run(4, SampleStore(tmp_path / "evals.jsonl"))
    stored = SampleStore(Path(document["path"]) / "evals.jsonl").rows()
    assert [(row["problem_id"], row["text"]) for row in stored] == [(row["problem_id"], row["text"]) for row in samples]
    assert document["metrics"]["pass@1"] == scores["metrics"]["pass@1"]
    assert (document["n_problems"], document["n_samples"]) == (9, 1)
    again = bench(*asked, "--problems", 9, "--regrade", "--json").document["evaluations"][1]
    assert again["metrics"] == document["metrics"]
    more = bench(*asked, "--problems", 2, "--samples", 4, "--temperature", 1, "--json")
    assert [one["n_samples"] for one in more.document["evaluations"]] == [4, 1]
    assert "--samples" in more.err
    assert bench(*asked, "--thinking-budget", 4).code == 2
    choosing = ["--lm-eval", "by_length", "--include-path", tmp_path / "choices", "--home", "home"]
    assert "lm_eval:by_length" in bench("eval", "builtin:tiny", *choosing).err


@pytest.mark.parametrize(
    ("given", "part"),
    [
        # lm-eval reads all its thousands of tasks to know that there is no such one: minutes on 2 cores.
        pytest.param(["--lm-eval", "summs"], "'summs'", marks=pytest.mark.long),
        (["--include-path", "nowhere"], "include_path is nowhere"),
    ],
)
def test_bad_input(bench: Bench, tasks: Path, given: list[str], part: str) -> None:
    result = bench("eval", "builtin:tiny", *words(tasks), *given)
    assert (result.code, result.out) == (2, "")
    assert part in result.err and "Traceback" not in result.err
