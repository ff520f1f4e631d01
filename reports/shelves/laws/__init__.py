"""Laws that training is said to follow: reward against entropy, score against generated tokens.

`fit_entropy_law` fits R = -a exp(H) + b (Cui et al. 2505.22617). `fit_free_exponent` adds a free factor in front of H.
`law_uncertainty` and `free_exponent_uncertainty` compute intervals by a jackknife over complete runs. `forecast` fits
the beginning of a run and predicts the rest. `fit_compute_law` fits a sigmoid in log tokens, and `compare_compute_laws`
compares two such fits, paired by seed. Points that do not determine a law raise LawRefusedError with the reason.
"""

from reports.shelves.laws.compute import ComputeLaw, compare_compute_laws, fit_compute_law
from reports.shelves.laws.entropy import (
    MIN_POINTS,
    EntropyLaw,
    EntropyRun,
    FreeExponent,
    LawRefusedError,
    fit_entropy_law,
    fit_free_exponent,
)
from reports.shelves.laws.forecast import FIRST_FRAC, Forecast, first_part, forecast
from reports.shelves.laws.uncertainty import (
    FreeExponentUncertainty,
    LawInterval,
    LawUncertainty,
    free_exponent_uncertainty,
    law_uncertainty,
    pooled,
)

__all__ = [
    "FIRST_FRAC",
    "MIN_POINTS",
    "ComputeLaw",
    "EntropyLaw",
    "EntropyRun",
    "Forecast",
    "FreeExponent",
    "FreeExponentUncertainty",
    "LawInterval",
    "LawRefusedError",
    "LawUncertainty",
    "compare_compute_laws",
    "first_part",
    "fit_compute_law",
    "fit_entropy_law",
    "fit_free_exponent",
    "forecast",
    "free_exponent_uncertainty",
    "law_uncertainty",
    "pooled",
]
