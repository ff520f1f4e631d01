from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.records import SweepRecord
from harness.records.embeddings import REFLECTION_WORDS
from harness.words import said
from reports.figures import FIGURES
from reports.measure import analyse
from reports.page import write_report
from reports.shelves import reflection as reflection_module
from reports.shelves.reflection import ArmWords, Reflection, read_reflection, reflection_table
from reports.shelves.reflection.curves import FREQUENCY, LOGP, MOST_POINTS, RATIO, word_curves
from reports.shelves.reflection.tally import (
    OTHER,
    WORD,
    CellCompletions,
    Count,
    Sum,
    tally,
    tokens_of_words,
    word_pattern,
)
from tests.frozen import frozen
from tests.reports.rewriting import write_steps
from tests.reports.synthetic import write_sweep
from tests.reports.synthetic_rollouts import recorded, write_rows


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Wait, no. wait! WAIT", ["Wait", "wait", "WAIT"]),
        ("Waiting waits await waiter_wait", []),
        ("Let me  check. let\nme check", ["Let me  check", "let\nme check"]),
        ("let me see", ["let me"]),
        ("a+b (a+b) ca+b", ["a+b", "a+b"]),
        ("", []),
    ],
)
def test_whole_words_in_any_case(text: str, found: list[str]) -> None:
    words = ["wait", "let me", "Let me check", "a+b"]
    assert word_pattern(words).findall(text) == found


def test_a_word_is_all_tokens_that_wrote_a_part_of_it() -> None:
    """`Recheck` in two tokens, the first with the space before it; a token of no characters within it belongs to it."""
    tokens = ["So", " Re", "", "check", "ed", " Recheck", "."]
    inside = tokens_of_words(word_pattern(["recheck"]), "So Rechecked Recheck.", np.array(list(map(len, tokens))))
    assert inside.tolist() == [False] * 5 + [True, False]
    inside = tokens_of_words(word_pattern(["recheck"]), "So Recheck", np.array(list(map(len, tokens[:4]))))
    assert inside.tolist() == [False, True, True, True]


@given(st.lists(st.sampled_from(["Wait", " wait", ",", " 1", "ed", " ", "Aha"]), min_size=1, max_size=12))
def test_the_marked_tokens_hold_every_match(tokens: list[str]) -> None:
    """Seen character by character."""
    text, pattern = "".join(tokens), word_pattern(["wait", "aha"])
    marked = {place for match in pattern.finditer(text) for place in range(*match.span())}
    ends = np.cumsum([len(token) for token in tokens])
    expected = [bool(marked & set(range(end - len(token), end))) for token, end in zip(tokens, ends, strict=True)]
    assert tokens_of_words(pattern, text, np.array([len(token) for token in tokens])).tolist() == expected


ANY = "any of them"
ROWS = [
    recorded(1, "Wait, 1+1=2", True, {"token/logp": [-4.0, -0.1, -0.2, -0.3, -0.4, -0.5, -0.6]}),
    recorded(1, "1+1=3", False),
    # Not learned from: counted, but nothing of its tokens.
    recorded(1, "Wait wait", False)
    | dict.fromkeys(
        [
            f"token/{name}"
            for name in ("chars", "logp", "entropy", "advantage", "update", "log_ratio", "clipped", "masked")
        ]
    ),
    recorded(
        2,
        "Aha 2",
        True,
        {
            "token/entropy": [2.0, 1.0],
            "token/advantage": [1.5, -1.5],
            "token/update": [1, 2],
            "token/log_ratio": [[math.log(3.0), math.log(2.0)], None],
            "token/clipped": [[True, False], None],
            "token/masked": [[False, True], None],
        },
        epochs=2,
    ),
]
"""7, 5, 2 and 2 tokens."""


def one_cell(folder: Any, rows: list[dict[str, Any]] = ROWS, arms: int = 1) -> SweepRecord:
    sweep = write_sweep(folder, {f"arm{index}": 0.0 for index in range(arms)}, seeds=1)
    for cell in sweep.cells:
        write_rows(cell.path, rows)
        steps = [{"step": step, "generated_tokens": 100 * step} for step in sorted({row["step"] for row in rows})]
        write_steps(cell, steps)
    return sweep


def reflection_of(sweep: SweepRecord, words: tuple[str, ...] = REFLECTION_WORDS) -> Reflection:
    return read_reflection(analyse(sweep, words))


