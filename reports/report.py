"""A report as a tree of typed values: the contents of report.json, field by field and in its order.

`reports.measure` computes the values, and `reports.page.document` assembles them. Sentences, tables, checks and the
command line read them by attribute. `Node.as_json` is the only way into JSON, and `Report.model_validate` the way back.
Names of numbers in percentage points end in `_pp`. A number that is not finite is None, as in JSON.
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
    """Return plain data with None in place of every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_nan(item) for item in value]
    return value


Number: TypeAlias = Annotated[int | float | None, BeforeValidator(without_nan)]
"""A number, or None if it is unknown. An int stays an int, because 3 and 3.0 are written differently."""

Plain: TypeAlias = Annotated[dict[str, object], BeforeValidator(without_nan)]
"""A row whose fields are declared elsewhere: by a law, or by the counts of reflection words."""


class Node(BaseModel):
    """A value of the report. Fields that were never set are absent from its JSON."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def as_json(self) -> dict[str, object]:
        """Return the value as it is written to report.json."""
        document: dict[str, object] = without_nan(self.model_dump(mode="json", exclude_unset=True))
        return document


class Sentence(Node):
    sentence: str


class Named(Node):
    """The two sides of a difference, and the metric that was compared."""

    arm: str = ""
    baseline: str = ""
    metric: str = ""
    """The full name, such as `eval.final.arithmetic.pass@1`."""

    @property
    def metric_name(self) -> str:
        """The last segment of the metric: `eval.final.arithmetic.pass@1` -> `pass@1`."""
        return self.metric.rpartition(".")[2]


class Numbers(Node):
    """The numbers that `reports.statistics` computes for a comparison."""

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
    """Set only for unpaired runs, like n_baseline."""
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
        """The two-sided error rate of the interval, 1 - level; NaN if nothing was compared."""
        return math.nan if self.level is None else 1 - self.level

    @property
    def is_correlated(self) -> bool:
        """True if the interval of the correlation is known and excludes 0."""
        low, high = self.correlation_low, self.correlation_high
        return low is not None and high is not None and not low <= 0 <= high


class Missing(Node):
    """A seed that is missing from a comparison."""

    arm: str | None = None
    """The arm of a missing run in an unpaired comparison; None for a missing pair."""
    seed: int
    reason: str


class BestDifference(Node):
    """The best of an arm minus the best of the baseline within the searched ranges, at the contrast's level."""

    trials: int
    knobs: list[str] = []
    difference_pp: float
    low_pp: Number = None
    high_pp: Number = None
    left_sd_pp: float = 0.0
    """The part of the standard error due to imperfect tuning. More seeds do not reduce it."""
    settles: bool = True
    """True if the verdict on the settings found also holds between the bests."""


class Share(Node):
    """One component's contribution to the standard error of a mean difference, and its share of the squared error."""

    sd_pp: Number
    sd_low_pp: Number
    sd_high_pp: Number
    share: float
    share_low: float
    share_high: float


class ErrorBudget(Node):
    """The standard error of a mean difference, as a total and by component."""

    error_pp: float
    error_low_pp: Number
    error_high_pp: Number
    parts: dict[str, Share]


class Variance(Node):
    """Where the noise of a difference comes from: for these problems, as in the verdict, and for new problems."""

    refused: str | None
    """Why the noise is unknown; no other field is set then."""
    shared_noise_share: Number = None
    level: Number = None
    n_seeds: int | None = None
    n_problems: int | None = None
    n_samples: int | None = None
    sampling_known: bool = False
    these_problems: ErrorBudget | None = None
    new_problems: ErrorBudget | None = None

    def over(self, *, new_problems: bool) -> ErrorBudget | None:
        """Return the budget for new problems or for these; None if it is unknown."""
        return self.new_problems if new_problems else self.these_problems


class NewProblems(Node):
    """A difference over new problems as well as new seeds."""

    refused: str | None
    """Why the difference is unknown, or None."""
    difference_pp: Number = None
    low_pp: Number = None
    high_pp: Number = None
    level: Number = None
    n_seeds: int = 0
    n_problems: int = 0


class Looking(Node):
    """The look (interim analysis) at which a contrast is judged."""

    number: int
    """The position of this look, from 1, among the looks at this question."""
    seeds: list[int]
    """The number of seeds at each look."""
    samples: list[int | None]
    """The samples per problem at each look."""
    is_planned: bool
    """True if the design fixed this look."""
    planned: list[int]
    """The number of seeds at each look of the design; [] if there is no design."""
    n_unplanned: int
    """The number of looks outside the design."""
    overall_level: float
    """The probability that the intervals of all looks contain the true difference."""
    alpha: float = Field(default=math.nan, exclude=True)
    """The alpha of this look's intervals."""


