from __future__ import annotations

import json
import math
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.records.files import ProblemRow
from harness.tracking.curves import Curves, TimedRow, joined, mlflow_name, row_curves, score_curves, value_curves
from harness.tracking.question import apart, description
from harness.tracking.run import (
    MAX_PARAM_LENGTH,
    MAX_TAG_LENGTH,
    TABLE_ROWS,
    completions_table,
    flat_params,
)
from tests.frozen import frozen


def test_names() -> None:
    assert mlflow_name("eval/sums/pass@1") == "eval/sums/pass_at_1"
    assert mlflow_name("eval/lm:gsm8k, 5 shots/avg@n") == "eval/lm_gsm8k__5_shots/avg_at_n"
    assert mlflow_name("train/kl/k1_old-x.y") == "train/kl/k1_old-x.y"


@settings(max_examples=50)
@given(st.text(st.characters(exclude_characters="/"), min_size=1).filter(lambda text: text not in (".", "..")))
def test_mlflow_accepts_every_name(text: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    _validate_metric_name(mlflow_name(f"train/{text}"))


def test_what_a_step_does_not_have_is_a_gap() -> None:
    row = {"step": 7, "loss": 0, "reward/mean": -1.5, "gap": None, "text": "x", "list": [1]}
    row |= {"nan": float("nan"), "inf": float("inf")}
    assert points(row_curves("train/", [TimedRow(row, 99)])) == {
        ("train/loss", 0.0, 99, 7),
        ("train/reward/mean", -1.5, 99, 7),
    }


def test_scores() -> None:
    row = {"step": 9, "final": False, "task": "sums", "generated_tokens": 5, "metrics": {"pass@2": 0.25, "x": None}}
    curve = ("eval/sums/pass_at_2", 0.25, 99, 9)
    assert points(score_curves([TimedRow(row, 99)])) == {curve}
    final = TimedRow(row | {"final": True}, 99)
    assert points(score_curves([final])) == {curve, ("eval/final/sums/pass_at_2", 0.25, 99, 9)}


VALUES = st.sampled_from([None, -0.0, 0, 1, 2.5, True, "1", [1], math.nan, math.inf])
ROWS = st.lists(st.tuples(st.dictionaries(st.sampled_from(["a@1", "a_at_1", "b"]), VALUES), st.integers(0, 3)))


@pytest.mark.slow
@given(ROWS)
def test_rows_by_column_are_the_points_of_each_row(rows: list[tuple[dict[str, Any], int]]) -> None:
    timed = [TimedRow({"step": step, **values}, 10 * step) for step, (values, _) in enumerate(rows)]
    expected = [
        (mlflow_name(f"train/{key}"), float(value), at_ms, values["step"])
        for values, at_ms in timed
        for key, value in values.items()
        if key != "step" and isinstance(value, (int, float)) and math.isfinite(value)
    ]
    assert sorted(listed(row_curves("train/", timed))) == sorted(expected)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from([-0.0, 0.0, 1.0])), min_size=1))
def test_each_point_once_and_the_last_one(points: list[tuple[int, int, float]]) -> None:
    curve = joined(value_curves("", {"x": value}, at_ms, step) for step, at_ms, value in points)["x"]
    assert [*curve.distinct().points()] == [
        (value, at_ms, step) for at_ms, step, value in sorted({(at_ms, step, value) for step, at_ms, value in points})
    ]
    step, at_ms, value = max(points)
    assert curve.last == (value, at_ms, step)


def listed(curves: Curves) -> list[tuple[str, float, int, int]]:
    return [(name, *point) for name, curve in curves.items() for point in curve.points()]


def points(curves: Curves) -> set[tuple[str, float, int, int]]:
    """(name, value, time, step) of each; fails if one is there twice."""
    found = listed(curves)
    assert len(found) == len(set(found))
    return set(found)


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
    assert str(len(json.dumps(numbers))) in value[-80:] and "spec.json" in value[-80:]


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
    assert str(table["data"][0][2]).splitlines() == ["system: Add.", "", "user: 1+2"]
    assert table["data"][1][2] == ""  # an import may have no prompts


def test_a_description_ends_before_the_first_figure_and_where_mlflow_would_cut_it() -> None:
    told = "Does it help?\n\n## Verdict\n\n- yes"
    assert description(f"# sweep\n\n{told}\n\n## Effects\n\n![Effects](figures/forest.png)\n\nmore") == told
    lines = ["- verdict"] * 1000
    assert description("\n".join(lines)) == "\n".join(lines[: MAX_TAG_LENGTH // 10])


def test_a_page_apart_from_its_files_says_where_they_are_and_its_scripts_stay_as_they_are() -> None:
    script = """<script>const link = '<a href="a.csv">x</a>'</script>"""
    kept = '<a href="#top">top</a> <a class="x" href="https://example.org">web</a>'
    links = '<a class="file" href="data/a.csv" download>data</a> <a href="samples.html#arm=a">b</a>'
    page = apart(f'{kept} <main id="main">{links} {script}', {"data/a.csv", "data/b.csv", "report.md"})
    frozen("tracking/page_apart", page)
