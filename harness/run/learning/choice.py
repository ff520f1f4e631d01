"""Which way of learning a spec asks for."""

from __future__ import annotations

from harness.models.language_model import LanguageModel
from harness.rollouts.engine import Engine
from harness.run.learning.base import Examples, Learner
from harness.run.learning.dataset_pairs import DatasetPairsLearner
from harness.run.learning.policy_gradient import PolicyGradientLearner
from harness.run.learning.policy_pairs import PolicyPairsLearner
from harness.spec.run_spec import RunSpec
from harness.spec.sections.pairs import DatasetPairs, PolicyPairs


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
