"""Synthetic runs that follow the entropy law, with autocorrelated noise."""

from __future__ import annotations

import numpy as np

from reports.shelves.laws import EntropyRun
from reports.shelves.laws.entropy import FloatArray

A, B = 0.25, 1.1


def ar1(n: int, correlation: float, sd: float, rng: np.random.Generator) -> FloatArray:
    """A stationary AR(1) series [n]."""
    noise = rng.normal(0, 1, n)
    for i in range(1, n):
        noise[i] = correlation * noise[i - 1] + np.sqrt(1 - correlation**2) * noise[i]
    return sd * noise


def entropy_curve(n: int, rng: np.random.Generator, first_nats: float = 1.4, last_nats: float = 0.25) -> FloatArray:
    """Entropy [n] that falls fast at first, as in training."""
    done = np.arange(1, n + 1) / n
    return np.asarray(last_nats + (first_nats - last_nats) * np.exp(-3 * done) + rng.normal(0, 0.02, n))


def law_run(
    n: int,
    rng: np.random.Generator,
    *,
    correlation: float = 0.6,
    sd: float = 0.02,
    spread: float = 0.0,
    a: float = A,
    b: float = B,
    first_nats: float = 1.4,
) -> EntropyRun:
    """A run of the law; `spread`: sd over runs of both parameters."""
    a, b = a + spread * rng.normal(), b + spread * rng.normal()
    entropy = entropy_curve(n, rng, first_nats)
    reward = b - a * np.exp(entropy) + ar1(n, correlation, sd, rng)
    return EntropyRun(np.arange(1, n + 1, dtype=np.float64), entropy, reward)
