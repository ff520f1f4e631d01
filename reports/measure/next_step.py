"""The steps that would probably settle a contrast, and their cost: more seeds, samples per problem, or problems.

More seeds reduce all of the noise. More samples reduce only the evaluation noise. More problems reduce the evaluation
noise and the interaction of seed and problem. If arms evaluate one checkpoint, problems are the replicates: more of
them reduce all of the noise, and seeds count as samples. The variance components say how large each part is. Data added
after a verdict was shown makes a further look, so the numbers use the level of that look.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.records.looks import Evaluation, first_seeds
from reports.measure import Analysis, derived
from reports.measure.contrasts import Contrast
from reports.measure.looks import looking
from reports.measure.measurements import Measurement
from reports.measure.variance import declared_budgets
from reports.report import Kind, NextStep, Target, Way
from reports.statistics import (
    MIN_PAIRS,
    TARGET_POWER,
    VarianceComponents,
    components_of_problems,
    equivalence_power,
    fewest,
    sd_upper_bound,
    t_test_power,
)

if TYPE_CHECKING:
    from harness.records import SweepRecord

OPEN_VERDICTS = ("inconclusive", "no_test")
MOST_SEEDS = 10_000
MOST_FACTOR = 64
"""Bounds of a next step: at most MOST_SEEDS seeds, or MOST_FACTOR times the current samples or problems."""

SD_CONFIDENCE = 0.8
"""The confidence of the upper bound of the standard deviation that the steps are computed from.

