"""The sentence that answers the question, and the card that says what was trained."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.words import said
from reports.measure import analyse
from reports.page.glossary import with_terms
from reports.page.headline import MOST_NAMES, headline, parts
from reports.page.setup import setup_of
from reports.report import ArmRow, CellRow, ContrastRow, EffectRow, Kind, NextStep, Report, ScreeningRow, Way, Within
from reports.statistics.comparison import _verdict
from tests.frozen import frozen
from tests.reports.rewriting import changed
from tests.reports.synthetic import write_sweep


def contrast(arm: str, verdict: str, **fields: Any) -> ContrastRow:
    return ContrastRow(arm=arm, verdict=verdict, **NUMBERS | fields)


NUMBERS: dict[str, Any] = {"baseline": "grpo", "n_pairs": 5, "margin_pp": 1.0} | {
    "difference_pp": 0.5, "low_pp": -0.5, "high_pp": 1.5,
}  # fmt: skip


def step(needed: int | None, seconds: float | None = None, *others: Way) -> NextStep:
    """What would settle a contrast: so many seeds, or one of the other ways."""
    ways = [way("seeds", 5, needed, seconds, f"bench run loss --seeds {needed}"), *others]
    return NextStep(target="difference", sd_pp=1.0, ways=ways, cheapest=None, power=0.8)


def samples(needed: int | None, seconds: float | None) -> Way:
    return way("samples", 4, needed, seconds, f"bench run loss --eval-samples {needed}")


def way(of: Kind, now: int, needed: int | None, seconds: float | None, command: str) -> Way:
    return Way(of=of, now=now, needed=needed, seconds=seconds, command=command, cells=None, level=None, limit=None)


def report(*contrasts: ContrastRow, states: str = "done", **sections: Any) -> Report:
    cells = [CellRow(state=state) for state in ("done", *states.split())]
    return Report(**{"contrasts": contrasts, "cells": cells, "arms": [ArmRow(arm="grpo")]} | sections)


B, W, E, SAME, U, N = "better", "worse", "equivalent", "identical", "inconclusive", "no_test"


def judged(arm: str, verdict: str, low_pp: float | None, high_pp: float | None, **fields: Any) -> ContrastRow:
    middle = None if low_pp is None or high_pp is None else (low_pp + high_pp) / 2
    return contrast(arm, verdict, low_pp=low_pp, high_pp=high_pp, **{"difference_pp": middle} | fields)


BESTS = {"trials": 12, "difference_pp": 1.0, "low_pp": -4.0, "high_pp": 6.0, "settles": False}
TUNED = [judged(arm, U, -5.0, -2.0, bests=BESTS) for arm in "ab"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("a", U, -0.8, 10.8), ("b", U, -6, 0.4)], [("undecided", "ab")]),
        ([("a", U, -0.8, 2), ("b", U, -9, 0.4)], [("undecided", "ba")]),
        ([("a", W, -9, -7), ("b", U, -1, 2), ("c", B, 3, 5)], [("undecided", "b"), ("better", "c"), ("worse", "a")]),
        ([("a", E, -0.5, 0.5), ("b", W, -3, -1)], [("none_better", "ab"), ("worse", "b"), ("equivalent", "a")]),
        ([("a", E, -0.5, 1.0), ("b", SAME, 0, 0)], [("none_better", "ab"), ("equivalent", "a"), ("identical", "b")]),
        ([("a", U, -3, 0.9), ("b", E, -0.5, 0.5)], [("undecided", "a"), ("none_better", "ab"), ("equivalent", "b")]),
        ([("a", U, -3, 1.0), ("b", E, -0.5, 0.5)], [("undecided", "a"), ("equivalent", "b")]),
        ([("a", B, 0.1, 0.6), ("b", E, -0.5, 0.5)], [("better", "a"), ("equivalent", "b")]),
        ([("a", N, None, None), ("b", U, -3, 0.5)], [("undecided", "b"), ("untested", "a")]),
        ([("a", N, None, None), ("b", W, -3, -1)], [("untested", "a"), ("worse", "b")]),
    ],
)
def test_what_is_undecided_comes_first_and_none_is_better_only_where_a_gain_is_excluded(rows, expected):
    """With a margin of 1 pp."""
    assert [
        (code, "".join(row.arm for row in some)) for code, some in parts([judged(*row) for row in rows])
    ] == expected


ENDS = st.tuples(st.floats(-20, 20), st.floats(-20, 20)).map(sorted)


@st.composite
def contrasts(draw: st.DrawFn) -> list[ContrastRow]:
    """Arms as a sweep may judge them: some without a pair, a test or an interval."""
    margin, rows = draw(st.sampled_from([0.0, 1.0, 5.0])), []
    for place in range(draw(st.integers(1, 8))):
        low, high = draw(ENDS)
        verdict = _verdict(draw(st.integers(2, 5)), low, high, margin, draw(st.booleans()) and low == high == 0)
        known = verdict != N and draw(st.booleans() if verdict == U else st.just(True))
        row = judged(f"arm{place}", verdict, low, high, margin_pp=margin)
        unknown = [] if known else ["low_pp", "high_pp"]
        unknown += ["difference_pp"] if verdict == N and draw(st.booleans()) else []
        rows.append(changed(row, **dict.fromkeys(unknown)))
    return rows


@given(contrasts())
def test_undecided_never_reads_as_no(rows: list[ContrastRow]) -> None:
    sentence = headline(report(*rows))
    still = [row for row in rows if row.verdict in (U, N)]
    tested = [row for row in still if row.difference_pp is not None]
    if tested:
        largest = max(tested, key=lambda row: abs(row.difference_pp or 0.0))
        about = "about " if largest.low_pp is None else ""
        assert sentence.startswith("Undecided ")
        assert f": {largest.arm} {about}{largest.difference_pp:+z.1f} pp" in sentence
    elif still:
        assert "be tested" in sentence.partition(";")[0]
    excluded = [
        row.verdict in (W, E, SAME) or (row.high_pp is not None and row.high_pp < row.margin_pp) for row in rows
    ]
    is_none_better = len(rows) > 1 and all(excluded) and not any(row.verdict == B for row in rows)
    assert ("no arm" in sentence.lower()) == is_none_better
    assert all(row.arm in sentence for row in still) or len(still) > MOST_NAMES


def test_tuned_arms_are_undecided_by_the_interval_between_their_bests():
    assert [code for code, _ in parts(TUNED)] == ["undecided"], "a gain of the margin is not excluded between bests"


def effect(verdict: str, knobs: str, *ends: float, within: Sequence[tuple[Any, ...]] = ()) -> EffectRow:
    """An effect of a grid of the knobs a and b, each 0 or 1, whose reference is 0."""
    kind = "main" if len(knobs) == 1 else "interaction"
    at: dict[str, Any] = {"kind": kind, "knobs": [*knobs], "values": [1] * len(knobs), "reference": [0] * len(knobs)}
    sizes = [
        Within(knob=knob, value=value, difference_pp=size, low_pp=low, high_pp=high)
        for knob, value, size, low, high in within
    ]
    return EffectRow(**judged(knobs, verdict, *ends).as_json() | at, within=sizes)


TURNED = [("b", 0, 4.0, 3.0, 5.0), ("b", 1, -4.0, -5.0, -3.0)]
SEEN = [("b", 0, 1.0, -0.5, 2.5), ("b", 1, -5.0, -6.0, -4.0)]
FLAT = [("a", 0, 0.0, -0.5, 0.5), ("a", 1, 0.0, -0.5, 0.5)]


GRIDS = [
    (
        [effect(E, "a", -0.5, 0.5, within=TURNED), effect(E, "b", -0.5, 0.5, within=FLAT), effect(W, "ab", -9, -7)],
        ["turns", W, E, E],
    ),
    ([effect(U, "a", -5, 5, within=TURNED), effect(U, "ab", -9, 7)], ["turns", "undecided"]),
    ([effect(W, "a", -3, -1, within=SEEN), effect(W, "ab", -9, -3)], ["turns", W, W]),
    ([effect(W, "a", -3, -1, within=SEEN), effect(U, "ab", -9, 3)], ["undecided", W]),
    (
        [effect(U, "a", -1, 3, within=[("b", 0, 1, 0.5, 1.5), ("b", 1, 5, 4, 6)]), effect(B, "ab", 3, 5)],
        ["undecided", B],
    ),
]


@pytest.mark.parametrize(("rows", "codes"), GRIDS)
def test_a_grid_whose_effect_turns_round_says_so_before_any_average(rows, codes):
    assert [code for code, _ in parts(rows)] == codes


@pytest.mark.parametrize(
    ("steps", "option"),
    [
        ([step(9), step(14)], "--seeds 14"),
        ([step(9)], "--seeds 9"),
        ([step(9), step(None)], None),
        ([step(9, 600, samples(8, 20)), step(7, 300, samples(12, 40))], "--eval-samples 12"),
        ([step(9, 10, samples(8, 20)), step(7, 5, samples(12, 40))], "--seeds 9"),
        ([step(9, None, samples(8, None)), step(7, None, samples(5, None))], "--seeds 9"),
        # Samples settle only one.
        ([step(9, 600, samples(None, None)), step(7, 300, samples(5, 1))], "--seeds 9"),
        ([step(None, None, samples(8, 20)), step(7, 300, samples(5, 1))], "--eval-samples 8"),
        ([step(9, 600), step(None, None, samples(8, 20))], None),
    ],
)
def test_the_next_step_is_the_cheapest_that_settles_all(steps, option):
    sentence = headline(report(*(contrast(f"arm{i}", U, next_step=one) for i, one in enumerate(steps))))
    options = re.findall("`bench run loss (.*?)`", sentence)
    assert options == ([option] if option else [])


def test_the_sentences() -> None:
    """One of each kind, to be read."""
    screened = ScreeningRow(
        best=["a", "b"], baseline="grpo", command="bench run s", seeds=8, confirmed_in=None, contrasts=[]
    )
    confirmed = changed(screened, confirmed_in="s2", contrasts=[contrast("a", W)])
    few = [judged(arm, N, None, None, difference_pp=size, n_pairs=2) for arm, size in (("a", 1.0), ("b", -5.0))]
    gone = judged("broken", N, None, None, n_pairs=0)
    open_rows = [contrast(arm, U, next_step=step(n)) for arm, n in (("a", 9), ("b", 14), ("c", 9))]
    by_verdict: list[list[tuple[str, str]]] = [
        [("a", B)],
        [("a", E)],
        [("a", U)],
        [("a", W), ("b", W)],
        [("a", B), ("b", B), ("c", W)],
        [("a", B), ("b", SAME), ("c", E), ("d", U)],
        [(name, U) for name in "abcdef"],
    ]
    reports = [
        *(report(*(contrast(*row) for row in rows)) for rows in by_verdict),
        report(*few),
        report(gone),
        report(judged("c", W, -3.0, -1.0), gone),
        report(judged("c", U, None, None, difference_pp=2.0)),
        report(*TUNED),
        *(report(contrast("a", U), interactions=rows) for rows, _ in GRIDS),
        *(report(*open_rows[:n]) for n in (1, 2, 3)),
        report(*open_rows[:2], contrast("d", U)),
        report(*(contrast(arm, U, next_step=step(None, None, samples(5, 20))) for arm in "ab")),
        report(contrast("a", B), states="pending"),
        report(),
        report(contrast("a", B), screening=[screened]),
        report(screening=[confirmed]),
    ]
    frozen("reports/headline", "\n".join(headline(one) for one in reports))


SPEC = {
    "model": {"source": "builtin:tiny", "dtype": "float32", "lora": {"type": "none"}},
    "task": {"train": "arithmetic"},
    "rollout": {"prompts_per_step": 32, "samples_per_prompt": 8, "temperature": 1.0, "max_completion_tokens": 40},
    "objective": {"baseline": "group_mean", "scale": "group_std", "rule": {"type": "ppo_clip", "dual_clip": None},
                  "aggregation": "token_mean", "kl": {"where": "none"}},
    "train": {"steps": 120, "learning_rate": 0.0003, "updates_per_rollout": 1},
    "eval": {"tasks": ["arithmetic", "gsm8k"], "problems": 200, "samples": 16, "temperature": 0.7},
    "budget": {"tokens": 120_000},
}  # fmt: skip
START = {"epoch": 0, "from_step": 0, "time": "2026-11-23T03:14:59Z", "gpu": None, "processor": "a processor",
         "torch_threads": 1, "packages": {"bench-rl": "0.2.0", "torch": "2.13.0", "vllm": None},
         "model": {"parameters": 230_000, "remarks": ["a", "b"]}}  # fmt: skip


def test_the_card_says_what_was_trained_and_how(tmp_path):
    sweep = write_sweep(tmp_path / "records", {"base": 0.0, "none": 1.0}, seeds=1)
    for cell in sweep.cells:
        scale = "none" if cell.arm == "none" else "group_std"
        spec = SPEC | {"objective": SPEC["objective"] | {"scale": scale}}  # type: ignore[operator]
        (cell.path / "spec.json").write_text(json.dumps(spec))
        (cell.path / "starts.jsonl").write_text(json.dumps(START) + "\n")
    setup = setup_of(analyse(sweep))
    assert "train.learning_rate=0.0003\n" in setup.config
    frozen("reports/setup", "\n".join([*(f"{name}: {entry}" for name, entry in setup.entries), setup.citation]))


@pytest.mark.parametrize(
    ("steps", "written"),
    [((31, 32), "31 to 32 steps"), ((31, 31), "31 steps"), ((120, 120), None), ((120, 31), "31 to 120 steps")],
)
def test_the_card_says_where_runs_ended_that_a_budget_stopped(tmp_path, steps, written):
    sweep = write_sweep(tmp_path, {"base": 0.0, "up": 1.0}, seeds=1)
    for cell, step in zip(sweep.cells, steps, strict=True):
        (cell.path / "spec.json").write_text(json.dumps(SPEC))
        cell.write_status("done", step=step)
    budget = dict(setup_of(analyse(sweep)).entries)["Budget"]
    limits = said("reports.budget_or_steps", budget="120k", steps=120)
    ends = "" if written is None else f"; {said('reports.runs_ended_after', steps=written)}"
    assert budget == limits + ends


def test_a_word_is_explained_once_and_never_inside_a_tag_or_a_name():
    from markupsafe import Markup

    html = with_terms(Markup('<a title="interval">interval</a>, intervals, my_interval, margin'))
    assert html.count("<abbr") == 2
    assert html.startswith('<a title="interval"><abbr ')
    assert "my_interval" in html and ">margin</abbr>" in html
