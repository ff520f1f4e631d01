"""The task files: that they say what lm-eval's own say, and what their functions do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evals.errors import DataMissingError, EvalError
from evals.shelves.lm_eval.lm_eval_tasks.utils import boxed_prompt, keep_all, load_rows, score_math, score_numeric
from evals.shelves.lm_eval.loading import OWN_TASKS
from tests.evals.scripted import write_rows

lm_eval = pytest.importorskip("lm_eval", reason="needs lm-eval: pip install -e '.[lm-eval]'")

SHIPPED = Path(lm_eval.__file__).parent / "tasks"
# Where the documents come from, and what the columns are called. The hub's rows hold AIME's answer and problem under
# names with a capital.
OF_THE_SOURCE = {
    *("task", "tag", "dataset_path", "dataset_name", "dataset_kwargs", "custom_dataset"),
    *("training_split", "fewshot_split", "test_split"),
}
DEFAULTS = {"repeats": 1}


def declared(path: Path) -> dict[str, object]:
    """What a task file says, with the names of its functions, and the hub's columns named as ours."""
    from lm_eval.tasks._yaml_loader import load_yaml

    settings = load_yaml(path, resolve_func=False)
    text = json.dumps(settings).replace("{{Problem}}", "{{problem}}").replace("{{Answer}}", "{{answer}}")
    text = text.replace(f"{OWN_TASKS}/lm_eval.tasks.minerva_math.", f"{SHIPPED}/minerva_math/")
    text = text.replace(f"{OWN_TASKS}/lm_eval.tasks.aime.", f"{SHIPPED}/aime/")
    return {**DEFAULTS, **json.loads(text)}


@pytest.mark.parametrize(
    ("own", "shipped"),
    [
        ("gsm8k_local", "gsm8k/gsm8k"),
        ("minerva_math500_local", "minerva_math/minerva_math500"),
        ("aime24_local", "aime/aime24"),
        ("aime25_local", "aime/aime25"),
    ],
)
def test_local_tasks_are_lm_evals_own_but_for_the_source(own, shipped):
    here, there = declared(OWN_TASKS / f"{own}.yaml"), declared(SHIPPED / f"{shipped}.yaml")
    differing = {key for key in here.keys() | there.keys() if here.get(key) != there.get(key)}
    assert differing <= OF_THE_SOURCE


def test_every_task_file_is_found():
    from lm_eval.tasks import TaskManager

    found = TaskManager(include_path=str(OWN_TASKS), include_defaults=False).all_subtasks
    assert found == sorted(path.stem for path in OWN_TASKS.glob("*.yaml"))


@pytest.mark.parametrize("path", sorted(OWN_TASKS.glob("*_avg*.yaml")), ids=lambda path: path.stem)
def test_metrics_of_sampled_tasks_are_those_that_are_computed(path):
    task = declared(path)
    (scores,) = [score_numeric({"answer": "1"}, [["1"] * int(str(task["repeats"]))])]
    assert [metric["metric"] for metric in task["metric_list"]] == list(scores)  # type: ignore[attr-defined]
    assert path.stem.endswith(f"_avg{task['repeats']}")


def test_rows_have_the_columns_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_DATA", str(write_rows(tmp_path, {"a.jsonl": [{"problem": "p", "answer": 7, "x": None}]})))
    loaded = load_rows({"test": "a.jsonl"}, {"question": "problem", "target": "answer"}, version=1.0)
    assert loaded["test"].to_list() == [{"question": "p", "target": "7"}]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"problem": "p"}], "line 1: no field 'answer'; this task needs text"),
        ([{"problem": "p", "answer": "1"}, {"problem": None, "answer": "1"}], "line 2: the field 'problem' is None"),
        ([], "has no rows"),
    ],
)
def test_faulty_rows(tmp_path, monkeypatch, rows, message):
    monkeypatch.setenv("BENCH_DATA", str(write_rows(tmp_path, {"a.jsonl": rows})))
    with pytest.raises(EvalError, match=message):
        load_rows({"test": "a.jsonl"}, {"problem": "problem", "answer": "answer"})


def test_missing_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_DATA", str(tmp_path))
    with pytest.raises(DataMissingError, match="fields problem, or set BENCH_DATA"):
        load_rows({"test": "a.jsonl"}, {"question": "problem"})
    monkeypatch.delenv("BENCH_DATA")
    with pytest.raises(DataMissingError, match=r"reads a\.jsonl and b\.jsonl .* BENCH_DATA is not set"):
        load_rows({"test": "a.jsonl", "train": "b.jsonl"}, {"question": "problem"})


def test_scores_of_samples():
    samples = ["\\boxed{7}", "#### 7.0", "8", "no"]
    expected = {"avg@4": 0.5, "pass@2": 1 - 1 / 6, "pass@4": 1.0}
    assert score_numeric({"answer": "7"}, [samples]) == pytest.approx(expected)
    assert score_math({"answer": "\\frac{1}{2}"}, [["0.5", "\\boxed{\\frac12}", "2"]]) == pytest.approx(
        {"avg@3": 2 / 3, "pass@2": 1.0}
    )


def test_filter_and_prompt():
    assert keep_all(iter([("a", "b"), ("c",)]), []) == [["a", "b"], ["c"]]
    assert boxed_prompt({"problem": "1+1?"}).startswith("1+1?\n")
