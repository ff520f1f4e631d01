"""How a cell is trained: a learner for each source of examples, and `Trained`, the state in every process of a cell."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from harness.config.rollout import DatasetPairs, PolicyPairs
from harness.config.run_spec import RunSpec
from harness.engines.base import Engine, make_engine
from harness.models.language_model import LanguageModel
from harness.processes import Processes, by_all
from harness.run.learning.base import Examples, Learner
from harness.run.learning.pairs import DatasetPairsLearner, PolicyPairsLearner
from harness.run.learning.rollouts import PolicyGradientLearner
from harness.sampling.sampler import EngineSampler
from harness.training.checkpoint import Checkpoint, load_checkpoint, load_trained_weights, trained_weights
from harness.training.split import gather_into, scatter_into, whole
from harness.training.states import TrainerState
from harness.training.tensors import with_tensors


class Trained:
    """The policy of a cell, its learner and its sampler, in every process of the cell.

    If the weights are split among processes, a split copy is trained. After each step its weights are copied into the
    complete model, which samples.
    """

    def __init__(
        self,
        spec: RunSpec,
        begin: Callable[[], LanguageModel],
        examples: Examples,
        checkpoints: Path | None = None,
    ) -> None:
        """Load the policy and create its learner and sampler.

        begin: as in `harness.run.cell.CellRun`.
        checkpoints: the folder of the cell's checkpoints; None in every process but the first.
        """
        self._begin = begin
        self.start = start = begin()
        """The language model whose `model` has the complete weights of the policy."""
        engine = make_engine(spec.rollout, start)
        self.sampler = EngineSampler(start, engine, spec.seed)
        self._policy = self._model = start.model
        self.is_split = spec.train.sharding == "fully" and Processes.here().size > 1
        if self.is_split:
            # Splitting changes a model's parameters, but the sampler needs complete ones.
            self._model = copy.deepcopy(start.model)
        self.learner = make_learner(spec, replace(start, model=self._model), examples, engine, checkpoints)
        self._read: Checkpoint | None = None
        Processes.here().share(self)

    @by_all
    def state(self) -> tuple[dict[str, Tensor], TrainerState]:
        """Return the trained weights and the trainer's state for a checkpoint. They are complete only in rank 0.

        Except for rounding, they do not depend on the number of processes.
        """
        trainer: TrainerState = with_tensors(self.learner.trainer_state(), whole)
        return trained_weights(self._policy), trainer

    def restore(self, checkpoint: Checkpoint, path: Path) -> None:
        """Resume from a checkpoint, stored at `path`.

        Raises RuntimeError if the checkpoint belongs to another model.
        """
        # Rank 0 has the checkpoint in memory. The others read the file, because arguments of `by_all` would be pickled.
        self._read = checkpoint
        self._restore(path)

    @by_all
    def _restore(self, path: Path) -> None:
        checkpoint = self._read or load_checkpoint(path)
        self._read = None
        if checkpoint.is_start:
            # The learner has not begun, or it has ended after divergence. Its state is not needed in either case.
            self._begin()
        else:
            load_trained_weights(self._policy, checkpoint.weights)
        if self.is_split:
            scatter_into(self._model, self._policy)
        if not checkpoint.is_start:
            self.learner.restore(checkpoint.trainer, checkpoint.progress)

    @by_all
    def take_over(self) -> None:
        """Copy the split weights, after a step, into the model that samples."""
        gather_into(self._policy, self._model)


def make_learner(
    spec: RunSpec, start: LanguageModel, examples: Examples, engine: Engine, checkpoints: Path | None = None
) -> Learner:
    """Return a new learner for a cell.

    start: the language model with the starting weights; it is trained in place.
    engine: samples from that model.
    checkpoints: as in `Trained`.
    Raises ValueError if the spec needs a data set of pairs and `examples` has none.
    """
    match spec.pairs:
        case PolicyPairs():
            return PolicyPairsLearner(spec, start, examples, engine, checkpoints)
        case DatasetPairs() as pairs:
            if examples.pairs is None:
                raise ValueError("pairs.type=dataset, but the examples hold no pairs")
            return DatasetPairsLearner(spec, start, examples.pairs, pairs)
        case _:
            return PolicyGradientLearner(spec, start, examples, engine, checkpoints)
