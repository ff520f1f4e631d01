"""The interface between a cell and its learner."""

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
    """A model other than the policy that scores completions for reward parts; see `harness.config.scored`."""

    account: Mapping[str, object] = MappingProxyType({})
    """The scorer's entry in the cell's provenance."""

    @abstractmethod
    def scores(self, batch: Batch, seed: int, step: int) -> Sequence[object]:
        """Return the score of each row of a graded batch, in order.

        A row's score must not depend on other batches, so that a resumed cell gets the same rewards.
        """

    def replies(self, attempts: Sequence[Attempt]) -> list[JudgeReply]:
        """Return the replies that the attempts' scores were computed from, whose cost is counted."""
        return []

    def metrics(self, attempts: Sequence[Attempt]) -> Metrics:
        """Return the metrics about the scores for steps.jsonl."""
        return {}


@dataclass(frozen=True)
class Examples:
    """The training data of a cell beyond the policy's own completions."""

    problems: Sequence[Problem] = ()
    """The training problems; empty if a set of pairs replaces them."""
    pairs: EncodedPairs | None = None
    """The set of pairs, if pairs.type is `dataset`."""
    generator: LanguageModel | None = None
    """The frozen model named by `reward.vr_cli.generator`. None if it is the starting model or not needed."""
    scorers: Mapping[str, CompletionScorer] = field(default_factory=dict)
    """The models that score completions, by the name of their reward part."""
    teacher: PreTrainedModel | None = None
    """The frozen teacher. None if there is none or if the starting weights teach."""
    account: dict[str, object] = field(default_factory=dict)
    """The reports of the stages that prepared the examples, for the cell's provenance."""


def nothing() -> None:
    pass


class Learner(Protocol):
    """Trains the policy in place, one step at a time.

    A checkpoint consists of the policy's weights, `trainer_state` and `progress`.
    """

    def step(self, step: int, done_frac: float, before_update: Callable[[], object] = nothing) -> StepReport:
        """Do step number `step` (from 1), when the fraction `done_frac` of the run is done. Raises DivergedError.

        before_update: called once all completions are sampled and rewarded. Before that call, the state is still that
        of the previous step.
        """

    def trainer_state(self) -> TrainerState:
        """Return the state that consists of tensors and plain values."""

    def progress(self) -> CellProgress:
        """Return the state that JSON can represent."""

    def restore(self, trainer_state: TrainerState, progress: CellProgress) -> None:
        """Continue from this state."""
