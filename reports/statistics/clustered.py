"""Scores that come in clusters: samples and seeds of a problem are alike, so that the problem is what is replicated.

The standard error of a mean of n scores in C clusters is that of Liang & Zeger (1986, Biometrika 73:13) with the factor
C / (C - 1) for few clusters, as inspect_ai computes it and Miller (2411.00640, section 2.2) advises it:

    se = sqrt(C / (C - 1) * sum over clusters of (sum of residuals in the cluster)^2) / n

Student's t with C - 1 degrees of freedom makes an interval of it that is honest with few problems.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from reports.statistics.means import FloatArray, finite_scores


def cluster_values(scores: Sequence[float] | FloatArray, clusters: Sequence[Hashable]) -> FloatArray:
    """A value for each cluster [C], in the order in which clusters first come.

    scores [n], clusters [n]: of each score. The values' mean is the mean of all scores, and their standard deviation
    over sqrt(C) is the clustered standard error: whatever compares one value per replicate compares clusters so. Where
    all clusters have the same size, a value is its cluster's mean; else the mean of all scores and what the cluster
    adds to it. Of two arms with the same clusters, the difference of values is the value of the differences.

    Raises ValueError for scores that are empty or not finite, and for another number of clusters than of scores.
    """
    values = finite_scores("scores", scores)
    if len(clusters) != len(values):
        raise ValueError(f"{len(values)} scores and {len(clusters)} clusters: give the cluster of each score")
    place = {cluster: index for index, cluster in enumerate(dict.fromkeys(clusters))}
    index = np.array([place[cluster] for cluster in clusters])
    sizes, sums = np.bincount(index), np.bincount(index, weights=values)
    if sizes.min() == sizes.max():
        return np.asarray(sums / sizes[0], dtype=np.float64)
    mean = values.mean()
    return np.asarray(mean + (sums - sizes * mean) * len(sizes) / len(values), dtype=np.float64)


def clustered_error(scores: Sequence[float] | FloatArray, clusters: Sequence[Hashable]) -> float:
    """The clustered standard error of the mean of the scores; NaN for a single cluster. Raises as `cluster_values`."""
    values = cluster_values(scores, clusters)
    return math.nan if len(values) < 2 else float(values.std(ddof=1)) / math.sqrt(len(values))
