"""Flips: the problems on which arms differ most, whether chance gives as much, and completions to read side by side.

The most extreme of many problems always look as if they said something. Texts are compared word by word, because
evaluations keep the text of a sample and not its tokens.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from reports.measure import Analysis, derived
from reports.measure.problems import ProblemScores, problem_scores
from reports.statistics import FloatArray

FLIPS_PER_CONTRAST = 3
MOST_PROBLEMS = 12
DRAWS = 1999
DRAWS_AT_ONCE = 100
DECIMALS = 12
CONTEXT_CHARACTERS = 300
"""How much of a completion is shown on either side of the first word that differs."""


@dataclass(frozen=True)
class ProblemRanges:
    """How far arms lie apart on single problems: the range of their shares of right samples over all of their seeds.

    problems: positions of up to MOST_PROBLEMS of `n_problems`, the widest range first. ranges_pp, permuted_pp: of each
    of them the range, and the mean range of the problem in its rank if arms are exchanged within seeds. p: how often
    that gives a widest range at least as wide.
    """

    problems: list[int]
    ranges_pp: list[float]
    permuted_pp: list[float]
    p: float
    n_problems: int


@derived
def problem_ranges(analysis: Analysis) -> ProblemRanges | None:
    """None with fewer than two arms that kept samples, or if all arms solve every problem equally often."""
    scores = problem_scores(analysis)
    return ranges_of(scores.by_arm) if len(scores.by_arm) > 1 else None


def ranges_of(by_arm: dict[str, dict[int, FloatArray]]) -> ProblemRanges | None:
    """The ranges of the shares [n_problems] of each arm and seed, over problems that every cell evaluated.

    If no arm matters, then the cells of a seed may be exchanged between arms, all problems of a cell together: the test
    of the widest range is exact for any number of seeds. It counts the arms as they are among 1 + 1999 arrangements.
    """
    cells = [(arm, seed) for arm, by_seed in enumerate(by_arm.values()) for seed in by_seed]
    arms, seeds = np.array(cells).T
    shares = np.array([share for by_seed in by_arm.values() for share in by_seed.values()])
    known = np.flatnonzero(np.isfinite(shares).all(axis=0))
    if not len(known):
        return None
    rng = np.random.default_rng(0)
    counts = np.bincount(arms)

    def ranges(drawn_arms: Any) -> FloatArray:
        """The ranges [draws, n_known] between arms, with the arm of each cell [draws, n_cells]."""
        of_arm = (drawn_arms[:, None, :] == np.arange(len(counts))[:, None]) / counts[:, None]
        return np.asarray(np.ptp(of_arm @ shares[:, known], axis=1).round(DECIMALS), dtype=np.float64)

    (observed,) = ranges(arms[None])
    widest = [place for place in np.argsort(-observed, kind="stable")[:MOST_PROBLEMS] if observed[place] > 0]
    if not widest:
        return None
    in_order = []
    for start in range(0, DRAWS, DRAWS_AT_ONCE):
        drawn = np.tile(arms, (min(DRAWS_AT_ONCE, DRAWS - start), 1))
        for seed in np.unique(seeds):
            drawn[:, seeds == seed] = rng.permuted(drawn[:, seeds == seed], axis=1)
        in_order.append(-np.sort(-ranges(drawn), axis=1)[:, : len(widest)])
    permuted = np.concatenate(in_order)
    as_wide = int(np.count_nonzero(permuted[:, 0] >= observed[widest[0]]))
    return ProblemRanges(
        problems=[int(known[place]) for place in widest],
        ranges_pp=[float(100 * observed[place]) for place in widest],
        permuted_pp=(100 * permuted.mean(axis=0)).tolist(),
        p=(1 + as_wide) / (1 + DRAWS),
        n_problems=len(known),
    )


def ranges_rows(analysis: Analysis) -> list[dict[str, Any]]:
    """What report.json says of them: a single row, or none."""
    found, scores = problem_ranges(analysis), problem_scores(analysis)
    if found is None:
        return []
    problems = zip(found.problems, found.ranges_pp, found.permuted_pp, strict=True)
    widest = [
        {"problem_id": scores.problems[problem], "range_pp": size, "permuted_pp": permuted}
        for problem, size, permuted in problems
    ]
    row = {"task": analysis.metric.task, "n_problems": found.n_problems, "p": found.p}
    return [row | {"beyond_chance": found.p <= analysis.sweep.alpha, "widest": widest}]


@dataclass(frozen=True)
class MarkedText:
    """A completion cut around the first word that differs from another one. word: empty if the completion ends there or
    the two are equal. The model wrote all three; they are untrusted."""

    before: str
    word: str
    after: str


@dataclass(frozen=True)
class Completion:
    arm: str
    correct: bool
    n_tokens: int | None
    truncated: bool | None
    text: MarkedText


@dataclass(frozen=True)
class Flip:
    """A problem that an arm solves more or less often than the baseline, over the `n_seeds` that both have.

    seed, sample: those of the completions, which drew the same noise. The baseline's completion comes first.
    """

    arm: str
    baseline: str
    task: str
    problem_id: str
    baseline_frac: float
    arm_frac: float
    n_seeds: int
    seed: int
    sample: int
    completions: tuple[Completion, Completion]

    @property
    def difference_pp(self) -> float:
        return 100 * (self.arm_frac - self.baseline_frac)

    def as_row(self) -> dict[str, Any]:
        """The row of report.json."""
        return asdict(self) | {"difference_pp": self.difference_pp, "completions": [*map(asdict, self.completions)]}


def find_flips(analysis: Analysis) -> list[Flip]:
    """The flips of each arm in the order of the sweep file, the biggest change first; none if cells kept no samples."""
    scores, baseline = problem_scores(analysis), analysis.sweep.baseline
    return [
        flip
        for arm in scores.by_arm
        if arm != baseline and scores.paired_seeds(arm, baseline)
        for problem in biggest_movers(scores, arm, baseline)
        if (flip := _flip(analysis, arm, problem)) is not None
    ]


def biggest_movers(scores: ProblemScores, arm: str, baseline: str, n: int = FLIPS_PER_CONTRAST) -> list[int]:
    """The positions of up to n problems that changed most, up or down; those that did not change are left out."""
    size = np.nan_to_num(np.abs(scores.differences(arm, baseline)))
    order = np.argsort(-size, kind="stable")[:n]
    return [int(problem) for problem in order if size[problem] > 0]


def _flip(analysis: Analysis, arm: str, problem: int) -> Flip | None:
    """None if the cells kept no text."""
    scores, baseline = problem_scores(analysis), analysis.sweep.baseline
    seeds = scores.paired_seeds(arm, baseline)
    before, after = (np.array([scores.by_arm[name][seed][problem] for seed in seeds]) for name in (baseline, arm))
    change = after - before
    known = np.isfinite(change)
    direction = np.sign(change[known].sum())
    seed = seeds[int(np.nanargmax(direction * change))]
    problem_id = scores.problems[problem]
    rows = [_samples_of_problem(analysis, name, seed, problem_id) for name in (baseline, arm)]
    pair = _opposite_verdicts(*rows)
    if pair is None:
        return None
    texts = [str(row["text"]) for row in pair]
    return Flip(
        arm=arm,
        baseline=baseline,
        task=analysis.metric.task,
        problem_id=problem_id,
        baseline_frac=float(before[known].mean()),
        arm_frac=float(after[known].mean()),
        n_seeds=int(known.sum()),
        seed=seed,
        sample=int(pair[0]["sample"]),
        completions=(
            _completion(baseline, pair[0], mark_first_difference(texts[0], texts[1])),
            _completion(arm, pair[1], mark_first_difference(texts[1], texts[0])),
        ),
    )


def mark_first_difference(text: str, other: str, context: int = CONTEXT_CHARACTERS) -> MarkedText:
    """The text around the first word that differs from `other`, with at most `context` characters on either side."""
    words, others = _words(text), _words(other)
    first = next((i for i, pair in enumerate(zip(words, others, strict=False)) if pair[0] != pair[1]), None)
    if first is None:
        first = min(len(words), len(others))
    before, word, after = "".join(words[:first]), "".join(words[first : first + 1]), "".join(words[first + 1 :])
    if len(before) > context:
        before = f"({len(before) - context} characters) … {before[-context:]}"
    return MarkedText(before, *_cut_after(word, after, context))


def _cut_after(word: str, after: str, context: int) -> tuple[str, str]:
    """The word and what follows it; the word may itself be a whole text without spaces."""
    rest = word[context:] + after
    if len(rest) <= context:
        return word[:context], rest
    return word[:context], f"{rest[:context]} … ({len(rest) - context} characters)"


def _words(text: str) -> list[str]:
    """The words, each with the white space before it, which together are the text."""
    return re.findall(r"\s*\S+|\s+", text)


def _samples_of_problem(analysis: Analysis, arm: str, seed: int, problem_id: str) -> list[dict[str, Any]]:
    """The samples of a problem in the final evaluation, by number."""
    import pyarrow.compute as pc

    columns = ["problem_id", "sample", "text", "correct", "n_tokens", "truncated"]
    measurement = next(m for m in analysis.measurements[arm] if m.cell.seed == seed)
    table = measurement.read_final_samples(columns, pc.field("problem_id") == problem_id)
    return [] if table is None else sorted(table.to_pylist(), key=lambda row: int(row["sample"]))


def _opposite_verdicts(
    baseline: list[dict[str, Any]], arm: list[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The first sample on which the two disagree in the direction in which the problem changed."""
    rises = sum(row["correct"] for row in arm) > sum(row["correct"] for row in baseline)
    by_sample = {row["sample"]: row for row in arm}
    for row in baseline:
        partner = by_sample.get(row["sample"])
        if (
            partner is not None
            and "text" in row
            and "text" in partner
            and partner["correct"] == rises != row["correct"]
        ):
            return row, partner
    return None


def _completion(arm: str, row: dict[str, Any], text: MarkedText) -> Completion:
    return Completion(arm, bool(row["correct"]), row.get("n_tokens"), row.get("truncated"), text)
