"""The laws as rows of report.json, and as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from harness.words import said
from reports.formats import MISSING, Table, number, p_value, percent, points, signed_pp, tokens
from reports.measure.measurements import finite
from reports.page.section import Section
from reports.shelves.laws import LawInterval
from reports.shelves.laws.compute_fits import ComputeFit, LawContrast, compute_fits
from reports.shelves.laws.law_fits import EntropyFit, entropy_fits, pooled_fits

if TYPE_CHECKING:
    from reports.measure import Analysis


def law_rows(analysis: Analysis) -> list[dict[str, object]]:
    """Return a row for each fit of either law. `law` names it, and `refused` says why a row has no numbers."""
    asked = analysis.sweep.leave_one_out
    entropy = [_entropy_row(fit) for fit in entropy_fits(analysis)]
    return entropy + [_compute_row(fit) | {"asked": asked} for fit in compute_fits(analysis)]


def _entropy_row(fit: EntropyFit) -> dict[str, object]:
    law, ceilings = fit.law, fit.ceiling_difference
    return {
        "law": "entropy",
        "arm": fit.arm,
        "seed": fit.seed,
        "target": fit.target.name,
        "task": fit.target.task,
        "unit": fit.target.unit,
        "entropy": fit.entropy,
        "temperature": fit.temperature,
        "interventions": fit.interventions,
        "n_runs": len(fit.runs),
        "n_points": sum(map(len, fit.runs.values())),
        "refused": fit.refused or None,
        "level": 1 - fit.alpha,
        **_fields("a", fit.a),
        **_fields("b", fit.b),
        **_fields("ceiling", fit.ceiling),
        "r2": None if law is None else law.r2,
        "rmse": None if law is None else law.rmse,
        "block_points": None if fit.uncertainty is None else fit.uncertainty.parameters.block_points,
        **_fields("exponent", fit.free_exponent),
        **_fields("exponent_ceiling", fit.free_ceiling),
        "exponent_r2": None if fit.exponent is None else fit.exponent.r2,
        "contradicts_the_form": fit.contradicts_the_form,
        "form_moves_ceiling": fit.form_moves_ceiling,
        "exponent_refused": fit.exponent_refused or None,
        "forecast": _forecast(fit),
        "forecast_refused": fit.forecast_refused or None,
        "ceiling_difference": None if ceilings is None else ceilings.difference,
        "ceiling_difference_low": None if ceilings is None else ceilings.low,
        "ceiling_difference_high": None if ceilings is None else ceilings.high,
        "ceiling_difference_p": None if ceilings is None else ceilings.p_value,
        "ceiling_difference_n": 0 if ceilings is None else ceilings.n_pairs,
    }


def _fields(name: str, interval: LawInterval | None) -> dict[str, float | None]:
    """Return a value and the ends of its interval as fields of a row, all None if there is no value."""
    value, low, high = interval or (None, None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _forecast(fit: EntropyFit) -> dict[str, object] | None:
    found = fit.forecast
    if found is None:
        return None
    return {
        "first_frac": found.first_frac,
        "a": found.law.a,
        "b": found.law.b,
        "n_predicted": found.n_predicted,
        "rmse_law": found.rmse_law,
        "rmse_last": found.rmse_last,
        "rmse_step": found.rmse_step,
        "rmse_line": found.rmse_line,
        "beats": found.beats,
    }


def _compute_row(fit: ComputeFit) -> dict[str, object]:
    law = fit.law
    return {
        "law": "compute",
        "arm": fit.arm,
        "seed": None,
        "target": fit.target,
        "task": fit.task,
        "unit": "pp",
        "n_runs": fit.n_runs,
        "n_points": fit.n_points,
        "refused": fit.refused or None,
        "level": 1 - fit.alpha,
        "start": None if law is None else law.start,
        **_fields("asymptote", fit.interval("asymptote")),
        **_fields("exponent", fit.interval("exponent")),
        **_fields("midpoint_tokens", fit.interval("midpoint_tokens")),
        "r2": None if law is None else law.r2,
        "p_noise": None if law is None else law.p_noise,
        **({} if fit.contrast is None else _contrast_fields(fit.contrast)),
    }


def _contrast_fields(contrast: LawContrast) -> dict[str, object]:
    """Return the comparison of an arm's law with the baseline's as fields of a row."""
    found = contrast.differences or {}
    return {
        **_fields("ceiling_difference", found.get("asymptote")),
        **_fields("efficiency_ratio", found.get("exponent")),
        **_fields("midpoint_ratio", found.get("midpoint_tokens")),
        "compared_n": contrast.n_seeds,
        "ceiling_verdict": contrast.ceiling,
        "efficiency_verdict": contrast.efficiency,
        "undecided": contrast.undecided or None,
    }


KINDS = {"full": "over the whole vocabulary", "sampled": said("reports.shelves.laws.sampled_tokens_mean_log")}


def law_tables(analysis: Analysis) -> list[Table]:
    """Return a table of each law's pooled fits, if some arm follows the law or the sweep asks about it.

    A refused fit states its reason.
    """
    entropy, compute = _shown(pooled_fits(analysis)), compute_fits(analysis)
    tables = []
    if any(not fit.refused for fit in entropy):
        tables.append(_entropy_table(entropy))
    if compute and (analysis.sweep.leave_one_out or any(not fit.refused for fit in compute)):
        tables.append(_compute_table(compute))
    return tables


def _shown(fits: Sequence[EntropyFit]) -> list[EntropyFit]:
    """Return the fit for each arm and target, to the full entropy or, if that is unknown, to the sampled entropy."""
    full = {(fit.arm, fit.target) for fit in fits if fit.entropy == "full"}
    return [fit for fit in fits if fit.entropy == "full" or (fit.arm, fit.target) not in full]


def _entropy_table(fits: Sequence[EntropyFit]) -> Table:
    level = percent(1 - fits[0].alpha)
    kinds = " and ".join(KINDS[kind] for kind in KINDS if any(fit.entropy == kind for fit in fits))
    brackets = [said("reports.shelves.laws.brackets_over_runs", level=level)] * any(len(fit.runs) > 1 for fit in fits)
    brackets += [said("reports.shelves.laws.brackets_over_blocks", level=level)] * any(
        len(fit.runs) == 1 for fit in fits
    )
    note = said("reports.shelves.laws.entropy_note", kinds=kinds, brackets=" ".join(brackets))
    a, b, ceiling, gain, exponent, free_ceiling = (
        f"{name}, {level} interval"
        for name in ("a", "b", "ceiling", "ceiling − baseline's", "exponent", "ceiling with a free exponent")
    )
    columns = ["arm", "R", a, b, ceiling, gain, "R²", exponent, free_ceiling]
    columns += ["forecast error", "error of last value", "error of log-step line", "error of line in H", "remarks"]
    return Table("Entropy law", columns, [
        [
            fit.arm,
            fit.target.name,
            *(_with_interval(one) for one in (fit.a, fit.b, fit.ceiling)),
            _ceiling_difference(fit),
            number(None if fit.law is None else fit.law.r2, 2),
            *(_with_interval(one) for one in (fit.free_exponent, fit.free_ceiling)),
            *_misses(fit),
            " ".join(_entropy_remarks(fit)),
        ]
        for fit in fits
    ], note)  # fmt: skip


def _entropy_remarks(fit: EntropyFit) -> list[str]:
    """Return remarks on a fit: why it was refused, whether its forecast beats the rivals, and how not to read it."""
    remarks = []
    if fit.a is None:
        remarks.append(f"Refused: {fit.refused}.")
    elif fit.a.high < 0:
        remarks.append(said("reports.shelves.laws.below_0_reward_rises"))
    elif fit.a.low <= 0:
        remarks.append(said("reports.shelves.laws.interval_contains_0_reward"))
    if fit.contradicts_the_form:
        remarks.append(said("reports.shelves.laws.interval_exponent_excludes_1"))
    if fit.exponent is not None and fit.form_moves_ceiling:
        remarks.append(said("reports.shelves.laws.free_exponent_ceiling_outside", ceiling=number(fit.exponent.ceiling)))
    if fit.forecast is not None:
        remarks.append(
            said("reports.shelves.laws.forecast_its_rivals", beats="beats" if fit.forecast.beats else "does not beat")
        )
    elif not fit.refused:
        remarks.append(f"No forecast: {fit.forecast_refused}.")
    if fit.interventions:
        remarks.append(said("reports.shelves.laws.acts_on_entropy_law", interventions=", ".join(fit.interventions)))
    if fit.temperature != 1:
        remarks.append(said("reports.shelves.laws.entropy_temperature_which_not", temperature=fit.temperature))
    return remarks


def _with_interval(interval: LawInterval | None, write: Callable[[float | None], str] = number) -> str:
    """Format a value with its interval, or without it if an end is not finite."""
    if interval is None:
        return MISSING
    low, high = finite(interval.low), finite(interval.high)
    return write(interval.value) if low is None else f"{write(interval.value)} [{write(low)}, {write(high)}]"


def _ceiling_difference(fit: EntropyFit) -> str:
    found = fit.ceiling_difference
    if found is None:
        return ""
    n = f"n = {found.n_pairs}"
    if math.isnan(found.low):
        return f"{found.difference:+z.3g} ({n})"
    return f"{found.difference:+z.3g} [{found.low:+z.3g}, {found.high:+z.3g}] (p {p_value(found.p_value)}, {n})"


def _misses(fit: EntropyFit) -> list[str]:
    found = fit.forecast
    if found is None:
        return [MISSING] * 4
    return [number(error) for error in (found.rmse_law, found.rmse_last, found.rmse_step, found.rmse_line)]


def _compute_table(fits: Sequence[ComputeFit]) -> Table:
    level = percent(1 - fits[0].alpha)
    columns = [
        "arm",
        "R",
        "start",
        f"asymptote, {level} interval",
        f"exponent, {level} interval",
        f"midpoint (tokens), {level} interval",
        "R²",
        "p of noise",
        "points",
    ]
    compared = any(fit.contrast is not None for fit in fits)
    columns += ["ceiling − baseline's (pp)", "efficiency / baseline's", "midpoint / baseline's"] if compared else []
    return Table("Compute law", [*columns, "remarks"], [
        [
            fit.arm,
            fit.target,
            points(None if fit.law is None else fit.law.start),
            _with_interval(fit.interval("asymptote"), points),
            _with_interval(fit.interval("exponent"), _two_digits),
            _with_interval(fit.interval("midpoint_tokens"), tokens),
            number(None if fit.law is None else fit.law.r2, 2),
            number(None if fit.law is None else fit.law.p_noise, 2),
            f"{fit.n_points} of {fit.n_runs} runs" if fit.n_runs > 1 else str(fit.n_points),
            *(_against_baseline(fit.contrast) if compared else []),
            _compute_remark(fit),
        ]
        for fit in fits
    ], said("reports.shelves.laws.compute_note", level=level))  # fmt: skip


def _against_baseline(contrast: LawContrast | None) -> list[str]:
    """Return ceiling, efficiency and midpoint relative to the baseline's, the first two with their verdicts."""
    if contrast is None:
        return ["", "", ""]
    if contrast.differences is None:
        return [contrast.ceiling, contrast.efficiency, MISSING]
    found = contrast.differences
    return [
        f"{_with_interval(found['asymptote'], signed_pp)}, {contrast.ceiling}",
        f"{_with_interval(found['exponent'], _two_digits)}, {contrast.efficiency}",
        _with_interval(found["midpoint_tokens"], _two_digits),
    ]


def _two_digits(value: float | None) -> str:
    return number(value, 2)


def _compute_remark(fit: ComputeFit) -> str:
    """Return why a fit was refused or why the arm could not be compared with the baseline; otherwise ""."""
    if fit.refused:
        return f"Refused: {fit.refused}."
    return f"Not compared: {fit.contrast.undecided}." if fit.contrast is not None and fit.contrast.undecided else ""


LAWS = Section("laws", said("reports.shelves.laws.entropy_reward_law_law"), law_rows, law_tables)
