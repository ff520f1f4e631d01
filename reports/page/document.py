"""A report as data: every number of it in report.json, the final scores as CSV, the big tables as parquet.

In report.json a number that is not finite becomes null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.records.registration import check_registration
from reports.extras.law_tables import law_rows
from reports.extras.reflection import read_reflection
from reports.formats import csv_text
from reports.measure import Analysis
from reports.measure.across_tasks import across_tasks, across_tasks_rows
from reports.measure.arms import ArmSummary, hidden_knob_warnings
from reports.measure.contrasts import Contrast
from reports.measure.coverage import coverage_rows
from reports.measure.flips import find_flips, ranges_rows
from reports.measure.interactions import FactorEffect, declared_of, effects_of
from reports.measure.looks import look_rows, looking
from reports.measure.made_alike import outside_warnings
from reports.measure.measurements import finite
from reports.measure.modes import mode_rows, mode_scores
from reports.measure.next_step import next_steps
from reports.measure.overoptimisation import judge_and_truth, judge_replies, proxy_and_truth
from reports.measure.problems import new_problems_row, over_new_problems, problem_scores
from reports.measure.tuning import tuning_rows
from reports.measure.variance import effect_budgets, variance_budgets, variance_row
from reports.page.headline import headline_rows
from reports.page.templating import write_text
from reports.statistics import Comparison, PairedComparison

if TYPE_CHECKING:
    import pyarrow

    from harness.records import CellRecord
    from harness.records.sweep import Screened

Report = dict[str, list[dict[str, Any]]]

SECTIONS = (
    *("headline", "interactions", "contrasts", "screening", "arms", "cells", "laws", "across_tasks", "modes"),
    *("coverage", "problem_ranges", "flips", "reflection", "looks", "tuning", "registration"),
)
"""The keys of report.json. Each holds a list, which may be empty. `headline` holds the answer in a sentence.
`interactions` are what a factorial asks: its main effects and interactions."""

FINAL_SCORES = "final_scores.csv"
PROBLEMS = "problems.parquet"
STEPS = "steps.parquet"

DATA_FILES = {FINAL_SCORES: "final scores", PROBLEMS: "problems", STEPS: "steps"}
"""The files under data/ besides those of figures, with what they hold."""

COMPARISON_KEYS = {
    "difference_pp": "difference",
    "low_pp": "low",
    "high_pp": "high",
    "level": "level",
    "p": "p_value",
    "p_sign_flip": "p_sign_flip",
    "verdict": "verdict",
    "note": "note",
    "n_pairs": "n_pairs",
    "n_treatment": "n_treatment",
    "n_baseline": "n_baseline",
    "median_pp": "median",
    "iqm_pp": "iqm",
    "correlation": "correlation",
    "correlation_low": "correlation_low",
    "correlation_high": "correlation_high",
    "variance_ratio": "variance_ratio",
    "detectable_pp": "detectable",
}
"""The numbers of a comparison in report.json, with the attributes that they come from."""


def report_document(analysis: Analysis) -> Report:
    """The contents of report.json, with a list of rows under each of SECTIONS. Scores are in percentage points."""
    document = verdict_document(analysis) | {
        "laws": law_rows(analysis) if analysis.trains else [],
        "across_tasks": across_tasks_rows(across_tasks(analysis)),
        "modes": mode_rows(mode_scores(analysis)),
        "coverage": coverage_rows(analysis),
        "problem_ranges": ranges_rows(analysis),
        "flips": [flip.as_row() for flip in find_flips(analysis)],
        "reflection": [asdict(row) for row in read_reflection(analysis).arms] if analysis.trains else [],
    }
    return {key: [without_nan(row) for row in document[key]] for key in SECTIONS}


def verdict_document(analysis: Analysis) -> Report:
    """The sections of report.json that verdicts rest on."""
    sweep = analysis.sweep
    verdicts = {one.arm: one.verdict for one in declared_of(analysis)}
    document: Report = {
        "interactions": _effects(analysis),
        "contrasts": _contrasts(analysis),
        "screening": [] if (found := sweep.screening) is None else [_screening(analysis, found)],
        "arms": [_arm(analysis, arm) | {"rank": _rank(analysis, arm)} for arm in analysis.arms],
        "cells": [_cell(analysis, cell) for cell in analysis.sweep.cells],
        "looks": look_rows(sweep, verdicts),
        "tuning": tuning_rows(sweep.tuning, sweep.arms, {arm.arm: arm.mean_pp for arm in analysis.arms}, sweep.cells),
        "registration": _registration(analysis),
    }
    document = {key: [without_nan(row) for row in rows] for key, rows in document.items()}
    return {"headline": headline_rows(document), **document}


def _registration(analysis: Analysis) -> list[dict[str, Any]]:
    """Whether the question stood before its first cell; [] if it was never registered."""
    found = check_registration(analysis.sweep)
    return [] if found is None else [asdict(found) | {"holds": found.holds, "sentence": found.sentence}]


def _contrasts(analysis: Analysis) -> list[dict[str, Any]]:
    """Every arm against the baseline."""
    return [
        contrast_row(
            contrast,
            metric=analysis.sweep.metric,
            margin_pp=analysis.sweep.margin_pp,
            n_contrasts=len(analysis.contrasts),
            warnings=[
                *hidden_knob_warnings(analysis.arm(contrast.arm), analysis.arm(contrast.baseline)),
                *outside_warnings({arm: analysis.measurements[arm] for arm in (contrast.arm, contrast.baseline)}),
            ],
        )
        | {
            "new_problems": new_problems_row(over_new_problems(analysis, contrast)),
            "variance": variance_row(budget),
            **_going_on(analysis, contrast.arm, len(analysis.contrasts)),
            **_problems(analysis),
        }
        for contrast, budget in zip(analysis.contrasts, variance_budgets(analysis), strict=True)
    ]


def _problems(analysis: Analysis) -> dict[str, Any]:
    """Return how the problems of imported runs were matched. A task of ours has one id for each problem."""
    found = analysis.sweep.matching.get(analysis.metric.task)
    return {} if found is None else {"problems": found.as_row()}


def _effects(analysis: Analysis) -> list[dict[str, Any]]:
    """The main effects and interactions of a factorial, in the form of contrasts; [] for other sweeps."""
    effects = effects_of(analysis)
    return [
        _effect(analysis, effect, len(effects)) | {"variance": variance_row(budget)}
        for effect, budget in zip(effects, effect_budgets(analysis), strict=True)
    ]


def _effect(analysis: Analysis, effect: FactorEffect, n_effects: int) -> dict[str, Any]:
    return {
        "kind": effect.kind,
        "knobs": [*effect.values],
        "values": [*effect.values.values()],
        "reference": [*effect.reference.values()],
        **contrast_row(
            effect.contrast,
            metric=analysis.sweep.metric,
            margin_pp=analysis.sweep.margin_pp,
            n_contrasts=n_effects,
            warnings=outside_warnings(analysis.measurements),
        ),
        **_going_on(analysis, effect.contrast.arm, n_effects),
        "within": effect.within,
    }


def _going_on(analysis: Analysis, name: str, n_contrasts: int) -> dict[str, Any]:
    """How often the question was looked at, and what would settle the contrast of this name."""
    step = next_steps(analysis).get(name)
    return {
        "look": looking(analysis.sweep, n_contrasts).as_row(),
        "next_step": None if step is None else step.as_row(),
    }


def _screening(analysis: Analysis, screening: Screened) -> dict[str, Any]:
    """best: the names of the arms with the highest means, best first, the baseline left out."""
    scored = [arm for arm in analysis.arms if arm.mean_pp is not None and arm.arm != analysis.sweep.baseline]
    ranked = sorted(scored, key=lambda arm: -(arm.mean_pp or 0.0))
    return screening.model_dump(mode="json") | {
        "baseline": analysis.sweep.baseline,
        "metric": analysis.sweep.metric,
        "n_arms": len(analysis.arms),
        "n_seeds": len(analysis.sweep.seeds),
        "best": [arm.arm for arm in ranked[: screening.best]],
        "command": analysis.sweep.command,
    }


def contrast_row(
    contrast: Contrast, *, metric: str, margin_pp: float, n_contrasts: int, warnings: list[str]
) -> dict[str, Any]:
    """A row of `contrasts` of report.json."""
    return {
        "arm": contrast.arm,
        "baseline": contrast.baseline,
        "metric": metric,
        **comparison_numbers(contrast.comparison),
        "p_holm": contrast.p_holm,
        "n_contrasts": n_contrasts,
        "margin_pp": margin_pp,
        "seeds": contrast.seeds,
        "differences_pp": contrast.differences_pp,
        "missing": [asdict(pair) for pair in contrast.missing],
        "flagged_seeds": contrast.flagged_seeds,
        "without_flagged": comparison_numbers(contrast.without_flagged) if contrast.flagged_seeds else None,
        "noise_low_pp": contrast.noise_low_pp,
        "noise_high_pp": contrast.noise_high_pp,
        "token_ratios": contrast.token_ratios,
        "token_ratio": contrast.token_ratio,
        "equal_tokens": contrast.equal_tokens,
        "tokens_known": contrast.tokens_known,
        "unit": "problem" if contrast.over_problems else "seed",
        "answer_tokens": None if contrast.answer_tokens is None else list(contrast.answer_tokens),
        "bests": None if contrast.bests is None else asdict(contrast.bests),
        "warnings": warnings,
    }


def comparison_numbers(comparison: Comparison | None) -> dict[str, Any]:
    """The numbers of a paired or an unpaired comparison; None stands for a paired one without a single pair."""
    if comparison is None:
        paired = {"level", *(field.name for field in fields(PairedComparison))}
        numbers: dict[str, Any] = {key: None for key, name in COMPARISON_KEYS.items() if name in paired}
        return numbers | {"verdict": "no_test", "note": "", "n_pairs": 0}
    return {key: getattr(comparison, name) for key, name in COMPARISON_KEYS.items() if hasattr(comparison, name)}


def _arm(analysis: Analysis, arm: ArmSummary) -> dict[str, Any]:
    sweep, metric = analysis.sweep, analysis.metric
    base_metrics = analysis.base_metrics(arm.arm)
    before = finite(base_metrics.get(metric.name))
    return {
        "arm": arm.arm,
        "metric": sweep.metric,
        "task": metric.task,
        "n": arm.n,
        "level": 1 - sweep.alpha,
        "checkpoint": sweep.checkpoint,
        "before_pp": None if before is None else 100 * before,
        "before_ece": finite(base_metrics.get("ece")),
        "budget_tokens": sweep.budget_tokens,
        **{key: value for key, value in asdict(arm).items() if key != "arm"},
        **({} if (judge := judge_and_truth(analysis.measurements[arm.arm])) is None else {"judge": asdict(judge)}),
        **({} if (said := judge_replies(analysis.measurements[arm.arm])) is None else {"judge_replies": asdict(said)}),
        "proxy_and_truth": None if (end := proxy_and_truth(analysis.measurements[arm.arm])) is None else asdict(end),
    }


def _rank(analysis: Analysis, arm: ArmSummary) -> int | None:
    """1 for the highest mean score; equal scores share a rank; None without a score."""
    if arm.mean_pp is None:
        return None
    return 1 + sum(other.mean_pp is not None and other.mean_pp > arm.mean_pp for other in analysis.arms)


def _cell(analysis: Analysis, cell: CellRecord) -> dict[str, Any]:
    measurement = next((m for m in analysis.measurements[cell.arm] if m.cell.seed == cell.seed), None)
    return {
        "arm": cell.arm,
        "seed": cell.seed,
        "hash": cell.hash,
        "state": cell.state,
        "reason": cell.reason,
        "flags": cell.flags,
        "digest": cell.digest,
        "score_pp": None if measurement is None else measurement.score_pp,
        "generated_tokens": cell.generated_tokens,
        "step": cell.step,
        "steps": cell.steps,
        "total_s": None if measurement is None else measurement.seconds("total_s"),
    }


def without_nan(value: Any) -> Any:
    """Plain data with None in place of numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return value