def near(*numbers: float) -> tuple[Any, ...]:
    return tuple(pytest.approx(number) for number in numbers)


def row_of(reflection: Reflection, word: str) -> ArmWords:
    (row,) = [row for row in reflection.arms if row.word == word]
    return row


def test_by_hand(tmp_path: Any) -> None:
    """Words: `Wait` of 14 tokens in step 1, twice more in what was not learned from; `Aha` of 2 in step 2."""
    row = row_of(reflection_of(one_cell(tmp_path)), ANY)
    assert (row.n_occurrences, row.n_completions_with, row.n_tokens_recorded) == (4, 3, 2)
    assert row.first_per_1000_tokens == pytest.approx(1000 * 3 / 14)
    assert row.last_per_1000_tokens == pytest.approx(1000 * 1 / 2)
    assert (row.right_frac_with, row.right_frac_without) == near(2 / 3, 0.0)
    assert (row.logp_nats, row.entropy_nats) == near((-4 - 1) / 2, (0.5 + 2) / 2)
    assert row.other_logp_nats == pytest.approx((-2.1 - 5 * 1.0 - 1.0) / 12)
    assert row.other_entropy_nats == pytest.approx((11 * 0.5 + 1) / 12)
    assert (row.advantage, row.other_advantage) == near(1.75 / 2, (11 * 0.25 - 1.5) / 12)
    # Scored: `Wait` once at ratio 1, `Aha` once at 3; the other 11 once at 1, and ` 2` once at 2.
    assert (row.ratio, row.other_ratio) == near(2.0, (11 + 2) / 12)
    assert row.ratio_by_update == [pytest.approx(1.0), pytest.approx(3.0)]
    assert row.other_ratio_by_update == [pytest.approx(1.0), pytest.approx(2.0)]
    assert (row.bounded_frac, row.other_bounded_frac) == near(1 / 2, 1 / 12)


def test_each_word_by_itself_and_seeds_together(tmp_path: Any) -> None:
    reflection = reflection_of(one_cell(tmp_path / "one"))
    assert {row.word for row in reflection.arms} == {ANY, "Wait", "Aha"}  # and not those that do not occur
    wait, aha = (row_of(reflection, word) for word in ("Wait", "Aha"))
    assert (wait.n_occurrences, aha.n_occurrences) == (3, 1)
    assert (wait.right_frac_with, aha.right_frac_with) == (0.5, 1.0)
    assert (wait.first_per_1000_tokens, aha.first_per_1000_tokens) == near(3000 / 14, 0.0)
    assert aha.ratio == pytest.approx(3.0)
    sweep = write_sweep(tmp_path / "two", {"arm": 0.0}, seeds=2)
    write_rows(sweep.cells[0].path, [recorded(1, "Wait", True), recorded(1, "1 2 3", True)])
    write_rows(sweep.cells[1].path, [recorded(1, "1 2 3 4 5 6", False)])
    row = row_of(reflection_of(sweep), "Wait")
    assert row.first_per_1000_tokens == pytest.approx(1000 / 10)
    assert (row.right_frac_with, row.right_frac_without) == (1.0, 0.5)
    once, twice = (reflection_of(sweep, words) for words in (("Wait", "aha"), ("Wait", "aha", "wait")))
    assert once.words == twice.words == ("Wait", "aha") and once.arms == twice.arms


