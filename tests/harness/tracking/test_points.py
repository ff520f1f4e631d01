from __future__ import annotations

import json

import pyarrow
from hypothesis import given
from hypothesis import strategies as st

from harness.records.files import ProblemRow
from harness.tracking.question import apart, description
from harness.tracking.run import (
    MAX_PARAM_LENGTH,
    MAX_TAG_LENGTH,
    TABLE_ROWS,
    completions_table,
    flat_params,
    mlflow_name,
    score_points,
    step_points,
)


def test_names() -> None:
    assert mlflow_name("eval/sums/pass@1") == "eval/sums/pass_at_1"
    assert mlflow_name("eval/lm:gsm8k, 5 shots/avg@n") == "eval/lm_gsm8k__5_shots/avg_at_n"
    assert mlflow_name("train/kl/k1_old-x.y") == "train/kl/k1_old-x.y"


@given(st.text(st.characters(exclude_characters="/"), min_size=1).filter(lambda text: text not in (".", "..")))
def test_mlflow_accepts_every_name(text: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    _validate_metric_name(mlflow_name(f"train/{text}"))


def test_what_a_step_does_not_have_is_a_gap() -> None:
    row = {"step": 7, "loss": 0, "reward/mean": -1.5, "gap": None, "text": "x", "list": [1]}
    row |= {"nan": float("nan"), "inf": float("inf")}
    assert list(step_points(row, 99)) == [("train/loss", 7, 0.0, 99), ("train/reward/mean", 7, -1.5, 99)]


def test_scores() -> None:
    row = {"step": 9, "final": False, "task": "sums", "generated_tokens": 5, "metrics": {"pass@2": 0.25, "x": None}}
    curve = ("eval/sums/pass_at_2", 9, 0.25, None)
    assert list(score_points(row)) == [curve]
    assert list(score_points(row | {"final": True})) == [curve, ("eval/final/sums/pass_at_2", 9, 0.25, None)]


def test_params() -> None:
    spec = {"a": {"b": {"c": 1e-4}, "empty": {}}, "off": False, "none": None, "text": "none", "k": [1, 2], "x@y": 1}
    assert flat_params(spec) == {
        "a.b.c": "0.0001",
        "a.empty": "{}",
        "off": "false",
        "none": "null",
        "text": "none",
        "k": "[1, 2]",
        "x_at_y": "1",
    }


def test_a_long_param_is_cut_and_says_so() -> None:
    from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH

    assert MAX_PARAM_LENGTH == MAX_PARAM_VAL_LENGTH
    assert flat_params({"fits": "x" * MAX_PARAM_LENGTH})["fits"] == "x" * MAX_PARAM_LENGTH
    numbers = list(range(3000))
    value = flat_params({"numbers": numbers})["numbers"]
    assert len(value) == MAX_PARAM_LENGTH
    assert value.endswith(f"... [{len(json.dumps(numbers))} characters; all of them in spec.json]")


def test_a_table_has_the_first_sample_of_the_first_problems() -> None:
    samples = [
        {"task": "sums", "problem_id": str(number), "sample": sample, "text": "3", "correct": True, "n_tokens": 1}
        for number in range(TABLE_ROWS + 1)
        for sample in range(2)
    ]
    chat = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+2"}]
    problem: ProblemRow = {"task": "sums", "split": "test", "problem_id": "0", "prompt": chat, "answer": "3"}
    table = completions_table(pyarrow.Table.from_pylist(samples), [problem])
    assert [row[1] for row in table["data"]] == [str(number) for number in range(TABLE_ROWS)]
    assert table["data"][0][2] == "system: Add.\n\nuser: 1+2"
    assert table["data"][1][2] == ""  # records of an earlier version have no prompts


def test_a_description_ends_before_the_first_figure_and_where_mlflow_would_cut_it() -> None:
    report = "# sweep\n\nDoes it help?\n\n## Verdict\n\n- yes\n\n## Effects\n\n![Effects](figures/forest.png)\n\nmore"
    assert description(report) == "Does it help?\n\n## Verdict\n\n- yes"
    assert description("\n".join(["- a verdict"] * 1000)) == "\n".join(["- a verdict"] * (MAX_TAG_LENGTH // 12))


def test_a_page_apart_from_its_files_says_where_they_are_and_its_scripts_stay_as_they_are() -> None:
    script = """<script>const link = '<a href="a.csv">x</a>'</script>"""
    kept = '<a href="#top">top</a> <a class="x" href="https://example.org">web</a>'
    links = '<a class="file" href="data/a.csv" download>data</a> <a href="samples.html#arm=a">b</a>'
    assert apart(f'{kept} <main id="main">{links} {script}', {"data/a.csv", "data/b.csv", "report.md"}) == (
        f'{kept} <main id="main">\n<p class="detail">MLflow shows this page apart from its files, which are among the '
        'same artifacts: data, report.md.</p><abbr title="data/a.csv, among these artifacts">data</abbr> '
        f'<abbr title="samples.html, beside the page on disk">b</abbr> {script}'
    )
