"""Learning from pairs of the policy's own completions: online, offline or iterative, as `rollout.sampler` says."""

from __future__ import annotations

from transformers import PreTrainedModel

from harness.models.language_model import LanguageModel
from harness.rollouts.engine import Engine
from harness.run.experience import Experience, scored
from harness.run.learning.base import Examples, Row
from harness.run.learning.pairing import pair_up
from harness.run.learning.rollouts import RolloutLearner, there
from harness.spec.run_spec import RunSpec
from harness.spec.sections.pairs import PolicyPairs
from harness.training.pair_batch import PairBatch
from harness.training.preference_update import PreferenceUpdate
from harness.training.update_report import UpdateReport


class PolicyPairsLearner(RolloutLearner):
    """Completions of a prompt become pairs by their reward; a preference objective learns from these."""

    def __init__(
        self, spec: RunSpec, start: LanguageModel, examples: Examples, engine: Engine, pairs: PolicyPairs
    ) -> None:
        super().__init__(spec, start, examples, engine)
        self._pairs = pairs
        self._update: PreferenceUpdate = PreferenceUpdate(
            start.model, spec, start.pad_token_id, self._initial, self._reference()
        )

    def _learn(self, experience: Experience, step: int) -> tuple[UpdateReport, Row, list[Row]]:
        rollout = scored(experience.batch, experience.rewards, experience.tried)
        paired = pair_up(rollout, self._pairs, self._spec.seed, step)
        sequences = rollout.sequences
        batch = PairBatch(
            chosen=sequences.rows(paired.chosen),
            rejected=sequences.rows(paired.rejected),
            groups=rollout.groups[paired.chosen],
        )
        update = self._update.run(batch, step, drawn=sequences)
        rows = range(len(experience.tried))
        chosen, rejected = paired.chosen.tolist(), paired.rejected.tolist()
        columns = [{"times_chosen": chosen.count(row), "times_rejected": rejected.count(row)} for row in rows]
        return update, paired.metrics, columns

    def _needs_initial(self) -> bool:
        return super()._needs_initial() or self._spec.preference.reference == "initial"

    def _reference(self) -> PreTrainedModel | None:
        match self._spec.preference.reference:
            case "none":
                return None
            case "initial":
                return there(self._initial)
            case "round_start":
                return there(self._round and self._round.policy)
