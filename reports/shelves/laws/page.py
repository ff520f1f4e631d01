"""The laws as rows of report.json, and the tables made of these rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from reports.formats import MISSING, Table, number, p_value, percent, points, signed_pp, tokens
from reports.page.section import Section
from reports.shelves.laws.compute_fits import ComputeFit, LawContrast, compute_fits
from reports.shelves.laws.law_fits import EntropyFit, entropy_fits

if TYPE_CHECKING:
    from reports.measure import Analysis

NOTHING = (math.nan, math.nan)


def law_rows(analysis: Analysis) -> list[dict[str, object]]:
    """Return a row for each fit of either law: `law` says which, and `refused` why it has no numbers."""
    entropy = [_entropy_row(fit, analysis.sweep.alpha) for fit in entropy_fits(analysis)]
    asked = analysis.sweep.leave_one_out
    return entropy + [_compute_row(fit, analysis.sweep.alpha) | {"asked": asked} for fit in compute_fits(analysis)]


def _entropy_row(fit: EntropyFit, alpha: float) -> dict[str, object]:
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
        "level": 1 - alpha,
        **_parameters(fit, alpha),
        "r2": None if law is None else law.r2,
        "rmse": None if law is None else law.rmse,
        "block_points": None if fit.uncertainty is None else fit.uncertainty.parameters.block_points,
        **_free_exponent(fit),
        "contradicts_the_form": fit.contradicts_the_form,
        "form_moves_ceiling": fit.form_moves_ceiling(alpha),
        "exponent_refused": fit.exponent_refused or None,
        "forecast": _forecast(fit),
        "forecast_refused": fit.forecast_refused or None,
        "ceiling_difference": None if ceilings is None else ceilings.difference,
        "ceiling_difference_low": None if ceilings is None else ceilings.low,
        "ceiling_difference_high": None if ceilings is None else ceilings.high,
        "ceiling_difference_p": None if ceilings is None else ceilings.p_value,
        "ceiling_difference_n": 0 if ceilings is None else ceilings.n_pairs,
    }


def _parameters(fit: EntropyFit, alpha: float) -> dict[str, float | None]:
    law, uncertainty = fit.law, fit.uncertainty
    if law is None or uncertainty is None:
        names = ("a", "b", "ceiling")
        return dict.fromkeys([name + end for name in names for end in ("", "_low", "_high")])
    ceiling, at_ceiling = (law.ceiling, float(uncertainty.half_widths([0.0], alpha)[0])) if fit.has_ceiling else NOTHING
    values = {
        "a": (law.a, uncertainty.half_width_a(alpha)),
        "b": (law.b, uncertainty.half_width_b(alpha)),
        "ceiling": (ceiling, at_ceiling),
    }
    return _with_ends(values)


def _free_exponent(fit: EntropyFit) -> dict[str, float | None]:
    found, width = fit.exponent, fit.exponent_uncertainty
    if found is None or width is None:
        names = ("exponent", "exponent_ceiling")
        return dict.fromkeys([*(name + end for name in names for end in ("", "_low", "_high")), "exponent_r2"])
    values = {"exponent": (found.exponent, width.exponent), "exponent_ceiling": (found.ceiling, width.ceiling)}
    return _with_ends(values) | {"exponent_r2": found.r2}


def _with_ends(values: dict[str, tuple[float, float]]) -> dict[str, float | None]:
    """Return values and half-widths of intervals as fields of a row."""
    return {
        name + end: value + sign * half_width
        for name, (value, half_width) in values.items()
        for end, sign in (("", 0), ("_low", -1), ("_high", 1))
    }


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


def _compute_row(fit: ComputeFit, alpha: float) -> dict[str, object]:
    law = fit.law
    parameters: dict[str, float | None] = {}
    for name in ("asymptote", "exponent", "midpoint_tokens"):
        low, high = (None, None) if law is None else law.interval(name, alpha)
        parameters |= {name: None if law is None else getattr(law, name), f"{name}_low": low, f"{name}_high": high}
    return {
        "law": "compute",
        "arm": fit.arm,
        "seed": None,
        "target": f"{fit.metric} of {fit.task}",
        "task": fit.task,
        "unit": "pp",
        "n_runs": fit.n_runs,
        "n_points": fit.n_points,
        "refused": fit.refused or None,
        "level": 1 - alpha,
        "start": None if law is None else law.start,
        **parameters,
        "r2": None if law is None else law.r2,
        "p_noise": None if law is None else law.p_noise,
        **({} if fit.contrast is None else _contrast_fields(fit.contrast)),
    }


def _contrast_fields(contrast: LawContrast) -> dict[str, object]:
    """Return an arm's law against the baseline's as fields of a row."""
    found = contrast.differences or {}
    compared = {"ceiling_difference": "asymptote", "efficiency_ratio": "exponent", "midpoint_ratio": "midpoint_tokens"}
    ends = {
        name + end: getattr(found[parameter], of) if parameter in found else None
        for name, parameter in compared.items()
        for end, of in (("", "value"), ("_low", "low"), ("_high", "high"))
    }
    return ends | {
        "compared_n": contrast.n_seeds,
        "ceiling_verdict": contrast.ceiling,
        "efficiency_verdict": contrast.efficiency,
        "undecided": contrast.undecided or None,
    }


Row = dict[str, Any]

ENTROPY_NOTE = (
    "R = −a·exp(H) + b (Cui et al. 2505.22617), by least squares on all seeds pooled; the fits of single seeds are "
    "in report.json. R is the training reward, or the score in percent, with the score before training at the "
    "entropy of the first step. H is the policy's mean entropy in nats {kinds}. Brackets: {level} intervals by a "
    "jackknife over whole runs; with one seed over blocks of its steps, which leaves training variance out, and with "
    "20 steps a nominal 95% interval then covers about 90% of the time. Ceiling: R at H = 0, with "
    "the paired difference of its seeds from the baseline's; p is not corrected for the number of arms. Exponent: c of "
    "a free fit of R = −a·exp(c·H) + b, with its own ceiling; the law has c = 1. Forecast: the law of the first 30% of "
    "training, given the later entropies, against the last value, a line in log step, and a line in H that is given "
    "the same entropies (each run's or that of all pooled, whichever is better), by root mean squared errors on the "
    "rest. It beats them if its error is the smallest and its a is above 0 by the 95% interval."
)
KINDS = {"full": "over the whole vocabulary", "sampled": "of the sampled tokens (mean of −log p)"}
COMPUTE_NOTE = (
    "R = start + (asymptote − start) / (1 + (midpoint / tokens)^exponent), the sigmoid of 2510.13786, fitted to the "
    "evaluations along training of all seeds pooled; scores are in percent. The asymptote is its ceiling, the exponent "
    "its efficiency. Brackets: {level} intervals by a jackknife over whole runs; with one seed over its evaluations, "
    "which leaves training variance out. A sigmoid is refused if it fits noise without a trend as well in more than 5% "
    "of cases; with fewer than six runs this assumes noise that drifts, with a correlation of 0.9 from one evaluation "
    "to the next. Against the baseline: asymptote minus asymptote in percentage points, exponent over exponent, "
    "midpoint over midpoint, by a "
    "jackknife that leaves a seed out of both arms at once. These intervals share the sweep's level among the arms, "
    "once for ceilings and once for efficiencies. Inconclusive: the interval contains no "
    "difference, or a curve does not bend enough to say where it ends."
)


def law_tables(rows: list[dict[str, object]]) -> list[Table]:
    """Return a table of the pooled fits of each law that some arm follows, or that the sweep asks about.

    A refused fit in it says why.
    """
    entropy = _shown([row for row in rows if row["law"] == "entropy" and row["seed"] is None])
    compute = [row for row in rows if row["law"] == "compute"]
    entropy, compute = (
        some if any(not row["refused"] or row.get("asked") for row in some) else [] for some in (entropy, compute)
    )
    return [*([_entropy_table(entropy)] if entropy else []), *([_compute_table(compute)] if compute else [])]


def _shown(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return for each arm and target the fit to the full entropy or, without one, to the sampled entropy."""
    full = {(row["arm"], row["target"]) for row in rows if row["entropy"] == "full"}
    return [row for row in rows if row["entropy"] == "full" or (row["arm"], row["target"]) not in full]


