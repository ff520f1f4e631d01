"""Tables of one's own: what they say, in whatever order and form, and what is refused with its row and column."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import RefusedError
from harness.shelves.imports.base import ImportedRun
from harness.shelves.imports.cells import evaluations, final, gathered
from harness.shelves.imports.sources import read_sources, settle_names
from tests.refusals import refuses

Row = dict[str, Any]
COLUMNS = ("arm", "seed", "task", "problem", "sample", "correct", "tokens")


def read(path: Path) -> dict[tuple[str, int | None], ImportedRun]:
    runs, _ = read_sources([str(path)])
    settle_names(runs, None, None, None)
    cells, _ = gathered(runs)
    return cells


def as_csv(rows: list[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rows[0]])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_jsonl(rows: list[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_parquet(rows: list[Row]) -> bytes:
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def table(right: Callable[[str, int, int, int], bool], samples: int = 2) -> list[Row]:
    return [
        dict(
            zip(COLUMNS, (arm, seed, "sums", f"p{problem}", sample, right(arm, seed, problem, sample), 7), strict=True)
        )
        for arm in ("base", "tuned")
        for seed in range(3)
        for problem in range(4)
        for sample in range(samples)
    ]


@settings(max_examples=8, deadline=None)
@given(
    verdicts=st.lists(st.booleans(), min_size=48, max_size=48),
    order=st.permutations(range(48)),
    form=st.sampled_from([(".csv", as_csv), (".jsonl", as_jsonl), (".parquet", as_parquet)]),
)
def test_a_table_says_the_same_in_every_order_and_form(
    tmp_path_factory: pytest.TempPathFactory,
    verdicts: list[bool],
    order: list[int],
    form: tuple[str, Callable[..., bytes]],
) -> None:
    found = iter(verdicts)
    rows = table(lambda *_: next(found))
    path = tmp_path_factory.mktemp("table") / f"results{form[0]}"
    path.write_bytes(form[1]([rows[place] for place in order]))
    cells = read(path)
    assert {*cells} == {(arm, seed) for arm in ("base", "tuned") for seed in range(3)}
    for (arm, seed), run in cells.items():
        mine = [row for row in rows if (row["arm"], row["seed"]) == (arm, seed)]
        metrics = final(run)["sums"].metrics([1, 2])
        assert metrics["pass@1"] == metrics["avg@n"] == pytest.approx(sum(row["correct"] for row in mine) / 8)
        any_right = {row["problem"] for row in mine if row["correct"]}
        assert metrics["pass@2"] == pytest.approx(len(any_right) / 4)
        assert metrics["mean_tokens"] == 7


def test_a_table_by_metric_has_curves_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "curve.csv"
    path.write_text(
        "arm,seed,task,metric,value,step\n"
        "a,0,sums,accuracy,0.25,5\na,0,sums,accuracy,0.5,10\na,0,sums,reward/mean,0.125,1\na,0,sums,reward/mean,0.25,2\n"
    )
    ((cell, run),) = read(path).items()
    assert cell == ("a", 0)
    assert [(one.step, one.given) for one in evaluations(run)] == [(5, {"accuracy": 0.25}), (None, {"accuracy": 0.5})]
    assert run.steps == {1: {"reward/mean": 0.125}, 2: {"reward/mean": 0.25}}


BY_PROBLEM = "arm,seed,problem,correct\n"


@pytest.mark.parametrize(
    ("text", "code", "fields"),
    [
        ("arm,seed,problem\na,0,p\n", "no_column", {"column": "correct"}),
        ("arm,seed,problm,correct\na,0,p,1\n", "no_column", {"column": "problem", "nearest": "; did you mean problm?"}),
        ("Arm,Seed,Problem,Correct\na,0,p,1\n", "no_column", {"columns": "Arm, Seed, Problem, Correct"}),
        ("arm;seed;problem;correct\na;0;p;1\n", "no_column", {"columns": "arm;seed;problem;correct"}),
        (f"{BY_PROBLEM}a,0,p,maybe\n", "cell_refused", {"number": 2, "column": "correct"}),
        (f"{BY_PROBLEM}a,one,p,1\n", "cell_refused", {"number": 2, "column": "seed", "given": "'one'"}),
        (f"{BY_PROBLEM}a,-1,p,1\n", "cell_refused", {"number": 2, "column": "seed", "given": "'-1'"}),
        (f"{BY_PROBLEM}a,inf,p,1\n", "cell_refused", {"number": 2, "column": "seed", "given": "'inf'"}),
        ("arm,seed,metric,value\na,0,accuracy,nan\n", "cell_refused", {"number": 2, "column": "value"}),
        (
            "arm,seed,problem,correct,config.lr\na,0,p,1,.1\na,0,q,1,.2\n",
            "cell_refused",
            {"number": 3, "column": "config.lr"},
        ),
        (f"{BY_PROBLEM}a,0,p,1\na,0,q,\n", "cell_empty", {"number": 3, "column": "correct"}),
        (f"{BY_PROBLEM}a,0,p,1\na,0,p,0\n", "key_repeated", {"number": 3, "first": 2}),
        ("model,seed,problem,correct\na,0,p,1\nb,0,p,1\n", "key_repeated", {"number": 3, "known": "0, results, p"}),
        (f"{BY_PROBLEM}a,0,p\n", "csv_row_length", {"number": 2, "more_or_fewer": "fewer", "n_columns": 4}),
        (f"{BY_PROBLEM}a,0,p,1,9\n", "csv_row_length", {"number": 2, "more_or_fewer": "more", "n_columns": 4}),
        ("arm,seed,problem,correct,metric\na,0,p,1,m\n", "table_of_both_kinds", {}),
        (BY_PROBLEM, "table_without_rows", {}),
        ("", "table_without_rows", {}),
        (f"{BY_PROBLEM}a,0,p,1\nb,0,q,1\n", "problem_missing", {"cell": "b seed 0", "problem": "p", "n_problems": 1}),
        (
            "arm,seed,problem,sample,correct\na,0,p,0,1\na,0,p,1,1\na,0,q,0,1\n",
            "sample_counts_differ",
            {"cell": "a seed 0", "n_fewest": 1, "fewest": "q", "n_most": 2, "most": "p"},
        ),
        (
            "arm,seed,task,metric,value\na,0,s,accuracy,1\nb,0,t,accuracy,1\n",
            "task_missing",
            {"cell": "a seed 0", "missing": "t"},
        ),
    ],
)
def test_a_wrong_or_partial_table_is_refused(tmp_path: Path, text: str, code: str, fields: dict[str, object]) -> None:
    path = tmp_path / "results.csv"
    path.write_text(text)
    with refuses(RefusedError, f"shelves.imports.{code}", **fields):
        read(path)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("a.csv", f"{BY_PROBLEM}bäse,0,p,1\n".encode("latin-1"), "not_utf8"),
        ("a.parquet", as_parquet([{"problem": "p", "correct": True}])[:300], "not_parquet"),
        ("a.jsonl", b'{"arm": "a", "seed": 0, "problem": "p", "correct": true}\n{\n', "row_not_json"),
        ("a.jsonl", b'{"arm": "a", "seed": 0, "problem": "p", "correct": true}\n[1]\n', "row_not_an_object"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, content: bytes, code: str) -> None:
    (tmp_path / name).write_bytes(content)
    with refuses(RefusedError, f"shelves.imports.{code}"):
        read(tmp_path / name)


def test_blanks_behind_commas_are_no_part_of_a_column(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("arm, seed, problem, correct\nbase, 0, p, 1\n")
    ((cell, run),) = read(tmp_path / "r.csv").items()
    assert cell == ("base", 0) and [one.problem_id for one in run.samples] == ["p"]
