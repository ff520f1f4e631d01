"""How a cell learns: what one training step does with the policy, by where its examples come from."""

from __future__ import annotations

from harness.config.rollout import DatasetPairs, PolicyPairs
from harness.config.run_spec import RunSpec
from harness.engines.base import Engine
from harness.models.language_model import LanguageModel
from harness.run.learning.base import Examples, Learner
from harness.run.learning.pairs import DatasetPairsLearner, PolicyPairsLearner
from harness.run.learning.rewards import PolicyGradientLearner


def make_learner(spec: RunSpec, start: LanguageModel, examples: Examples, engine: Engine) -> Learner:
    """The learner of a cell. The language model must hold the starting weights; it is trained in place. The engine
    draws from it.

    Raises ValueError if pairs are to be learned from and the examples have none.
    """
    match spec.pairs:
        case PolicyPairs() as pairs:
            return PolicyPairsLearner(spec, start, examples, engine, pairs)
        case DatasetPairs() as pairs:
            if examples.pairs is None:
                raise ValueError("pairs.type=dataset, but the examples hold no pairs")
            return DatasetPairsLearner(spec, start, examples.pairs, pairs)
        case _:
            return PolicyGradientLearner(spec, start, examples, engine)