def _entropy_table(rows: list[Row]) -> Table:
    kinds = " and ".join(KINDS[kind] for kind in KINDS if any(row["entropy"] == kind for row in rows))
    note = ENTROPY_NOTE.format(kinds=kinds, level=percent(rows[0]["level"]))
    a, b, ceiling, gain, exponent, free_ceiling = (
        f"{name}, {percent(rows[0]['level'])} interval"
        for name in ("a", "b", "ceiling", "ceiling − baseline's", "exponent", "ceiling with a free exponent")
    )
    columns = ["arm", "R", a, b, ceiling, gain, "R²", exponent, free_ceiling]
    columns += ["forecast error", "error of last value", "error of log-step line", "error of line in H", "remarks"]
    return Table("Entropy law", columns, [
        [
            row["arm"],
            row["target"],
            *(_with_interval(row, name) for name in ("a", "b", "ceiling")),
            _ceiling_difference(row),
            number(row["r2"], 2),
            *(_with_interval(row, name) for name in ("exponent", "exponent_ceiling")),
            *_misses(row),
            " ".join(entropy_remarks(row)),
        ]
        for row in rows
    ], note)  # fmt: skip


def entropy_remarks(row: Row) -> list[str]:
    """Return remarks on a fit: why it is refused, whether its forecast is any good, and how not to read it."""
    remarks = []
    if row["refused"]:
        remarks.append(f"Refused: {row['refused']}.")
    elif row["a_high"] < 0:
        remarks.append("a is below 0: the reward rises with the entropy, and the law has no ceiling.")
    elif row["a_low"] <= 0:
        remarks.append(
            "The interval of a contains 0: the reward may not follow the entropy, and there may be no ceiling."
        )
    if row["contradicts_the_form"]:
        remarks.append(
            "The interval of the exponent excludes 1: the points do not bend as exp(H) does, and what the law says"
            " beyond them rests on a form that they contradict."
        )
    if row["form_moves_ceiling"]:
        remarks.append(
            f"With a free exponent the ceiling is {number(row['exponent_ceiling'])}, outside the interval of the"
            " law's: the error of the form is larger than the interval."
        )
    if row["forecast"] is not None:
        remarks.append(f"The forecast {'beats' if row['forecast']['beats'] else 'does not beat'} its rivals.")
    elif not row["refused"]:
        remarks.append(f"No forecast: {row['forecast_refused']}.")
    if row["interventions"]:
        remarks.append(f"Acts on entropy ({', '.join(row['interventions'])}): the law is not expected to hold.")
    if row["temperature"] != 1:
        remarks.append(f"Entropy at temperature {row['temperature']:g}, which is not the law's H.")
    return remarks


