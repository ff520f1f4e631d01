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


@settings(max_examples=25, deadline=None)
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arm,seed,problem\na,0,p\n", "has no column correct"),
        ("arm,seed,problm,correct\na,0,p,1\n", "has no column problem; did you mean problm?"),
        (
            "arm,seed,problem,correct\na,0,p,maybe\n",
            "row 2, column correct: is 'maybe', but must be true, false, 1 or 0",
        ),
        ("arm,seed,problem,correct\na,0,p,1\na,0,q,\n", "row 3, column correct: is empty"),
        ("arm,seed,problem,correct\na,one,p,1\n", "row 2, column seed: is 'one', but must be a whole number from 0"),
        ("arm,seed,problem,correct\na,-1,p,1\n", "row 2, column seed: is '-1'"),
        ("arm,seed,problem,correct\na,inf,p,1\n", "row 2, column seed: is 'inf'"),
        ("arm,seed,problem,correct\na,0,p,1\na,0,p,0\n", "row 3: has the same key as row 2 "),
        ("arm,seed,problem,correct\na,0,p\n", "row 2: has fewer values than the 4 columns"),
        ("arm,seed,problem,correct\na,0,p,1,9\n", "row 2: has more values than the 4 columns"),
        ("arm,seed,metric,value\na,0,accuracy,nan\n", "row 2, column value: is 'nan', but must be a finite number"),
        ("arm,seed,problem,correct,metric\na,0,p,1,m\n", "has the columns correct and metric"),
        ("arm,seed,problem,correct,config.lr\na,0,p,1,.1\na,0,q,1,.2\n", "row 3, column config.lr: is '.2', but"),
        ("arm,seed,problem,correct\n", "holds no rows"),
        ("", "holds no rows"),
        (
            "Arm,Seed,Problem,Correct\na,0,p,1\n",
            "has no column metric. It has Arm, Seed, Problem, Correct. Columns are",
        ),
        ("arm;seed;problem;correct\na;0;p;1\n", "has no column metric. It has arm;seed;problem;correct. Columns are"),
        (
            "model,seed,problem,correct\na,0,p,1\nb,0,p,1\n",
            "as row 2 (0, results, p). If they differ, add the column",
        ),
        (
            "arm,seed,problem,correct\na,0,p,1\nb,0,q,1\n",
            "b seed 0: has no sample of problem p of results, which a seed 0 has",
        ),
        (
            "arm,seed,problem,sample,correct\na,0,p,0,1\na,0,p,1,1\na,0,q,0,1\n",
            "a seed 0: has 1 samples of problem q of results, but 2 of p",
        ),
        ("arm,seed,task,metric,value\na,0,s,accuracy,1\nb,0,t,accuracy,1\n", "a seed 0: has no final evaluation on t"),
    ],
)
def test_a_wrong_or_partial_table_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "results.csv"
    path.write_text(text)
    with pytest.raises(RefusedError) as refused:
        read(path)
    assert message in str(refused.value)
    assert str(path) in str(refused.value) or " seed 0: has" in message


def test_a_file_that_cannot_be_read_is_refused_in_its_own_words(tmp_path: Path) -> None:
    latin, cut = tmp_path / "latin.csv", tmp_path / "cut.parquet"
    latin.write_bytes("arm,seed,problem,correct\nbäse,0,p,1\n".encode("latin-1"))
    cut.write_bytes(as_parquet([{"problem": "p", "correct": True}])[:300])
    for path, message in ((latin, "is not UTF-8 text"), (cut, "is not a complete Parquet file. Write it again.")):
        with pytest.raises(RefusedError, match=message):
            read(path)


def test_blanks_behind_commas_are_no_part_of_a_column(tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text("arm, seed, problem, correct\nbase, 0, p, 1\n")
    ((cell, run),) = read(tmp_path / "r.csv").items()
    assert cell == ("base", 0) and [one.problem_id for one in run.samples] == ["p"]


@pytest.mark.parametrize(
    ("line", "message"), [("{", "row 2: is no JSON"), ("[1]", "row 2: is [1], but must be a JSON")]
)
def test_a_line_that_is_no_object_is_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"arm": "a", "seed": 0, "problem": "p", "correct": true}\n' + line + "\n")
    with pytest.raises(RefusedError) as refused:
        read(path)
    assert message in str(refused.value)