class Way(Node):
    """One way to settle a contrast."""

    of: Kind
    now: int
    """The present number of seeds, of samples per problem, or of problems."""
    needed: int | None
    """The number that settles the contrast; None if no number does."""
    shrinks_frac: float = 1.0
    """The share of the variance that this way reduces."""
    cells: int | None
    """The number of cells to train or to evaluate again."""
    seconds: Number
    """The time of these cells one after another; None if no cell was timed."""
    level: Number
    """The level of the intervals after this step."""
    command: str | None
    """The command that does it; None if the records do not contain the original request."""
    limit: int | None
    """The number of problems that exist, if they do not suffice; otherwise None."""


class NextStep(Node):
    """The ways to settle an undecided contrast."""

    target: Target
    """The claim that has 80% power after this step. `equivalent`: showing equivalence if the arms do not differ.
    `difference`: detecting a true difference as large as the observed one, which exceeds the margin.
    """
    sd_pp: float
    """The standard deviation over replicates that the ways assume: an upper bound of the true one."""
    ways: list[Way]
    cheapest: Kind | None
    """None if no way settles the contrast."""
    power: float


class MatchedProblems(Node):
    """How the problems of imported runs were matched."""

    matched_by: str
    matched: int
    of: int
    sentence: str


class Compared(Numbers, Named):
    """A difference with its verdict: between two arms, or between the two sides of a factorial's effect."""

    p_holm: Number = None
    """p after Holm's correction over n_contrasts."""
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
    """The lower end of a 95% interval that covers the sampling noise of the evaluations only; noise_high_pp is the
    upper.
    """
    noise_high_pp: Number = None
    token_ratios: list[float] = []
    """The arm's generated tokens divided by the baseline's, for each pair. If a checkpoint is evaluated, tokens per
    answer.
    """
    token_ratio: Number = None
    equal_tokens: bool | None = None
    tokens_known: bool = True
    unit: Literal["problem", "seed"] = "seed"
    """The unit of replication."""
    answer_tokens: tuple[float, float] | None = None
    """The mean tokens per answer of the arm and of the baseline."""
    bests: BestDifference | None = None
    """Set if each arm was tuned before the comparison."""
    warnings: list[str] = []

    @property
    def is_over_problems(self) -> bool:
        """True if the arms evaluate one checkpoint, so that problems are the unit of replication."""
        return self.unit == "problem"


class ContrastRow(Compared):
    """The comparison of an arm with the baseline."""

    new_problems: NewProblems | None = None
    variance: Variance | None = None
    look: Looking | None = None
    next_step: NextStep | None = None
    problems: MatchedProblems | None = None
    paired: bool = True
    """False only in `bench compare`, if the runs do not pair. `why_unpaired` then says why."""
    why_unpaired: str | None = None
    is_interaction: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The contrast in words: `no_std against group_std`."""
        return f"{self.arm} against {self.baseline}"


class Within(Node):
    """A main effect at one value of another knob."""

    knob: str
    value: object
    difference_pp: float
    low_pp: Number
    high_pp: Number


class OfKnobs(Node):
    """The knobs of an effect, with its own values and the baseline's."""

    kind: Literal["main", "interaction"]
    knobs: list[str]
    values: list[object]
    reference: list[object]

    @property
    def settings(self) -> list[str]:
        """Each knob by its last segment, with the effect's value: `clip_high 0.28`."""
        return [f"{last_part(knob)} {value}" for knob, value in zip(self.knobs, self.values, strict=True)]


class EffectRow(Compared, OfKnobs):
    """A main effect or an interaction of a factorial."""

    look: Looking | None = None
    next_step: NextStep | None = None
    within: list[Within] = []
    """The size of a main effect at each value of each other knob."""
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
        """The effect in words: `clip_high 0.28 against 0.2`, `clip_high 0.28 × beta 0.1`."""
        return f"{self.settings[0]} against {self.reference[0]}" if self.kind == "main" else " × ".join(self.settings)


VerdictRow: TypeAlias = ContrastRow | EffectRow
"""A row that may belong to a sweep's question."""


def last_part(knob: str) -> str:
    """Return the last segment of a knob: `objective.rule.clip_high` -> `clip_high`."""
    return knob.rpartition(".")[2]


