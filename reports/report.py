"""A report as a tree of typed values: what report.json holds, field by field and in its order.

`reports.measure` computes the values and `reports.page.document` puts them together. Sentences, tables, checks and the
command line read them by attribute. `Node.as_json` is the only way into JSON, and `Report.model_validate` the way back.

Numbers in percentage points end in `_pp`. A number that is not finite is None, here as in JSON.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from harness.records.files import DamagedRecordError, read_object
from reports.statistics import CoverageWord, Verdict

Kind = Literal["seeds", "samples", "problems"]
Target = Literal["equivalent", "difference"]


def without_nan(value: object) -> Any:
    """Plain data with None in place of numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return value


Number: TypeAlias = Annotated[int | float | None, BeforeValidator(without_nan)]
"""None for a number that does not exist; 3 and 3.0 stay what they are."""

Plain: TypeAlias = Annotated[dict[str, Any], BeforeValidator(without_nan)]
"""A row whose form another room declares: that of a law, or of the words that a reflection counts."""


class Node(BaseModel):
    """A value of the report. Fields that were never set are absent from its JSON."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def as_json(self) -> dict[str, Any]:
        """Return what report.json holds of it."""
        document: dict[str, Any] = without_nan(self.model_dump(mode="json", exclude_unset=True))
        return document


class Sentence(Node):
    sentence: str


class Named(Node):
    """The two sides of a difference, and the metric that was compared, e.g. `eval.final.arithmetic.pass@1`."""

    arm: str = ""
    baseline: str = ""
    metric: str = ""

    @property
    def metric_name(self) -> str:
        """`eval.final.arithmetic.pass@1` -> `pass@1`."""
        return self.metric.rpartition(".")[2]


class Numbers(Node):
    """What `reports.statistics` computes of a comparison. Only runs without pairs have n_treatment and n_baseline."""

    difference_pp: Number = None
    low_pp: Number = None
    high_pp: Number = None
    level: Number = None
    p: Number = None
    p_sign_flip: Number = None
    verdict: Verdict
    note: str = ""
    n_pairs: int | None = None
    n_treatment: int | None = None
    n_baseline: int | None = None
    median_pp: Number = None
    iqm_pp: Number = None
    correlation: Number = None
    correlation_low: Number = None
    correlation_high: Number = None
    variance_ratio: Number = None
    detectable_pp: Number = None

    @property
    def alpha(self) -> float:
        """The two-sided level of the interval; NaN without a comparison."""
        return math.nan if self.level is None else 1 - self.level

    @property
    def is_correlated(self) -> bool:
        """Whether the interval of the correlation is known and excludes 0."""
        low, high = self.correlation_low, self.correlation_high
        return low is not None and high is not None and not low <= 0 <= high


class Missing(Node):
    """A seed that is left out. arm: of a run that has no partner; None where a pair is missing."""

    arm: str | None = None
    seed: int
    reason: str


class BestDifference(Node):
    """The best of an arm minus the best of the baseline within the ranges searched, with its interval at the level of
    the contrast; and the search behind it. left_sd_pp: the part of its standard error that the searches left open, and
    no number of seeds shrinks. settles: whether the verdict on the settings found holds for the bests as well."""

    trials: int
    knobs: list[str] = []
    difference_pp: float
    low_pp: Number = None
    high_pp: Number = None
    left_sd_pp: float = 0.0
    settles: bool = True


class Share(Node):
    """What one component adds to the standard error of a mean difference, and its share of the squared error."""

    sd_pp: Number
    sd_low_pp: Number
    sd_high_pp: Number
    share: float
    share_low: float
    share_high: float


class ErrorBudget(Node):
    """The standard error of a mean difference in full, and by its parts."""

    error_pp: float
    error_low_pp: Number
    error_high_pp: Number
    parts: dict[str, Share]


class Variance(Node):
    """Where the noise of a difference comes from: for these problems, as its verdict is, and for new ones. refused:
    why it is not known; then nothing else is."""

    refused: str | None
    shared_noise_share: Number = None
    level: Number = None
    n_seeds: int | None = None
    n_problems: int | None = None
    n_samples: int | None = None
    sampling_known: bool = False
    these_problems: ErrorBudget | None = None
    new_problems: ErrorBudget | None = None

    def over(self, *, new_problems: bool) -> ErrorBudget | None:
        """Return the budget for these problems, or for new ones; None if it is refused."""
        return self.new_problems if new_problems else self.these_problems


class NewProblems(Node):
    """A difference over new problems as well as new seeds. refused: why there is none."""

    refused: str | None
    difference_pp: Number = None
    low_pp: Number = None
    high_pp: Number = None
    level: Number = None
    n_seeds: int = 0
    n_problems: int = 0


class Looking(Node):
    """The look at which a contrast is judged.

    number: its place, from 1, among the looks at this question. seeds, samples: of each of these looks. is_planned:
    whether the design fixed this one. planned: the seeds at each look of the design, [] without one. n_unplanned: the
    looks beside it. overall_level: that the intervals of all looks hold together. alpha: of this look's intervals.
    """

    number: int
    seeds: list[int]
    samples: list[int | None]
    is_planned: bool
    planned: list[int]
    n_unplanned: int
    overall_level: float
    alpha: float = Field(default=math.nan, exclude=True)


class Way(Node):
    """One way to settle a contrast.

    now, needed: of seeds, or of samples per problem, or of problems, in all; needed is None if no number will do.
    shrinks_frac: the part of the variance that it shrinks. cells: how many are trained, or evaluated again. seconds:
    what they take one after another, None without timings. level: of the intervals afterwards. command: None if
    the records do not hold what was asked. limit: how many there are, where that keeps them from sufficing.
    """

    of: Kind
    now: int
    needed: int | None
    shrinks_frac: float = 1.0
    cells: int | None
    seconds: Number
    level: Number
    command: str | None
    limit: int | None


class NextStep(Node):
    """target: what has 80% power afterwards: finding `equivalent` if the arms do not differ; or, where the observed
    difference exceeds the margin, finding a true difference of its size. sd_pp: the standard deviation over replicates
    that the ways are counted with, the upper bound of the true one. cheapest: None if no way settles it."""

    target: Target
    sd_pp: float
    ways: list[Way]
    cheapest: Kind | None
    power: float


class MatchedProblems(Node):
    """How the problems of imported runs were matched."""

    matched_by: str
    matched: int
    of: int
    sentence: str


class Compared(Numbers, Named):
    """A difference with its verdict: of two arms, or of what an effect of a factorial adds and subtracts.

    p_holm: p after Holm over n_contrasts. noise_low_pp, noise_high_pp: the 95% interval from the sampling noise of the
    evaluations alone. token_ratios: the tokens that the arm generated over those of the baseline, for each pair; where
    one checkpoint is evaluated, tokens per answer. unit: what is replicated. answer_tokens: the mean tokens of an
    answer of the arm and of the baseline. bests: of arms that were tuned first.
    """

    p_holm: Number = None
    n_contrasts: int = 1
    margin_pp: float = 0.0
    seeds: list[int] = []
    differences_pp: list[float] = []
    missing: list[Missing] = []
    flagged_seeds: list[int] = []
    flagged_treatment: list[int] = []
    flagged_baseline: list[int] = []
    without_flagged: Numbers | None = None
    noise_low_pp: Number = None
    noise_high_pp: Number = None
    token_ratios: list[float] = []
    token_ratio: Number = None
    equal_tokens: bool | None = None
    tokens_known: bool = True
    unit: Literal["problem", "seed"] = "seed"
    answer_tokens: tuple[float, float] | None = None
    bests: BestDifference | None = None
    warnings: list[str] = []

    @property
    def is_over_problems(self) -> bool:
        """Whether the arms evaluate one checkpoint, so that problems are replicated."""
        return self.unit == "problem"


class ContrastRow(Compared):
    """An arm against the baseline. paired: only `bench compare` says whether it is, and if not why."""

    new_problems: NewProblems | None = None
    variance: Variance | None = None
    look: Looking | None = None
    next_step: NextStep | None = None
    problems: MatchedProblems | None = None
    paired: bool = True
    why_unpaired: str | None = None
    is_interaction: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """`no_std against group_std`."""
        return f"{self.arm} against {self.baseline}"


class Within(Node):
    """A main effect at one value of another knob."""

    knob: str
    value: Any
    difference_pp: float
    low_pp: Number
    high_pp: Number


class OfKnobs(Node):
    """The knobs of an effect, with the values that it is about and those of the baseline."""

    kind: Literal["main", "interaction"]
    knobs: list[str]
    values: list[Any]
    reference: list[Any]

    @property
    def settings(self) -> list[str]:
        """`clip_high 0.28`: each knob by its last segment, with its value."""
        return [f"{last_part(knob)} {value}" for knob, value in zip(self.knobs, self.values, strict=True)]


class EffectRow(Compared, OfKnobs):
    """A main effect or an interaction of a factorial. within: the size of a main effect at each value of each other
    knob."""

    look: Looking | None = None
    next_step: NextStep | None = None
    within: list[Within] = []
    variance: Variance | None = None
    new_problems: ClassVar[None] = None
    problems: ClassVar[None] = None
    paired: ClassVar[bool] = True
    why_unpaired: ClassVar[None] = None

    @property
    def is_interaction(self) -> bool:
        return self.kind == "interaction"

    @property
    def name(self) -> str:
        """`clip_high 0.28 against 0.2`, `clip_high 0.28 × beta 0.1`."""
        return f"{self.settings[0]} against {self.reference[0]}" if self.kind == "main" else " × ".join(self.settings)


VerdictRow: TypeAlias = ContrastRow | EffectRow
"""What a sweep may ask about."""


def last_part(knob: str) -> str:
    """`objective.rule.clip_high` -> `clip_high`."""
    return knob.rpartition(".")[2]


class ScreeningRow(Node):
    """A screening. best: the names of the arms with the highest means, best first, the baseline left out. contrasts:
    those that confirm them, [] before that."""

    best: list[str]
    seeds: int
    confirmed_in: str | None
    contrasts: list[ContrastRow]
    baseline: str
    metric: str = ""
    n_arms: int = 0
    n_seeds: int = 0
    command: str

    @property
    def metric_name(self) -> str:
        return self.metric.rpartition(".")[2]


class Cost(Node):
    """What an arm cost: medians over the steps of a cell, then means over cells; None where nothing was recorded.

    Seconds of a step: step_s for all of it; rollout_s, which includes sync_s, prefill_s and decode_s; reward_s;
    logprob_s; update_s, which includes backward_s. tokens_per_s: tokens generated over the whole step. occupancy_frac:
    the share of decoding slots that held a completion. padding_frac: the share of padding in the tokens of training
    passes.

    Over a whole cell: evaluation_s, the time of all evaluations; peak_memory_mb, the highest (on a CPU that of the
    cell's process); micro_batch_tokens, the smallest budget in force.
    """

    step_s: Number = None
    rollout_s: Number = None
    sync_s: Number = None
    prefill_s: Number = None
    decode_s: Number = None
    reward_s: Number = None
    logprob_s: Number = None
    update_s: Number = None
    backward_s: Number = None
    tokens_per_s: Number = None
    occupancy_frac: Number = None
    padding_frac: Number = None
    evaluation_s: Number = None
    peak_memory_mb: Number = None
    micro_batch_tokens: Number = None


class JudgeVerdicts(Node):
    """A pairwise judge's verdicts in some steps: means over steps, then over cells; None where nothing was recorded.

    The fractions of pairs are those of `harness.rewards.judging.judge_metrics`. correct: fraction of right completions.
    """

    flip_frac: Number
    first_frac: Number
    tie_frac: Number
    no_scores_frac: Number
    right_frac: Number
    correct: Number


class JudgeAndTruth(Node):
    """Verdicts in the first and in the last tenth of training."""

    start: JudgeVerdicts
    end: JudgeVerdicts


class JudgeReplies(Node):
    """Replies of the judge that graded an arm's rollouts, and their cost; means over the arm's cells.

    questions, prompt_tokens, completion_tokens: totals of a cell, those of the original requests. The fractions and
    kappa are means over steps (see `evals.grading.asked_model.reply_metrics`). correct: fraction that the judge finds
    right, among completions with a verdict.
    """

    questions: Number
    prompt_tokens: Number
    completion_tokens: Number
    undecided_frac: Number
    correct: Number
    rule_correct: Number
    agreement_frac: Number
    kappa: Number


class ProxyAndTruth(Node):
    """The last stretch of an arm's mean path against its peak, the stretch with the most right completions.

    The maximum of noisy means lies above the true peak, so `correct_since_peak_pp` is never above 0. Whether a fall is
    more than noise shows in `n_overoptimised` of `n` seeds, in which the truth fell from the peak on and the proxy
    rose.
    """

    kl_nats: float
    proxy_sd: float
    correct_pp: float
    peak_kl_nats: float
    peak_correct_pp: float
    proxy_since_peak_sd: float
    correct_since_peak_pp: float
    n_overoptimised: int
    n: int


class ArmRow(Node):
    """One arm: means over its finished seeds; None where nothing was recorded.

    low_pp, high_pp: the t(n-1) interval of the mean score over training seeds; over problems, with a problem's samples
    and seeds as its cluster, where a checkpoint is evaluated. before_pp, before_ece: of the model before training. ece:
    the expected calibration error of the final evaluation. entropy_nats: the mean over training. length_slope_tokens:
    how many tokens the mean completion grew by in 100 steps. overshoot_frac: generated tokens above the budget,
    relative to it. phase_s: wall-clock seconds of a cell in each phase. rank: 1 for the highest mean score; equal
    scores share a rank; None without a score.
    """

    arm: str
    metric: str = ""
    task: str = ""
    n: int = 0
    level: Number = None
    checkpoint: str | None = None
    before_pp: Number = None
    before_ece: Number = None
    budget_tokens: int | None = None
    seeds: list[int] = []
    scores_pp: list[float] = []
    mean_pp: Number = None
    low_pp: Number = None
    high_pp: Number = None
    mean_tokens: Number = None
    truncated_frac: Number = None
    faulty_steps_frac: Number = None
    ece: Number = None
    grad_norm: Number = None
    grad_clipped_frac: Number = None
    entropy_nats: Number = None
    length_slope_tokens: Number = None
    generated_tokens: Number = None
    overshoot_frac: Number = None
    grader_disagreement_frac: Number = None
    phase_s: dict[str, Number] = {}
    cost: Cost = Cost()
    judge: JudgeAndTruth | None = None
    judge_replies: JudgeReplies | None = None
    proxy_and_truth: ProxyAndTruth | None = None
    rank: int | None = None

    @property
    def metric_name(self) -> str:
        return self.metric.rpartition(".")[2]

    @property
    def total_s(self) -> float | None:
        """The wall-clock seconds of a cell's training."""
        return self.phase_s.get("total_s")


class CellRow(Node):
    """One cell. steps: how many it was to take. total_s: the time of its training."""

    arm: str = ""
    seed: int = 0
    hash: str = ""
    state: str
    reason: str | None = None
    flags: list[str] = []
    digest: str | None = None
    score_pp: Number = None
    generated_tokens: int | None = None
    step: int | None = None
    steps: int | None = None
    total_s: Number = None


class AcrossTasksRow(Node):
    """One arm over all tasks. improvement: the probability that a run of it beats one of the baseline."""

    arm: str
    seeds: list[int]
    level: float
    iqm_pp: Number
    iqm_low_pp: Number
    iqm_high_pp: Number
    improvement: Number
    improvement_low: Number
    improvement_high: Number


class ModeScore(Node):
    """One arm on one task in one mode, over its finished seeds.

    task: its own name; asked: with the mode. mode: think or direct; budget_tokens: at which thinking is cut; None:
    never. low_pp, high_pp: the t interval over seeds at this level; None with fewer than three. tokens: of a
    completion, without the words that stop its thinking.
    """

    arm: str
    task: str
    asked: str
    mode: str
    budget_tokens: int | None
    n: int
    mean_pp: float
    level: float
    low_pp: Number
    high_pp: Number
    tokens: Number


class CoverageRow(Node):
    """The difference of pass@k at every k, with a band that holds at all of them. against: the baseline; None for the
    model before training. crossover_k: where a difference first falls below 0 after it was above."""

    arm: str
    against: str | None
    task: str
    n: int
    level: float
    k: list[int]
    difference_pp: list[Number]
    low_pp: list[Number]
    high_pp: list[Number]
    word: CoverageWord
    at_ceiling: bool
    note: str
    crossover_k: Number
    crossover_low: Number
    crossover_high: Number


class ProblemRange(Node):
    """How far arms lie apart on a problem, and the mean range in its rank if arms are exchanged within seeds."""

    problem_id: str
    range_pp: float
    permuted_pp: float


class ProblemRanges(Node):
    """The problems on which arms differ most. p: how often exchanging arms gives a widest range at least as wide."""

    task: str
    n_problems: int
    p: float
    beyond_chance: bool
    widest: list[ProblemRange]


class Flip(Node):
    """A problem that an arm solves more or less often than the baseline, over the `n_seeds` that both have."""

    arm: str
    baseline: str
    task: str
    problem_id: str
    baseline_frac: float
    arm_frac: float
    n_seeds: int
    difference_pp: float


class LookRow(Node):
    """A look at the question, with the verdicts that it showed, by arm."""

    seeds: int
    evaluation: dict[str, Any] | None
    planned: bool
    verdicts: dict[str, str]


class TuningRow(Node):
    """What the search of one arm found, see `harness.records.sweep.TunedArm`. fresh_pp: the arm's score with fresh
    seeds. verdict_tokens: generated in training by all seeds of the comparison."""

    arm: str
    digest: str
    trial: int
    values: dict[str, Any]
    search_pp: float
    default_pp: Number
    complete: int
    generated_tokens: int
    at_end: list[str]
    short_pp: float
    short_sd_pp: float
    trials: int
    seeds: list[int]
    fresh_pp: Number
    verdict_tokens: int


class RegistrationRow(Node):
    """Whether the question stood before its first cell, see `harness.records.registration.RegistrationCheck`."""

    digest: str | None
    time: str | None
    altered: bool
    changes: list[str]
    cells_before: list[str]
    cells_without: list[str]
    holds: bool
    sentence: str


class Report(Node):
    """report.json. Every section holds a list, which may be empty: `headline` the answer in a sentence, `interactions`
    what a factorial asks, `registration` at most one. left_out: plug-ins that may not run here."""

    headline: list[Sentence] = []
    interactions: list[EffectRow] = []
    contrasts: list[ContrastRow] = []
    screening: list[ScreeningRow] = []
    arms: list[ArmRow] = []
    cells: list[CellRow] = []
    laws: list[Plain] = []
    across_tasks: list[AcrossTasksRow] = []
    modes: list[ModeScore] = []
    coverage: list[CoverageRow] = []
    problem_ranges: list[ProblemRanges] = []
    flips: list[Flip] = []
    reflection: list[Plain] = []
    looks: list[LookRow] = []
    tuning: list[TuningRow] = []
    registration: list[RegistrationRow] = []
    left_out: list[Sentence] = []

    @property
    def declared(self) -> list[VerdictRow]:
        """What the sweep asks about: in a screening the contrasts that confirm its best arms, if they have run; in a
        factorial its effects; else the arms."""
        if self.screening:
            return [*self.screening[0].contrasts]
        return [*(self.interactions or self.contrasts)]

    @property
    def judged(self) -> list[VerdictRow]:
        """All contrasts with a verdict: those declared, and in a factorial then the arms."""
        return [*self.declared, *(self.contrasts if self.interactions and not self.screening else [])]


def read_report(path: Path) -> Report:
    """Read a written report.json. Raises DamagedRecordError, which names the first fault."""
    try:
        return Report.model_validate(read_object(path))
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise DamagedRecordError(f"{path}: {place}: {fault['msg']}. `bench report` writes it again.") from None


SECTIONS = tuple(name for name in Report.model_fields if name != "left_out")
"""The keys of report.json, whatever the records hold."""
