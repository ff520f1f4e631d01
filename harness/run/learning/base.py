"""What a cell needs of any way of learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from evals.tasks.base import Problem
from harness.rewards.judging import Judge
from harness.training.states import Progress, TrainerState

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from harness.models.language_model import LanguageModel
    from harness.run.encoded_pairs import EncodedPairs
    from harness.training.sequences import Sequences
    from harness.training.update_report import StepReport


class RewardScorer(Protocol):
    """A reward model."""

    def scores(self, sequences: Sequences) -> Tensor:
        """Return the score of every row [N], float32 on the CPU; equal completions of one prompt tie exactly."""


@dataclass(frozen=True)
class Examples:
    """What a cell learns from, besides its own completions."""

    problems: Sequence[Problem] = ()
    """The training pool; empty if a set of pairs replaces it."""
    pairs: EncodedPairs | None = None
    """With pairs.type `dataset`."""
    reward_model: RewardScorer | None = None
    """With the reward part `reward_model`."""
    generator: LanguageModel | None = None
    """The frozen model that `reward.vr_cli.generator` names; None if it is the starting model, or not needed."""
    judge: Judge | None = None
    """The pairwise judge; None without the reward part `pairwise`."""
    teacher: PreTrainedModel | None = None
    """The frozen teacher; None without one, and if the starting weights teach."""
    account: dict[str, object] = field(default_factory=dict)
    """The report of each stage that prepared them, by stage: kept with the cell's other provenance."""


def nothing() -> None:
    pass


class Learner(Protocol):
    """Trains the policy in place, a step at a time.

    `trainer_state` and `progress` are all that a checkpoint needs besides the policy's weights.
    """

    def step(self, step: int, done_frac: float, before_update: Callable[[], object] = nothing) -> StepReport:
        """Do step number `step` (from 1) when `done_frac` of the run is done. Raises DivergedError.

        before_update: called when everything is sampled and rewarded. Until then a checkpoint would be that of the step
        before.
        """

    def trainer_state(self) -> TrainerState:
        """Return tensors and plain values."""

    def progress(self) -> Progress:
        """Return values that JSON can hold."""

    def restore(self, trainer_state: TrainerState, progress: Progress) -> None:
        """Continue from this state."""