The standard deviation of a few seeds is too small as often as too large. A step computed from it often has far less
power than it promises.
"""


@derived
def next_steps(analysis: Analysis) -> dict[str, NextStep]:
    """Return the ways to settle each declared contrast, keyed by its name.

    A contrast is left out if it is settled, if its standard deviation is unknown, or if its planned cells or looks are
    not finished. A screening judges no arm, so the result is then {}.
    """
    if analysis.sweep.screening is not None:
        return {}
    asked = declared_budgets(analysis)
    steps = {one.arm: _next_step(analysis, one, budget.components, len(asked)) for one, budget in asked}
    return {name: step for name, step in steps.items() if step is not None}


def _next_step(
    analysis: Analysis, contrast: Contrast, parts: VarianceComponents | None, n_contrasts: int
) -> NextStep | None:
    """Return the ways to settle one contrast, or None as in `next_steps`. parts: its variance components, if known."""
    sweep, comparison = analysis.sweep, contrast.comparison
    if comparison is None or contrast.verdict not in OPEN_VERDICTS or comparison.n_pairs < MIN_PAIRS:
        return None
    if math.isnan(comparison.sd) or not sweep.is_complete or has_planned_looks_left(sweep):
        return None
    over_problems = contrast.over_problems
    if over_problems and parts is None:  # Only problems are left to vary, with whatever noise they have.
        parts = components_of_problems(np.reshape(contrast.by_problem_pp, (1, -1, 1)))
    # Arms that were each tuned first are compared at their best settings, which the searches may not have reached.
    observed_pp, left_sd_pp = comparison.difference, 0.0
    if contrast.bests is not None:
        observed_pp, left_sd_pp = contrast.bests.difference_pp, contrast.bests.left_sd_pp
    sd_pp = sd_upper_bound(comparison.sd, comparison.n_pairs, SD_CONFIDENCE)
    asked = _Asked(analysis, comparison.n_pairs, observed_pp, n_contrasts, over_problems, left_sd_pp)
    ways = [] if over_problems else [asked.more_seeds(sd_pp)]
    if parts is not None and parts.sampling_known:
        ways.append(asked.more_samples(sd_pp, parts))
    if parts is not None and (parts.sampling_known or over_problems) and asked.can_have_more_problems:
        ways.append(asked.more_problems(sd_pp, parts))
    known = [way for way in ways if way.needed is not None]
    cheapest = min(known, key=lambda way: math.inf if way.seconds is None else way.seconds, default=None)
    return NextStep(
        target=asked.target,
        sd_pp=sd_pp,
        ways=ways,
        cheapest=None if cheapest is None else cheapest.of,
        power=TARGET_POWER,
    )


def has_planned_looks_left(sweep: SweepRecord) -> bool:
    """Return whether this look belongs to a design and is not its last one."""
    return sweep.design is not None and sweep.look.planned and len(sweep.seeds) < sweep.design.looks[-1]


@dataclass(frozen=True)
class _Asked:
    """One of n_contrasts contrasts, with its observed difference over n replicates."""

    analysis: Analysis
    n: int
    observed_pp: float
    n_contrasts: int
    over_problems: bool = False
    """True if the replicates are problems instead of seeds."""
    left_sd_pp: float = 0.0
    """The part of the standard error due to imperfect tuning, which no way reduces."""

    @property
    def sweep(self) -> SweepRecord:
        return self.analysis.sweep

    @property
    def target(self) -> Target:
        return "difference" if abs(self.observed_pp) > self.sweep.margin_pp else "equivalent"

    @property
    def can_have_more_problems(self) -> bool:
        """True if the sweep evaluates only some of the task's problems."""
        evaluation, held_out = self.sweep.evaluation, self._held_out
        if evaluation is None or evaluation.problems is None:
            return False
        return held_out is None or evaluation.problems < held_out

    @property
    def _held_out(self) -> int | None:
        return self.sweep.n_held_out(self.analysis.metric.task)

    def is_settled(self, error_pp: float, n: int, alpha: float) -> bool:
        """Return whether n replicates with this standard error of the mean reach the target with TARGET_POWER."""
        error_pp = math.hypot(error_pp, self.left_sd_pp)
        if self.target == "difference":
            return t_test_power(abs(self.observed_pp) / error_pp, n - 1, alpha) >= TARGET_POWER
        return equivalence_power(self.sweep.margin_pp / error_pp, n - 1, alpha) >= TARGET_POWER

    def alpha_after(self, **changed: object) -> float:
        """Return the alpha of the intervals at a further look, after this change to the records."""
        looks = self.sweep.looks_and_this
        after = self.sweep.model_copy(update={"looks": looks, **changed})
        return looking(after, self.n_contrasts).alpha

    def _seeds(self, n: int) -> list[int]:
        return first_seeds(self.sweep.seeds, n)

    def _shrinking_frac(self, sd_pp: float) -> float:
        """Return the share of the variance that more seeds reduce: all but the part due to imperfect tuning."""
        by_seeds = sd_pp**2 / self.n
        return by_seeds / (by_seeds + self.left_sd_pp**2) if self.left_sd_pp else 1.0

    def more_seeds(self, sd_pp: float) -> Way:
        """Return the smallest number of seeds that settles the contrast, and its cost."""

        def needed_at(alpha: float) -> int | None:
            return fewest(lambda n: self.is_settled(sd_pp / math.sqrt(n), n, alpha), MOST_SEEDS, self.n + 1)

        # The level depends slightly on the number of seeds, and the number on the level, so iterate twice.
        needed = needed_at(self.alpha_after(seeds=self._seeds(2 * self.n)))
        needed = None if needed is None else needed_at(self.alpha_after(seeds=self._seeds(needed)))
        if needed is None:
            return _no_way("seeds", self.n, self._shrinking_frac(sd_pp))
        per_cell = _mean(_cell_s, self.analysis)
        cells = (needed - self.n) * len(self.sweep.arms)
        return Way(
            of="seeds",
            now=self.n,
            needed=needed,
            shrinks_frac=self._shrinking_frac(sd_pp),
            cells=cells,
            seconds=None if per_cell is None else cells * per_cell,
            level=1 - self.alpha_after(seeds=self._seeds(needed)),
            command=_command(self.sweep, "--seeds", str(needed)),
            limit=None,
        )

    def more_samples(self, sd_pp: float, parts: VarianceComponents) -> Way:
        return self._more_drawn(
            "samples",
            parts.n_samples,
            sd_pp,
            parts,
            drawn=lambda samples: (samples - parts.n_samples) * parts.n_problems,
            command=lambda samples: ("--eval-samples", str(samples)),
        )

    def more_problems(self, sd_pp: float, parts: VarianceComponents) -> Way:
        samples = parts.n_samples if self.sweep.evaluation is None else self.sweep.evaluation.samples
        return self._more_drawn(
            "problems",
            parts.n_problems,
            sd_pp,
            parts,
            drawn=lambda problems: problems * samples,
            command=lambda problems: ("--set", f"eval.problems={problems}"),
        )

    def _more_drawn(
        self,
        kind: Kind,
        now: int,
        sd_pp: float,
        parts: VarianceComponents,
        drawn: Callable[[int], int],
        command: Callable[[int], tuple[str, str]],
    ) -> Way:
        """Return the smallest number of samples or problems that settles the contrast, and its cost.

        drawn: maps that number to the samples that each cell must draw per task.
        command: maps that number to the option of `bench run` and its value.
        """
        most, new = MOST_FACTOR * now, self.over_problems
        there_are = self._held_out if kind == "problems" else None
        limit = there_are if there_are is not None and there_are < most else None
        error_now = parts.error_of_mean(new_problems=new).value

        def frac_of_sd(number: int) -> float:
            error = parts.error_of_mean(**{f"n_{kind}": number}, new_problems=new).value
            return error / error_now if error_now > 0 else 1.0

        def replicates(number: int) -> int:
            return number if self.over_problems and kind == "problems" else self.n

        evaluation = (self.sweep.evaluation or Evaluation(samples=parts.n_samples)).model_copy(update={kind: -1})
        alpha = self.alpha_after(evaluation=evaluation)  # The alpha is the same for any number.
        needed = fewest(
            lambda number: self.is_settled(frac_of_sd(number) * sd_pp / math.sqrt(self.n), replicates(number), alpha),
            limit or most,
            now + 1,
        )
        # 10**9 stands for infinity: the error that remains then is what this way cannot reduce.
        shrinks_frac = (1 - frac_of_sd(10**9) ** 2) * self._shrinking_frac(sd_pp)
        if needed is None:
            return _no_way(kind, now, shrinks_frac, limit)
        cells = sum(len(done) for done in self.analysis.measurements.values())
        per_sample = _mean(lambda cell: cell.sample_s, self.analysis)
        return Way(
            of=kind,
            now=now,
            needed=needed,
            shrinks_frac=shrinks_frac,
            cells=cells,
            seconds=None if per_sample is None else cells * len(self.sweep.tasks) * drawn(needed) * per_sample,
            level=1 - alpha,
            command=_command(self.sweep, *command(needed)),
            limit=None,
        )


