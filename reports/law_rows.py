"""The laws as rows of report.json: entropy laws of every arm, pooled and by seed, and compute laws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from reports.compute_laws import ComputeFit, compute_fits
from reports.entropy_laws import EntropyFit

if TYPE_CHECKING:
    from reports.analysis import Analysis


NOTHING = (math.nan, math.nan)


def law_rows(analysis: Analysis) -> list[dict[str, Any]]:
    """Rows of both laws; `law` says which, and `refused` why one has no numbers."""
    sweep = analysis.sweep
    computed = compute_fits(sweep, analysis.metric, analysis.measurements)
    return [_entropy_row(fit, sweep.alpha) for fit in analysis.entropy_fits] + [_compute_row(fit) for fit in computed]


def _entropy_row(fit: EntropyFit, alpha: float) -> dict[str, Any]:
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
        "block_points": None if fit.uncertainty is None else fit.uncertainty.block_points,
        "exponent": None if fit.exponent is None else fit.exponent.exponent,
        "exponent_ceiling": None if fit.exponent is None else fit.exponent.ceiling,
        "exponent_r2": None if fit.exponent is None else fit.exponent.r2,
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
    return {
        name + end: value + sign * half_width
        for name, (value, half_width) in values.items()
        for end, sign in (("", 0), ("_low", -1), ("_high", 1))
    }


def _forecast(fit: EntropyFit) -> dict[str, Any] | None:
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
        "beats": found.beats,
    }


def _compute_row(fit: ComputeFit) -> dict[str, Any]:
    law = fit.law
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
        "start": None if law is None else law.start,
        "asymptote": None if law is None else law.asymptote,
        "exponent": None if law is None else law.exponent,
        "midpoint_tokens": None if law is None else law.midpoint_tokens,
        "r2": None if law is None else law.r2,
    }
