from __future__ import annotations

from reports.measure.over_k import points_over_k


def test_points_over_k_are_of_one_family_and_ordered():
    metrics = {"pass@16": 0.9, "avg@n": 0.3, "pass@2": 0.5, "pass^2": 0.1, "maj@2": 0.4, "cons@n": 0.6}
    assert points_over_k(metrics, "pass") == [(2, 0.5), (16, 0.9)]
    assert points_over_k(metrics, "maj") == [(2, 0.4)]