def _no_way(kind: Kind, now: int, shrinks_frac: float, limit: int | None = None) -> Way:
    """Build a way for which no number up to the bound settles the contrast."""
    return Way(
        of=kind,
        now=now,
        needed=None,
        shrinks_frac=shrinks_frac,
        cells=None,
        seconds=None,
        level=None,
        command=None,
        limit=limit,
    )


def _mean(seconds: Callable[[Measurement], float | None], analysis: Analysis) -> float | None:
    known = [s for cells in analysis.measurements.values() for cell in cells if (s := seconds(cell)) is not None]
    return sum(known) / len(known) if known else None


def _cell_s(measurement: Measurement) -> float | None:
    """Return the seconds that a cell took, by its own clock or by the sum of its steps, whichever is larger.

    The clock misses earlier launches if the cell was resumed. Samples that were added to its evaluation later are
    counted at the time per sample.
    """
    phases = [measurement.seconds(phase) for phase in ("total_s", "eval_s")]
    elapsed = measurement.timing.known("elapsed_s")
    known = [*(s for s in phases if s is not None)]
    if not known:
        return None
    added = measurement.drawn_samples - measurement.as_first_evaluated.drawn_samples
    return max(sum(known), float(elapsed[-1]) if len(elapsed) else 0.0) + added * (measurement.sample_s or 0.0)


def _command(sweep: SweepRecord, option: str, value: str) -> str | None:
    """Return the command that continues this sweep with one more option; None if the records do not hold the request.

    The name alone continues a sweep as it was last requested. But with --set, the name of a shipped sweep starts a new
    request, so every option has to be repeated.
    """
    asked = sweep.asked
    if asked is None:
        return None
    words = ["bench", "run", sweep.name]
    if option == "--set":
        words += ["--profile", asked.profile, *(word for setting in asked.settings for word in ("--set", setting))]
        words += ["--seeds", str(len(sweep.seeds)), *(["--arms", ",".join(asked.arms)] if asked.arms else [])]
    return shlex.join([*words, option, value])
