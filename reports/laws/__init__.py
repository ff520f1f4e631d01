"""Laws that training is said to follow: reward against entropy, score against generated tokens.

`fit_entropy_law` fits R = -a exp(H) + b (Cui et al. 2505.22617), `fit_free_exponent` the same with a free scale of H.
`law_uncertainty` gives its intervals by a block bootstrap. `forecast` fits the beginning of a run and predicts the
rest. `fit_compute_law` fits a sigmoid in log tokens. Points that determine no law raise LawRefusedError, which says
why.
"""

from reports.laws.compute import ComputeLaw, fit_compute_law
from reports.laws.entropy import EntropyLaw, FreeExponent, fit_entropy_law, fit_free_exponent
from reports.laws.forecast import FIRST_FRAC, Forecast, first_part, forecast
from reports.laws.points import MIN_POINTS, LawRefusedError, Run
from reports.laws.uncertainty import LawUncertainty, law_uncertainty

__all__ = [
    "FIRST_FRAC",
    "MIN_POINTS",
    "ComputeLaw",
    "EntropyLaw",
    "Forecast",
    "FreeExponent",
    "LawRefusedError",
    "LawUncertainty",
    "Run",
    "first_part",
    "fit_compute_law",
    "fit_entropy_law",
    "fit_free_exponent",
    "forecast",
    "law_uncertainty",
]
