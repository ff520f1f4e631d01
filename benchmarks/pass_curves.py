"""How often the band over k holds, and how often its word is false: `python benchmarks/pass_curves.py`.

Cells that never ran: problems with Beta(1/2, 1) difficulties, 16 samples each, and training that moves the level, the
variety and single problems by chance. Two equal arms are compared with each other, and an arm with the model before
training whose mean it keeps or not. Writes benchmarks/results/pass_curves.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.run.provenance import processor_name
from reports.statistics import (
    FloatArray,
    all_k,
    coverage_word,
    pass_curve,
    sampling_covariance,
    simultaneous_half_widths,
)

RESULTS = Path(__file__).with_name("results") / "pass_curves.md"
SAMPLES = 16
REPLICATES = 600
SETTINGS = ((200, 0.0), (200, 0.3), (200, 1.0), (30, 0.5))
"""Problems, and the standard deviation that training adds to their log-odds."""


def simulate(
    n_seeds: int, before_training: bool, *, problems: int, training_sd: float, replicates: int, seed: int = 0
) -> tuple[float, float]:
    """The shares of replicates in which the 95% band holds at all k, and of those with a false word.

    A word is false if the true difference is not what it says; of two equal arms every word but cannot tell is.
    """
    rng, ks = np.random.default_rng(seed), all_k(SAMPLES)
    difficulty = rng.beta(0.5, 1, problems)
    log_odds = np.log(difficulty / (1 - difficulty))
    variety = np.sign(log_odds - log_odds.mean())

    def trained(count: int) -> FloatArray:
        """The rates [count, problems] of policies after training."""
        level, spread = 0.3 * rng.normal(0, training_sd, (2, count, 1))
        moved = log_odds + level + spread * variety + 0.5 * rng.normal(0, training_sd, (count, problems))
        return np.asarray(1 / (1 + np.exp(-moved)))

    def evaluate(rates: FloatArray) -> list[int]:
        return [int(count) for count in np.bincount(rng.binomial(SAMPLES, rates), minlength=SAMPLES + 1)]

    def expected(rates: FloatArray) -> FloatArray:
        return np.array([np.mean(1 - (1 - rates) ** k) for k in ks])

    true = expected(trained(4000)) - expected(difficulty) if before_training else np.zeros(len(ks))
    held = false_words = 0
    for _ in range(replicates):
        after = [evaluate(rates) for rates in trained(n_seeds)]
        once = evaluate(difficulty)
        others = [once] * n_seeds if before_training else [evaluate(rates) for rates in trained(n_seeds)]
        curves = np.array(
            [pass_curve(one, ks) - pass_curve(other, ks) for one, other in zip(after, others, strict=True)]
        )
        own = after if before_training else [*after, *others]
        sampling = np.sum([sampling_covariance(one, ks) for one in own], axis=0) / n_seeds
        shared = sampling_covariance(once, ks) if before_training else None
        widths = simultaneous_half_widths(curves, sampling, shared)
        mean = curves.mean(axis=0)
        held += bool((np.abs(mean - true) <= widths).all())
        word = coverage_word(ks, mean - widths, mean + widths)
        false_words += word not in ("cannot tell", coverage_word(ks, true, true))
    return held / replicates, false_words / replicates


def main() -> None:
    lines = [
        "# Bands over k and their words",
        "",
        f"`python benchmarks/pass_curves.py`, {REPLICATES} replicates of a nominal 95% band, on {processor_name()}.",
        "",
        "| against | problems | sd of training (log-odds) | seeds | band holds at all k | false words |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for before_training in (False, True):
        for problems, training_sd in SETTINGS:
            for n_seeds in (3, 6, 12):
                held, false_words = simulate(
                    n_seeds, before_training, problems=problems, training_sd=training_sd, replicates=REPLICATES
                )
                against = "model before training" if before_training else "equal arm"
                cells = (against, problems, training_sd, n_seeds, f"{held:.1%}", f"{false_words:.1%}")
                lines.append(f"| {' | '.join(map(str, cells))} |")
                print(lines[-1], flush=True)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
