"""Learning from a fixed set of pairs: nothing is generated."""

from __future__ import annotations

from typing import Any

from harness.models.language_model import LanguageModel
from harness.run.encoded_pairs import EncodedPairs
from harness.run.learning.base import StepOutcome, update_timing
from harness.spec.run_spec import RunSpec
from harness.spec.sections.pairs import DatasetPairs
from harness.training.preference_update import PreferenceUpdate
from harness.training.reference import frozen_copy


class DatasetPairsLearner:
    """Every pair once an epoch, in an order fixed by the seed. Their reference log-probs come with them."""

    def __init__(self, spec: RunSpec, start: LanguageModel, encoded: EncodedPairs, pairs: DatasetPairs) -> None:
        self._spec, self._encoded, self._pairs = spec, encoded, pairs
        # Log-probs of the pairs are there; kto also wants those of completions that belong to other prompts.
        needed = spec.train.reference_rows > 0 or spec.preference.link == "kto"
        initial = frozen_copy(start.model) if needed else None
        self._update = PreferenceUpdate(start.model, spec, start.pad_token_id, initial, reference=initial)

    def step(self, step: int, done_frac: float) -> StepOutcome:
        chosen = self._encoded.of_step(step, self._pairs.pairs_per_step, self._spec.seed)
        batch = self._encoded.batch(chosen)
        update = self._update.run(batch, step)
        epochs = step * self._pairs.pairs_per_step / len(self._encoded)
        return StepOutcome(
            metrics={"pairs/count": len(batch), "pairs/epochs": epochs, **update.metrics},
            generated_tokens=0,
            reward=update.metrics["rewards/accuracy"],
            timing=update_timing(update),
            notes=update.notes,
        )

    def trainer_state(self) -> dict[str, Any]:
        return self._update.state_dict()

    def progress(self) -> dict[str, Any]:
        return {}

    def restore(self, trainer_state: dict[str, Any], progress: dict[str, Any]) -> None:
        self._update.load_state_dict(trainer_state)
