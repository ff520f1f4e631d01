"""What a cell needs of any way of learning."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from evals.grading import JudgeReply
from evals.tasks.base import Problem
from harness.training.states import CellProgress, TrainerState

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from harness.models.language_model import LanguageModel
    from harness.rewards import Attempt
    from harness.run.encoded_pairs import EncodedPairs
    from harness.training.batch import Batch
    from harness.training.update_report import Metrics, StepReport


class CompletionScorer(ABC):
    """A model beside the policy that scores completions for reward parts; see `harness.config.scored`."""

    account: Mapping[str, object] = MappingProxyType({})
    """Its entry in the cell's provenance."""

    @abstractmethod
    def scores(self, batch: Batch, seed: int, step: int) -> Sequence[object]:
        """Return the score of each row of a graded batch, in its order.

        A row's score must not depend on the other batches, so that a resumed cell gets the same rewards.
        """

    def replies(self, attempts: Sequence[Attempt]) -> list[JudgeReply]:
        """Return the replies behind the attempts' scores, whose cost is counted."""
        return []

    def metrics(self, attempts: Sequence[Attempt]) -> Metrics:
        """Return what steps.jsonl says of the scores."""
        return {}


@dataclass(frozen=True)
class Examples:
    """What a cell learns from, besides its own completions."""

    problems: Sequence[Problem] = ()
    """The training pool; empty if a set of pairs replaces it."""
    pairs: EncodedPairs | None = None
    """With pairs.type `dataset`."""
    generator: LanguageModel | None = None
    """The frozen model that `reward.vr_cli.generator` names; None if it is the starting model, or not needed."""
    scorers: Mapping[str, CompletionScorer] = field(default_factory=dict)
    """The models that score completions, by the name of their reward part."""
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

    def progress(self) -> CellProgress:
        """Return values that JSON can hold."""

    def restore(self, trainer_state: TrainerState, progress: CellProgress) -> None:
        """Continue from this state."""
