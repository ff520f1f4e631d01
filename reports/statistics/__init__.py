"""Statistics of training arms: comparisons, power, factorials, several tasks, corrections for many contrasts.

The unit of replication is the training seed. An array of scores has one entry per seed [n_seeds]; two arrays are paired
by position. Results have the unit of the inputs. NaN stands for a number that cannot be computed. All functions are
deterministic: random draws have fixed seeds.

Sources: Student's paired t test; Welch (1947); Fisher (1935) for the sign-flip test; Holm (1979); Miller 2411.00640
(paired analysis of evaluations), Colas et al. 1806.08295 (how many seeds), Searle, Casella & McCulloch (1992) and
Satterthwaite (1946) for components of variance, Agarwal et al. 2108.13264 (interquartile mean, probability of
improvement).

The table shows how often the 95% t interval of paired differences covers the true mean. `benchmarks/calibration.py`
measures this for every interval; the results are in `benchmarks/results/calibration.md`.

| differences | n = 3 | n = 6 | n = 10 | n = 24 |
| --- | --- | --- | --- | --- |
| normal | 95% | 95% | 95% | 95% |
| Student's t with 3 degrees of freedom | 96% | 97% | 96% | 96% |
| normal, but one seed in ten collapses by 20 sd | 65% | 48% | 64% | 92% |

In the last row, a few seeds that all survived give no hint that others collapse, so their interval misses the true
mean. Therefore figures show every seed as a dot, and tables give the median and the interquartile mean next to the
mean.
"""

from reports.statistics.across_tasks import (
    MIN_RUNS_FOR_IMPROVEMENT,
    Estimate,
    interquartile_mean_over_tasks,
    probability_of_improvement,
)
from reports.statistics.comparison import (
    Comparison,
    PairedComparison,
    UnpairedComparison,
    Verdict,
    compare_paired,
    compare_unpaired,
)
from reports.statistics.factorial import Effect, factorial_effects
from reports.statistics.means import (
    MIN_PAIRS,
    FloatArray,
    cluster_values,
    clustered_error,
    interquartile_mean,
    t_band,
    t_interval,
)
from reports.statistics.p_values import holm, sign_flip_p_value
from reports.statistics.pass_curves import (
    LARGE,
    CoverageWord,
    all_k,
    coverage_word,
    pass_curve,
    sampling_covariance,
    simultaneous_half_widths,
)
from reports.statistics.power_analysis import (
    TARGET_POWER,
    Power,
    difference_sd,
    equivalence_power,
    fewest,
    power,
    sd_upper_bound,
    t_test_power,
)
from reports.statistics.sequential import look_alphas, planned_shares, unplanned_share
from reports.statistics.variance_components import (
    CrossedEstimate,
    ErrorPart,
    Interval,
    VarianceComponents,
    components,
    components_of_problems,
    over_seeds_and_problems,
)

__all__ = [
    "LARGE",
    "MIN_PAIRS",
    "MIN_RUNS_FOR_IMPROVEMENT",
    "TARGET_POWER",
    "Comparison",
    "CoverageWord",
    "CrossedEstimate",
    "Effect",
    "ErrorPart",
    "Estimate",
    "FloatArray",
    "Interval",
    "PairedComparison",
    "Power",
    "UnpairedComparison",
    "VarianceComponents",
    "Verdict",
    "all_k",
    "cluster_values",
    "clustered_error",
    "compare_paired",
    "compare_unpaired",
    "components",
    "components_of_problems",
    "coverage_word",
    "difference_sd",
    "equivalence_power",
    "factorial_effects",
    "fewest",
    "holm",
    "interquartile_mean",
    "interquartile_mean_over_tasks",
    "look_alphas",
    "over_seeds_and_problems",
    "pass_curve",
    "planned_shares",
    "power",
    "probability_of_improvement",
    "sampling_covariance",
    "sd_upper_bound",
    "sign_flip_p_value",
    "simultaneous_half_widths",
    "t_band",
    "t_interval",
    "t_test_power",
    "unplanned_share",
]
