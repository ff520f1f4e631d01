"""How often several looks err, and how many seeds they save: `python benchmarks/sequential.py` (4 minutes on one core).

Arms share the baseline's noise, so that contrasts correlate by one half; differences are normal. A verdict is false if
`better` or `worse` is said of equal arms, or `equivalent` of arms that differ by the margin; a design errs if any of its
looks says anything false of any contrast. Writes benchmarks/results/sequential.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

from reports.statistics import FloatArray, look_alphas, planned_shares, unplanned_share

RESULT = Path(__file__).parent / "results" / "sequential.md"
DESIGNS = 40_000
LOOKS = (6, 12, 18, 24)
ALPHA = 0.05
MARGIN_PP = 1.0
GAMMAS = {"Pocock-like (ours), gamma 1": 1.0, "gamma -2": -2.0, "O'Brien-Fleming-like, gamma -4": -4.0}

Alphas = Sequence[float]


class Paths:
    """Simulated designs: their differences [DESIGNS, contrasts] at each look, with the t intervals."""

    def __init__(self, looks: Sequence[int], contrasts: int, sd_pp: float, true_pp: float, seed: int = 1) -> None:
        random = np.random.default_rng(seed)
        arms = random.normal(0, sd_pp / math.sqrt(2), (contrasts + 1, DESIGNS, looks[-1]))
        differences = arms[1:] - arms[0] + true_pp
        self.looks = list(looks)
        self.means = [differences[..., :n].mean(axis=-1) for n in looks]
        self.errors = [differences[..., :n].std(axis=-1, ddof=1) / math.sqrt(n) for n in looks]

    def verdicts(self, alphas: Alphas) -> FloatArray:
        """[looks, contrasts, DESIGNS]: 1 for better or worse, -1 for equivalent, 0 for inconclusive."""
        found = []
        for n, alpha, mean, error in zip(self.looks, alphas, self.means, self.errors, strict=True):
            half_width = stdtrit(n - 1, 1 - alpha / 2) * error
            inside = (np.abs(mean) + half_width <= MARGIN_PP).astype(float)
            found.append(np.where(np.abs(mean) > half_width, 1.0, -inside))
        return np.array(found)


def size(alphas: Alphas, contrasts: int, looks: Sequence[int] = LOOKS) -> tuple[float, float]:
    """The share of designs with any false `better` or `worse`, and with any false `equivalent`."""
    equal = Paths(looks, contrasts, sd_pp=1.0, true_pp=0.0).verdicts(alphas)
    apart = Paths(looks, contrasts, sd_pp=1.0, true_pp=MARGIN_PP).verdicts(alphas)
    return float((equal == 1).any(axis=(0, 1)).mean()), float((apart == -1).any(axis=(0, 1)).mean())


def planned(contrasts: int, gamma: float = 1.0) -> Alphas:
    return look_alphas(LOOKS, tuple(ALPHA / contrasts * share for share in planned_shares(LOOKS, gamma)))


def seeds_used(alphas: Alphas, contrasts: int, sd_pp: float, true_pp: float) -> tuple[float, float]:
    """The mean seeds of a design that stops once all its contrasts are settled, and the share of designs in which they
    are."""
    settled = (Paths(LOOKS, contrasts, sd_pp, true_pp).verdicts(alphas) != 0).all(axis=1)  # [looks, DESIGNS]
    first = np.where(settled.any(axis=0), settled.argmax(axis=0), len(LOOKS) - 1)
    return float(np.array(LOOKS)[first].mean()), float(settled[first, np.arange(DESIGNS)].mean())


def fixed(contrasts: int, sd_pp: float, true_pp: float) -> float:
    """The share of designs of the most seeds, looked at once, that settle all their contrasts."""
    once = Paths(LOOKS[-1:], contrasts, sd_pp, true_pp)
    return float((once.verdicts([ALPHA / contrasts]) != 0).all(axis=1).mean())


def stop_at_first_verdict(looks: Sequence[int], contrasts: int, true_pp: float) -> float:
    """How often somebody errs who plans nothing: one look at all of alpha, and if something is inconclusive more seeds,
    with the levels that further looks then have. The verdict at which they stop counts."""
    each = ALPHA / contrasts
    further = look_alphas(tuple(looks), tuple(each * unplanned_share(k) for k in range(1, len(looks) + 1)))
    verdicts = Paths(looks, contrasts, sd_pp=1.0, true_pp=true_pp).verdicts([each, *further[1:]])
    settled = (verdicts != 0).all(axis=1)
    last = np.where(settled.any(axis=0), settled.argmax(axis=0), len(looks) - 1)
    false = verdicts[last, :, np.arange(DESIGNS)] == (-1 if true_pp else 1)
    return float(false.any(axis=1).mean())


def lines() -> list[str]:
    out = [
        "# Several looks: how often they err, how many seeds they save",
        "",
        f"`python benchmarks/sequential.py`: {DESIGNS:,} simulated designs a figure (a standard error of .1 %), looks at "
        f"{', '.join(map(str, LOOKS))} seeds, alpha {ALPHA:g}, margin {MARGIN_PP:g} pp.",
        "",
        "## Designs with a false verdict at any look",
        "",
        "| contrasts | levels | `better`/`worse` of equal arms | `equivalent` of arms a margin apart |",
        "| --- | --- | --- | --- |",
    ]
    for contrasts in (1, 2, 6):
        levels = {"the design's": planned(contrasts), "95 % each time": [ALPHA / contrasts] * len(LOOKS)}
        for name, alphas in levels.items():
            wrong, equivalent = size(alphas, contrasts)
            out.append(f"| {contrasts} | {name} | {wrong:.1%} | {equivalent:.1%} |")
    out += [
        "",
        "`95 % each time` shares alpha among contrasts, not among looks.",
        "",
        "## Somebody who plans nothing",
        "",
        "The first look has all of alpha. If anything is inconclusive, seeds are added, and each further look stands at the "
        "level that `bench report` gives it. They stop once all is settled; false verdicts at that point:",
        "",
        "| looks at | contrasts | `better`/`worse` of equal arms | `equivalent` of arms a margin apart |",
        "| --- | --- | --- | --- |",
    ]
    for looks in ((12, 24), (6, 12, 18, 24), (6, 12, 24, 48, 96)):
        for contrasts in (1, 2):
            wrong, equivalent = (stop_at_first_verdict(looks, contrasts, true_pp) for true_pp in (0.0, MARGIN_PP))
            out.append(f"| {', '.join(map(str, looks))} | {contrasts} | {wrong:.1%} | {equivalent:.1%} |")
    out += [
        "",
        f"## Mean seeds, of at most {LOOKS[-1]}",
        "",
        "Beside the mean: the share of designs that settle everything. `fixed` looks once, at the most seeds.",
        "",
        f"| contrasts | sd of the difference (pp) | true difference (pp) | {' | '.join(GAMMAS)} | fixed |",
        f"| --- | --- | --- | {' | '.join('---' for _ in GAMMAS)} | --- |",
    ]
    for contrasts in (1, 2):
        for sd_pp in (0.8, 1.6):
            for true_pp in (0.0, 0.5, 1.0, 2.0):
                cells = [seeds_used(planned(contrasts, gamma), contrasts, sd_pp, true_pp) for gamma in GAMMAS.values()]
                shown = " | ".join(f"{mean:.1f} ({share:.0%})" for mean, share in cells)
                once = fixed(contrasts, sd_pp, true_pp)
                out.append(f"| {contrasts} | {sd_pp:g} | {true_pp:g} | {shown} | {LOOKS[-1]} ({once:.0%}) |")
    return out


if __name__ == "__main__":
    RESULT.write_text("\n".join(lines()) + "\n", encoding="utf-8")
    print(RESULT.read_text(encoding="utf-8"))