def test_of_many_cells_some_are_looked_at(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = one_cell(tmp_path, arms=5)
    monkeypatch.setattr("reports.shelves.reflection.MOST_FILES", 6)
    assert {row.arm for row in reflection_of(sweep).arms} == {"arm0", "arm2", "arm4"}
    monkeypatch.setattr("reports.shelves.reflection.MOST_FILES", 10)
    assert len({row.arm for row in reflection_of(sweep).arms}) == 5


def test_the_first_point_is_the_model_before_any_update(tmp_path: Any) -> None:
    rows = [recorded(step, "Wait 1" if step in (1, 3) else "1 2", True) for step in range(1, 2 * MOST_POINTS + 2)]
    analysis = analyse(one_cell(tmp_path, rows))
    curves = word_curves(analysis, FREQUENCY.word)
    line = curves["arm0"].lines[0]
    assert len(line.x) == MOST_POINTS + 1
    # The first rollout, at 0 generated tokens; then two steps a point: 2 and 3, drawn after 100 and 200 tokens.
    assert (line.x[0], line.y[0]) == (0, pytest.approx(500))
    assert (line.x[1], line.y[1]) == (150, pytest.approx(250))
    assert line.y[2:].tolist() == [0] * (MOST_POINTS - 1)
    (logp,) = word_curves(analysis, LOGP.word)["arm0"].lines
    assert logp.x.tolist() == [0, 150], "a stretch without the words has no point"


def test_a_row_for_each_word_that_occurs_and_for_several_together(tmp_path: Any) -> None:
    both = reflection_table(reflection_of(one_cell(tmp_path / "both")))
    assert [row[:2] for row in both.rows] == [["arm0", ANY], ["arm0", "Wait"], ["arm0", "Aha"]]
    assert all(len(row) == len(both.columns) for row in both.rows)
    cells = dict(zip(both.columns, both.rows[0], strict=True))
    expected = {
        "ratio, first to last": "1.000 to 3.000 / 1.000 to 2.000",
        "occurrences": "4 in 3",
        "log-prob": "-2.5 / -0.675",
        "clipped or masked": "50% / 8.33%",
    }
    assert cells.items() >= expected.items()
    alone = reflection_table(reflection_of(one_cell(tmp_path / "alone", [recorded(1, "Wait, Wait", True)])))
    assert [row[:2] for row in alone.rows] == [["arm0", "Wait"]]


def test_the_data_of_a_figure_has_both_sides(tmp_path: Any) -> None:
    drawing = FIGURES.find("reflection_update").draw(analyse(one_cell(tmp_path, arms=2)))
    assert drawing is not None
    first = drawing.rows[0]
    assert (first["arm"], first["generated_tokens"]) == ("arm0", 0.0)
    assert (first["ratio"], first["other_ratio"]) == near(1.0, 1.0)
    assert [row["arm"] for row in drawing.rows] == ["arm0", "arm0", "arm1", "arm1"]
    assert drawing.rows[1]["other_advantage"] == pytest.approx(-1.5)
    assert RATIO.heading == "importance ratio"


def without_token_records(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if not name.startswith("token/")} for row in rows]


def test_of_arms_without_token_records_only_the_text_is_told(tmp_path: Any) -> None:
    analysis = analyse(one_cell(tmp_path, without_token_records(ROWS)))
    row = row_of(read_reflection(analysis), ANY)
    assert (row.n_occurrences, row.n_tokens_recorded) == (4, 0)
    assert (row.logp_nats, row.ratio, row.bounded_frac, row.other_logp_nats) == (None, None, None, None)
    assert FIGURES.find("reflection_words").draw(analysis) is not None
    assert FIGURES.find("reflection_policy").draw(analysis) is None


def test_the_notes_under_the_table(tmp_path: Any) -> None:
    """One of each kind, to be read."""
    never = [recorded(1, "1", True)]
    cells: dict[str, list[list[dict[str, Any]]]] = {
        "all": [ROWS],
        "some": [ROWS, [recorded(1, "Wait, hmm", True)]],
        "one arm": [ROWS, never],
        "no word": [never],
        "no rollouts": [[]],
        "no token": [without_token_records(ROWS)],
    }
    lines = []
    for name, by_arm in cells.items():
        sweep = one_cell(tmp_path / name, arms=len(by_arm))
        for cell, rows in zip(sweep.cells, by_arm, strict=True):
            write_rows(cell.path, rows)
            if not rows:
                shutil.rmtree(cell.rollouts)
        lines.append(f"{name}: {reflection_table(reflection_of(sweep, ('Wait', 'Aha', 'Hmm'))).note}")
    frozen("reports/reflection", "\n".join(lines))


@pytest.mark.parametrize(("most", "read"), [(240, 6), (4, 4)])
def test_the_page_says_how_many_of_the_recorded_files_were_read(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, most: int, read: int
) -> None:
    monkeypatch.setattr(reflection_module, "MOST_FILES", most)
    sweep = one_cell(tmp_path, arms=2)
    for cell in sweep.cells:
        for step in (11, 21):
            shutil.copy(cell.rollouts / "000001-000001.parquet", cell.rollouts / f"{step:06d}-{step:06d}.parquet")
    found = reflection_of(sweep)
    assert (found.n_read, found.n_files) == (read, 6)
    room = "reports.shelves.reflection"
    expected = said(f"{room}.all_completions_read")
    if read < 6:
        expected = said(f"{room}.some_completions_read", n_read=read, n_files=6)
    assert found.coverage == expected and expected in reflection_table(found).note


