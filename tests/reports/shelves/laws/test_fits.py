from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from algorithms import preset
from harness.records import SweepRecord
from harness.words import said
from reports.measure import Analysis, analyse
from reports.page.document import report_document
from reports.shelves.laws.law_fits import EntropyFit, entropy_fits, entropy_interventions
from reports.shelves.laws.page import law_tables
from reports.statistics import compare_paired
from tests.frozen import frozen
from tests.reports.rewriting import add_tasks, rewrite_rows, write_spec, write_steps
from tests.reports.synthetic import TASK, write_sweep

pytestmark = pytest.mark.slow

A, B = 0.2, 0.9


Row = dict[str, Any]


def numbers(sentence: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", sentence)]


def follow_the_law(row: Row, a: float = A, b: float = B) -> Row:
    """A reward on the law of the recorded entropy, with noise that the step determines."""
    noise = np.random.default_rng(row["step"]).normal(0, 0.005)
    return row | {"reward/mean": b - a * math.exp(row["entropy/full"]) + noise}


@pytest.fixture
def sweep(tmp_path):
    written = write_sweep(tmp_path, {"base": 0.0, "up": 1.0}, seeds=3)
    rewrite_rows(written, "steps.jsonl", follow_the_law)
    return written


def fit_of(
    analysis: Analysis, arm: str, seed: int | None = None, target: str = "training reward", kind: str = "full"
) -> EntropyFit:
    (found,) = (
        fit
        for fit in entropy_fits(analysis)
        if (fit.arm, fit.seed, fit.target.name, fit.entropy) == (arm, seed, target, kind)
    )
    return found


def law_rows(sweep: SweepRecord, **wanted: Any) -> list[Row]:
    rows = report_document(analyse(sweep)).laws
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def pooled_row(sweep: SweepRecord, arm: str = "base", target: str = "training reward", **wanted: Any) -> Row:
    (row,) = law_rows(sweep, law="entropy", arm=arm, seed=None, target=target, entropy="full", **wanted)
    return row


def remark(sweep: SweepRecord, arm: str = "base") -> str:
    """What the page says of the law of an arm's training reward."""
    table, *_ = law_tables(analyse(sweep))
    return next(line[-1] for line in table.rows if line[:2] == [arm, "training reward"])


def test_every_arm_pooled_and_by_seed_for_each_target_and_kind_of_entropy(sweep):
    rows = law_rows(sweep, law="entropy")
    combinations = {(row["arm"], row["seed"], row["target"], row["entropy"]) for row in rows}
    assert len(combinations) == len(rows) == 2 * (1 + 3) * 2 * 2
    assert {row["target"] for row in rows} == {"training reward", f"pass@1 of {TASK}"}
    assert {row["task"]: row["unit"] for row in rows} == {None: "reward", TASK: "pp"}


def test_the_law_is_recovered_pooled_and_by_seed(sweep):
    for seed in (None, 0, 1, 2):
        (row,) = law_rows(sweep, law="entropy", arm="base", seed=seed, target="training reward", entropy="full")
        assert (row["a"], row["b"], row["ceiling"]) == pytest.approx((A, B, B - A), abs=0.02)
        assert row["a_low"] < row["a"] < row["a_high"]
        assert row["ceiling_low"] < row["ceiling"] < row["ceiling_high"]
        assert row["level"] == 0.95
        assert row["r2"] > 0.98
        assert row["refused"] is None
        assert row["forecast"]["beats"] is True
        assert row["n_points"] == (120 if seed is None else 40)
        assert (row["block_points"] is None) == (seed is None)


def test_a_task_s_score_is_fitted_in_percent_at_the_steps_it_was_evaluated_at(sweep):
    analysis = analyse(sweep)
    fit = fit_of(analysis, "base", target=f"pass@1 of {TASK}")
    cell = analysis.measurements["base"][0].cell
    scores = {row["step"]: 100 * (row["metrics"]["pass@1"] or 0.0) for row in cell.read_scores()}
    entropies = {row["step"]: row["entropy/full"] for row in cell.read_steps()}
    run = fit.runs[0]
    assert sorted(scores) == [10, 20, 30, 40] and run.step.tolist() == [0, 10, 20, 30, 40]
    assert run.reward.tolist() == pytest.approx([35, *(scores[step] for step in run.step[1:])])
    # The model before training has the entropy of the first step.
    assert run.entropy.tolist() == pytest.approx([entropies[1], *(entropies[step] for step in run.step[1:])])


def test_each_task_has_a_law_of_its_own(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=3, tasks=[TASK, "second"], base_scores=[])
    add_tasks(sweep, {"second": -0.2})
    first, second = (
        law_rows(sweep, law="entropy", seed=None, entropy="full", task=task)[0] for task in (TASK, "second")
    )
    assert second["b"] == pytest.approx(first["b"] - 20)
    assert second["a"] == pytest.approx(first["a"])


def test_ceilings_are_compared_with_the_baseline_s_by_seed(sweep):
    rewrite_rows(sweep, "steps.jsonl", lambda row: follow_the_law(row, b=B + 0.1 + 0.001 * (row["step"] % 3)), arm="up")
    analysis = analyse(sweep)
    laws = {arm: [fit_of(analysis, arm, seed).law for seed in range(3)] for arm in ("up", "base")}
    own, other = ([law.ceiling for law in laws[arm] if law is not None] for arm in ("up", "base"))
    row, expected = pooled_row(sweep, "up"), compare_paired(own, other)
    assert row["ceiling_difference"] == pytest.approx(expected.difference)
    assert row["ceiling_difference"] == pytest.approx(0.1, abs=0.02)
    assert (row["ceiling_difference_low"], row["ceiling_difference_high"]) == pytest.approx(
        (expected.low, expected.high)
    )
    assert row["ceiling_difference_n"] == 3
    assert pooled_row(sweep)["ceiling_difference"] is None


def test_few_evaluations_are_refused_and_have_no_forecast(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=2)
    target = f"pass@1 of {TASK}"
    (single,) = law_rows(sweep, law="entropy", seed=0, target=target, entropy="full")
    assert numbers(single["refused"])[0] == 5
    pooled = pooled_row(sweep, target=target)
    assert pooled["refused"] is None
    assert pooled["forecast"] is None and numbers(pooled["forecast_refused"])[0] == 4


def rising(sweep: SweepRecord) -> None:
    rewrite_rows(sweep, "steps.jsonl", lambda row: follow_the_law(row, a=-A))


def no_law(sweep: SweepRecord) -> None:
    rng = np.random.default_rng(0)
    rewrite_rows(sweep, "steps.jsonl", lambda row: row | {"reward/mean": 0.3 + rng.normal(0, 0.05)})


def test_a_reward_that_rises_with_entropy_has_no_ceiling(sweep):
    rising(sweep)
    row = pooled_row(sweep)
    assert row["a"] < 0 and row["ceiling"] is None and row["ceiling_low"] is None


def narrow(sweep: SweepRecord) -> None:
    rewrite_rows(sweep, "steps.jsonl", lambda row: row | {"entropy/full": 0.5 + 0.0001 * row["step"]}, arm="base")


def linear(sweep: SweepRecord) -> None:
    """A reward that is linear in the entropy has c = 0, and a ceiling that exp(H) puts elsewhere."""
    rng = np.random.default_rng(0)
    rewrite_rows(
        sweep, "steps.jsonl", lambda row: row | {"reward/mean": 1 - 0.5 * row["entropy/full"] + rng.normal(0, 0.005)}
    )


def intervening(sweep: SweepRecord) -> None:
    write_spec(sweep, "base", {"objective": preset("dapo").model_dump(), "rollout": {"temperature": 1.2}})


def test_the_remarks_of_the_page(tmp_path):
    """One of each kind, to be read."""
    lines = []
    for change in (None, narrow, rising, no_law, linear, intervening):
        name = "as recorded" if change is None else change.__name__
        sweep = write_sweep(tmp_path / name, {"base": 0.0, "up": 1.0}, seeds=3)
        rewrite_rows(sweep, "steps.jsonl", follow_the_law)
        if change is not None:
            change(sweep)
        lines.append(f"{name}: {remark(sweep)}")
    frozen("reports/laws", "\n".join(lines))


def test_seeds_are_not_chosen_by_the_sign_of_their_a(sweep):
    """Where the reward hardly follows the entropy, a < 0 for some seeds: their lines count at H = 0 as well."""
    rng = np.random.default_rng(3)
    rewrite_rows(sweep, "steps.jsonl", lambda row: follow_the_law(row, a=0.01, b=0.3 + rng.normal(0, 0.05)), arm="up")
    analysis = analyse(sweep)
    laws = [fit_of(analysis, "up", seed).law for seed in range(3)]
    assert {law.a > 0 for law in laws if law is not None} == {True, False}
    pooled = fit_of(analysis, "up", None)
    assert pooled.ceiling is not None and pooled.ceiling_difference is not None
    assert pooled.ceiling_difference.n_pairs == 3


def test_sampled_entropy_stands_in_where_the_full_one_was_not_recorded(sweep):
    def sampled_only(row):
        row = {**row, "entropy/sampled": row["entropy/full"]}
        del row["entropy/full"]
        return row

    rewrite_rows(sweep, "steps.jsonl", sampled_only)
    assert {row["entropy"] for row in law_rows(sweep, law="entropy")} == {"sampled"}
    (table,) = law_tables(analyse(sweep))
    assert "sampled" in table.note and "vocabulary" not in table.note


@pytest.mark.parametrize(("seeds", "kind"), [(1, "blocks"), (3, "runs")])
def test_the_note_says_what_the_brackets_cover(tmp_path, seeds, kind):
    table, *_ = law_tables(analyse(write_sweep(tmp_path, {"base": 0.0}, seeds=seeds)))
    kinds = ("reports.shelves.laws.brackets_over_runs", "reports.shelves.laws.brackets_over_blocks")
    assert [code for code in kinds if said(code, level="95%") in table.note] == [kinds[kind == "blocks"]]


def test_steps_with_nan_or_nothing_are_left_out(sweep):
    rewrite_rows(sweep, "steps.jsonl", lambda row: row | ({"entropy/full": None} if row["step"] > 30 else {}))
    rewrite_rows(sweep, "steps.jsonl", lambda row: row | ({"reward/mean": math.nan} if row["step"] > 20 else {}), "up")
    analysis = analyse(sweep)
    assert fit_of(analysis, "base", 0).runs[0].step.tolist() == list(range(1, 31))
    assert fit_of(analysis, "up", 0).runs[0].step.tolist() == list(range(1, 21))


def test_records_without_entropy_or_without_steps_have_no_law(sweep):
    rewrite_rows(sweep, "steps.jsonl", lambda row: {key: row[key] for key in row if not key.startswith("entropy/")})
    assert law_rows(sweep, law="entropy") == []
    for cell in sweep.cells:
        write_steps(cell, [])
    assert law_rows(sweep, law="entropy") == []


@pytest.mark.parametrize(
    ("name", "overrides", "found"),
    [
        ("grpo", {}, []),
        ("reinforce", {}, []),
        ("cispo", {}, []),
        ("dapo", {}, ["clip_high=0.28"]),
        ("gspo", {}, ["clip_high=0.0004"]),
        ("clip_cov", {}, ["clip_cov"]),
        ("kl_cov", {}, ["kl_cov"]),
        ("grpo", {"entropy.bonus": 0.01}, ["entropy.bonus=0.01"]),
        ("skywork_or1", {}, ["entropy.adaptive=step_both_ways"]),
    ],
)
def test_knobs_that_act_on_entropy(name, overrides, found):
    """Specs as cells resolve them."""
    spec = {"objective": preset(name, **overrides).model_dump()}
    assert entropy_interventions(spec) == found


def test_interventions_and_temperature_are_in_the_report(sweep):
    intervening(sweep)
    rows = law_rows(sweep, law="entropy", seed=None, target="training reward", entropy="full")
    assert [(row["interventions"], row["temperature"]) for row in rows] == [(["clip_high=0.28"], 1.2), ([], 1.0)]


@pytest.mark.parametrize(
    ("seeds", "failed", "n"), [(1, [], 1), (2, [("base", 0), ("up", 1)], 0)], ids=["one seed", "no pair"]
)
def test_too_few_pairs_have_an_interval_and_no_ceilings_to_compare(tmp_path, seeds, failed, n):
    gone = {key: {"state": "failed"} for key in failed}
    row = pooled_row(write_sweep(tmp_path, {"base": 0.0, "up": 1.0}, seeds=seeds, changes=gone), "up")
    assert row["a_low"] < row["a_high"]
    assert (row["ceiling_difference_low"], row["ceiling_difference_n"]) == (None, n)


def rows(sweep: SweepRecord) -> list[Row]:
    return [row for row in report_document(analyse(sweep)).laws if row["law"] == "compute"]


def test_what_the_form_of_the_law_costs(sweep):
    rng = np.random.default_rng(0)
    rewrite_rows(
        sweep,
        "steps.jsonl",
        lambda row: row | {"reward/mean": B - A * math.exp(row["entropy/full"]) + rng.normal(0, 0.005)},
    )
    row = pooled_row(sweep)
    assert row["exponent_low"] < 1 < row["exponent_high"]
    assert not row["contradicts_the_form"] and not row["form_moves_ceiling"]
    linear(sweep)
    row = pooled_row(sweep)
    assert row["exponent_low"] < 0 < row["exponent_high"] < 1
    assert row["exponent_ceiling_low"] < 1 < row["exponent_ceiling_high"]
    assert row["ceiling_high"] < 1 and row["contradicts_the_form"] and row["form_moves_ceiling"]
    assert row["forecast"]["rmse_line"] < row["forecast"]["rmse_law"] and not row["forecast"]["beats"]


def with_curves(
    folder: Path,
    arms: Mapping[str, tuple[float, float]],
    seeds: int = 6,
    last_tokens: int = 400_000,
    spread_pp: float = 2.0,
) -> SweepRecord:
    """Ten evaluations per run on a sigmoid from 35%: of each arm the asymptote in percent and the exponent."""
    sweep = write_sweep(folder, dict.fromkeys(arms, 0.0), seeds=seeds)
    for cell in sweep.cells:
        rng = np.random.default_rng(cell.seed)  # arms share what a seed brings
        end, exponent = arms[cell.arm][0] + rng.normal(0, spread_pp), arms[cell.arm][1]
        own = np.random.default_rng([cell.seed, *cell.arm.encode()])
        (first, *_) = cell.read_scores()
        rows = [
            first | {"step": 4 * i, "generated_tokens": int(last_tokens / 10 * i), "final": i == 10}
            | {"metrics": {"pass@1": (35 + (end - 35) / (1 + (40_000 / at) ** exponent) + noise) / 100}}
            for i, (at, noise) in enumerate(
                zip(np.linspace(last_tokens / 10, last_tokens, 10), own.normal(0, 0.15 * spread_pp, 10), strict=True), 1
            )
        ]  # fmt: skip
        (cell.path / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return sweep


def test_the_sigmoid_is_found_from_the_score_before_training(tmp_path):
    sweep = with_curves(tmp_path, {"base": (75.0, 1.5), "up": (75.0, 1.5)}, 2, 200_000, spread_pp=0)
    for row in rows(sweep):
        assert (row["refused"], row["start"]) == (None, 35)
        assert row["asymptote"] == pytest.approx(75, abs=0.1)
        assert (row["midpoint_tokens"], row["exponent"]) == pytest.approx((40_000, 1.5), rel=0.01)
        assert (row["n_runs"], row["n_points"], row["target"]) == (2, 20, f"pass@1 of {TASK}")
        assert row["asymptote_low"] <= row["asymptote"] <= row["asymptote_high"]
        assert row["p_noise"] == 0.001
    rewrite_rows(sweep, "scores.jsonl", lambda row: row | {"generated_tokens": 0}, "up")
    assert rows(sweep)[1]["refused"].startswith("tokens begin")


def test_ceilings_and_efficiencies_are_compared_with_the_baselines(tmp_path):
    arms = {"base": (75.0, 1.5), "lower": (65.0, 1.5), "slower": (75.0, 1.0), "same": (75.0, 1.5)}
    sweep = with_curves(tmp_path, arms)
    base, lower, slower, same = rows(sweep)
    assert "ceiling_verdict" not in base
    assert (lower["ceiling_verdict"], slower["efficiency_verdict"]) == ("worse", "worse")
    assert lower["ceiling_difference"] == pytest.approx(-10, abs=1)
    assert lower["ceiling_difference_low"] < -10 < lower["ceiling_difference_high"] < 0
    assert slower["efficiency_ratio_low"] < 1 / 1.5 < slower["efficiency_ratio_high"] < 1
    assert slower["ceiling_verdict"] in ("equivalent", "inconclusive")
    assert same["ceiling_verdict"] in ("equivalent", "inconclusive") and same["efficiency_verdict"] == "inconclusive"
    assert {row["compared_n"] for row in (lower, slower, same)} == {6}


def test_a_curve_that_does_not_bend_leaves_the_ceiling_inconclusive(tmp_path):
    sweep = with_curves(tmp_path, {"base": (75.0, 1.5), "up": (75.0, 1.5)}, last_tokens=30_000)
    sweep = sweep.model_copy(update={"leave_one_out": True})
    found = rows(sweep)
    (up,) = (row for row in found if row["arm"] == "up")
    assert (up["ceiling_verdict"], up["efficiency_verdict"]) == ("inconclusive", "inconclusive")
    assert up["ceiling_difference"] is None and "midpoint" in up["undecided"]
    *_, table = law_tables(analyse(sweep))  # it is what the sweep asks
    assert "inconclusive" in table.rows[1]


def test_a_ceiling_beyond_any_score_is_not_compared(tmp_path):
    (_, up) = rows(with_curves(tmp_path, {"base": (75.0, 1.5), "up": (125.0, 1.5)}, last_tokens=60_000))
    assert up["refused"] is None and up["ceiling_verdict"] == "inconclusive"
    assert up["undecided"].startswith("up: ")


def test_few_shared_seeds_are_not_compared(tmp_path):
    (_, up) = rows(with_curves(tmp_path, {"base": (75.0, 1.5), "up": (65.0, 1.5)}, seeds=2))
    assert numbers(up["undecided"])[0] == 2


def test_the_same_few_checkpoints_in_many_seeds_are_no_curve_and_nothing_is_said_of_it(tmp_path):
    sweep = write_sweep(tmp_path, {"base": 0.0}, seeds=6)
    (row,) = rows(sweep)
    assert numbers(row["refused"])[0] == 4 and row["asymptote"] is None
    assert all(table.title != "Compute law" for table in law_tables(analyse(sweep)))