def write_data(analysis: Analysis, folder: Path) -> None:
    """Write final_scores.csv; problems.parquet, the share of right samples by arm, seed and problem; steps.parquet,
    every field of every step of every cell."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / FINAL_SCORES, csv_text(_final_scores(analysis)))
    _write_parquet(folder / PROBLEMS, problem_scores(analysis).columns())
    _write_parquet(folder / STEPS, step_columns(analysis))


def _final_scores(analysis: Analysis) -> list[dict[str, Any]]:
    """A row for each finished cell and task, with every metric of its final evaluation."""
    return [
        {"arm": arm, "seed": m.cell.seed, "task": row["task"], "generated_tokens": row["generated_tokens"]}
        | row["metrics"]
        for arm, cells in analysis.measurements.items()
        for m in cells
        for row in m.scores
        if row["final"]
    ]


def step_columns(analysis: Analysis) -> dict[str, pyarrow.Array]:
    """The columns of all steps; a field that a cell did not record is null there."""
    import pyarrow

    cells = [(arm, m.cell.seed, m.steps) for arm, some in analysis.measurements.items() for m in some]
    lengths, fields = [steps.length for *_, steps in cells], [steps.fields for *_, steps in cells]
    absent = [np.full(length, np.nan) for length in lengths]
    values = {
        name: np.concatenate([of_cell.get(name, nothing) for of_cell, nothing in zip(fields, absent, strict=True)])
        for name in dict.fromkeys(name for of_cell in fields for name in of_cell)
    }
    return {
        "arm": pyarrow.array(np.repeat([arm for arm, *_ in cells], lengths)),
        "seed": pyarrow.array(np.repeat([seed for _, seed, _ in cells], lengths)),
        **{name: pyarrow.array(column, from_pandas=True) for name, column in values.items()},  # NaN becomes null
    }


def _write_parquet(path: Path, columns: Mapping[str, Any]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path, compression="zstd")