def _with_interval(row: Row, name: str, write: Callable[[float], str] = number) -> str:
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    if value is None:
        return MISSING
    return write(value) if low is None else f"{write(value)} [{write(low)}, {write(high)}]"


def _ceiling_difference(row: Row) -> str:
    difference, low = row["ceiling_difference"], row["ceiling_difference_low"]
    if difference is None:
        return ""
    n = f"n = {row['ceiling_difference_n']}"
    if low is None:
        return f"{difference:+z.3g} ({n})"
    p = p_value(row["ceiling_difference_p"])
    return f"{difference:+z.3g} [{low:+z.3g}, {row['ceiling_difference_high']:+z.3g}] (p {p}, {n})"


def _misses(row: Row) -> list[str]:
    found = row["forecast"] or {}
    return [number(found.get(name)) for name in ("rmse_law", "rmse_last", "rmse_step", "rmse_line")]


def _compute_table(rows: list[Row]) -> Table:
    note = COMPUTE_NOTE.format(level=percent(rows[0]["level"]))
    columns = [
        "arm",
        "R",
        "start",
        f"asymptote, {percent(rows[0]['level'])} interval",
        f"exponent, {percent(rows[0]['level'])} interval",
        f"midpoint (tokens), {percent(rows[0]['level'])} interval",
        "R²",
        "p of noise",
        "points",
    ]
    compared = any("ceiling_verdict" in row for row in rows)
    columns += ["ceiling − baseline's (pp)", "efficiency / baseline's", "midpoint / baseline's"] if compared else []
    return Table("Compute law", [*columns, "remarks"], [
        [
            row["arm"],
            row["target"],
            points(row["start"]),
            _with_interval(row, "asymptote", points),
            _with_interval(row, "exponent", lambda value: number(value, 2)),
            _with_interval(row, "midpoint_tokens", tokens),
            number(row["r2"], 2),
            number(row["p_noise"], 2),
            f"{row['n_points']} of {row['n_runs']} runs" if row["n_runs"] > 1 else str(row["n_points"]),
            *(_against_baseline(row) if compared else []),
            _compute_remark(row),
        ]
        for row in rows
    ], note)  # fmt: skip


def _against_baseline(row: Row) -> list[str]:
    """Return ceiling, efficiency and midpoint against the baseline's, the first two with their verdicts."""
    if "ceiling_verdict" not in row:
        return ["", "", ""]
    if row["undecided"]:
        return [row["ceiling_verdict"], row["efficiency_verdict"], MISSING]
    return [
        f"{_with_interval(row, 'ceiling_difference', signed_pp)}, {row['ceiling_verdict']}",
        f"{_with_interval(row, 'efficiency_ratio', _factor)}, {row['efficiency_verdict']}",
        _with_interval(row, "midpoint_ratio", _factor),
    ]


def _factor(value: float) -> str:
    return number(value, 2)


def _compute_remark(row: Mapping[str, object]) -> str:
    """Return why a fit is refused, or why the arm cannot be compared with the baseline."""
    if row["refused"]:
        return f"Refused: {row['refused']}."
    return f"Not compared: {row['undecided']}." if row.get("undecided") else ""


LAWS = Section(
    "laws",
    "the entropy-reward law and the law of compute, fitted to each arm",
    law_rows,
    lambda analysis, rows: law_tables(list(rows)),
)