def test_the_words_are_a_setting(no_figures: None, tmp_path: Any) -> None:
    sweep = one_cell(tmp_path / "records")
    document = write_report(sweep, tmp_path / "report", ["Aha"])
    assert [row["word"] for row in document.reflection] == [ANY, "Aha"]
    assert json.dumps(document.reflection)
    (row,) = reflection_of(sweep, ("Aha",)).arms[:1]
    assert document.reflection[0] == asdict(row)
    assert write_report(sweep, tmp_path / "other", ["Hmm"]).reflection == []
    assert [("Hmm" in (tmp_path / name / "report.md").read_text()) for name in ("report", "other")] == [False, True]


TEXTS = st.lists(st.sampled_from(["Wait", " wait", ",", " 1", "ed", " Aha"]), min_size=1, max_size=5)


@given(st.lists(st.tuples(st.integers(1, 3), TEXTS, st.booleans(), st.integers(0, 2)), min_size=1, max_size=6))
def test_sums_are_those_of_a_slow_loop(made: list[tuple[int, list[str], bool, int]]) -> None:
    """Rows in any order of steps, with tokens that are recorded or not, scored at no, one or two optimiser steps."""
    rng, pattern = np.random.default_rng(len(made)), word_pattern(["wait", "aha"])
    rows: list[dict[str, Any]] = []
    for step, tokens, correct, epochs in made:
        values = rng.normal(size=(3 + epochs, len(tokens)))
        row: dict[str, Any] = {"step": step, "text": "".join(tokens), "correct": correct, "tokens": list(tokens)}
        row |= {"token/chars": [len(token) for token in tokens], "token/update": list(range(epochs))}
        row |= dict(zip(("token/logp", "token/entropy", "token/advantage"), values.tolist(), strict=False))
        row |= {"token/log_ratio": values[3:].tolist(), "token/clipped": (values[3:] > 0.5).tolist()}
        rows.append(row | {"token/masked": (values[3:] < -0.5).tolist()})
    table = pa.table({name: [row[name] for row in rows] for name in rows[0]}, schema=_schema())
    texts = [row["text"] for row in rows]
    got = tally(
        CellCompletions.of(texts, table), pattern, [row for row, text in enumerate(texts) if pattern.search(text)]
    )

    steps = sorted({row["step"] for row in rows})
    sums, ratios = np.zeros((len(steps), 2, len(Sum))), np.zeros((2, 2, 2))
    for row in rows:
        chars = np.array(row["token/chars"])
        for token, inside in enumerate(tokens_of_words(pattern, row["text"], chars)):
            at = sums[steps.index(row["step"]), WORD if inside else OTHER]
            at[Sum.RECORDED] += 1
            for place, name in ((Sum.LOGP, "logp"), (Sum.ENTROPY, "entropy"), (Sum.ADVANTAGE, "advantage")):
                at[place] += row[f"token/{name}"][token]
            for epoch, log_ratio in enumerate(row["token/log_ratio"]):
                at[Sum.SEEN] += 1
                at[Sum.RATIO] += math.exp(log_ratio[token])
                at[Sum.BOUNDED] += abs(log_ratio[token]) > 0.5
                ratios[epoch, WORD if inside else OTHER] += (1, math.exp(log_ratio[token]))
    np.testing.assert_allclose(got.sums, sums, atol=1e-5)
    np.testing.assert_allclose(got.ratios, ratios[: len(got.ratios)], atol=1e-5)
    assert got.steps.tolist() == steps
    occurrences = [len(pattern.findall(row["text"])) for row in rows]
    assert got.counts[:, Count.OCCURRENCES].sum() == np.sum(occurrences)


def _schema() -> pa.Schema:
    reals, flags = pa.list_(pa.float64()), pa.list_(pa.bool_())
    return pa.schema(
        {"step": pa.int64(), "text": pa.string(), "correct": pa.bool_(), "tokens": pa.list_(pa.string())}
        | dict.fromkeys(["token/chars", "token/update"], pa.list_(pa.int64()))
        | dict.fromkeys(["token/logp", "token/entropy", "token/advantage"], reals)
        | {"token/log_ratio": pa.list_(reals)}
        | dict.fromkeys(["token/clipped", "token/masked"], pa.list_(flags))
    )
