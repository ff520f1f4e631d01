"""A custom metric: whether at least half of k samples are right (G-Pass@k of Liu et al., arXiv:2412.13147).

Every evaluation has it from then on. Arms can be compared by it, `compare.metric: eval.final.g_pass@4`, because it is a
fraction of which more is better.
"""

from __future__ import annotations

from evals import Metric
from evals.metrics import Samples, mean
from evals.metrics.success import g_pass_at_k


def half_of_k(samples: Samples, k: int) -> float | None:
    """samples.counts: the right samples of each problem, out of samples.n. samples.by_problem: all that is recorded."""
    return mean(g_pass_at_k(samples.n, count, k, tau=0.5) for count in samples.counts)


g_pass = Metric(
    name="g_pass@{k}",  # one metric for each k of the evaluation; without {k}, a single metric
    meaning="at least half of k samples are right",
    unit="fraction",
    better="more",
    compute=half_of_k,
)
