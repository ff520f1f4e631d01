"""A report as data: the contents of report.json, the final scores as CSV, and the large tables as parquet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.records.registration import check_registration
from reports.formats import csv_text
from reports.measure import Analysis
from reports.measure.across_tasks import across_tasks, across_tasks_rows
from reports.measure.arms import hidden_knob_warnings
from reports.measure.contrasts import Contrast
from reports.measure.coverage import coverage_rows
from reports.measure.flips import find_flips, ranges_rows
from reports.measure.interactions import declared_of, effects_of
from reports.measure.looks import look_rows, shown_look
from reports.measure.made_alike import outside_warnings
from reports.measure.modes import mode_scores
from reports.measure.next_step import next_steps
from reports.measure.problems import over_new_problems, problem_scores
from reports.measure.tuning import tuning_rows
from reports.measure.variance import effect_budgets, variance_budgets, variance_of
from reports.page.headline import with_headline
from reports.page.section import SECTIONS
from reports.page.templating import write_text
from reports.report import (
    CellRow,
    ContrastRow,
    EffectRow,
    MatchedProblems,
    Numbers,
    RegistrationRow,
    Report,
    ScreeningRow,
    without_nan,
)
from reports.statistics import Comparison

if TYPE_CHECKING:
    import pyarrow

    from harness.records import CellRecord
    from harness.records.sweep import Screened

FINAL_SCORES = "final_scores.csv"
PROBLEMS = "problems.parquet"
STEPS = "steps.parquet"

DATA_FILES = {FINAL_SCORES: "final scores", PROBLEMS: "problems", STEPS: "steps"}
"""The files under data/ that do not belong to a figure, with their contents."""

_UNPAIRED = ("n_treatment", "n_baseline")
_NAMED_OTHERWISE = {"p": "p_value"}
"""Fields of `Numbers` whose attribute of a comparison is not simply the field's name without `_pp`."""


def report_document(analysis: Analysis) -> Report:
    """Build report.json with all its sections."""
    return verdict_document(analysis).model_copy(
        update={
            # Laws and reflection stay empty unless a shelf adds a section of that name.
            "laws": [],
            "across_tasks": across_tasks_rows(across_tasks(analysis)),
            "modes": mode_scores(analysis),
            "coverage": coverage_rows(analysis),
            "problem_ranges": ranges_rows(analysis),
            "flips": find_flips(analysis),
            "reflection": [],
            **(_of_shelves(analysis) if analysis.trains else {}),
        }
    )


def _of_shelves(analysis: Analysis) -> dict[str, list[object]]:
    return {one.name: [without_nan(row) for row in one.rows(analysis)] for one in SECTIONS.all().values()}


def verdict_document(analysis: Analysis) -> Report:
    """Build the part of report.json that the verdicts rest on."""
    sweep = analysis.sweep
    verdicts = {one.arm: one.verdict for one in declared_of(analysis)}
    report = Report(
        interactions=_effects(analysis),
        contrasts=_contrasts(analysis),
        screening=[] if (found := sweep.screening) is None else [_screening(analysis, found)],
        arms=analysis.arms,
        cells=[_cell(analysis, cell) for cell in sweep.cells],
        looks=look_rows(sweep, verdicts),
        tuning=tuning_rows(sweep.tuning, sweep.arms, {arm.arm: arm.mean_pp for arm in analysis.arms}, sweep.cells),
        registration=_registration(analysis),
    )
    # The headline is a sentence about the other sections, so it comes last.
    return with_headline(report)


def _registration(analysis: Analysis) -> list[RegistrationRow]:
    """Return a row that says whether the question was registered before its first cell; [] if it was not registered."""
    found = check_registration(analysis.sweep)
    return [] if found is None else [RegistrationRow(**asdict(found), holds=found.holds, sentence=found.sentence)]


def _contrasts(analysis: Analysis) -> list[ContrastRow]:
    """Build a row for every arm's comparison with the baseline."""
    sweep, n = analysis.sweep, len(analysis.contrasts)
    look, steps = shown_look(sweep, n), next_steps(analysis)
    matching = sweep.matching.get(analysis.metric.task)  # Only imported runs need matching.
    return [
        ContrastRow(
            **contrast_fields(contrast, sweep.metric, sweep.margin_pp, n),
            warnings=_warnings(analysis, contrast),
            new_problems=over_new_problems(analysis, contrast),
            variance=variance_of(budget),
            look=look,
            next_step=steps.get(contrast.arm),
            **({} if matching is None else {"problems": MatchedProblems(**matching.as_row())}),
        )
        for contrast, budget in zip(analysis.contrasts, variance_budgets(analysis), strict=True)
    ]


def _warnings(analysis: Analysis, contrast: Contrast) -> list[str]:
    sides = (contrast.arm, contrast.baseline)
    return [
        *hidden_knob_warnings([(arm, analysis.arm(arm).grad_clipped_frac) for arm in sides]),
        *outside_warnings({arm: analysis.measurements[arm] for arm in sides}),
    ]


