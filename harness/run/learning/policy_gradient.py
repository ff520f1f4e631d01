"""Learning from rewards: the policy-gradient objectives."""

from __future__ import annotations

from harness.models.language_model import LanguageModel
from harness.models.token_characters import TokenCharacters
from harness.rollouts.engine import Engine
from harness.run.experience import Experience
from harness.run.learning.base import Examples, Row
from harness.run.learning.rollouts import RolloutLearner
from harness.spec.run_spec import RunSpec
from harness.training.policy_update import PolicyUpdate
from harness.training.update_report import UpdateReport


class PolicyGradientLearner(RolloutLearner):
    """Every completion that the knobs `overlong` and `zero_std` leave is learned from, by its advantage."""

    def __init__(self, spec: RunSpec, start: LanguageModel, examples: Examples, engine: Engine) -> None:
        super().__init__(spec, start, examples, engine)
        self._update: PolicyUpdate = PolicyUpdate(start.model, spec, start.pad_token_id, self._initial)
        self._characters = TokenCharacters(start.decode)

    def _learn(self, experience: Experience, step: int) -> tuple[UpdateReport, Row, list[Row]]:
        filtered = experience.filtered(self._spec.policy_gradient)
        chosen = {
            "rows_dropped": filtered.rows_dropped,
            "groups_dropped": filtered.groups_dropped,
            "refill_rounds": experience.refill_rounds,
        }
        update = self._update.run(filtered.rollout, step)
        columns: list[Row] = [{} for _ in experience.tried]
        if update.tokens is not None:
            sequences = filtered.rollout.sequences
            drawn = zip(sequences.completions.tolist(), sequences.lengths.tolist(), strict=True)
            for row, kept, (tokens, length) in zip(filtered.kept.tolist(), update.tokens, drawn, strict=True):
                chars = self._characters.of(tokens[:length], experience.tried[row].text)
                columns[row] = {"token/chars": chars, **kept}
        return update, chosen, columns
