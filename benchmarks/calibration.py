"""How often our intervals hold and our verdicts err, by simulation, as a table for n = 3, 6, 10 and 24 seeds.

python benchmarks/calibration.py [replicates]

It writes results/calibration.md. Every number comes from the functions that reports call. With the 2000 replicates it
has by default the standard error of a coverage near 95% is 0.5 points, and it takes six minutes of one core.
"""

from __future__ import annotations

import contextlib
import math
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import scipy

from harness.run.provenance import processor_name
from reports.shelves.laws import (
    ComputeLaw,
    EntropyRun,
    LawRefusedError,
    fit_compute_law,
    fit_entropy_law,
    fit_free_exponent,
    free_exponent_uncertainty,
    law_uncertainty,
    pooled,
)
from reports.statistics import (
    Comparison,
    FloatArray,
    compare_paired,
    compare_unpaired,
    components,
    interquartile_mean,
    interquartile_mean_over_tasks,
    over_seeds_and_problems,
    power,
    probability_of_improvement,
    t_band,
)
from reports.statistics.variance_components import PARTS

RESULT = Path(__file__).parent / "results" / "calibration.md"
SEEDS = (3, 6, 10, 24)
SEEDS_OF_VERDICTS = (3, 4, 5, 6, 10, 24)
"""Below six seeds a spread under one step of the score is unknown."""
CONTRASTS = 5
COLLAPSE_SDS = 20
EVALUATIONS = 10
"""So many has each run that a compute law is fitted to."""

Rows = list[list[str]]


def t_intervals(replicates: int) -> Rows:
    """Differences whose true mean is 0, with 10 times as many replicates."""
    rng = np.random.default_rng(0)
    draws: dict[str, Callable[[tuple[int, int]], FloatArray]] = {
        "normal": lambda shape: rng.normal(0, 1, shape),
        "Student's t, 3 degrees of freedom": lambda shape: rng.standard_t(3, shape),
        f"normal, one seed in ten collapses by {COLLAPSE_SDS} sd": lambda shape: (
            rng.normal(0, 1, shape) - COLLAPSE_SDS * ((rng.random(shape) < 0.1) - 0.1)
        ),
    }
    rows = [["differences", *(f"n = {n}" for n in SEEDS)]]
    for name, draw in draws.items():
        ends = [t_band(draw((n, 10 * replicates))) for n in SEEDS]
        rows.append([name, *(_percent(np.mean((low <= 0) & (high >= 0))) for low, high in ends)])
    return rows


def designs(replicates: int) -> Rows:
    """What normal paired differences give, in twice as many replicates: how often 95% intervals hold their mean, the
    smallest p of a sign-flip test, and the effect that 80% of sweeps find, in standard deviations of the differences,
    with the share that did."""
    rows = [["seeds", "t interval", "percentile bootstrap", "smallest sign-flip p", "detectable effect", "found"]]
    for n in SEEDS:
        rng = np.random.default_rng(n)
        drawn, effect = rng.normal(0, 1, (n, 2 * replicates)), power(1.0, n=n).effect
        low, high = t_band(drawn)
        weights = rng.multinomial(n, np.full(n, 1 / n), size=1000) / n
        lower, upper = np.quantile(weights @ drawn, [0.025, 0.975], axis=0)
        held = (np.mean((low <= 0) & (high >= 0)), np.mean((lower <= 0) & (upper >= 0)))
        found = _percent(np.mean(low + effect > 0))
        rows.append([str(n), *map(_percent, held), f"{2.0 ** (1 - n):.2g}", f"{effect:.2f} sd", found])
    return rows


