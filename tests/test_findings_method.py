"""What the findings say over all runs: what was known before, what counts once, where noise came from."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from docs.findings.answer import Kept, cells_of, distinct_contrasts, judged_coverage
from docs.findings.method import ONE_SEED_SDS, _again, _budget, _few, _main_part, _saving, _visible_row
from docs.findings.page import _registered
from docs.findings.sharpening import CEILING, section
from docs.findings.source import read_findings
from reports.report import (
    CellRow,
    ContrastRow,
    CoverageRow,
    ErrorBudget,
    Node,
    RegistrationRow,
    Report,
    Share,
    Variance,
)
from reports.statistics import power

ABOUT_ALL = next(one for one in read_findings() if one.about == "coverage")


def node(kind: type[Node], **fields: Any) -> Any:
    """A part of a report with these fields only."""
    return kind.model_construct(**fields)


def run_of(name: str, at: str, cells: dict[str, list[str]], words: Sequence[str] = (), weights: str = "") -> Kept:
    """A run that was registered at a time. cells: of each arm, the baseline first. words: of each, its coverage.
    weights: what training gave on its machine."""
    kept = Kept(Path(name))
    arms = [*cells]
    hashes = [node(CellRow, arm=arm, hash=one, digest=weights) for arm, found in cells.items() for one in found]
    contrasts = [node(ContrastRow, arm=arm, baseline=arms[0], differences_pp=[1.0]) for arm in arms[1:]]
    coverage = [
        node(CoverageRow, arm=arm, against=None, task="sums", word=word, k=[1, 16], low_pp=None)
        for arm, word in zip(arms, words, strict=False)
    ]
    vars(kept)["sweep"] = SimpleNamespace(baseline=arms[0], arms=arms)
    registered = [node(RegistrationRow, time=at, sentence="Registered before the first cell.")]
    vars(kept)["report"] = node(Report, registration=registered, cells=hashes, contrasts=contrasts, coverage=coverage)
    return kept


def table_of(page: str) -> list[list[str]]:
    """Return the cells of the rows below the heading."""
    return [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")][2:]


def test_a_page_says_what_was_known_when_a_run_was_registered() -> None:
    """Two sweeps may train the same cells under other names."""
    first = run_of("first", "2026-01-01", {"grpo": ["a", "b"], "none": ["c", "d"], "other": ["e", "f"]})
    alike = run_of("alike", "2026-01-02", {"group": ["a", "b"], "batch": ["c", "d"], "new": ["x", "y"]})
    third = run_of("third", "2026-01-03", {"weak": ["m", "n"], "batch": ["c", "d"]})
    again = run_of("again", "2026-01-04", {"grpo": ["a"], "none": ["c"], "fresh": ["z"]}, weights="others")
    runs = [again, first, alike, third]
    said = [_registered(one, runs).partition("first cell. ")[2] for one in runs]
    assert [re.findall(r"\d+", one) for one in said] == [["2", "3"], [], ["4", "6"], ["2", "4"]]
    assert ["repeat" in one for one in said] == [True, False, False, False], "the others reuse cells"
    assert [re.findall(r"first had already compared (\w+)", one) for one in said] == [["none"], [], ["batch"], []]
    assert [row.arm for row in distinct_contrasts(runs[1:])] == ["none", "other", "new", "batch"]
    assert len(distinct_contrasts(runs)) == 6, "cells that were trained again are a comparison of their own"
    assert len(cells_of(runs)) == 3 + 6 + 2 + 2


def test_an_arm_counts_once_in_the_claim_about_all_runs() -> None:
    """And the page says where the model before training leaves nothing to discover."""
    first = run_of("first", "2026-01-01", {"grpo": ["a"], "none": ["b"]}, ["sharpened", "both"])
    alike = run_of("alike", "2026-01-02", {"group": ["a"], "new": ["x"]}, ["sharpened", "cannot tell"])
    runs = [first, alike]
    runs += [run_of(name, "2026-01-03", {"arm": [name]}, ["both"]) for name in ("full", "unmeasured")]
    for one, before in zip(runs, (0.99, 0.5, CEILING, None), strict=True):
        vars(one)["before"] = {"pass@16": before}
    found = judged_coverage(runs)
    assert [one.outcome for one in found[:3]] == ["shown", "refuted", "undecided"]
    table = table_of(section(ABOUT_ALL, found, runs))
    assert table[:2] == [["first", "16", "99%", "no", "1", "1", "0"], ["alike", "16", "50%", "yes", "0", "0", "1"]]
    assert [row[3] for row in table[2:]] == ["no", "unknown"]


def test_the_parts_of_the_noise_add_up() -> None:
    """A report has the sd that each part adds to the mean over 4 seeds, the page that of one seed."""
    differences = [0.0, 4.0, 0.0, 4.0]  # their variance is 16 / 3, that of their mean 4 / 3
    parts = {"seeds": 0.75, "seeds_x_problems": 0.25, "sampling": 1 / 3, "problems": 0.25}
    found = {part: node(Share, sd_pp=variance**0.5) for part, variance in parts.items()}
    over_new = node(ErrorBudget, parts=found)
    budget = node(Variance, refused=None, n_seeds=4, new_problems=over_new)
    refused = node(ContrastRow, differences_pp=[0.0, 90.0], variance=node(Variance, refused="why"))
    kept = Kept(Path("mine"))
    vars(kept)["sweep"] = SimpleNamespace(seeds=range(4))
    measured = node(ContrastRow, differences_pp=differences, variance=budget)
    vars(kept)["report"] = node(Report, contrasts=[measured, refused])
    assert "25%" in _main_part([kept]), "a third of 4 / 3"
    assert table_of(_budget([kept]))[-1] == ["mine", "4", "2.31", "1.73", "1.00", "1.15", "0.50"]
    assert math.isclose(np.var(differences, ddof=1), 1.73**2 + 1.00**2 + 1.15**2, rel_tol=0.01)


def test_cells_that_were_trained_again_are_compared_with_the_first() -> None:
    """Only those whose weights differ: the same weights are another evaluation, or the same cell in another sweep."""
    cells = {"first": [("a", 80.0), ("b", 70.0), ("c", 60.0)], "again": [("A", 81.0), ("B", 73.0), ("c", 0.0)]}
    cells["other"] = [("A", 81.0), ("B", 73.0), ("C", 65.0)]  # one change only
    runs = []
    for day, (name, trained) in enumerate(cells.items()):
        run = run_of(name, f"2026-01-0{day + 1}", {"arm": []})
        rows = [
            node(CellRow, hash=str(place), digest=digest, score_pp=score)
            for place, (digest, score) in enumerate(trained)
        ]
        vars(run)["report"] = run.report.model_copy(update={"cells": rows})
        runs.append(run)
    assert table_of(_again(runs[::-1])) == [["again", "2", "+2.00", "1.41"]]
    assert _again(runs[:1]) == ""


def test_few_seeds_see_large_effects_only() -> None:
    at_three = power(1.0, n=3).effect
    assert at_three > ONE_SEED_SDS, "three seeds must find out the sd too"
    effects = [(0.1, 1.0), (at_three * 1.01, 1.0), (ONE_SEED_SDS * 0.99, 1.0), (at_three * 2, 2.1)]
    assert _visible_row("", effects)[1:] == ["4", "2", "1", "3"]
    assert re.findall(r"(\d) with (\d) seeds", _few(effects)) == [("1", "3"), ("3", "6")]


def test_pairing_is_summed_up_over_runs() -> None:
    runs = [Kept(Path(name)) for name in ("half", "none")]
    for run, ratio in zip(runs, (0.5, 0.95), strict=True):
        contrasts = [node(ContrastRow, variance_ratio=one) for one in (ratio, None)]
        vars(run)["report"] = node(Report, contrasts=contrasts)
    assert re.search(r"\b1 of 2\b.*\btenth in 1\b", _saving(runs))
    assert "unknown" in _saving([])
