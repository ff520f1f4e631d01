"""Made-up attempts and contexts, with defaults for all that a test does not care about."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from algorithms import Objective, preset
from evals.graders import grade
from evals.grading import Reason, Verdict
from evals.tasks import get_task
from evals.tasks.base import Problem
from harness.config.reward import reward_section
from harness.rewards import Attempt, RewardContext, RewardPart, TotalReward

PROBLEM = Problem(id="1", problem="What is 6 times 7?", answer="42")
SUM = Problem(id="3+5+9", problem="3+5+9=", answer="17", difficulty=3)
LIMIT_TOKENS = 100


def attempt(
    text: str = "",
    *,
    problem: Problem = PROBLEM,
    sample: int = 0,
    n_tokens: int = 5,
    truncated: bool = False,
    verdict: Verdict | None = None,
    mean_logp: float = -1.0,
    answer_logp: float = math.nan,
    perplexity_improvement: float = math.nan,
    scores: Mapping[str, object] | None = None,
) -> Attempt:
    """A completion, graded as a number unless a verdict is given."""
    verdict = verdict or grade(text, problem.answer, "numeric")
    models = (mean_logp, answer_logp, perplexity_improvement)
    return Attempt(problem, sample, text, n_tokens, truncated, verdict, *models, scores=scores or {})


def worked(text: str, sample: int = 0) -> Attempt:
    """An attempt at the arithmetic task."""
    verdict = grade(text, SUM.answer, "numeric", "hash")
    return attempt(text, problem=SUM, sample=sample, n_tokens=len(text) + 1, verdict=verdict)


def judged_as(correct: bool, n_tokens: int = 5, sample: int = 0) -> Attempt:
    reason: Reason = "match" if correct else "mismatch"
    return attempt(n_tokens=n_tokens, sample=sample, verdict=Verdict(correct, "42" if correct else "0", reason))


def ungraded(n_tokens: int = 5, reason: Reason = "timeout") -> Attempt:
    return attempt(n_tokens=n_tokens, verdict=Verdict(False, "42", reason))


def context(
    parts: dict[str, float] | None = None,
    *,
    step: int = 1,
    seed: int = 0,
    objective: dict[str, Any] | None = None,
    task: str = "arithmetic",
    **options: Any,
) -> RewardContext:
    """The options of a part are given by its name: `kimi_length={"from_step": 3}`."""
    spec = reward_section()(parts=parts or {"correct": 1.0}, grader="numeric", **options)
    learned = preset("grpo", Objective, **(objective or {}))
    return RewardContext(step, seed, LIMIT_TOKENS, spec, learned.overlong, learned.credit, get_task(task))


def part_rewards(part: type[RewardPart], group: Sequence[Attempt], given: RewardContext) -> list[float]:
    """What a part gives with the options of the context."""
    return given.options.of(part).rewards(group, given)


def rewarded(groups: Sequence[Sequence[Attempt]], given: RewardContext) -> tuple[list[float], dict[str, list[float]]]:
    """The sum of the parts and each of them."""
    return TotalReward(given).of_groups(groups, given)


def same(one: Sequence[float], other: Sequence[float]) -> bool:
    """Equal number by number, NaN to NaN."""
    return len(one) == len(other) and all(
        a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(one, other, strict=True)
    )


_VERDICTS = st.sampled_from(
    [
        Verdict(True, "42", "match"),
        Verdict(False, "41", "mismatch"),
        Verdict(False, "42.0", "mismatch"),
        Verdict(False, "many", "unparsed"),
        Verdict(False, None, "unparsed"),
        Verdict(False, "x", "timeout"),
    ]
)
_TEXTS = st.sampled_from(
    ["", "8,17#17", "8,18#18", "#17", "a word", "два слова and two", "<think>a</think><answer>b</answer>"]
)


@st.composite
def groups(draw: st.DrawFn) -> list[Attempt]:
    """One to six attempts at one sum."""
    return [
        attempt(
            draw(_TEXTS),
            problem=SUM,
            sample=sample,
            n_tokens=draw(st.integers(1, LIMIT_TOKENS)),
            truncated=draw(st.booleans()),
            verdict=draw(_VERDICTS),
            mean_logp=draw(st.floats(-5, 0)),
            scores={"reward_model": draw(st.floats(-3, 3))},
            answer_logp=draw(st.floats(-20, 0)),
            perplexity_improvement=draw(st.floats(-9, 1)),
        )
        for sample in range(draw(st.integers(1, 6)))
    ]