class ScreeningRow(Node):
    """The result of a screening and, once it has run, of its confirmation."""

    best: list[str]
    """The arms with the highest means, best first, excluding the baseline."""
    seeds: int
    confirmed_in: str | None
    contrasts: list[ContrastRow]
    """The comparisons of the best arms with the baseline, with fresh seeds; [] before they have run."""
    baseline: str
    metric: str = ""
    n_arms: int = 0
    n_seeds: int = 0
    command: str

    @property
    def metric_name(self) -> str:
        return self.metric.rpartition(".")[2]


class Cost(Node):
    """The cost of an arm: medians over the steps of a cell, averaged over cells; None if nothing was recorded."""

    step_s: Number = None
    """Seconds of a complete step."""
    rollout_s: Number = None
    """Seconds of a step's rollout, which include sync_s, prefill_s and decode_s."""
    sync_s: Number = None
    prefill_s: Number = None
    decode_s: Number = None
    reward_s: Number = None
    logprob_s: Number = None
    update_s: Number = None
    """Seconds of a step's update, which include backward_s."""
    backward_s: Number = None
    tokens_per_s: Number = None
    """Generated tokens per second of the complete step."""
    occupancy_frac: Number = None
    """The share of decoding slots that held a completion."""
    padding_frac: Number = None
    """The share of padding in the tokens of training passes."""
    evaluation_s: Number = None
    """The seconds of all evaluations of a cell."""
    peak_memory_mb: Number = None
    """The highest of a cell; on a CPU, of the cell's process."""
    micro_batch_tokens: Number = None
    """The smallest budget of a cell, in tokens per pass."""


class JudgeVerdicts(Node):
    """A pairwise judge's verdicts in some steps: means over steps, then over cells; None if nothing was recorded.

    The fractions of pairs are the fields `judge/*` of steps.jsonl.
    """

    flip_frac: Number
    first_frac: Number
    tie_frac: Number
    no_scores_frac: Number
    right_frac: Number
    correct: Number
    """The fraction of correct completions."""


class JudgeAndTruth(Node):
    """A pairwise judge's verdicts in the first and in the last tenth of training."""

    start: JudgeVerdicts
    end: JudgeVerdicts


class JudgeReplies(Node):
    """The replies of the judge that graded an arm's rollouts, and their cost: means over the arm's cells.

    The fractions and kappa are means over steps (see `evals.grading.asked_model.reply_metrics`).
    """

    questions: Number
    """The total of a cell. For replies from the cache, it and the two token counts are those of the original requests.
    """
    prompt_tokens: Number
    completion_tokens: Number
    undecided_frac: Number
    correct: Number
    """The share of completions that the judge finds correct, among those with a verdict."""
    rule_correct: Number
    agreement_frac: Number
    kappa: Number


class ProxyAndTruth(Node):
    """The last stretch of an arm's mean path compared with its peak, the stretch with the most correct completions.

    `correct_since_peak_pp` is never above 0, and noise alone makes it negative: the largest of several noisy means lies
    above the true peak. `n_overoptimised` of `n` seeds shows whether a fall is more than noise. It counts the seeds in
    which accuracy fell from the peak to the end while the proxy rose.
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
    """One arm: means over its finished seeds; None if nothing was recorded."""

    arm: str
    metric: str = ""
    task: str = ""
    n: int = 0
    level: Number = None
    checkpoint: str | None = None
    before_pp: Number = None
    """The score of the model before training. before_ece is its calibration error."""
    before_ece: Number = None
    budget_tokens: int | None = None
    seeds: list[int] = []
    scores_pp: list[float] = []
    mean_pp: Number = None
    low_pp: Number = None
    """The lower end, like high_pp the upper, of the t(n-1) interval of the mean score over training seeds. If a
    checkpoint is evaluated, the interval is over problems, each a cluster of its samples and seeds.
    """
    high_pp: Number = None
    mean_tokens: Number = None
    truncated_frac: Number = None
    faulty_steps_frac: Number = None
    ece: Number = None
    """The expected calibration error of the final evaluation."""
    grad_norm: Number = None
    grad_clipped_frac: Number = None
    entropy_nats: Number = None
    """The mean entropy of a token over training."""
    length_slope_tokens: Number = None
    """The growth of the mean completion, in tokens per 100 steps."""
    generated_tokens: Number = None
    overshoot_frac: Number = None
    """The tokens generated beyond the budget, as a fraction of the budget."""
    grader_disagreement_frac: Number = None
    phase_s: dict[str, Number] = {}
    """Wall-clock seconds of a cell in each phase."""
    cost: Cost = Cost()
    judge: JudgeAndTruth | None = None
    judge_replies: JudgeReplies | None = None
    proxy_and_truth: ProxyAndTruth | None = None
    rank: int | None = None
    """1 for the highest mean score; equal scores share a rank. None if the arm has no score."""

    @property
    def metric_name(self) -> str:
        return self.metric.rpartition(".")[2]

    @property
    def total_s(self) -> float | None:
        """The wall-clock seconds of a cell's training."""
        return self.phase_s.get("total_s")