def _effects(analysis: Analysis) -> list[EffectRow]:
    """Build the rows of a factorial's main effects and interactions; [] for other sweeps."""
    sweep, effects = analysis.sweep, effects_of(analysis)
    look, steps = shown_look(sweep, len(effects)), next_steps(analysis)
    return [
        EffectRow(
            kind=effect.kind,
            knobs=[*effect.values],
            values=[*effect.values.values()],
            reference=[*effect.reference.values()],
            **contrast_fields(effect.contrast, sweep.metric, sweep.margin_pp, len(effects)),
            warnings=outside_warnings(analysis.measurements),
            look=look,
            next_step=steps.get(effect.contrast.arm),
            within=effect.within,
            variance=variance_of(budget),
        )
        for effect, budget in zip(effects, effect_budgets(analysis), strict=True)
    ]


def _screening(analysis: Analysis, screening: Screened) -> ScreeningRow:
    sweep = analysis.sweep
    scored = [arm for arm in analysis.arms if arm.mean_pp is not None and arm.arm != sweep.baseline]
    ranked = sorted(scored, key=lambda arm: -(arm.mean_pp or 0.0))
    return ScreeningRow(
        best=[arm.arm for arm in ranked[: screening.best]],
        **screening.model_dump(exclude={"best"}),
        baseline=sweep.baseline,
        metric=sweep.metric,
        n_arms=len(analysis.arms),
        n_seeds=len(sweep.seeds),
        command=sweep.command,
    )


def contrast_fields(contrast: Contrast, metric: str, margin_pp: float, n_contrasts: int) -> dict[str, object]:
    """Return the fields that `ContrastRow` and `EffectRow` share, except their warnings."""
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
        "missing": contrast.missing,
        "flagged_seeds": contrast.flagged_seeds,
        "without_flagged": Numbers(**comparison_numbers(contrast.without_flagged)) if contrast.flagged_seeds else None,
        "noise_low_pp": contrast.noise_low_pp,
        "noise_high_pp": contrast.noise_high_pp,
        "token_ratios": contrast.token_ratios,
        "token_ratio": contrast.token_ratio,
        "equal_tokens": contrast.equal_tokens,
        "tokens_known": contrast.tokens_known,
        "unit": "problem" if contrast.over_problems else "seed",
        "answer_tokens": contrast.answer_tokens,
        "bests": contrast.bests,
    }


def comparison_numbers(comparison: Comparison | None) -> dict[str, object]:
    """Return the fields of `Numbers`; None stands for a paired comparison that has no pairs."""
    if comparison is None:
        numbers: dict[str, object] = dict.fromkeys(name for name in Numbers.model_fields if name not in _UNPAIRED)
        return numbers | {"verdict": "no_test", "note": "", "n_pairs": 0}
    # A paired comparison has no n_treatment and n_baseline, an unpaired one no n_pairs; the absent fields stay unset.
    names = {name: _NAMED_OTHERWISE.get(name, name.removesuffix("_pp")) for name in Numbers.model_fields}
    return {name: getattr(comparison, of) for name, of in names.items() if hasattr(comparison, of)}


def _cell(analysis: Analysis, cell: CellRecord) -> CellRow:
    measurement = next((m for m in analysis.measurements[cell.arm] if m.cell.seed == cell.seed), None)
    return CellRow(
        arm=cell.arm,
        seed=cell.seed,
        hash=cell.hash,
        state=cell.state,
        reason=cell.reason,
        flags=cell.flags,
        digest=cell.digest,
        score_pp=None if measurement is None else measurement.score_pp,
        generated_tokens=cell.generated_tokens,
        step=cell.step,
        steps=cell.steps,
        total_s=None if measurement is None else measurement.seconds("total_s"),
    )


def write_data(analysis: Analysis, folder: Path) -> None:
    """Write the data files of the report.

    final_scores.csv: the final evaluations. problems.parquet: the share of correct samples by arm, seed and problem.
    steps.parquet: every field of every step of every cell.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / FINAL_SCORES, csv_text(_final_scores(analysis)))
    _write_parquet(folder / PROBLEMS, problem_scores(analysis).columns())
    _write_parquet(folder / STEPS, step_columns(analysis))


def _final_scores(analysis: Analysis) -> list[dict[str, object]]:
    """Return a row for each finished cell and task, with every metric of its final evaluation."""
    return [
        {"arm": arm, "seed": m.cell.seed, "task": row["task"], "generated_tokens": row["generated_tokens"]}
        | row["metrics"]
        for arm, cells in analysis.measurements.items()
        for m in cells
        for row in m.scores
        if row["final"]
    ]


def step_columns(analysis: Analysis) -> dict[str, pyarrow.Array]:
    """Return the columns of all steps. A value is null if its cell did not record the field."""
    import pyarrow

    cells = [(arm, m.cell.seed, m.steps) for arm, some in analysis.measurements.items() for m in some]
    lengths, fields = [steps.length for *_, steps in cells], [steps.fields for *_, steps in cells]
    # NaN stands for a missing field while columns are joined, because a float array has no null.
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


def _write_parquet(path: Path, columns: Mapping[str, object]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path, compression="zstd")
