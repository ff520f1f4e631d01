"""Health flags: names for training outcomes that a reader should know about.

A flagged cell is still scored and kept. The comparison is shown both with and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# A policy with less than a tenth of its initial entropy no longer explores. On easy data this can be a fair outcome.
ENTROPY_COLLAPSE_FRAC = 0.1
LENGTH_BLOWUP_FACTOR = 3.0
TRUNCATED_FRAC = 0.5
# Single steps are noisy, so the first five and the last five steps are averaged.
_WINDOW_STEPS = 5
# One broken step can be bad luck, but not a third of the steps.
BROKEN_STEPS_FRAC = 1 / 3
# A policy whose first completions were correct in at least a tenth of cases does not lose that by bad luck.
SCORE_BEFORE_COLLAPSE = 0.1
SCORE_COLLAPSE_FRAC = 0.1
# Training that works moves a policy by a fraction of a nat per token.
POLICY_COLLAPSE_NATS = 3.0

DIVERGED = "nan"
SCORE_COLLAPSE = "score_collapse"
Step = Mapping[str, float | None]
Steps = Sequence[Step]


@dataclass(frozen=True)
class Flag:
    name: str
    meaning: str
    """A sentence for readers of the report."""
    holds: Callable[[Steps], bool]
    """Returns whether rows of steps.jsonl, in order, deserve the flag."""


def health_flags(steps: Steps, diverged: bool, final_score: float | None = None) -> list[str]:
    """Return the names of the `FLAGS` that rows of steps.jsonl deserve, including `nan` if the cell diverged.

    final_score: the fraction of correct samples in the final evaluation on the training task, or None if that task is
    not evaluated. It shows damage by the last update, which no later step shows.
    """
    deserved = {flag.name for flag in FLAGS if flag.holds(steps)}
    if diverged:
        deserved.add(DIVERGED)
    if _is_lost(_mean(steps[:1], "reward/correct"), final_score):
        deserved.add(SCORE_COLLAPSE)
    return [flag.name for flag in FLAGS if flag.name in deserved]


def _first_and_last(steps: Steps, key: str) -> tuple[float | None, float | None]:
    """Return the means over the first five and the last five steps, or (None, None) for fewer than ten steps."""
    if len(steps) < 2 * _WINDOW_STEPS:
        return None, None
    return _mean(steps[:_WINDOW_STEPS], key), _mean(steps[-_WINDOW_STEPS:], key)


def _changed_by(steps: Steps, key: str) -> float:
    """Return the mean of the last steps divided by that of the first, or 1 if the ratio is undefined."""
    # A first mean of 0 is undefined too, because nothing can be divided by it.
    before, after = _first_and_last(steps, key)
    return after / before if before and after is not None else 1.0


def _last_third(steps: Steps) -> Steps:
    """Return the last third of the steps without the first step, whose completions come from the starting weights."""
    return steps[max(1, len(steps) - max(1, len(steps) // 3)) :]


def _mean(rows: Steps, key: str) -> float | None:
    """Return the mean over the rows that have the value, or None if no row has it.

    A step whose groups were all dropped has no entropy, and a step on a fixed set of pairs has no completions.
    """
    values = [float(value) for row in rows if (value := row.get(key)) is not None]
    return sum(values) / len(values) if values else None


def _often(is_broken: Callable[[Step], bool]) -> Callable[[Steps], bool]:
    """Return a test of whether at least a third of the steps are broken. The first step is not counted."""

    def holds(steps: Steps) -> bool:
        later = steps[1:]
        return bool(later) and sum(map(is_broken, later)) >= BROKEN_STEPS_FRAC * len(later)

    return holds


def _score_collapsed(steps: Steps) -> bool:
    return _is_lost(_mean(steps[:1], "reward/correct"), _mean(_last_third(steps), "reward/correct"))


def _is_lost(before: float | None, after: float | None) -> bool:
    if before is None or after is None or before < SCORE_BEFORE_COLLAPSE:
        return False
    return after < SCORE_COLLAPSE_FRAC * before


def _policy_collapsed(steps: Steps) -> bool:
    return (_mean(_last_third(steps), "kl/exact_start") or 0.0) > POLICY_COLLAPSE_NATS


def _has_no_gradient(step: Step) -> bool:
    return "grad_norm" in step and not step["grad_norm"]


def _has_no_reward(step: Step) -> bool:
    return "reward/mean" in step and step["reward/mean"] is None and (step.get("reward/unscored") or 0) > 0


FLAGS = (
    Flag(
        DIVERGED,
        "A loss, a gradient or a weight was not a finite number; the cell is scored at its last finite checkpoint.",
        # No remaining row shows the divergence, so `health_flags` sets this flag.
        lambda steps: False,
    ),
    Flag(
        "entropy_collapse",
        "The entropy of the last five steps is below a tenth of that of the first five: the policy no longer explores.",
        lambda steps: _changed_by(steps, "entropy/full") < ENTROPY_COLLAPSE_FRAC,
    ),
    Flag(
        "length_blowup",
        "Completions of the last five steps are more than three times as long as those of the first five.",
        lambda steps: _changed_by(steps, "len/mean") > LENGTH_BLOWUP_FACTOR,
    ),
    Flag(
        "truncation",
        "The length limit cut more than half of the completions of the last five steps.",
        lambda steps: (_first_and_last(steps, "len/truncated_frac")[1] or 0.0) > TRUNCATED_FRAC,
    ),
    Flag(
        SCORE_COLLAPSE,
        "In the last third of training, or in the final evaluation on the same task, fewer than a tenth as many "
        "completions are right as in the first step: what the policy could do is lost. A learning rate that is far too "
        "high does this.",
        _score_collapsed,
    ),
    Flag(
        "policy_collapse",
        "In the last third of training the policy is over 3 nats per token away from its starting weights: it writes "
        "something else altogether. The weights are broken even if no score shows it, as on a task it never solved.",
        _policy_collapsed,
    ),
    Flag(
        "no_gradient",
        "The gradient is zero in at least a third of the steps from the second on, so that little was learned. Most "
        "often all completions of every prompt earned the same.",
        _often(_has_no_gradient),
    ),
    Flag(
        "no_reward",
        "In at least a third of the steps from the second on, every completion has a reward of NaN: none was scored.",
        _often(_has_no_reward),
    ),
    Flag(
        "all_truncated",
        "In at least a third of the steps from the second on, the length limit cut every completion. Raise the limit, "
        "or look whether the model can end its turn.",
        _often(lambda step: step.get("len/truncated_frac") == 1),
    ),
    Flag(
        "one_token",
        "In at least a third of the steps from the second on, every completion is a single token: the model ends its "
        "turn at once.",
        _often(lambda step: step.get("len/mean") == 1),
    ),
)
"""Every flag, in the order in which a cell lists them."""