class CellRow(Node):
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
    """The number of steps that were planned."""
    total_s: Number = None
    """The seconds of its training steps."""


class AcrossTasksRow(Node):
    """One arm over all tasks."""

    arm: str
    seeds: list[int]
    level: float
    iqm_pp: Number
    iqm_low_pp: Number
    iqm_high_pp: Number
    improvement: Number
    """The probability that a run of the arm beats a run of the baseline."""
    improvement_low: Number
    improvement_high: Number


class ModeScore(Node):
    """One arm on one task in one mode, over its finished seeds."""

    arm: str
    task: str
    """The task's name without the mode."""
    asked: str
    """The task's name with the mode, as evaluated."""
    mode: str
    """think or direct."""
    budget_tokens: int | None
    """The number of tokens after which thinking is stopped; None if it is not limited."""
    n: int
    mean_pp: float
    level: float
    low_pp: Number
    """The lower end, like high_pp the upper, of the t interval over seeds; None for fewer than three seeds."""
    high_pp: Number
    tokens: Number
    """The mean tokens of a completion, not counting the text that stops its thinking."""


class CoverageRow(Node):
    """The difference in pass@k at every k, with a simultaneous band."""

    arm: str
    against: str | None
    """The baseline; None for the model before training."""
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
    """The k at which a positive difference first turns negative; None if it does not."""
    crossover_low: Number
    crossover_high: Number


class ProblemRange(Node):
    """The range between arms on a problem, and the mean range at its rank if arms are swapped within seeds."""

    problem_id: str
    range_pp: float
    permuted_pp: float


class ProblemRanges(Node):
    """The problems on which arms differ most."""

    task: str
    n_problems: int
    p: float
    """The share of random swaps of arms whose widest range is at least as wide."""
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
    """A look at the question, with the verdicts that it showed for each arm."""

    seeds: int
    evaluation: dict[str, object] | None
    planned: bool
    verdicts: dict[str, str]


class TuningRow(Node):
    """The result of one arm's search, see `harness.records.sweep.TunedArm`."""

    arm: str
    digest: str
    trial: int
    values: dict[str, object]
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
    """The arm's score with fresh seeds, in percent."""
    verdict_tokens: int
    """The tokens that the arm generated in training in the comparison, over all seeds."""


class RegistrationRow(Node):
    """The check that the question predates its first cell, see `harness.records.registration.RegistrationCheck`."""

    digest: str | None
    time: str | None
    altered: bool
    changes: list[str]
    cells_before: list[str]
    cells_without: list[str]
    holds: bool
    sentence: str


class Report(Node):
    """The contents of report.json. Every section holds a list, which may be empty."""

    headline: list[Sentence] = []
    """The answer in one sentence."""
    interactions: list[EffectRow] = []
    """The effects of a factorial; [] in other sweeps."""
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
    """At most one row."""
    left_out: list[Sentence] = []
    """Plug-ins that could not be loaded or may not run here."""

    @property
    def declared(self) -> list[VerdictRow]:
        """The rows that answer the sweep's question.

        In a screening, these are the comparisons of its best arms, once they have run. In a factorial, they are its
        effects. Otherwise they are the arms.
        """
        if self.screening:
            return [*self.screening[0].contrasts]
        return [*(self.interactions or self.contrasts)]

    @property
    def judged(self) -> list[VerdictRow]:
        """All rows with a verdict: the declared rows and, in a factorial, the comparisons of arms as well."""
        return [*self.declared, *(self.contrasts if self.interactions and not self.screening else [])]


def read_report(path: Path) -> Report:
    """Read a written report.json. Raises DamagedRecordError, naming the first fault."""
    try:
        return Report.model_validate(read_object(path))
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise DamagedRecordError("reports.report_damaged", path=path, place=place, fault=fault["msg"]) from None


SECTIONS = tuple(name for name in Report.model_fields if name != "left_out")
"""The keys of report.json. All are present in every report."""
