"""Comparison of training arms: paired, unpaired, factorial, over several tasks; power; corrections for many contrasts.

The unit of replication is the training seed: an array of scores is indexed by seed [n_seeds], and two arrays are paired
by position. Results are in the unit of the inputs. Missing numbers are NaN. Nothing here draws unseeded random numbers.

Sources: Student's paired t test; Welch (1947); Fisher (1935) for the sign-flip test; Holm (1979); Benjamini & Hochberg
(1995); Miller 2411.00640 (paired analysis of evaluations), Colas et al. 1806.08295 (how many seeds), Owen 0712.1111
(two-way bootstrap), Agarwal et al. 2108.13264 (interquartile mean, probability of improvement).

How often a 95% t interval of paired differences holds (measured by `tests/reports/statistics/test_calibration.py`):

| differences | n = 3 | n = 6 | n = 10 | n = 20 |
| --- | --- | --- | --- | --- |
| normal | 95% | 95% | 95% | 95% |
| Student's t with 3 degrees of freedom | 96% | 96% | 96% | 96% |
| normal, but one seed in ten collapses by 20 sd | 65% | 48% | 65% | 87% |

Where none of a few seeds collapsed, they cannot show that some do, and the interval misses the mean that includes
those. Hence every seed is a dot on the figures, with the median and the interquartile mean beside the mean.
"""

from reports.statistics.across_tasks import Estimate, interquartile_mean_over_tasks, probability_of_improvement
from reports.statistics.checks import FloatArray
from reports.statistics.corrections import benjamini_hochberg, holm
from reports.statistics.crossed_bootstrap import CrossedEstimate, crossed_bootstrap
from reports.statistics.factorial import Effect, factorial_effects
from reports.statistics.interquartile import interquartile_mean
from reports.statistics.intervals import t_band, t_interval
from reports.statistics.paired import NO_SPREAD, PairedComparison, compare_paired
from reports.statistics.power_analysis import TARGET_POWER, Power, difference_sd, power, sd_upper_bound
from reports.statistics.sign_flip import sign_flip_p_value
from reports.statistics.unpaired import UnpairedComparison, compare_unpaired
from reports.statistics.verdicts import MIN_PAIRS, Verdict

__all__ = [
    "MIN_PAIRS",
    "NO_SPREAD",
    "TARGET_POWER",
    "CrossedEstimate",
    "Effect",
    "Estimate",
    "FloatArray",
    "PairedComparison",
    "Power",
    "UnpairedComparison",
    "Verdict",
    "benjamini_hochberg",
    "compare_paired",
    "compare_unpaired",
    "crossed_bootstrap",
    "difference_sd",
    "factorial_effects",
    "holm",
    "interquartile_mean",
    "interquartile_mean_over_tasks",
    "power",
    "probability_of_improvement",
    "sd_upper_bound",
    "sign_flip_p_value",
    "t_band",
    "t_interval",
]
