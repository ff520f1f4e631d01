"""How often several looks err, and how many seeds they save: `python benchmarks/sequential.py` (a minute on one core).

Arms share the baseline's noise, so that contrasts correlate by one half; differences are normal. A verdict is false if
`better` or `worse` is said of equal arms, or `equivalent` of arms that differ by the margin; a design errs if any of
its looks says anything false of any contrast. Writes benchmarks/results/sequential.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from reports.statistics import look_alphas, planned_shares, unplanned_share
from reports.statistics.sequential import SPENDING_GAMMA

RESULT = Path(__file__).parent / "results" / "sequential.md"
DESIGNS = 40_000
LOOKS = (6, 12, 18, 24)
ALPHA = 0.05
MARGIN_PP = 1.0
SIZE_SD_PP = 0.5
"""Small enough that even six seeds can find arms equivalent, so that each look has its chance to err."""
GAMMAS = {"gamma 1, as Pocock": 1.0, "gamma -2, ours": SPENDING_GAMMA, "gamma -4, as O'Brien-Fleming": -4.0}

Alphas = Sequence[float]
BoolArray = npt.NDArray[np.bool_]


class Paths:
    """Simulated designs: their differences [DESIGNS, contrasts] at each look, with the t intervals."""

    def __init__(self, looks: Sequence[int], contrasts: int, sd_pp: float, true_pp: float, seed: int = 1) -> None:
        random = np.random.default_rng(seed)
        arms = random.normal(0, sd_pp / math.sqrt(2), (contrasts + 1, DESIGNS, looks[-1]))
        differences = arms[1:] - arms[0] + true_pp
        self.looks = list(looks)
        self.means = [differences[..., :n].mean(axis=-1) for n in looks]
        self.errors = [differences[..., :n].std(axis=-1, ddof=1) / math.sqrt(n) for n in looks]

    def claims(self, alphas: Alphas) -> tuple[BoolArray, BoolArray]:
        """[looks, contrasts, DESIGNS]: which intervals exclude 0, and which lie within the margin."""
        looks = zip(self.looks, alphas, self.means, self.errors, strict=True)
        ends = [(np.abs(mean), stdtrit(n - 1, 1 - alpha / 2) * error) for n, alpha, mean, error in looks]
        differs = np.array([mean > half_width for mean, half_width in ends])
        return differs, np.array([mean + half_width <= MARGIN_PP for mean, half_width in ends])

    def settled(self, alphas: Alphas) -> BoolArray:
        """[looks, DESIGNS]: whether all contrasts have a verdict."""
        differs, inside = self.claims(alphas)
        settled: BoolArray = np.all(differs | inside, axis=1)
        return settled


def size(alphas: Alphas, contrasts: int) -> tuple[float, float]:
    """The share of designs with any false `better` or `worse`, and with any false `equivalent`."""
    differs, _ = Paths(LOOKS, contrasts, SIZE_SD_PP, true_pp=0.0).claims(alphas)
    _, inside = Paths(LOOKS, contrasts, SIZE_SD_PP, true_pp=MARGIN_PP).claims(alphas)
    return float(differs.any(axis=(0, 1)).mean()), float(inside.any(axis=(0, 1)).mean())


def planned(contrasts: int, gamma: float = SPENDING_GAMMA) -> Alphas:
    return look_alphas(LOOKS, tuple(ALPHA / contrasts * share for share in planned_shares(LOOKS, gamma)))


def seeds_used(alphas: Alphas, contrasts: int, sd_pp: float, true_pp: float) -> tuple[float, float]:
    """The mean seeds of a design that stops once all its contrasts are settled, and the share of designs in which they
    are."""
    settled = Paths(LOOKS, contrasts, sd_pp, true_pp).settled(alphas)
    last = _last_look(settled)
    return float(np.array(LOOKS)[last].mean()), float(settled[last, np.arange(DESIGNS)].mean())


def _last_look(settled: BoolArray) -> npt.NDArray[np.intp]:
    """The look at which each design stops [DESIGNS]: where all is settled, else the last."""
    return np.where(settled.any(axis=0), settled.argmax(axis=0), len(settled) - 1)


def fixed(contrasts: int, sd_pp: float, true_pp: float) -> float:
    """The share of designs of the most seeds, looked at once, that settle all their contrasts."""
    return float(Paths(LOOKS[-1:], contrasts, sd_pp, true_pp).settled([ALPHA / contrasts]).mean())


def stop_at_first_verdict(looks: Sequence[int], sd_pp: float) -> float:
    """How often somebody errs who plans nothing and compares two equal arms: one look at all of alpha, and if that is
    inconclusive more seeds, with the level that further looks then have, up to the first verdict."""
    further = look_alphas(tuple(looks), tuple(ALPHA * unplanned_share(k) for k in range(1, len(looks) + 1)))
    paths, alphas = Paths(looks, 1, sd_pp, true_pp=0.0), [ALPHA, *further[1:]]
    differs, _ = paths.claims(alphas)
    return float(differs[_last_look(paths.settled(alphas)), 0, np.arange(DESIGNS)].mean())


def lines() -> list[str]:
    out = [
        "# Several looks: how often they err, how many seeds they save",
        "",
        f"`python benchmarks/sequential.py`: {DESIGNS:,} simulated designs a figure (a standard error of .1 %), "
        f"looks at {', '.join(map(str, LOOKS))} seeds, alpha {ALPHA:g}, margin {MARGIN_PP:g} pp.",
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
        "Two equal arms. The first look has all of alpha; if it is inconclusive, seeds are added, and each further "
        "look stands at the level that `bench report` gives it, up to the first verdict. How often that is `better` or "
        "`worse`, for differences whose sd is one margin and three:",
        "",
        "| looks at | sd 1 pp | sd 3 pp |",
        "| --- | --- | --- |",
    ]
    for looks in ((12, 24), LOOKS, (6, 12, 24, 48, 96)):
        shares = " | ".join(f"{stop_at_first_verdict(looks, sd_pp):.1%}" for sd_pp in (1.0, 3.0))
        out.append(f"| {', '.join(map(str, looks))} | {shares} |")
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