def binary_scores(
    rng: np.random.Generator, n_seeds: int, n_problems: int, n_samples: int, sds: Sequence[float], shared: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """Right samples of two arms that are equally good on average [n_seeds, n_problems, n_samples].

    Problems have Beta(1, 1) difficulties. sds: of the differences that a seed, a problem, and a seed on one problem
    make to the chance of success. shared: how often a sample draws the same noise in both arms.
    """
    of_seed, of_problem, of_both = sds
    half = (
        rng.normal(0, of_seed, (n_seeds, 1)) + rng.normal(0, of_problem, n_problems)
        + rng.normal(0, of_both, (n_seeds, n_problems))
    ) / 2  # fmt: skip
    chance, shape = rng.beta(1, 1, n_problems), (n_seeds, n_problems, n_samples)
    noise, own = rng.random(shape), rng.random(shape)
    other = np.where(rng.random(shape) < shared, noise, own)
    treated, control = (noise < (chance + half)[..., None]), (other < (chance - half)[..., None])
    return treated.astype(np.float64), control.astype(np.float64)


def new_problems(replicates: int) -> Rows:
    """Right and wrong answers to problems of Beta(1, 1) difficulties. What seeds, problems, and a seed on one
    problem do to the difference of the chances of success has the standard deviations named."""
    layouts = {
        "seeds 2 pp, problems 10 pp, both 5 pp, 4 samples": (0.02, 0.1, 0.05, 4),
        "seeds 1 pp, problems 5 pp, both 5 pp, 1 sample": (0.01, 0.05, 0.05, 1),
        "seeds 5 pp, problems 5 pp, both 5 pp, 16 samples": (0.05, 0.05, 0.05, 16),
        "problems 10 pp alone, 4 samples": (0.0, 0.1, 0.0, 4),
        "seeds 3 pp alone, 4 samples": (0.03, 0.0, 0.0, 4),
        "neither, 1 sample": (0.0, 0.0, 0.0, 1),
    }
    rows = [["differences", "problems", *(f"n = {n}" for n in SEEDS)]]
    for name, (*sds, n_samples) in layouts.items():
        for n_problems in (30, 200):
            cells = [name, str(n_problems)]
            for n in SEEDS:
                rng = np.random.default_rng(n)
                pairs = (binary_scores(rng, n, n_problems, n_samples, sds) for _ in range(replicates))
                found = [over_seeds_and_problems((one - other).mean(axis=2)) for one, other in pairs]
                cells.append(_percent(np.mean([one.low <= 0 <= one.high for one in found])))
            rows.append(cells)
    return rows


def variance_parts(replicates: int) -> Rows:
    """Each part of a variance over its truth, and how often its interval holds the truth; 50 problems, 8 samples.
    Half of the replicates."""
    known = dict(zip(PARTS, (1.0, 2.0, 16.0, 4.0), strict=True))
    rows = [["part", *(f"n = {n}" for n in SEEDS)], *([part.replace("_", " ")] for part in PARTS)]
    for n in SEEDS:
        rng, found = np.random.default_rng(n), []
        for _ in range(max(1, replicates // 2)):
            shapes = ((n, 1, 1), (n, 50, 1), (n, 50, 8), (1, 50, 1))
            drawn = np.zeros((n, 50, 8))
            for variance, shape in zip(known.values(), shapes, strict=True):
                drawn += rng.normal(0, math.sqrt(variance), shape)
            found.append(components(drawn.mean(axis=2), drawn.var(axis=2, ddof=1) / 8, n_samples=8))
        for row, part in zip(rows[1:], PARTS, strict=True):
            truth = known[part] / (8 if part == "sampling" else 1)
            parts = [getattr(one, part) for one in found]
            ratio = np.mean([one.value for one in parts]) / truth
            row.append(f"{ratio:.2f}, {_percent(np.mean([one.low <= truth <= one.high for one in parts]))}")
    return rows


def task_scores(rng: np.random.Generator, n: int, levels: FloatArray, together: float) -> FloatArray:
    """Scores [n, n_tasks] around the tasks' levels; `together` is the correlation of tasks over runs."""
    own = rng.normal(0, 1, (n, len(levels)))
    return levels + 2 * (math.sqrt(together) * rng.normal(0, 1, (n, 1)) + math.sqrt(1 - together) * own)


def tasks(replicates: int) -> Rows:
    """What it should cover is its value over very many runs. Scores are normal with a standard deviation of 2 pp."""
    levels = {
        "3 tasks of one level": np.zeros(3),
        "3 tasks, one 40 pp above": np.array([0.0, 0.0, 40.0]),
        "5 tasks from -20 to 20 pp": np.linspace(-20, 20, 5),
    }
    rows = [["tasks", "correlation of tasks", *(f"n = {n}" for n in SEEDS)]]
    for name, level in levels.items():
        for together in (0.0, 0.9):
            cells = [name, f"{together:g}"]
            truth = interquartile_mean(task_scores(np.random.default_rng(1), 200_000, level, together).ravel())
            for n in SEEDS:
                rng = np.random.default_rng(n)
                found = [interquartile_mean_over_tasks(task_scores(rng, n, level, together)) for _ in range(replicates)]
                cells.append(_percent(np.mean([one.low <= truth <= one.high for one in found])))
            rows.append(cells)
    return rows


def improvement(replicates: int) -> Rows:
    """Over 3 tasks, from paired runs. In the rows of 0.50 the rest to 100% is how often one half is wrongly excluded.
    Below 6 runs no interval is shown."""
    rows = [["true probability", "correlation of tasks, of arms", *(f"n = {n}" for n in SEEDS)]]
    for shift in (0.0, 1.4, 3.0):
        truth = 0.5 * (1 + math.erf(shift / 4))
        for together, arms in ((0.0, 0.0), (0.9, 0.0), (0.9, 0.8)):
            cells = [f"{truth:.2f}", f"{together:g}, {arms:g}"]
            for n in SEEDS:
                rng, found = np.random.default_rng(n), []
                for _ in range(replicates):
                    shared, one, other = (task_scores(rng, n, np.zeros(3), together) for _ in range(3))
                    pair = (math.sqrt(arms) * shared + math.sqrt(1 - arms) * own for own in (one, other))
                    treated, control = pair
                    found.append(probability_of_improvement(treated + shift, control))
                known = [one for one in found if not math.isnan(one.low)]
                cells.append(
                    _percent(np.mean([one.low <= truth <= one.high for one in known])) if known else "none shown"
                )
            rows.append(cells)
    return rows


def _sweeps(
    n: int, n_problems: int, n_samples: int, shared: float, replicates: int
) -> Iterator[tuple[FloatArray, list[FloatArray]]]:
    """The scores of a baseline and of five arms just as good, in percent [n]; at shared = 1 all would be the same."""
    rng, shape = np.random.default_rng(n), (n, n_problems, n_samples)
    for _ in range(replicates):
        chance, noise = rng.beta(1, 1, (n_problems, 1)), rng.random(shape)
        arms = [np.where(rng.random(shape) < shared, noise, rng.random(shape)) < chance for _ in range(CONTRASTS + 1)]
        baseline, *others = [100 * arm.mean(axis=(1, 2)) for arm in arms]
        yield baseline, others


def false_verdicts(replicates: int) -> Rows:
    """Sweeps in which any of five contrasts is called better or worse though all arms are alike, at 5% for the sweep:
    by the t interval alone, then by our rule, paired and unpaired."""
    rows = [["problems x samples, shared noise", "verdict", *(f"n = {n}" for n in SEEDS_OF_VERDICTS)]]
    alpha = 0.05 / CONTRASTS
    for n_problems, n_samples, shared in ((30, 1, 0.0), (30, 1, 0.7), (30, 4, 0.9), (200, 1, 0.0)):
        quantum = 100 / (n_problems * n_samples)
        wrong: dict[str, list[float]] = {"t interval alone": [], "paired": [], "unpaired": []}
        for n in SEEDS_OF_VERDICTS:
            alone, paired, unpaired = [], [], []
            for baseline, others in _sweeps(n, n_problems, n_samples, shared, replicates):
                low, high = t_band(np.column_stack([other - baseline for other in others]), alpha)
                alone.append(bool(((low > 1e-9) | (high < -1e-9)).any()))
                paired.append(any(_decided(compare_paired(o, baseline, alpha, quantum=quantum)) for o in others))
                unpaired.append(any(_decided(compare_unpaired(o, baseline, alpha, quantum=quantum)) for o in others))
            for kind, erred in zip(wrong, (alone, paired, unpaired), strict=True):
                wrong[kind].append(float(np.mean(erred)))
        name = f"{n_problems} x {n_samples}, {shared:.0%}"
        rows += [[name, kind, *map(_percent, shares)] for kind, shares in wrong.items()]
    return rows


def _decided(comparison: Comparison) -> bool:
    return comparison.verdict in ("better", "worse")


def false_equivalence(replicates: int) -> Rows:
    """Contrasts called equivalent, at 5% / 5, though the true difference is the margin; at most 1% may be."""
    rows = [["problems x samples", "margin (pp)", *(f"n = {n}" for n in SEEDS_OF_VERDICTS)]]
    for n_problems, n_samples, margin in ((30, 1, 10), (30, 4, 3), (200, 4, 1)):
        cells = [f"{n_problems} x {n_samples}", str(margin)]
        for n in SEEDS_OF_VERDICTS:
            rng, found = np.random.default_rng(n), 0
            for _ in range(replicates):
                chance, shape = rng.beta(1, 1, (n_problems, 1)) * (1 - margin / 100), (n, n_problems, n_samples)
                noise = rng.random(shape)
                treated, control = (100 * (noise < chance + gain).mean(axis=(1, 2)) for gain in (margin / 100, 0.0))
                quantum = 100 / (n_problems * n_samples)
                result = compare_paired(treated, control, 0.05 / CONTRASTS, margin, quantum=quantum)
                found += result.verdict == "equivalent"
            cells.append(_percent(found / replicates))
        rows.append(cells)
    return rows


def autocorrelated(rng: np.random.Generator, shape: tuple[int, int], correlation: float) -> FloatArray:
    """Stationary AR(1) noise [n_runs, n_points] with a standard deviation of 1."""
    noise = rng.normal(0, 1, shape)
    for place in range(1, shape[1]):
        noise[:, place] = correlation * noise[:, place - 1] + math.sqrt(1 - correlation**2) * noise[:, place]
    return noise


def entropy_law(replicates: int) -> Rows:
    """From 40 steps of each of n runs whose entropy falls from 1.4 to 0.3 nats, by a jackknife over runs; a quarter of
    the replicates. The reward has AR(1) noise with a standard deviation of 0.02 and an autocorrelation of 0.6. Where
    runs differ, their ceilings and slopes have a standard deviation of 0.03."""
    rows = [["runs", "true exponent", "interval of the", *(f"n = {n}" for n in SEEDS)]]
    done = np.arange(40) / 40
    for spread in (0.0, 0.03):
        for exponent in (1.0, -0.7):
            held: dict[str, list[str]] = {"ceiling, exponent 1": [], "exponent": [], "ceiling, exponent free": []}
            for n in SEEDS:
                rng, hits = np.random.default_rng(n), []
                for _ in range(max(1, replicates // 4)):
                    entropy = 0.25 + 1.15 * np.exp(-3 * done) + rng.normal(0, 0.02, (n, 40))
                    ceiling, slope = 0.9 + rng.normal(0, spread, (n, 1)), 0.25 + rng.normal(0, spread, (n, 1))
                    bend = (np.exp(exponent * entropy) - 1) / exponent
                    reward = ceiling - slope * bend + 0.02 * autocorrelated(rng, (n, 40), 0.6)
                    runs = [EntropyRun(40 * done + 1, *run) for run in zip(entropy, reward, strict=True)]
                    law, free = fit_entropy_law(*pooled(runs)), fit_free_exponent(*pooled(runs))
                    width, widths = law_uncertainty(runs).half_widths([0.0])[0], free_exponent_uncertainty(runs, free)
                    hits.append([
                        abs(law.ceiling - 0.9) <= width,
                        abs(free.exponent - exponent) <= widths.exponent,
                        abs(free.ceiling - 0.9) <= widths.ceiling,
                    ])  # fmt: skip
                for kind, share in zip(held, np.mean(hits, axis=0), strict=True):
                    held[kind].append(_percent(share))
            kept = [kind for kind in held if exponent == 1 or kind != "ceiling, exponent 1"]
            rows += [["differ" if spread else "alike", f"{exponent:g}", kind, *held[kind]] for kind in kept]
    return rows


def learning_runs(rng: np.random.Generator, n: int, gain: float, correlation: float) -> tuple[FloatArray, FloatArray]:
    """Tokens and scores in percent [n, EVALUATIONS] of runs that gain `gain` pp along a sigmoid, or nothing if it is 0.

    Runs differ in level (sd 1 pp), gain (10%) and midpoint (20%). The noise of evaluations is AR(1) with an sd of 1 pp.
    """
    tokens = np.tile(np.linspace(2e4, 2e5, EVALUATIONS), (n, 1))
    level, gains = 35 + rng.normal(0, 1, (n, 1)), gain * (1 + rng.normal(0, 0.1, (n, 1)))
    midpoints = 6e4 * np.exp(rng.normal(0, 0.2, (n, 1)))
    noise = autocorrelated(rng, tokens.shape, correlation)
    return tokens, level + gains / (1 + (midpoints / tokens) ** 1.4) + noise


def compute_law(replicates: int) -> Rows:
    """From ten evaluations of each of n runs, with the score before training known; a quarter of the replicates. Runs
    that gain nothing: how often a law is accepted, at most 5%. Runs that follow a sigmoid: how often it is accepted,
    then how often an accepted asymptote's interval holds the true one. The noise of evaluations has a standard
    deviation of 1 pp and the autocorrelation named."""
    rows = [["true gain (pp)", "autocorrelation", *(f"n = {n}" for n in SEEDS)]]
    for gain in (0, 3, 6, 12):
        for correlation in (0.0, 0.5, 0.8):
            cells = ["none" if gain == 0 else str(gain), f"{correlation:g}"]
            for n in SEEDS:
                rng, laws, tried = np.random.default_rng(n), list[ComputeLaw](), max(1, replicates // 4)
                for _ in range(tried):
                    tokens, scores = learning_runs(rng, n, gain, correlation)
                    with contextlib.suppress(LawRefusedError):
                        lengths = [EVALUATIONS] * n
                        laws.append(fit_compute_law(tokens.ravel(), scores.ravel(), 35.0, run_lengths=lengths))
                ends = [law.interval("asymptote") for law in laws]
                held = [low <= 35 + gain <= high for low, high in ends]
                coverage = f", {_percent(np.mean(held))}" if gain and held else ""
                cells.append(_percent(len(laws) / tried) + coverage)
            rows.append(cells)
    return rows


TABLES: dict[str, Callable[[int], Rows]] = {
    "What a number of seeds can show": designs,
    "Coverage of the 95% t interval of paired differences": t_intervals,
    "Sweeps with a false `better` or `worse`": false_verdicts,
    "False `equivalent`": false_equivalence,
    "Coverage of the 95% interval over new seeds and new problems": new_problems,
    "Parts of a variance: estimate over truth, coverage of the 95% interval": variance_parts,
    "Coverage of the 95% interval of an interquartile mean over tasks": tasks,
    "Coverage of the 95% interval of a probability of improvement": improvement,
    "Coverage of the 95% intervals of the entropy law": entropy_law,
    "Compute laws accepted, and coverage of their asymptote's 95% interval": compute_law,
}


def document(replicates: int) -> str:
    """All tables as Markdown."""
    versions = f"Python {platform.python_version()}, numpy {np.__version__}, scipy {scipy.__version__}"
    parts = [
        f"# Calibration\n\n`python benchmarks/calibration.py {replicates}` wrote this page: {replicates} replicates of"
        f" a number where its table says nothing else, on one core of {processor_name()} with {versions}.\n"
    ]
    for title, make in TABLES.items():
        print(title, file=sys.stderr)
        header, *rows = make(replicates)
        lines = [header, ["---"] * len(header), *rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        parts.append(f"## {title}\n\n{' '.join((make.__doc__ or '').split())}\n\n{table}\n")
    return "\n".join(parts)


def _percent(share: float | np.floating) -> str:
    return f"{100 * share:.1f}%"


if __name__ == "__main__":
    RESULT.write_text(document(int(sys.argv[1]) if len(sys.argv) > 1 else 2000), encoding="utf-8")
